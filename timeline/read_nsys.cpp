// Nsight Systems SQLite: every table is optional but its columns are looked up by name, because
// schemas 2.9 to 3.28 add, rename and drop both.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "timeline/read.h"
#include "timeline/sqlite_export.h"

namespace assay::timeline {
namespace {

constexpr int kNewestMajor = 3, kNewestMinor = 28;

std::int64_t PidOf(std::int64_t global) { return (global >> 24) & 0xFFFFFF; }
std::int64_t TidOf(std::int64_t global) { return global & 0xFFFFFF; }
std::int64_t HostOf(std::int64_t global) { return (global >> 48) & 0xFFFF; }

const char* CopyDirection(std::int64_t kind) {
  static constexpr const char* kNames[] = {"Unknown",
                                           "Host-to-Device",
                                           "Device-to-Host",
                                           "Host-to-Array",
                                           "Array-to-Host",
                                           "Array-to-Array",
                                           "Array-to-Device",
                                           "Device-to-Array",
                                           "Device-to-Device",
                                           "Host-to-Host",
                                           "Peer-to-Peer",
                                           "Unified Host-to-Device",
                                           "Unified Device-to-Host",
                                           "Unified Device-to-Device"};
  return kind >= 0 && kind < 14 ? kNames[kind] : "Unknown";
}

class NsysReader {
 public:
  NsysReader(const std::string& path, const ReadOptions& options)
      : file_(path), options_(options), build_(trace_) {
    file_.set_use_pages(options.use_pages);
  }

  Trace Read() {
    trace_.sources.emplace_back();
    source().path = file_.path();
    source().format = "nsys-sqlite";
    CheckIsNsys();
    ReadMeta();
    ReadStrings();
    ReadDeviceInfo();
    ReserveRows();
    ReadKernels();
    ReadCopies();
    ReadMemsets();
    ReadGraphs();
    ReadApi();
    ReadOs();
    ReadNvtx();
    ReadSmallTables();
    NameDevices();
    FinishTrace(trace_);
    return std::move(trace_);
  }

 private:
  SourceInfo& source() { return trace_.sources.front(); }

  std::string Table(const std::string& name) {
    const std::string table = file_.Resolve(name);
    source().tables.push_back({name, table.empty() ? TableState::kAbsent : TableState::kEmpty, 0});
    return table;
  }
  void Rows(std::int64_t rows) {
    TableState& state = source().tables.back();
    state.rows = rows;
    if (rows > 0) state.state = TableState::kPresent;
  }

  void CheckIsNsys() {
    const std::vector<std::string> tables = file_.Tables();
    const bool known = std::any_of(tables.begin(), tables.end(), [](const std::string& name) {
      return name.rfind("CUPTI_ACTIVITY_KIND_", 0) == 0 || name == "META_DATA_EXPORT" ||
             name == "EXPORT_META_DATA" || name == "NVTX_EVENTS";
    });
    if (!known) {
      BadInput(file_.path() + " is an SQLite database without any Nsight Systems table (it has " +
               (tables.empty()
                    ? "no tables"
                    : std::to_string(tables.size()) + " tables, such as " + tables.front()) +
               ")");
    }
  }

  void ReadMeta() {
    std::map<std::string, std::string> meta;
    for (const char* table : {"META_DATA_EXPORT", "EXPORT_META_DATA"}) {
      if (file_.Has(table)) meta.merge(file_.Pairs(table));
    }
    source().schema = meta["EXPORT_SCHEMA_VERSION"];
    source().product = meta["EXPORT_PRODUCT_NAME"];
    // 2022 exports misspell these keys.
    for (const char* key : {"EXPORT_PRODUCT_VERSION", "EXPORT_OUTUPT_PRODUCT_VERSION"}) {
      if (meta.count(key)) source().product += (source().product.empty() ? "" : " ") + meta[key];
    }
    int major = 0, minor = 0;
    if (std::sscanf(source().schema.c_str(), "%d.%d", &major, &minor) == 2 &&
        (major > kNewestMajor || (major == kNewestMajor && minor > kNewestMinor))) {
      source().warnings.push_back("schema " + source().schema + " is newer than " +
                                  std::to_string(kNewestMajor) + "." +
                                  std::to_string(kNewestMinor) +
                                  ", the newest known: only known tables and columns were read");
    }
    if (source().schema.empty()) {
      source().warnings.push_back("the export does not say its schema version");
    }
    if (file_.Has("META_DATA_CAPTURE")) {
      trace_.graph_mode = file_.Pairs("META_DATA_CAPTURE")["CUDA_GRAPH_TRACE_OPTIONS:MODE"];
    }
  }

