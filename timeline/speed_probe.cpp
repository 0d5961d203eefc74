// Measures reading and analysing an export, against SQL on the same file: wall and CPU seconds,
// peak resident memory. `timeline_speed write FILE KERNELS` makes the file first.
#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "timeline/analyze.h"
#include "timeline/read.h"
#include "timeline/synthetic.h"

namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuSeconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

double RunSql(const std::string& path, const char* sql) {
  const double start = Seconds();
  sqlite3* db = nullptr;
  sqlite3_stmt* statement = nullptr;
  sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READONLY, nullptr);
  sqlite3_prepare_v2(db, sql, -1, &statement, nullptr);
  std::int64_t rows = 0;
  while (sqlite3_step(statement) == SQLITE_ROW) ++rows;
  sqlite3_finalize(statement);
  sqlite3_close(db);
  return Seconds() - start;
}

constexpr const char* kGroupBy =
    "SELECT demangledName, count(*), sum(end-start), avg(end-start), min(end-start), "
    "max(end-start) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY demangledName";
// The totals that `read` computes among others: kernels and API calls by name, copies by direction.
constexpr const char* kSameTotals =
    "SELECT s.value, count(*), sum(k.end-k.start), avg(k.end-k.start), min(k.end-k.start), "
    "max(k.end-k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = "
    "k.demangledName GROUP BY s.value UNION ALL "
    "SELECT s.value, count(*), sum(r.end-r.start), avg(r.end-r.start), min(r.end-r.start), "
    "max(r.end-r.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId "
    "GROUP BY s.value UNION ALL "
    "SELECT copyKind, count(*), sum(end-start), avg(end-start), min(end-start), max(end-start) "
    "FROM "
    "CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY copyKind";
constexpr const char* kScan = "SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL";

}  // namespace

int main(int argc, char** argv) {
  using namespace assay::timeline;
  const std::string verb = argc > 2 ? argv[1] : "";
  if (verb == "write" && (argc == 4 || argc == 5)) {
    SyntheticTrace spec;
    spec.kernels = std::atoll(argv[3]);
    if (argc == 5) {  // the sample of docs/timeline.md: ranges, and a device without its tail
      spec.lost_tail = std::atof(argv[4]);
      spec.nvtx_per_kernel = 0.25;
    }
    WriteSyntheticExport(argv[2], spec);
    return 0;
  }
  for (const auto& [name, sql] :
       {std::pair("group", kGroupBy), std::pair("totals", kSameTotals), std::pair("scan", kScan)}) {
    if (verb != name) continue;
    const double wall = RunSql(argv[2], sql);
    fmt::print("{}: {:.3f} s (cpu {:.3f} s)\n", name, wall, CpuSeconds());
    return 0;
  }
  if (verb != "read") {
    fmt::print(stderr,
               "usage: timeline_speed write FILE KERNELS [LOST] | read FILE | group FILE | totals "
               "FILE | scan FILE\n");
    return 2;
  }
  const double start = Seconds();
  const Trace trace = ReadTrace(argv[2]);
  const double read = Seconds();
  const LaunchIndex index(trace);
  const double joined = Seconds();
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  const double end = Seconds();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(
      "{} gpu rows, {} api rows, {} groups: read {:.3f} s, join {:.3f} s, analyse {:.3f} s, "
      "total {:.3f} s (cpu {:.3f} s), peak {:.1f} MB\n",
      trace.gpu.size(), trace.api.size(), use.groups.size(), read - start, joined - read,
      end - joined, end - start, CpuSeconds(), static_cast<double>(usage.ru_maxrss) / 1024);
  return 0;
}
