// One pass per segment file, inserting into an export with the column names of schema 3.25.
#include "timeline/segments.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <variant>

#include "base/error.h"
#include "timeline/recorder/segment.h"

namespace assay::timeline {
namespace {

using namespace recorder;  // NOLINT: the record types of this file's input

constexpr const char* kSchema = R"sql(
CREATE TABLE StringIds(id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT(name TEXT NOT NULL, value TEXT);
CREATE TABLE META_DATA_CAPTURE(name TEXT NOT NULL, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME(utcEpochNs INTEGER, utcTime TEXT, localTime TEXT,
  systemClockNs INTEGER);
CREATE TABLE ANALYSIS_DETAILS(globalVid INTEGER NOT NULL, duration INTEGER NOT NULL,
  startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_GPU(vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
  uuid TEXT, smCount INTEGER, totalMemory INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE(gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT,
  numMultiprocessors INTEGER);
CREATE TABLE PROCESSES(globalPid INTEGER NOT NULL, pid INTEGER NOT NULL, name TEXT);
CREATE TABLE ThreadNames(nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
  launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
  gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
  blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
  dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL,
  localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER,
  graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER, graphId INTEGER, clusterX INTEGER,
  clusterY INTEGER, clusterZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
  copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER,
  dstDeviceId INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,
  bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL,
  graphExecId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION(start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER,
  streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, syncType INTEGER NOT NULL,
  eventId INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD(start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER,
  overheadType INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS(start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE DIAGNOSTIC_EVENT(timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL,
  source INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER);
CREATE TABLE ASSAY_SEGMENT(pid INTEGER NOT NULL, uuid TEXT, last_gpu_ns INTEGER NOT NULL,
  last_api_ns INTEGER NOT NULL, flushed INTEGER NOT NULL, dropped INTEGER NOT NULL);
)sql";

class Database {
 public:
  explicit Database(const std::string& path) {
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) Fail(path);
    Exec("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN");
    Exec(kSchema);
  }
  ~Database() {
    for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
    sqlite3_close(db_);
  }
  void Exec(const std::string& sql) {
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) Fail(sql);
  }
  // Integers and texts in the order of the statement's marks; nothing = NULL.
  using Value = std::variant<std::monostate, std::int64_t, std::string>;
  void Insert(const std::string& sql, std::initializer_list<Value> values) {
    auto& statement = statements_[sql];
    if (!statement && sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) {
      Fail(sql);
    }
    int k = 0;
    for (const Value& value : values) {
      ++k;
      if (const auto* number = std::get_if<std::int64_t>(&value)) {
        sqlite3_bind_int64(statement, k, *number);
      } else if (const auto* text = std::get_if<std::string>(&value)) {
        sqlite3_bind_text(statement, k, text->data(), static_cast<int>(text->size()),
                          SQLITE_TRANSIENT);
      } else {
        sqlite3_bind_null(statement, k);
      }
    }
    if (sqlite3_step(statement) != SQLITE_DONE) Fail(sql);
    sqlite3_reset(statement);
  }

 private:
  [[noreturn]] void Fail(const std::string& doing) const {
    throw Error(Fault::kDevice, fmt::format("cannot write the recording: {} ({})",
                                            sqlite3_errmsg(db_), doing.substr(0, 60)));
  }
  sqlite3* db_ = nullptr;
  std::map<std::string, sqlite3_stmt*> statements_;
};

std::string Marks(int count) {
  std::string marks = "?";
  for (int k = 1; k < count; ++k) marks += ",?";
  return marks;
}

std::string UuidText(const unsigned char (&uuid)[16]) {
  std::string text = "GPU-";
  for (int k = 0; k < 16; ++k) {
    if (k == 4 || k == 6 || k == 8 || k == 10) text += '-';
    text += fmt::format("{:02x}", uuid[k]);
  }
  return text;
}

// CUPTI gives kernel names as the linker knows them.
std::string Demangled(const std::string& name) {
  if (name.rfind("_Z", 0) != 0) return name;
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = status == 0 && text ? text : name;
  std::free(text);
  return result;
}

struct SegmentFile {
  std::string path, bytes;
  StartRecord start{};
};

class Converter {
 public:
  Converter(const std::vector<std::string>& paths, const std::string& output) : db_(output) {
    for (const std::string& path : paths) files_.push_back(Open(path));
    base_ = files_.front().start.monotonic_ns;
    std::int64_t utc = files_.front().start.utc_ns;
    for (const SegmentFile& file : files_) {
      if (file.start.monotonic_ns < base_) {
        base_ = file.start.monotonic_ns;
        utc = file.start.utc_ns;
      }
    }
    Meta(utc);
  }

  SegmentTotals Run() {
    for (const SegmentFile& file : files_) Convert(file);
    db_.Insert("INSERT INTO ANALYSIS_DETAILS VALUES(?,?,?,?)", {0, last_, base_, base_ + last_});
    db_.Exec("COMMIT");
    return totals_;
  }

 private:
  static SegmentFile Open(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) BadInput("cannot open " + path);
    SegmentFile segment{path, {std::istreambuf_iterator<char>(file), {}}, {}};
    RecordHeader header{};
    if (segment.bytes.size() >= sizeof header + sizeof segment.start) {
      std::memcpy(&header, segment.bytes.data(), sizeof header);
      std::memcpy(&segment.start, segment.bytes.data() + sizeof header, sizeof segment.start);
    }
    if (header.type != RecordType::kStart || segment.start.magic != kSegmentMagic) {
      BadInput(path + " is no recorder segment");
    }
    if (segment.start.version != kSegmentVersion) {
      BadInput(fmt::format("{} has segment version {}, this program reads {}", path,
                           segment.start.version, kSegmentVersion));
    }
    return segment;
  }

  void Meta(std::int64_t utc) {
    db_.Exec(
        "INSERT INTO META_DATA_EXPORT VALUES('EXPORT_PRODUCT_NAME','Assay recorder'),"
        "('EXPORT_PRODUCT_VERSION','1'),('EXPORT_SCHEMA_VERSION','3.25.0'),"
        "('EXPORT_SCHEMA_VERSION_MAJOR','3'),('EXPORT_SCHEMA_VERSION_MINOR','25'),"
        "('EXPORT_SCHEMA_VERSION_MICRO','0')");
    db_.Insert("INSERT INTO META_DATA_CAPTURE VALUES('CUDA_GRAPH_TRACE_OPTIONS:MODE',?)",
               {std::string(files_.front().start.graph_level ? "Graph" : "Node")});
    db_.Insert("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES(?,NULL,NULL,?)", {utc, base_});
  }

  template <class Payload>
  static std::optional<Payload> As(const char* data, std::uint32_t bytes) {
    if (bytes < sizeof(Payload)) return std::nullopt;
    Payload payload;
    std::memcpy(&payload, data, sizeof payload);
    return payload;
  }

  void Convert(const SegmentFile& file) {
    ++totals_.processes;
    pid_ = file.start.pid;
    global_pid_ = (std::int64_t{1} << 48) | (static_cast<std::int64_t>(pid_ & 0xFFFFFF) << 24);
    names_.clear();
    open_markers_.clear();
    bool ended = false;
    std::int64_t last_gpu = 0, last_call = 0;
    std::uint64_t dropped = 0;
    std::size_t at = 0;
    while (at + sizeof(RecordHeader) <= file.bytes.size()) {
      RecordHeader header{};
      std::memcpy(&header, file.bytes.data() + at, sizeof header);
      at += sizeof header;
      if (header.bytes > file.bytes.size() - at) break;  // torn by a kill
      const char* data = file.bytes.data() + at;
      at += header.bytes;
      if (header.type == RecordType::kEnd) {
        if (const auto end = As<EndRecord>(data, header.bytes)) {
          ended = true;
          last_gpu = end->last_gpu - base_;
          last_call = end->last_call - base_;
          dropped = end->dropped;
        }
      } else if (header.type == RecordType::kDropped) {
        if (const auto lost = As<DroppedRecord>(data, header.bytes)) dropped += lost->records;
      } else {
        Row(header, data);
      }
    }
    CloseMarkers();
    if (!ended) {
      ++totals_.unfinished;
      last_gpu = last_gpu_row_;
      last_call = last_call_row_;
    }
    totals_.dropped += dropped;
    db_.Insert("INSERT INTO PROCESSES VALUES(?,?,NULL)", {global_pid_, std::int64_t{pid_}});
    db_.Insert("INSERT INTO ASSAY_SEGMENT VALUES(" + Marks(6) + ")",
               {std::int64_t{pid_}, std::monostate(), std::max<std::int64_t>(0, last_gpu),
                std::max<std::int64_t>(0, last_call), std::int64_t{ended},
                static_cast<std::int64_t>(dropped)});
    if (dropped > 0) {
      db_.Insert("INSERT INTO DIAGNOSTIC_EVENT VALUES(?,0,1,2,?,?)",
                 {last_, fmt::format("{} CUPTI records were dropped", dropped), global_pid_});
    }
  }

  std::int64_t Name(std::uint32_t id) const {
    const auto found = names_.find(id);
    return found == names_.end() ? 0 : found->second;
  }
  std::int64_t Tid(std::uint32_t thread) const { return global_pid_ | (thread & 0xFFFFFF); }
  std::int64_t At(std::int64_t time) {
    last_ = std::max(last_, time - base_);
    return time - base_;
  }

  void Row(const RecordHeader& header, const char* data) {
    switch (header.type) {
      case RecordType::kName:
        return AddName(header, data);
      case RecordType::kKernel:
        if (const auto row = As<KernelRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kCopy:
        if (const auto row = As<CopyRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kMemset:
        if (const auto row = As<MemsetRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kGraph:
        if (const auto row = As<GraphRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kCall:
        if (const auto row = As<CallRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kSync:
        if (const auto row = As<SyncRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kOverhead:
        if (const auto row = As<OverheadRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kMarker:
        if (const auto row = As<MarkerRecord>(data, header.bytes)) Add(*row);
        return;
      case RecordType::kDevice:
        if (const auto row = As<DeviceRecord>(data, header.bytes)) {
          AddDevice(*row, {data + sizeof *row, header.bytes - sizeof *row});
        }
        return;
      default:
        return;
    }
  }

  void AddName(const RecordHeader& header, const char* data) {
    const auto name = As<NameRecord>(data, header.bytes);
    if (!name) return;
    const std::string text = Demangled({data + sizeof *name, header.bytes - sizeof *name});
    const auto [it, added] =
        string_ids_.try_emplace(text, static_cast<std::int64_t>(string_ids_.size() + 1));
    if (added) db_.Insert("INSERT INTO StringIds VALUES(?,?)", {it->second, text});
    names_[name->id] = it->second;
  }

  void Add(const KernelRecord& r) {
    ++totals_.kernels;
    last_gpu_row_ = std::max(last_gpu_row_, r.end - base_);
    const std::int64_t name = Name(r.name);
    db_.Insert(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(?,?,?,?,NULL,?,?,?,?,?,NULL,NULL,NULL,"
        "?,?,?,?,?,?,?,?,?,0,0,?,NULL,?,NULL,?,?,?,?)",
        {At(r.start),
         At(r.end),
         std::int64_t{r.device},
         std::int64_t{r.context},
         std::int64_t{r.stream},
         std::int64_t{r.correlation},
         global_pid_,
         name,
         name,
         std::int64_t{r.registers},
         std::int64_t{r.grid[0]},
         std::int64_t{r.grid[1]},
         std::int64_t{r.grid[2]},
         std::int64_t{r.block[0]},
         std::int64_t{r.block[1]},
         std::int64_t{r.block[2]},
         std::int64_t{r.static_smem},
         std::int64_t{r.dynamic_smem},
         r.grid_id,
         r.graph_node ? Database::Value(static_cast<std::int64_t>(r.graph_node))
                      : Database::Value(),
         r.graph_id ? Database::Value(std::int64_t{r.graph_id}) : Database::Value(),
         std::int64_t{r.cluster[0]},
         std::int64_t{r.cluster[1]},
         std::int64_t{r.cluster[2]}});
  }

  void Add(const CopyRecord& r) {
    ++totals_.copies;
    last_gpu_row_ = std::max(last_gpu_row_, r.end - base_);
    const auto device = [](std::int32_t id) {
      return id < 0 ? Database::Value() : Database::Value(std::int64_t{id});
    };
    db_.Insert("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(?,?,?,?,NULL,?,?,?,?,?,?,?,?,?,NULL)",
               {At(r.start), At(r.end), std::int64_t{r.device}, std::int64_t{r.context},
                std::int64_t{r.stream}, std::int64_t{r.correlation}, global_pid_,
                static_cast<std::int64_t>(r.bytes), std::int64_t{r.kind},
                // CUPTI counts memory kinds from 1 (pageable), the export from 0.
                std::int64_t{r.src_kind} - 1, std::int64_t{r.dst_kind} - 1, device(r.src_device),
                device(r.dst_device)});
  }

  void Add(const MemsetRecord& r) {
    db_.Insert("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES(?,?,?,?,NULL,?,?,?,?,?,NULL,NULL)",
               {At(r.start), At(r.end), std::int64_t{r.device}, std::int64_t{r.context},
                std::int64_t{r.stream}, std::int64_t{r.correlation}, global_pid_,
                std::int64_t{r.value}, static_cast<std::int64_t>(r.bytes)});
  }

  void Add(const GraphRecord& r) {
    last_gpu_row_ = std::max(last_gpu_row_, r.end - base_);
    // 0 and 0: the driver did not deliver the times; the reader counts such rows.
    const bool timed = r.start != 0 || r.end != 0;
    db_.Insert("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES(?,?,?,?,NULL,?,?,?,?,0)",
               {timed ? At(r.start) : 0, timed ? At(r.end) : 0, std::int64_t{r.device},
                std::int64_t{r.context}, std::int64_t{r.stream}, std::int64_t{r.correlation},
                global_pid_, std::int64_t{r.graph_id}});
  }

  void Add(const CallRecord& r) {
    ++totals_.calls;
    last_call_row_ = std::max(last_call_row_, r.end - base_);
    db_.Insert("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(?,?,?,?,?,?,?,NULL)",
               {At(r.start), At(r.end), std::int64_t{r.driver}, Tid(r.thread),
                std::int64_t{r.correlation}, Name(r.name), std::int64_t{r.result}});
  }

  void Add(const SyncRecord& r) {
    db_.Insert(
        "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES(?,?,0,?,NULL,?,?,?,?,?)",
        {At(r.start), At(r.end), std::int64_t{r.context}, std::int64_t{r.stream},
         std::int64_t{r.correlation}, global_pid_, std::int64_t{r.type}, std::int64_t{r.event}});
  }

  void Add(const OverheadRecord& r) {
    db_.Insert("INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES(?,?,0,?,NULL,NULL,?)",
               {At(r.start), At(r.end), Tid(r.thread), std::int64_t{r.kind}});
  }

  void Add(const MarkerRecord& r) {
    ++totals_.markers;
    if (r.kind == MarkerRecord::kBegin) {
      open_markers_[r.id] = r;
    } else if (r.kind == MarkerRecord::kInstant) {
      Marker(r, Database::Value(), 34);
    } else if (const auto open = open_markers_.find(r.id); open != open_markers_.end()) {
      Marker(open->second, At(r.time), 59);
      open_markers_.erase(open);
    }
  }

  void Marker(const MarkerRecord& r, const Database::Value& end, std::int64_t type) {
    db_.Insert("INSERT INTO NVTX_EVENTS VALUES(?,?,?,?,NULL,NULL,NULL,?,NULL,?,0)",
               {At(r.time), end, type, std::int64_t{r.id}, Tid(r.thread), Name(r.name)});
  }

  void CloseMarkers() {
    for (const auto& [id, marker] : open_markers_) Marker(marker, Database::Value(), 59);
  }

  void AddDevice(const DeviceRecord& r, const std::string& model) {
    const std::string uuid = UuidText(r.uuid);
    const auto [it, added] = gpus_.try_emplace(uuid, static_cast<std::int64_t>(gpus_.size()));
    if (added) {
      db_.Insert("INSERT INTO TARGET_INFO_GPU VALUES(1,?,?,NULL,?,?,?)",
                 {it->second, model, uuid, std::int64_t{r.multiprocessors},
                  static_cast<std::int64_t>(r.memory_bytes)});
    }
    db_.Insert("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES(?,?,?,?,?)",
               {it->second, std::int64_t{r.ordinal}, std::int64_t{pid_ & 0xFFFFFF}, uuid,
                std::int64_t{r.multiprocessors}});
  }

  Database db_;
  std::vector<SegmentFile> files_;
  SegmentTotals totals_;
  std::int64_t base_ = 0, last_ = 0, global_pid_ = 0, last_gpu_row_ = 0, last_call_row_ = 0;
  std::uint32_t pid_ = 0;
  std::map<std::string, std::int64_t> string_ids_, gpus_;
  std::map<std::uint32_t, std::int64_t> names_;
  std::map<std::uint32_t, MarkerRecord> open_markers_;
};

}  // namespace

SegmentTotals ConvertSegments(const std::vector<std::string>& segments, const std::string& output) {
  if (segments.empty()) BadInput("there are no recorder segments to convert");
  unlink(output.c_str());
  return Converter(segments, output).Run();
}

}  // namespace assay::timeline