  void ReadStrings() {
    const std::string table = Table("StringIds");
    if (table.empty()) return;
    std::int64_t rows = 0;
    file_.Scan(table, {"id", "value"}, [&](const Cell* c) {
      ++rows;
      strings_.emplace(c[0].Int(-1), std::string(c[1].text));
    });
    Rows(rows);
  }

  // The pool id of string `id`. An id without a StringIds row keeps its number as its name.
  std::uint32_t Name(std::int64_t id) {
    KnownName& known = known_names_[static_cast<std::uint64_t>(id) % 1024];
    if (known.id != id) known = {id, LookUpName(id)};
    return known.name;
  }
  std::uint32_t LookUpName(std::int64_t id) {
    const auto [it, added] = name_ids_.try_emplace(id, 0);
    if (added) {
      const auto text = strings_.find(id);
      it->second = trace_.names.Intern(text == strings_.end() ? "string " + std::to_string(id)
                                                              : ValidUtf8(text->second));
    }
    return it->second;
  }
  std::string Text(std::int64_t id) const {
    const auto text = strings_.find(id);
    return text == strings_.end() ? "string " + std::to_string(id) : text->second;
  }

  void ReadDeviceInfo() {
    if (const std::string table = Table("TARGET_INFO_GPU"); !table.empty()) {
      file_.Scan(table, {"id", "uuid", "name", "busLocation"}, [&](const Cell* c) {
        gpus_[c[0].Int(-1)] = {std::string(c[1].text), std::string(c[2].text),
                               std::string(c[3].text)};
      });
      Rows(static_cast<std::int64_t>(gpus_.size()));
    }
    if (const std::string table = Table("TARGET_INFO_CUDA_DEVICE"); !table.empty()) {
      file_.Scan(table, {"gpuId", "cudaId", "pid", "uuid"}, [&](const Cell* c) {
        Gpu gpu;
        if (const auto found = gpus_.find(c[0].Int(-1)); found != gpus_.end()) gpu = found->second;
        if (!c[3].text.empty()) gpu.uuid = std::string(c[3].text);
        cuda_devices_[{c[2].Int(-1), c[1].Int(-1)}] = gpu;
      });
      Rows(static_cast<std::int64_t>(cuda_devices_.size()));
    }
  }

  void ReserveRows() {
    std::int64_t gpu = 0;
    for (const char* kind : {"KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"}) {
      const std::string table = file_.Resolve(std::string("CUPTI_ACTIVITY_KIND_") + kind);
      if (!table.empty()) gpu += file_.RowsAtMost(table);
    }
    trace_.gpu.reserve(static_cast<std::size_t>(gpu));
  }

  // The device of CUDA ordinal `ordinal` in process `pid`: the ordinal alone is not an identity.
  std::uint32_t DeviceId(std::int64_t pid, std::int64_t ordinal) {
    const auto [it, added] = device_ids_.try_emplace({pid, ordinal}, 0);
    if (!added) return it->second;
    Device device;
    device.ordinal = ordinal;
    if (const auto found = cuda_devices_.find({pid, ordinal}); found != cuda_devices_.end()) {
      device.uuid = found->second.uuid;
      device.bus = found->second.bus;
      device.model = found->second.name;
    } else if (gpus_.size() == 1) {
      device.model = gpus_.begin()->second.name;
    }
    device.key = !device.uuid.empty()  ? device.uuid
                 : !device.bus.empty() ? device.bus
                                       : std::to_string(pid) + ":" + std::to_string(ordinal);
    for (std::uint32_t k = 0; k < trace_.devices.size(); ++k) {
      if (trace_.devices[k].key == device.key) return it->second = k;
    }
    trace_.devices.push_back(device);
    return it->second = static_cast<std::uint32_t>(trace_.devices.size() - 1);
  }

