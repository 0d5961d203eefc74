// What every reader produces: GPU rows, API calls, host ranges and waits of one run, in integer
// nanoseconds of one trace clock. Rows are small (32 and 24 bytes) because a trace has millions.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace assay::timeline {

using Ns = std::int64_t;

// One bit each in a busy mask: 1 << category.
enum class Category : std::uint8_t { kCompute, kComm, kMemcpy, kMemset, kGraph };
inline constexpr int kCategories = 5;
const char* CategoryName(Category category);  // "compute", "comm", "memcpy", "memset", "graph"

inline constexpr std::uint32_t kNoCorrelation = 0xFFFFFFFFu;
inline constexpr Ns kOpenEnd = INT64_MIN;  // end of a range that was never closed

// Deduplicated texts with dense ids. Views stay valid as long as the pool does.
class StringPool {
 public:
  StringPool() = default;
  StringPool(StringPool&&) = default;  // ids_ holds views into texts_: moves keep them, copies not
  StringPool& operator=(StringPool&&) = default;
  std::uint32_t Intern(std::string_view text);
  const std::string& operator[](std::uint32_t id) const { return texts_[id]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(texts_.size()); }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::uint32_t> ids_;
};

// Copies `text` with every byte sequence that is not UTF-8 replaced by U+FFFD.
std::string ValidUtf8(std::string_view text);

struct KernelConfig {
  std::int32_t grid[3] = {0, 0, 0}, block[3] = {0, 0, 0}, cluster[3] = {0, 0, 0};
  std::int32_t registers = 0, static_smem_bytes = 0, dynamic_smem_bytes = 0;
  bool graph_node = false;  // launched as a node of a CUDA graph
  bool operator==(const KernelConfig&) const = default;
};

struct CopyInfo {
  std::int64_t bytes = 0;
  std::int32_t src_device = -1, dst_device = -1;
};

// One kernel, copy, memset or graph launch. `detail` indexes Trace::configs (kernels) or
// Trace::copies (copies and memsets). A row with end <= start has no length but is counted.
struct GpuRow {
  Ns start = 0, end = 0;
  std::uint32_t name = 0;  // Trace::names
  std::uint32_t correlation = kNoCorrelation;
  std::uint32_t detail = 0;
  std::uint32_t stream : 24 = 0;  // Trace::streams
  std::uint32_t category : 8 = 0;
};
static_assert(sizeof(GpuRow) == 32);

struct ApiRow {
  Ns start = 0, end = 0;
  std::uint32_t correlation = kNoCorrelation;
  std::uint16_t name = 0;    // Trace::api_names
  std::uint16_t thread = 0;  // Trace::threads
};
static_assert(sizeof(ApiRow) == 24);

// An NVTX range or mark, a Kineto user annotation or CPU operator.
struct RangeRow {
  Ns start = 0, end = 0;  // end == kOpenEnd: never closed; end == start: mark
  std::uint32_t name = 0, domain = 0;
  std::uint16_t thread = 0;
  bool mark = false;
  bool nested = true;  // push/pop; false for start/end ranges, which need not nest
};

struct OsRow {
  Ns start = 0, end = 0;
  std::uint32_t name = 0;
  std::uint16_t thread = 0;
};

struct Device {
  std::string
      key;  // identity: uuid, else bus location, else "pid:ordinal" (only "ordinal" if alone)
  std::string label;  // for tables
  std::string model, uuid, bus;
  std::int64_t ordinal = 0;
  std::int64_t rank = -1;
};

struct Process {
  std::int64_t pid = 0;
  std::int64_t host = 0;  // upper bits of the global id
  std::uint32_t file = 0;
  std::int64_t rank = -1;
  std::string name;
};

struct Thread {
  std::uint32_t process = 0;
  std::int64_t tid = 0;
  std::string name;
};

struct Stream {
  std::uint32_t device = 0, process = 0;
  std::int64_t id = 0;
};

struct Diagnostic {
  Ns time = 0;
  int severity = 1;  // 1 info, 2 warning, 3 error
  std::string text;
  std::int64_t pid = 0;
};

// End marker of our own recorder: the tail of a process is trusted only with flushed = true.
struct Segment {
  std::int64_t pid = 0;
  Ns last_gpu = 0, last_api = 0;
  bool flushed = false;
  std::int64_t dropped = 0;
};

// One NCCL collective as the framework recorded it.
struct Collective {
  Ns start = 0, end = 0;
  std::uint32_t name = 0;
  std::int64_t elements = 0, group = 0, sequence = -1;
  std::uint32_t process = 0;
};

struct TableState {
  std::string name;
  enum State { kAbsent, kEmpty, kPresent } state = kAbsent;
  std::int64_t rows = 0;
};

