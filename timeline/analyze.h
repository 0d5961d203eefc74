// What happened in one scope: per device one sweep with category bits, kernel groups, copies,
// waits, launches and gaps. All sums are integer ns.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "timeline/trace.h"
#include "timeline/windows.h"

namespace assay::timeline {

inline constexpr int kMasks = 1 << kCategories;
constexpr unsigned Bit(Category category) { return 1u << static_cast<unsigned>(category); }

// Time per busy mask: bucket m is the time during which exactly the categories in m were active.
struct Buckets {
  std::array<Ns, kMasks> ns{};

  Ns Any(unsigned categories) const;      // at least one of them active (a union)
  Ns Both(unsigned a, unsigned b) const;  // one of a and one of b active at once
  Ns total() const;                       // the window
};

struct Gap {
  Ns begin = 0, end = 0;
  std::int64_t before = -1, after = -1;  // rows of Trace::gpu; -1 = border of the window
  bool waited_for_launch = false;        // the call that launched `after` ended inside the gap
  std::vector<std::string> host;  // what the launching thread did meanwhile: correlated, no more
};

// Nearest-rank quantiles, x[ceil(p n)].
struct Quantiles {
  std::int64_t count = 0;
  Ns min = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};
Quantiles QuantilesOf(std::vector<Ns>& values);  // reorders its argument

struct StreamUse {
  std::uint32_t stream = 0;
  std::int64_t rows = 0;
  Ns busy = 0;  // union of its rows in the window
};

struct LaunchUse {
  std::int64_t kernels = 0, without_call = 0;
  Quantiles queue_delay;      // kernel start - API end, first kernel of each call; may be negative
  std::int64_t negative = 0;  // of those, below zero
  Ns bound_ns = 0;            // gap time in front of rows whose launching call ended in the gap
};

struct DeviceUse {
  std::uint32_t device = 0;
  Ns window = 0;
  Buckets buckets;
  std::array<std::int64_t, kCategories> starting{}, overlapping{};
  std::array<Ns, kCategories> clipped{}, full{};  // sums of row lengths
  std::int64_t zero_rows = 0;                     // kernels with end <= start
  Quantiles kernel_length;                        // unclipped
  std::int64_t same_stream_overlaps = 0;          // kernels that start before their stream is free
  Ns same_stream_overlap_ns = 0;
  Ns first = 0, last = 0;  // clipped extent of its rows, trace time; equal when there are none
  std::vector<StreamUse> streams;
  LaunchUse launch;
  std::vector<Gap> gaps;                        // largest first
  std::array<std::int64_t, 8> gap_histogram{};  // < 1 us, 10 us, 100 us, 1 ms, ... >= 1 s
  std::int64_t gap_count = 0;

  bool active() const { return first != last || busy() > 0; }
  Ns compute() const { return buckets.Any(Bit(Category::kCompute)); }
  Ns comm() const { return buckets.Any(Bit(Category::kComm)); }
  Ns memcpy() const { return buckets.Any(Bit(Category::kMemcpy)); }
  Ns memset() const { return buckets.Any(Bit(Category::kMemset)); }
  Ns graph() const { return buckets.Any(Bit(Category::kGraph)); }
  Ns compute_comm() const { return buckets.Both(Bit(Category::kCompute), Bit(Category::kComm)); }
  Ns kernel_memcpy() const;
  Ns kernel_memset() const;
  Ns busy() const { return buckets.total() - buckets.ns[0]; }
  Ns busy_kernel_memcpy() const;
  Ns gap() const { return buckets.ns[0]; }
  Ns exposed_comm() const { return comm() - compute_comm(); }
};

enum class GroupKey { kName, kShort, kShape };  // kShape: name + grid + block

struct Group {
  std::string name, short_name;
  Category category = Category::kCompute;
  KernelConfig config;      // the commonest
  std::int64_t shapes = 0;  // distinct launch shapes
  std::int64_t count = 0;   // rows overlapping the scope
  std::int64_t starting = 0;
  Ns total = 0, full_total = 0;  // clipped and unclipped
  Quantiles length;              // unclipped
  double mean_ns() const {
    return count ? static_cast<double>(total) / static_cast<double>(count) : 0;
  }
};

struct CopyUse {
  std::string direction;
  Category category = Category::kMemcpy;
  std::int64_t count = 0;
  Ns clipped = 0, full = 0;
  std::int64_t bytes_full = 0;  // all bytes of overlapping copies
  double bytes_pro_rata = 0;    // in proportion to the clipped time
  double gb_per_s() const;      // full bytes over full time
};

struct WaitUse {
  std::string api, kind;  // kind: "sync", "enqueue", "launch", "copy", "api", "os"
  std::int64_t count = 0;
  Ns thread_ns = 0;  // clipped, summed over threads: never to be added to wall time
  std::int64_t threads = 0;
  Ns max_ns = 0;  // longest single call, unclipped
};

struct ThreadUse {
  std::uint32_t thread = 0;
  std::int64_t calls = 0;
  Ns api_ns = 0, sync_ns = 0, os_ns = 0;
};

struct ScopeUse {
  Scope scope;
  Ns window = 0;
  std::vector<DeviceUse> devices;  // one per Trace::devices
  std::vector<Group> groups;       // by total, largest first; ties by name
  std::vector<CopyUse> copies;     // by direction
  std::vector<WaitUse> waits;      // by time, largest first
  std::vector<ThreadUse> threads;
  std::int64_t launch_calls = 0, launch_calls_without_row = 0;
  std::int64_t graph_launch_calls = 0, graph_launches_without_row = 0;
};

struct AnalyzeOptions {
  GroupKey key = GroupKey::kName;
  int top_gaps = 20;
  std::function<std::string(const std::string&)> short_name;  // see short_name.h
};

// Which API call launched which GPU row, joined by (process, correlation id). Where an id repeats
// within a process the first call wins.
class LaunchIndex {
 public:
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;
  explicit LaunchIndex(const Trace& trace);
  // Index into Trace::api of the call behind Trace::gpu[row], or kNone.
  std::uint32_t CallOf(std::size_t gpu_row) const { return call_of_row_[gpu_row]; }
  bool HasRow(std::size_t api_row) const { return has_row_[api_row] != 0; }
  std::int64_t duplicates() const { return duplicates_; }  // API rows whose key repeats

 private:
  std::vector<std::uint32_t> call_of_row_;
  std::vector<std::uint8_t> has_row_;
  std::int64_t duplicates_ = 0;
};

bool IsKernelLaunch(std::string_view api);
bool IsGraphLaunch(std::string_view api);
std::string_view WaitKind(std::string_view api);

ScopeUse Analyze(const Trace& trace, const LaunchIndex& index, const Scope& scope,
                 const AnalyzeOptions& options = {});

// Groups of one device (or of all: device = -1).
std::vector<Group> GroupsOf(const Trace& trace, const WindowMap& map, const AnalyzeOptions& options,
                            std::int64_t device);
std::vector<CopyUse> CopiesOf(const Trace& trace, const WindowMap& map, std::int64_t device);

// The spec's identities (busy, window, partition of copies, mean * count); one sentence per broken
// one.
std::vector<std::string> BrokenInvariants(const Trace& trace, const ScopeUse& use);

}  // namespace assay::timeline