  struct Place {
    std::int64_t global_pid = INT64_MIN, device = INT64_MIN;
    std::uint32_t process_id = 0, device_id = 0;
  };
  std::uint32_t StreamOf(std::int64_t global_pid, std::int64_t device, std::int64_t stream) {
    // Rows of several processes alternate, so more than the last place is remembered.
    Place& place = places_[(static_cast<std::uint64_t>(global_pid >> 24) * 7 +
                            static_cast<std::uint64_t>(device)) %
                           16];
    if (place.global_pid != global_pid || place.device != device) {
      place = {global_pid, device, build_.ProcessId(PidOf(global_pid), HostOf(global_pid), 0),
               DeviceId(PidOf(global_pid), device)};
    }
    return build_.StreamId(place.device_id, place.process_id, stream);
  }
  std::uint16_t ThreadOf(std::int64_t global_tid) {
    KnownThread& known = known_threads_[static_cast<std::uint64_t>(global_tid) % 31];
    if (global_tid != known.global_tid) {
      known = {global_tid,
               build_.ThreadId(build_.ProcessId(PidOf(global_tid), HostOf(global_tid), 0),
                               TidOf(global_tid))};
    }
    return known.id;
  }
  static std::uint32_t Correlation(const Cell& cell) {
    const std::int64_t id = cell.Int(0);
    return id <= 0 ? kNoCorrelation : static_cast<std::uint32_t>(id);
  }

  void Require(const std::string& table, const std::vector<const char*>& columns) {
    for (const char* column : columns) {
      if (!file_.HasColumn(table, column)) {
        BadInput(file_.path() + ": table " + table + " has no column " + column +
                 ", which every known schema has");
      }
    }
  }

  void ReadKernels() {
    const std::string table = Table("CUPTI_ACTIVITY_KIND_KERNEL");
    if (table.empty()) {
      source().warnings.push_back("there is no kernel table: CUDA kernels were not traced");
      return;
    }
    Require(table, {"start", "end", "deviceId", "streamId"});
    std::vector<std::string> names;
    for (const char* column : {"demangledName", "shortName", "mangledName"}) {
      if (file_.HasColumn(table, column)) names.push_back(column);
    }
    if (names.empty()) {
      BadInput(file_.path() + ": table " + table +
               " has none of the columns demangledName, shortName, mangledName");
    }
    std::vector<std::string> columns = {"start",
                                        "end",
                                        "deviceId",
                                        "streamId",
                                        "correlationId",
                                        "globalPid",
                                        "gridX",
                                        "gridY",
                                        "gridZ",
                                        "blockX",
                                        "blockY",
                                        "blockZ",
                                        "clusterX",
                                        "clusterY",
                                        "clusterZ",
                                        "registersPerThread",
                                        "staticSharedMemory",
                                        "dynamicSharedMemory",
                                        "graphNodeId"};
    const std::size_t name_at = columns.size();
    columns.insert(columns.end(), names.begin(), names.end());
    std::int64_t rows = 0;
    std::vector<signed char> is_comm;  // by name: -1 not asked yet
    file_.Scan(table, columns, [&](const Cell* c) {
      ++rows;
      GpuRow row;
      row.start = c[0].Int();
      row.end = c[1].Int();
      std::int64_t id = 0;
      for (std::size_t k = name_at; k < columns.size(); ++k) {
        if (!c[k].null()) {
          id = c[k].Int();
          break;
        }
      }
      row.name = Name(id);
      row.correlation = Correlation(c[4]);
      row.stream = StreamOf(c[5].Int(), c[2].Int(), c[3].Int()) & 0xFFFFFFu;
      KernelConfig config;
      for (int axis = 0; axis < 3; ++axis) {
        config.grid[axis] = static_cast<std::int32_t>(c[6 + axis].Int());
        config.block[axis] = static_cast<std::int32_t>(c[9 + axis].Int());
        config.cluster[axis] = static_cast<std::int32_t>(c[12 + axis].Int());
      }
      config.registers = static_cast<std::int32_t>(c[15].Int());
      config.static_smem_bytes = static_cast<std::int32_t>(c[16].Int());
      config.dynamic_smem_bytes = static_cast<std::int32_t>(c[17].Int());
      config.graph_node = c[18].Int() != 0;
      row.detail = build_.ConfigId(config);
      if (is_comm.size() <= row.name) is_comm.resize(row.name + 1, -1);
      if (is_comm[row.name] < 0) is_comm[row.name] = options_.comm.Matches(trace_.names[row.name]);
      row.category =
          static_cast<std::uint32_t>(is_comm[row.name] ? Category::kComm : Category::kCompute);
      trace_.gpu.push_back(row);
    });
    Rows(rows);
  }

