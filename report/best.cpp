#include "report/best.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/stats.h"
#include "report/analysis.h"

namespace assay {
namespace {

// Cases of one definition and shape.
struct CallShape {
  std::set<std::string> workloads;
  std::map<std::string, std::vector<double>> medians;  // by backend
};

Best Choose(const std::string& definition, const Axes& axes, const CallShape& shape) {
  Best best{definition, AxesText(axes), axes, "", 0, "", 0, 0};
  std::vector<std::pair<double, std::string>> ranking;
  for (const auto& [backend, medians] : shape.medians) {
    if (medians.size() == shape.workloads.size()) ranking.emplace_back(Median(medians), backend);
  }
  std::sort(ranking.begin(), ranking.end());
  if (ranking.empty()) return best;
  best.backend = ranking[0].second;
  best.median_ns = ranking[0].first;
  best.cases = static_cast<std::int64_t>(shape.workloads.size());
  if (ranking.size() > 1) {
    best.second = ranking[1].second;
    best.second_ratio = ranking[1].first / ranking[0].first;
  }
  return best;
}

constexpr const char* kHeader =
    R"(// Fastest verified backend per operator shape. Written by `assay best --cpp`; do not edit.
// Run {} on {} (commit {}).
#pragma once

#include <algorithm>
#include <string_view>

namespace assay_best {{

struct Choice {{
  std::string_view definition, axes, backend;  // axes: "B=1 M=64", sorted by name
  double median_ns;
}};

inline constexpr Choice kChoices[] = {{
{}}};

// Null when no verified backend was measured for this shape.
inline const Choice* Find(std::string_view definition, std::string_view axes) {{
  const auto before = [](const Choice& a, const Choice& b) {{
    return a.definition != b.definition ? a.definition < b.definition : a.axes < b.axes;
  }};
  const Choice wanted{{definition, axes, {{}}, 0}};
  const Choice* end = kChoices + sizeof kChoices / sizeof kChoices[0];
  const Choice* at = std::lower_bound(kChoices, end, wanted, before);
  return at != end && !before(wanted, *at) ? at : nullptr;
}}

}}  // namespace assay_best
)";

}  // namespace

std::vector<Best> BestBackends(const std::vector<CaseRow>& rows) {
  std::map<std::pair<std::string, Axes>, CallShape> shapes;
  for (const CaseRow& row : rows) {
    const TimingSummary* headline = Headline(row.timing);
    if (row.status != Status::kPassed || headline == nullptr) continue;
    CallShape& shape = shapes[{row.definition, row.axes}];
    shape.workloads.insert(row.uuid);
    shape.medians[row.backend].push_back(headline->median_ns);
  }
  std::vector<Best> best;
  for (const auto& [name, shape] : shapes) {
    best.push_back(Choose(name.first, name.second, shape));
    if (best.back().backend.empty()) best.pop_back();
  }
  return best;
}

std::string BestToJson(const std::vector<Best>& best) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Best& one : best) {
    nlohmann::ordered_json item = {{"definition", one.definition},
                                   {"axes", one.axes},
                                   {"backend", one.backend},
                                   {"median_ns", one.median_ns},
                                   {"workloads", one.cases}};
    if (!one.second.empty()) {
      item["second"] = one.second;
      item["second_ratio"] = one.second_ratio;
    }
    list.push_back(std::move(item));
  }
  return list.dump(1);
}

std::string BestToCpp(const std::vector<Best>& best, const RunInfo& run) {
  std::vector<const Best*> sorted;
  for (const Best& one : best) sorted.push_back(&one);
  std::sort(sorted.begin(), sorted.end(), [](const Best* a, const Best* b) {
    return std::tie(a->definition, a->axes_text) < std::tie(b->definition, b->axes_text);
  });
  std::string lines;
  for (const Best* one : sorted) {
    lines += fmt::format("    {{\"{}\", \"{}\", \"{}\", {}}},\n", one->definition, one->axes_text,
                         one->backend, one->median_ns);
  }
  return fmt::format(kHeader, run.id, MachineOf(run), run.commit, lines);
}

}  // namespace assay