struct SourceInfo {
  std::string path, format;  // "nsys-sqlite", "kineto", "rocprofv3-json", "rocprofv3-csv"
  std::string product, schema;
  std::optional<Ns> system_clock;     // CLOCK_MONOTONIC at trace zero
  bool system_clock_assumed = false;  // taken from ANALYSIS_DETAILS.startTime
  std::optional<Ns> utc_epoch;        // wall clock at trace zero
  std::int64_t rank = -1, world_size = -1;
  Ns shift = 0;  // added to this file's times when several files were merged
  std::vector<TableState> tables;
  std::vector<std::string> warnings;
  std::optional<Ns> session_end;  // trace time at which the recording stopped
};

struct Trace {
  std::vector<SourceInfo> sources;
  StringPool names, api_names;
  std::vector<KernelConfig> configs;
  std::vector<CopyInfo> copies;
  std::vector<Device> devices;
  std::vector<Process> processes;
  std::vector<Thread> threads;
  std::vector<Stream> streams;

  std::vector<GpuRow> gpu;  // by start
  std::vector<ApiRow> api;  // in file order
  std::vector<RangeRow> ranges;
  std::vector<OsRow> os;
  std::vector<Diagnostic> diagnostics;
  std::vector<Segment> segments;
  std::vector<Collective> collectives;

  std::string graph_mode;            // "Graph", "Node" or "" (not said)
  std::int64_t graphs_untimed = 0;   // graph rows with start = end = 0
  std::int64_t api_other_class = 0;  // OpenACC and other rows of the API table, skipped
  std::int64_t rejected_events = 0;  // JSON events that could not be parsed
  std::int64_t reversed_rows = 0;    // GPU rows with end < start
  std::int64_t outside_session = 0;  // GPU rows that start before the recording or end after it
  Ns overhead_ns = 0;                // profiler's own recorded overhead
  std::int64_t overhead_rows = 0;
  std::vector<std::string> unknown_categories;

  std::uint32_t DeviceOf(const GpuRow& row) const { return streams[row.stream].device; }
  std::uint32_t ProcessOf(const GpuRow& row) const { return streams[row.stream].process; }
  std::uint32_t ProcessOf(const ApiRow& row) const { return threads[row.thread].process; }
};

// Dense ids for launch shapes, streams, threads and processes while a file is being read.
class TraceBuilder {
 public:
  explicit TraceBuilder(Trace& trace) : trace_(trace) {}
  std::uint32_t ConfigId(const KernelConfig& config);
  std::uint32_t ProcessId(std::int64_t pid, std::int64_t host, std::uint32_t file);
  // At most 65,535 threads; later ones share the last id.
  std::uint16_t ThreadId(std::uint32_t process, std::int64_t tid);
  std::uint32_t StreamId(std::uint32_t device, std::uint32_t process, std::int64_t id);
  // At most 65,535 names; later ones are called "(other)". One trailing `_v<digits>` and then one
  // `_ptsz` or `_ptds` are removed.
  std::uint16_t ApiName(std::string_view raw);

 private:
  Trace& trace_;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> configs_;
  std::unordered_map<std::uint64_t, std::uint32_t> streams_, threads_, processes_;
  static constexpr std::size_t kRecentConfigs = 512;
  std::vector<std::uint32_t> recent_configs_ = std::vector<std::uint32_t>(kRecentConfigs, ~0u);
  struct LastStream {
    std::uint32_t device = ~0u, process = ~0u;
    std::int64_t id = 0;
    std::uint32_t result = 0;
  };
  LastStream last_streams_[16];
  struct LastThread {
    std::uint32_t process = ~0u;
    std::int64_t tid = 0;
    std::uint16_t result = 0;
  };
  LastThread last_threads_[16];
};

// The category of a kernel by its name: comm if it contains a communication library's mark
// (nccl, rccl; more by AddCommRule), ignoring case.
class CommRules {
 public:
  void Add(std::string lowercase_part) { parts_.push_back(std::move(lowercase_part)); }
  bool Matches(std::string_view name) const;

 private:
  std::vector<std::string> parts_ = {"nccl", "rccl"};
};

// `cudaMemcpyAsync_v3020` -> `cudaMemcpyAsync`, `cuMemcpy_v2_ptds` stays itself minus `_ptds`.
std::string_view NormalApiName(std::string_view raw);

void SortByStart(std::vector<GpuRow>& rows);  // stable

// Sorts GPU rows by start, drops nothing. Called once by every reader.
void FinishTrace(Trace& trace);

// Adds `other` to `into` with all times shifted by `shift`.
void Append(Trace& into, Trace&& other, Ns shift);

}  // namespace assay::timeline