  void ReadCopies() {
    const std::string table = Table("CUPTI_ACTIVITY_KIND_MEMCPY");
    if (table.empty()) return;
    Require(table, {"start", "end", "deviceId", "streamId"});
    std::int64_t rows = 0;
    file_.Scan(table,
               {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
                "copyKind", "srcDeviceId", "dstDeviceId"},
               [&](const Cell* c) {
                 ++rows;
                 AddCopy(c, Category::kMemcpy, CopyDirection(c[7].Int()),
                         {c[6].Int(), static_cast<std::int32_t>(c[8].Int(-1)),
                          static_cast<std::int32_t>(c[9].Int(-1))});
               });
    Rows(rows);
  }

  void ReadMemsets() {
    const std::string table = Table("CUPTI_ACTIVITY_KIND_MEMSET");
    if (table.empty()) return;
    Require(table, {"start", "end", "deviceId", "streamId"});
    std::int64_t rows = 0;
    file_.Scan(table,
               {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"},
               [&](const Cell* c) {
                 ++rows;
                 AddCopy(c, Category::kMemset, "memset", {c[6].Int(), -1, -1});
               });
    Rows(rows);
  }

  void AddCopy(const Cell* c, Category category, const char* name, const CopyInfo& info) {
    GpuRow row;
    row.start = c[0].Int();
    row.end = c[1].Int();
    row.name = trace_.names.Intern(name);
    row.correlation = Correlation(c[4]);
    row.stream = StreamOf(c[5].Int(), c[2].Int(), c[3].Int()) & 0xFFFFFFu;
    row.category = static_cast<std::uint32_t>(category);
    row.detail = static_cast<std::uint32_t>(trace_.copies.size());
    trace_.copies.push_back(info);
    trace_.gpu.push_back(row);
  }

  void ReadGraphs() {
    const std::string table = Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE");
    if (table.empty()) return;
    Require(table, {"start", "end", "deviceId", "streamId"});
    std::int64_t rows = 0;
    file_.Scan(table,
               {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphId"},
               [&](const Cell* c) {
                 ++rows;
                 // start = end = 0: the driver did not deliver the times.
                 if (c[0].Int() == 0 && c[1].Int() == 0) {
                   ++trace_.graphs_untimed;
                   return;
                 }
                 const std::string name = "graph " + std::to_string(c[6].Int());
                 AddCopy(c, Category::kGraph, name.c_str(), {0, -1, -1});
               });
    Rows(rows);
  }

  void ReadApi() {
    const std::string table = Table("CUPTI_ACTIVITY_KIND_RUNTIME");
    if (table.empty()) return;
    Require(table, {"start", "end", "nameId"});
    trace_.api.reserve(static_cast<std::size_t>(file_.RowsAtMost(table)));
    std::int64_t rows = 0, last_id = INT64_MIN;
    std::uint16_t last_name = 0;
    std::unordered_map<std::int64_t, std::uint16_t> api_ids;
    file_.Scan(table, {"start", "end", "eventClass", "globalTid", "correlationId", "nameId"},
               [&](const Cell* c) {
                 ++rows;
                 if (const std::int64_t kind = c[2].Int(0); kind != 0 && kind != 1) {
                   ++trace_.api_other_class;
                   return;
                 }
                 ApiRow row;
                 row.start = c[0].Int();
                 row.end = c[1].Int();
                 row.thread = ThreadOf(c[3].Int());
                 row.correlation = Correlation(c[4]);
                 if (const std::int64_t id = c[5].Int(); id != last_id) {
                   last_id = id;
                   const auto [it, added] = api_ids.try_emplace(id, 0);
                   if (added) it->second = build_.ApiName(ValidUtf8(Text(id)));
                   last_name = it->second;
                 }
                 row.name = last_name;
                 trace_.api.push_back(row);
               });
    Rows(rows);
  }

  void ReadOs() {
    const std::string table = Table("OSRT_API");
    if (table.empty()) return;
    Require(table, {"start", "end", "nameId"});
    std::int64_t rows = 0;
    file_.Scan(table, {"start", "end", "globalTid", "nameId"}, [&](const Cell* c) {
      ++rows;
      trace_.os.push_back({c[0].Int(), c[1].Int(), Name(c[3].Int()), ThreadOf(c[2].Int())});
    });
    Rows(rows);
  }

  void ReadNvtx() {
    const std::string table = Table("NVTX_EVENTS");
    if (table.empty()) return;
    Require(table, {"start", "eventType"});
    std::int64_t rows = 0;
    std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> domains;  // (pid, id)
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> domain_names;
    std::vector<std::pair<std::int64_t, std::int64_t>> keys;
    file_.Scan(table, {"start", "end", "eventType", "text", "textId", "globalTid", "domainId"},
               [&](const Cell* c) {
                 ++rows;
                 const std::int64_t type = c[2].Int();
                 const bool inline_text = !c[3].null();
                 const std::pair<std::int64_t, std::int64_t> key{PidOf(c[5].Int()), c[6].Int(0)};
                 if (type == 75) {
                   domain_names[key] =
                       inline_text ? ValidUtf8(c[3].text) : ValidUtf8(Text(c[4].Int()));
                 }
                 if (type != 34 && type != 59 && type != 60) return;
                 RangeRow row;
                 row.start = c[0].Int();
                 row.mark = type == 34;
                 row.nested = type == 59;
                 row.end = row.mark ? row.start : c[1].Int(kOpenEnd);
                 row.name = inline_text   ? trace_.names.Intern(ValidUtf8(c[3].text))
                            : c[4].null() ? trace_.names.Intern("")
                                          : Name(c[4].Int());
                 row.thread = ThreadOf(c[5].Int());
                 const auto [it, added] =
                     domains.try_emplace(key, static_cast<std::uint32_t>(keys.size()));
                 if (added) keys.push_back(key);
                 row.domain = it->second;
                 trace_.ranges.push_back(row);
               });
    // Domain names may come after their first use.
    std::vector<std::uint32_t> names;
    for (const auto& key : keys) {
      const auto found = domain_names.find(key);
      names.push_back(trace_.names.Intern(found != domain_names.end() ? found->second
                                          : key.second == 0
                                              ? ""
                                              : "domain " + std::to_string(key.second)));
    }
    for (RangeRow& row : trace_.ranges) row.domain = names[row.domain];
    Rows(rows);
  }

  void ReadSmallTables() {
    ReadClock();
    ReadDiagnostics();
    for (const char* name : {"CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"}) {
      const std::string table = Table(name);
      if (table.empty()) continue;
      std::int64_t rows = 0;
      file_.Scan(table, {"start", "end"}, [&](const Cell* c) {
        ++rows;
        trace_.overhead_ns += std::max<Ns>(0, c[1].Int() - c[0].Int());
      });
      trace_.overhead_rows += rows;
      Rows(rows);
    }
    if (const std::string table = Table("ASSAY_SEGMENT"); !table.empty()) {
      file_.Scan(table, {"pid", "last_gpu_ns", "last_api_ns", "flushed", "dropped"},
                 [&](const Cell* c) {
                   trace_.segments.push_back(
                       {c[0].Int(), c[1].Int(), c[2].Int(), c[3].Int() != 0, c[4].Int()});
                 });
      Rows(static_cast<std::int64_t>(trace_.segments.size()));
    }
    if (const std::string table = Table("PROCESSES"); !table.empty()) {
      std::int64_t rows = 0;
      file_.Scan(table, {"globalPid", "name"}, [&](const Cell* c) {
        Rows(++rows);
        for (Process& process : trace_.processes) {
          if (process.pid == PidOf(c[0].Int()) && process.host == HostOf(c[0].Int())) {
            process.name = ValidUtf8(c[1].text);
          }
        }
      });
    }
    if (const std::string table = Table("ThreadNames"); !table.empty()) {
      std::map<std::pair<std::int64_t, std::int64_t>, std::string> names;
      file_.Scan(table, {"globalTid", "nameId"}, [&](const Cell* c) {
        names[{PidOf(c[0].Int()), TidOf(c[0].Int())}] = ValidUtf8(Text(c[1].Int()));
      });
      Rows(static_cast<std::int64_t>(names.size()));
      for (Thread& thread : trace_.threads) {
        const auto found = names.find({trace_.processes[thread.process].pid, thread.tid});
        if (found != names.end()) thread.name = found->second;
      }
    }
    for (const char* name : {"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUDA_GRAPH_NODE_EVENTS",
                             "CUPTI_ACTIVITY_KIND_CUDA_EVENT"}) {
      const std::string table = Table(name);
      if (!table.empty()) Rows(file_.RowsAtMost(table));
    }
  }

  void ReadClock() {
    std::optional<Ns> trace_start, duration;
    if (const std::string table = Table("ANALYSIS_DETAILS"); !table.empty()) {
      file_.Scan(table, {"startTime", "duration"}, [&](const Cell* c) {
        if (!c[0].null()) trace_start = c[0].Int();
        if (!c[1].null()) duration = c[1].Int();
        Rows(1);
      });
    }
    if (const std::string table = Table("TARGET_INFO_SESSION_START_TIME"); !table.empty()) {
      file_.Scan(table, {"utcEpochNs", "systemClockNs"}, [&](const Cell* c) {
        if (!c[0].null()) source().utc_epoch = c[0].Int();
        if (!c[1].null()) source().system_clock = c[1].Int();
        Rows(1);
      });
    }
    if (!source().system_clock && trace_start) {
      source().system_clock = trace_start;
      source().system_clock_assumed = true;
    }
    source().session_end = duration;
  }

  void ReadDiagnostics() {
    const std::string table = Table("DIAGNOSTIC_EVENT");
    if (table.empty()) return;
    file_.Scan(table, {"timestamp", "severity", "text", "globalPid"}, [&](const Cell* c) {
      trace_.diagnostics.push_back(
          {c[0].Int(), static_cast<int>(c[1].Int(1)), ValidUtf8(c[2].text), PidOf(c[3].Int())});
    });
    Rows(static_cast<std::int64_t>(trace_.diagnostics.size()));
  }

  // A device known only by its ordinal is called by it, unless two processes share the number.
  void NameDevices() {
    std::map<std::int64_t, int> uses;
    for (const Device& device : trace_.devices) ++uses[device.ordinal];
    for (Device& device : trace_.devices) {
      const bool alone = uses[device.ordinal] == 1;
      device.label = alone ? std::to_string(device.ordinal) : device.key;
      if (device.uuid.empty() && device.bus.empty() && alone) device.key = device.label;
    }
  }

  struct Gpu {
    std::string uuid, name, bus;
  };
  SqliteExport file_;
  const ReadOptions& options_;
  Trace trace_;
  TraceBuilder build_;
  std::unordered_map<std::int64_t, std::string> strings_;
  std::unordered_map<std::int64_t, std::uint32_t> name_ids_;
  struct KnownName {
    std::int64_t id = INT64_MIN;
    std::uint32_t name = 0;
  };
  std::vector<KnownName> known_names_ = std::vector<KnownName>(1024);
  std::map<std::int64_t, Gpu> gpus_;
  std::map<std::pair<std::int64_t, std::int64_t>, Gpu> cuda_devices_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint32_t> device_ids_;
  Place places_[16];
  struct KnownThread {
    std::int64_t global_tid = INT64_MIN;
    std::uint16_t id = 0;
  };
  KnownThread known_threads_[31];
};

}  // namespace

Trace ReadNsys(const std::string& path, const ReadOptions& options) {
  return NsysReader(path, options).Read();
}

}  // namespace assay::timeline
