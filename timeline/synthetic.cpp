// Synthetic exports: the DDL of each schema version and a generator of a plausible training step.
#include "timeline/synthetic.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/random.h"

namespace assay::timeline {
namespace {

struct Version {
  int major = 3, minor = 25;
  bool operator>=(const Version& other) const {
    return major != other.major ? major > other.major : minor >= other.minor;
  }
};

class Writer {
 public:
  Writer(const std::string& path, const SyntheticTrace& spec) : spec_(spec) {
    unlink(path.c_str());
    if (sqlite3_open(path.c_str(), &db_) != SQLITE_OK) throw std::runtime_error("open " + path);
    std::sscanf(spec.schema.c_str(), "%d.%d", &version_.major, &version_.minor);
    Exec("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA page_size=4096; BEGIN");
  }
  ~Writer() { sqlite3_close(db_); }

  void Write() {
    Meta();
    Targets();
    Rows();
    Exec("COMMIT");
  }

 private:
  void Exec(const std::string& sql) {
    char* problem = nullptr;
    if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, &problem) != SQLITE_OK) {
      const std::string why = problem ? problem : "?";
      sqlite3_free(problem);
      throw std::runtime_error(why + " in " + sql);
    }
  }
  bool Old() const { return version_.major < 3; }

  struct Insert {
    sqlite3_stmt* statement = nullptr;
    ~Insert() { sqlite3_finalize(statement); }
    void Row(std::initializer_list<std::int64_t> values) {
      int k = 0;
      for (const std::int64_t value : values) sqlite3_bind_int64(statement, ++k, value);
      if (sqlite3_step(statement) != SQLITE_DONE) throw std::runtime_error("insert failed");
      sqlite3_reset(statement);
    }
  };
  void Prepare(Insert& insert, const std::string& sql) {
    if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &insert.statement, nullptr) != SQLITE_OK) {
      throw std::runtime_error(std::string(sqlite3_errmsg(db_)) + " in " + sql);
    }
  }

  void Meta() {
    Exec("CREATE TABLE StringIds(id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)");
    const std::string meta = Old() ? "EXPORT_META_DATA" : "META_DATA_EXPORT";
    Exec("CREATE TABLE " + meta + "(name TEXT NOT NULL, value TEXT)");
    const std::string version_key =
        Old() ? "EXPORT_OUTUPT_PRODUCT_VERSION" : "EXPORT_PRODUCT_VERSION";
    Exec("INSERT INTO " + meta + " VALUES('EXPORT_PRODUCT_NAME','synthetic'),('" + version_key +
         "','0.0.0'),('EXPORT_SCHEMA_VERSION','" + spec_.schema + "')");
    if (!Old()) {
      Exec(
          "CREATE TABLE META_DATA_CAPTURE(name TEXT NOT NULL, value TEXT);"
          "INSERT INTO META_DATA_CAPTURE VALUES('CUDA_GRAPH_TRACE_OPTIONS:MODE','Node')");
    }
    for (int k = 0; k < spec_.names; ++k) {
      const std::string name =
          k == 1
              ? "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
              : "void room" + std::to_string(k % 7) + "::kernel_" + std::to_string(k) +
                    "<(int)128, room::Tile<(int)" + std::to_string(k) + ", (bool)0>>(float *, int)";
      Exec("INSERT INTO StringIds VALUES(" + std::to_string(k + 1) + ",'" + name + "')");
    }
    const char* apis[] = {"cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020",
                          "cudaMemcpyAsync_v3020", "cuKernelGetAttribute", "cudaMemsetAsync_v3020"};
    for (int k = 0; k < 5; ++k) {
      Exec("INSERT INTO StringIds VALUES(" + std::to_string(kApi + k) + ",'" + apis[k] + "')");
    }
  }

  void Targets() {
    Exec(
        "CREATE TABLE ANALYSIS_DETAILS(globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, "
        "startTime INTEGER NOT NULL, stopTime INTEGER NOT NULL);"
        "INSERT INTO ANALYSIS_DETAILS VALUES(0,900000000000,5000000000,905000000000)");
    const bool clock = version_ >= Version{3, 24};
    Exec(std::string("CREATE TABLE TARGET_INFO_SESSION_START_TIME(utcEpochNs INTEGER, utcTime "
                     "TEXT, localTime TEXT") +
         (clock ? ", systemClockNs INTEGER)" : ")"));
    Exec(
        std::string("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES(1790000000000000000,'',''") +
        (clock ? ",5000000000)" : ")"));
    const bool uuid = version_ >= Version{3, 24};
    Exec(std::string("CREATE TABLE TARGET_INFO_GPU(vmId INTEGER NOT NULL, id INTEGER NOT NULL, "
                     "name TEXT, busLocation TEXT") +
         (uuid ? ", uuid TEXT)" : ")"));
    const bool cuda_device = version_ >= Version{3, 20};
    if (cuda_device) {
      Exec(std::string("CREATE TABLE TARGET_INFO_CUDA_DEVICE(gpuId INTEGER, cudaId INTEGER, pid "
                       "INTEGER") +
           (uuid ? ", uuid TEXT)" : ")"));
    }
    Exec("CREATE TABLE PROCESSES(globalPid INTEGER NOT NULL, pid INTEGER NOT NULL, name TEXT)");
    for (int d = 0; d < spec_.devices; ++d) {
      const std::string n = std::to_string(d);
      Exec("INSERT INTO TARGET_INFO_GPU VALUES(1," + n + ",'Synthetic GPU','0000:0" + n + ":00.0'" +
           (uuid ? ",'GPU-0000" + n + "')" : ")"));
      if (cuda_device) {
        Exec("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES(" + n + "," + std::to_string(Ordinal(d)) +
             "," + std::to_string(kPid + d) + (uuid ? ",'GPU-0000" + n + "')" : ")"));
      }
      Exec("INSERT INTO PROCESSES VALUES(" + std::to_string(GlobalPid(d)) + "," +
           std::to_string(kPid + d) + ",'worker" + n + "')");
    }
  }

  // From 3.20 on every process calls its GPU 0; earlier there is nothing to tell them apart by.
  std::int64_t Ordinal(int device) const { return version_ >= Version{3, 20} ? 0 : device; }
  static std::int64_t GlobalPid(int device) {
    return (std::int64_t{1} << 48) | (static_cast<std::int64_t>(kPid + device) << 24);
  }

  std::vector<std::string> KernelColumns() const {
    std::vector<std::string> c = {"start", "end", "deviceId", "contextId"};
    if (version_ >= Version{3, 13}) c.push_back("greenContextId");
    for (const char* name : {"streamId",
                             "correlationId",
                             "globalPid",
                             "demangledName",
                             "shortName",
                             "mangledName",
                             "launchType",
                             "cacheConfig",
                             "registersPerThread",
                             "gridX",
                             "gridY",
                             "gridZ",
                             "blockX",
                             "blockY",
                             "blockZ",
                             "staticSharedMemory",
                             "dynamicSharedMemory",
                             "localMemoryPerThread",
                             "localMemoryTotal",
                             "gridId",
                             "sharedMemoryExecuted",
                             "graphNodeId",
                             "sharedMemoryLimitConfig"}) {
      c.push_back(name);
    }
    if (version_ >= Version{3, 24}) {
      for (const char* name :
           {"qmdBulkReleaseState", "qmdFinishState", "graphId", "clusterX", "clusterY", "clusterZ",
            "clusterSchedulingPolicy", "maxPotentialClusterSize", "maxActiveClusters", "priority",
            "launchAttributes"}) {
        c.push_back(name);
      }
    }
    if (version_ >= Version{3, 25}) c.push_back("tensorSizeMinusOneElements");
    return c;
  }

  // 29 typical values by name; what is not listed is null or zero.
  static std::string Ddl(const std::string& table, const std::vector<std::string>& columns) {
    std::string sql = "CREATE TABLE " + table + "(";
    for (std::size_t k = 0; k < columns.size(); ++k) {
      sql += (k ? ", \"" : "\"") + columns[k] + "\" INTEGER" + (k < 4 ? " NOT NULL" : "");
    }
    return sql + ")";
  }

  void Rows() {
    const std::vector<std::string> columns = KernelColumns();
    Exec(Ddl("CUPTI_ACTIVITY_KIND_KERNEL", columns));
    const std::vector<std::string> memcpy = {"start",     "end",      "deviceId",
                                             "contextId", "streamId", "correlationId",
                                             "globalPid", "bytes",    "copyKind"};
    Exec(Ddl("CUPTI_ACTIVITY_KIND_MEMCPY", memcpy));
    Exec(Ddl("CUPTI_ACTIVITY_KIND_MEMSET", {"start", "end", "deviceId", "contextId", "streamId",
                                            "correlationId", "globalPid", "value", "bytes"}));
    Exec(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER NOT NULL, end INTEGER NOT NULL, "
        "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER "
        "NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER)");
    if (spec_.nvtx_per_kernel > 0 || Old()) {
      Exec(
          "CREATE TABLE NVTX_EVENTS(start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT "
          "NULL, rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
          "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER)");
    }
    if (!Old() && version_ >= Version{3, 13}) {
      Exec(
          "CREATE TABLE DIAGNOSTIC_EVENT(timestamp INTEGER NOT NULL, timestampType INTEGER NOT "
          "NULL, source INTEGER NOT NULL, severity INTEGER NOT NULL, text TEXT NOT NULL, "
          "globalPid INTEGER)");
    }
    FillRows(columns);
  }

  void FillRows(const std::vector<std::string>& columns) {
    std::string marks = "?1";
    for (std::size_t k = 1; k < columns.size(); ++k) marks += ",?" + std::to_string(k + 1);
    Insert kernel, copy, set, api, range;
    Prepare(kernel, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES(" + marks + ")");
    Prepare(copy, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES(?,?,?,1,?,?,?,?,?)");
    Prepare(set, "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES(?,?,?,1,?,?,?,0,?)");
    Prepare(api, "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES(?,?,?,?,?,?,0,NULL)");
    if (spec_.nvtx_per_kernel > 0) {
      Prepare(range, "INSERT INTO NVTX_EVENTS VALUES(?,?,59,NULL,NULL,NULL,?,?,NULL,NULL,0)");
    }
    std::vector<int> at;
    for (const std::string& column : columns) at.push_back(Slot(column));
    const std::int64_t per_device = spec_.kernels / spec_.devices;
    std::vector<std::int64_t> clock(static_cast<std::size_t>(spec_.devices), 1'000'000);
    std::vector<std::int64_t> free_at(static_cast<std::size_t>(spec_.devices * spec_.streams), 0);
    double api_owed = 0, nvtx_owed = 0;
    for (std::int64_t k = 0; k < per_device; ++k) {
      for (int d = 0; d < spec_.devices; ++d) {
        const std::uint64_t r =
            Mix64(spec_.seed, static_cast<std::uint64_t>(d), static_cast<std::uint64_t>(k));
        // Ranks run the same program: the same kernels in the same order.
        const int name = static_cast<int>(Mix64(spec_.seed, 1'000, static_cast<std::uint64_t>(k)) %
                                          static_cast<std::uint64_t>(spec_.names));
        const int stream = name == 1 ? spec_.streams - 1 : 0;
        const auto slot = static_cast<std::size_t>(d * spec_.streams + stream);
        std::int64_t& host = clock[static_cast<std::size_t>(d)];
        std::int64_t length = 2'000 + static_cast<std::int64_t>((r >> 16) % 30'000);
        if (name == 0)
          length = static_cast<std::int64_t>(static_cast<double>(length) * spec_.slower);
        const std::int64_t call = host, correlation = 2 * k + 10;
        host += 15'000 + static_cast<std::int64_t>((r >> 40) % 6'000);
        const std::int64_t start = std::max(call + 6'000, free_at[slot]);
        free_at[slot] = start + length;
        const std::int64_t tid = GlobalPid(d) | (kPid + d);
        api.Row({call, call + 4'000, 0, tid, correlation, kApi});
        for (api_owed += spec_.api_per_kernel - 1; api_owed >= 1; api_owed -= 1) {
          api.Row({call + 5'000, call + 5'500, 1, tid, correlation + 1, kApi + 3});
        }
        if (spec_.nvtx_per_kernel > 0) {
          for (nvtx_owed += spec_.nvtx_per_kernel; nvtx_owed >= 1; nvtx_owed -= 1) {
            Range(range, call - 100, call + 5'800, "layer " + std::to_string(k % 40), tid);
          }
        }
        const bool lost =
            d == spec_.devices - 1 &&
            static_cast<double>(k) >= static_cast<double>(per_device) * (1 - spec_.lost_tail);
        if (lost) continue;
        KernelRow(kernel, at, d, stream, name, start, length, correlation);
        if (k % 64 == 63) {
          copy.Row({free_at[slot], free_at[slot] + 1'500, Ordinal(d), 7 + stream, correlation + 1,
                    GlobalPid(d), 65'536, 8});
          set.Row({free_at[slot] + 1'500, free_at[slot] + 2'000, Ordinal(d), 7 + stream,
                   correlation + 1, GlobalPid(d), 4'096});
          free_at[slot] += 2'000;
        }
      }
    }
  }

  // The value slot of a kernel column: 0 null, 1.. see KernelRow, -1 zero.
  static int Slot(const std::string& column) {
    static const std::vector<std::string> kKnown = {"",
                                                    "start",
                                                    "end",
                                                    "deviceId",
                                                    "contextId",
                                                    "streamId",
                                                    "correlationId",
                                                    "globalPid",
                                                    "demangledName",
                                                    "shortName",
                                                    "registersPerThread",
                                                    "gridX",
                                                    "gridY",
                                                    "gridZ",
                                                    "blockX",
                                                    "blockY",
                                                    "blockZ",
                                                    "staticSharedMemory",
                                                    "dynamicSharedMemory"};
    for (std::size_t k = 1; k < kKnown.size(); ++k) {
      if (kKnown[k] == column) return static_cast<int>(k);
    }
    return column == "launchType" || column == "gridId" || column.rfind("localMemory", 0) == 0 ? -1
                                                                                               : 0;
  }

  void KernelRow(Insert& kernel, const std::vector<int>& at, int device, int stream, int name,
                 std::int64_t start, std::int64_t length, std::int64_t correlation) {
    const std::int64_t values[] = {0,
                                   start,
                                   start + length,
                                   Ordinal(device),
                                   1,
                                   7 + stream,
                                   correlation,
                                   GlobalPid(device),
                                   name + 1,
                                   name + 1,
                                   32 + name % 8 * 16,
                                   132 + name % 5,
                                   1,
                                   1,
                                   128,
                                   1,
                                   1,
                                   0,
                                   name % 3 * 16'384};
    for (std::size_t k = 0; k < at.size(); ++k) {
      const int column = static_cast<int>(k) + 1;
      if (at[k] == 0) {
        sqlite3_bind_null(kernel.statement, column);
      } else {
        sqlite3_bind_int64(kernel.statement, column, at[k] < 0 ? 0 : values[at[k]]);
      }
    }
    if (sqlite3_step(kernel.statement) != SQLITE_DONE) throw std::runtime_error("insert failed");
    sqlite3_reset(kernel.statement);
  }

  static void Range(Insert& range, std::int64_t start, std::int64_t end, const std::string& text,
                    std::int64_t tid) {
    sqlite3_bind_int64(range.statement, 1, start);
    sqlite3_bind_int64(range.statement, 2, end);
    sqlite3_bind_text(range.statement, 3, text.c_str(), -1, SQLITE_TRANSIENT);
    sqlite3_bind_int64(range.statement, 4, tid);
    if (sqlite3_step(range.statement) != SQLITE_DONE) throw std::runtime_error("insert failed");
    sqlite3_reset(range.statement);
  }

  static constexpr int kPid = 41'000;
  static constexpr int kApi = 1'000'000;  // first string id of API names
  const SyntheticTrace& spec_;
  Version version_;
  sqlite3* db_ = nullptr;
};

}  // namespace

void WriteSyntheticExport(const std::string& path, const SyntheticTrace& spec) {
  Writer(path, spec).Write();
}

}  // namespace assay::timeline
