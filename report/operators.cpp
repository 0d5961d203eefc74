#include "report/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/stats.h"
#include "ops/registry.h"
#include "report/analysis.h"
#include "report/table.h"
#include "report/text.h"

namespace assay {
namespace {

constexpr const char* kOwn = "cuda";
constexpr const char* kCpu = "cpu";

// A timed case in one number, with its distance from the floor.
struct Timed {
  double median_ns = 0, x_floor = 0;
};

// Results of one definition on one kind of device.
struct Results {
  std::int64_t cases = 0, passed = 0;
  std::map<std::string, std::map<std::string, Timed>> backends;  // by name, then by workload
};

struct Row {
  std::string definition, family;
  Results cpu, gpu;
};

double MedianOf(const std::map<std::string, Timed>& workloads,
                const std::vector<std::string>& which) {
  std::vector<double> medians;
  for (const std::string& uuid : which) medians.push_back(workloads.at(uuid).median_ns);
  return Median(medians);
}

// Geometric mean; 0 when some workload has no floor.
double XFloorOf(const std::map<std::string, Timed>& workloads,
                const std::vector<std::string>& which) {
  std::vector<double> factors;
  for (const std::string& uuid : which) {
    if (workloads.at(uuid).x_floor <= 0) return 0;
    factors.push_back(workloads.at(uuid).x_floor);
  }
  return GeometricMean(factors);
}

std::string TimeCell(const std::map<std::string, Timed>& workloads,
                     const std::vector<std::string>& which) {
  const double x_floor = XFloorOf(workloads, which);
  const std::string time = FormatTime(MedianOf(workloads, which));
  return x_floor > 0 ? fmt::format("{}, {} %", time, FormatFactor(100 / x_floor)) : time;
}

// The workloads that every backend was timed on.
std::vector<std::string> Shared(const Results& results) {
  std::map<std::string, std::size_t> counts;
  for (const auto& [backend, workloads] : results.backends) {
    for (const auto& [uuid, timed] : workloads) ++counts[uuid];
  }
  std::vector<std::string> shared;
  for (const auto& [uuid, count] : counts) {
    if (count == results.backends.size()) shared.push_back(uuid);
  }
  return shared;
}

std::string FastestCell(const Results& results) {
  const std::vector<std::string> shared = Shared(results);
  if (shared.empty()) return "-";
  const auto fastest = std::min_element(
      results.backends.begin(), results.backends.end(), [&](const auto& a, const auto& b) {
        return MedianOf(a.second, shared) < MedianOf(b.second, shared);
      });
  return fmt::format("`{}` {}", fastest->first, TimeCell(fastest->second, shared));
}

// The best of the others over ours, geometric mean over the workloads: above 1 = ours is faster.
std::string OwnCell(const Results& results) {
  const auto own = results.backends.find(kOwn);
  if (own == results.backends.end() || results.backends.size() < 2) return "-";
  std::vector<double> ratios;
  for (const auto& [uuid, timed] : own->second) {
    double best = 0;
    for (const auto& [backend, workloads] : results.backends) {
      const auto other = workloads.find(uuid);
      if (backend == kOwn || other == workloads.end()) continue;
      best = best == 0 ? other->second.median_ns : std::min(best, other->second.median_ns);
    }
    if (best > 0) ratios.push_back(best / timed.median_ns);
  }
  if (ratios.empty()) return "-";
  return fmt::format("{:.2f}x (worst {:.2f}x, n = {})", GeometricMean(ratios),
                     *std::min_element(ratios.begin(), ratios.end()), ratios.size());
}

Row& RowOf(std::vector<Row>& rows, const CaseResult& result) {
  for (Row& row : rows) {
    if (row.definition == result.definition) return row;
  }
  rows.push_back({result.definition, result.family, {}, {}});
  return rows.back();
}

void Add(const CaseView& view, Results& results) {
  ++results.cases;
  if (view.result->status != Status::kPassed) return;
  ++results.passed;
  if (const TimingSummary* timing = view.headline) {
    results.backends[view.result->backend][view.result->uuid] = {timing->median_ns, view.x_floor};
  }
}

}  // namespace

std::string OperatorTable(const std::vector<RunReport>& runs) {
  std::vector<Row> rows;
  for (const RunReport& run : runs) {
    std::vector<Row> mine;
    const Analysis analysis = Analyse(run);
    for (const CaseView& view : analysis.cases) {
      const bool on_cpu = view.result->device == "cpu";
      // Companions of the GPU's backends, or plugins beside `cpu`: no cell shows them.
      if (on_cpu && (!run.run.accelerator.empty() || view.result->backend != kCpu)) continue;
      Row& row = RowOf(mine, *view.result);
      Add(view, on_cpu ? row.cpu : row.gpu);
    }
    for (const Row& row : mine) {
      CaseResult key;
      key.definition = row.definition;
      key.family = row.family;
      Row& kept = RowOf(rows, key);
      if (row.cpu.cases > 0) kept.cpu = row.cpu;
      if (row.gpu.cases > 0) kept.gpu = row.gpu;
    }
  }
  std::sort(rows.begin(), rows.end(), [](const Row& x, const Row& y) {
    return std::tie(x.family, x.definition) < std::tie(y.family, y.definition);
  });
  std::string out =
      "| definition | captured workloads passed | CPU: median, of floor | GPU: fastest, median, of "
      "floor | own kernel over best peer |\n|---|---:|---:|---:|---:|\n";
  for (const Row& row : rows) {
    const auto cpu = row.cpu.backends.find(kCpu);
    const std::string passed =
        row.cpu.cases > 0 ? fmt::format("{} of {}", row.cpu.passed, row.cpu.cases) : "-";
    out += fmt::format("| [{}](ops/{}/) | {} | {} | {} | {} |\n", MarkdownEscape(row.definition),
                       RoomOf(row.family), passed,
                       cpu != row.cpu.backends.end() ? TimeCell(cpu->second, Shared(row.cpu)) : "-",
                       FastestCell(row.gpu), OwnCell(row.gpu));
  }
  return out;
}

}  // namespace assay
