#include "report/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/parallel.h"
#include "report/text.h"

namespace assay {
namespace {

// Each side of a ratio is known to 97.5 %, so that both together are to 95 %.
constexpr double kSideConfidence = 0.975;

CaseView ViewOf(const CaseResult& result, std::size_t index) {
  CaseView view;
  view.result = &result;
  view.index = index;
  view.summaries = Summarize(result.timing);
  if (const TimingSummary* headline = Headline(view.summaries)) {
    view.headline = static_cast<int>(headline - view.summaries.data());
    if (result.floor.ns > 0) view.x_floor = headline->median_ns / result.floor.ns;
  }
  for (const OutputCheck& check : result.correctness.outputs) {
    const double before = view.budget_used.value_or(0);
    // A NaN budget means that nothing fits: it must not lose against numbers.
    const bool larger = std::isnan(check.budget_used) || check.budget_used > before;
    view.budget_used = larger ? check.budget_used : before;
  }
  view.worst = WorstOutput(result);
  return view;
}

// By definition (first seen first), axes, uuid, backend; then the order of the run.
void SortForTables(std::vector<CaseView>& cases) {
  std::map<std::string, std::size_t> first_seen;
  for (const CaseView& view : cases) first_seen.emplace(view.result->definition, view.index);
  std::sort(cases.begin(), cases.end(), [&](const CaseView& a, const CaseView& b) {
    const CaseResult &x = *a.result, &y = *b.result;
    const std::size_t i = first_seen.at(x.definition), j = first_seen.at(y.definition);
    return std::tie(i, x.axes, x.uuid, x.backend, a.index) <
           std::tie(j, y.axes, y.uuid, y.backend, b.index);
  });
}

std::vector<std::pair<Status, std::int64_t>> CountStatuses(const RunReport& report) {
  std::map<Status, std::int64_t> counts;
  for (const CaseResult& result : report.cases) ++counts[result.status];
  return {counts.begin(), counts.end()};
}

std::vector<DefinitionSummary> SummarizeDefinitions(const std::vector<CaseView>& cases) {
  std::vector<DefinitionSummary> summaries;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> at;
  std::vector<std::vector<double>> medians, factors;
  for (const CaseView& view : cases) {
    const CaseResult& result = *view.result;
    const auto [it, fresh] = at.emplace(
        std::make_tuple(result.definition, result.backend, result.input_source), summaries.size());
    if (fresh) {
      summaries.push_back({.definition = result.definition,
                           .backend = result.backend,
                           .input_source = result.input_source});
      medians.emplace_back();
      factors.emplace_back();
    }
    DefinitionSummary& summary = summaries[it->second];
    ++summary.cases;
    if (IsFailure(result.status)) ++summary.failures;
    if (result.status != Status::kPassed) continue;
    ++summary.passed;
    if (view.timing() == nullptr) continue;
    ++summary.timed;
    if (view.timing()->noisy) ++summary.noisy;
    medians[it->second].push_back(view.timing()->median_ns);
    if (view.x_floor > 0) factors[it->second].push_back(view.x_floor);
  }
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (!medians[i].empty()) summaries[i].median_ns = Median(medians[i]);
    if (factors[i].empty()) continue;
    summaries[i].with_floor = static_cast<std::int64_t>(factors[i].size());
    summaries[i].geomean_x_floor = GeometricMean(factors[i]);
    std::tie(summaries[i].best_x_floor, summaries[i].worst_x_floor) =
        std::pair(*std::min_element(factors[i].begin(), factors[i].end()),
                  *std::max_element(factors[i].begin(), factors[i].end()));
  }
  return summaries;
}

const TimingSummary* SummaryOf(const CaseView& view, const std::string& mode) {
  for (const TimingSummary& summary : view.summaries) {
    if (summary.mode == mode) return &summary;
  }
  return nullptr;
}

// Where the median of one mode lies: the order-statistic interval of all samples, widened to the
// medians of the single repeats, since processes differ by more than samples within one do.
std::optional<Interval> MedianInterval(const CaseResult& result, const TimingSummary& summary) {
  std::vector<double> pooled;
  Interval hull{summary.median_ns, summary.median_ns};
  const auto widen = [&](double low, double high) {
    hull = {std::min(hull.low, low), std::max(hull.high, high)};
  };
  for (const TimingSeries& series : result.timing) {
    if (series.mode != summary.mode || series.samples_ns.empty()) continue;
    pooled.insert(pooled.end(), series.samples_ns.begin(), series.samples_ns.end());
    const double median = Median(series.samples_ns);
    widen(median, median);
  }
  std::sort(pooled.begin(), pooled.end());
  const auto interval = OrderStatisticInterval(pooled, 0.5, kSideConfidence);
  if (!interval) return std::nullopt;
  widen(interval->low, interval->high);
  return hull;
}

std::optional<Comparison> Compare(const std::vector<CaseView>& cases, std::size_t base,
                                  std::size_t other) {
  const CaseView &a = cases[base], &b = cases[other];
  if (a.result->status != Status::kPassed || b.result->status != Status::kPassed) return {};
  if (a.timing() == nullptr) return {};
  const TimingSummary& of_a = *a.timing();
  const TimingSummary* of_b = SummaryOf(b, of_a.mode);
  if (of_b == nullptr || of_a.median_ns <= 0 || of_b->median_ns <= 0) return {};
  Comparison comparison{base, other, of_a.mode, of_a.median_ns / of_b->median_ns, {}};
  const auto range_a = MedianInterval(*a.result, of_a), range_b = MedianInterval(*b.result, *of_b);
  if (range_a && range_b && range_b->low > 0) {
    comparison.interval = Interval{range_a->low / range_b->high, range_a->high / range_b->low};
  }
  return comparison;
}

std::string ChooseBaseline(const std::vector<CaseView>& cases, const std::string& wanted) {
  std::map<std::string, std::int64_t> timed;
  for (const CaseView& view : cases) timed[view.result->backend] += view.timing() != nullptr;
  if (timed.size() < 2) return "";
  if (timed.count(wanted) > 0) return wanted;
  // std::map is sorted by name: the first of the largest wins.
  return std::max_element(timed.begin(), timed.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

std::vector<DefinitionComparison> CompareBackends(const std::vector<CaseView>& cases,
                                                  const std::string& baseline) {
  if (baseline.empty()) return {};
  std::map<std::pair<std::string, std::string>, std::size_t> base_case;  // definition, uuid
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseResult& result = *cases[i].result;
    if (result.backend == baseline) base_case[{result.definition, result.uuid}] = i;
  }
  std::vector<DefinitionComparison> comparisons;
  std::map<std::pair<std::string, std::string>, std::size_t> at;  // definition, backend
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseResult& result = *cases[i].result;
    const auto base = base_case.find({result.definition, result.uuid});
    if (result.backend == baseline || base == base_case.end()) continue;
    const auto comparison = Compare(cases, base->second, i);
    if (!comparison) continue;
    const auto [it, fresh] =
        at.emplace(std::pair(result.definition, result.backend), comparisons.size());
    if (fresh) {
      comparisons.push_back({.definition = result.definition, .backend = result.backend});
    }
    comparisons[it->second].workloads.push_back(*comparison);
  }
  for (DefinitionComparison& comparison : comparisons) {
    std::vector<double> speedups;
    for (const Comparison& workload : comparison.workloads) speedups.push_back(workload.speedup);
    std::sort(speedups.begin(), speedups.end());
    comparison.median = Median(speedups);
    comparison.worst = speedups.front();
    comparison.best = speedups.back();
    comparison.interval = OrderStatisticInterval(speedups, 0.5);
  }
  return comparisons;
}

std::string Initials(const std::string& name) {
  std::string initials;
  bool start = true;
  for (const char c : name) {
    if (start && c != '_') initials += c;
    start = c == '_';
  }
  return initials;
}

}  // namespace

std::optional<double> CaseView::half_width() const {
  const TimingSummary* summary = timing();
  // Below 6 samples there is no two-sided interval; the summary's limits are the plain range.
  if (summary == nullptr || summary->median_ns <= 0 || summary->samples < 6) return std::nullopt;
  return 0.5 * (summary->ci_high_ns - summary->ci_low_ns) / summary->median_ns;
}

Analysis Analyse(const RunReport& report, const std::string& baseline) {
  Analysis analysis;
  analysis.cases.resize(report.cases.size());
  ParallelRanges(static_cast<std::int64_t>(report.cases.size()), 256, 0,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end);
                        ++i) {
                     analysis.cases[i] = ViewOf(report.cases[i], i);
                   }
                 });
  std::set<std::string> sources;
  for (const CaseResult& result : report.cases) {
    if (!result.input_source.empty()) sources.insert(result.input_source);
  }
  analysis.mixed_sources = sources.size() > 1;
  SortForTables(analysis.cases);
  analysis.counts = CountStatuses(report);
  analysis.definitions = SummarizeDefinitions(analysis.cases);
  analysis.baseline = ChooseBaseline(analysis.cases, baseline);
  analysis.comparisons = CompareBackends(analysis.cases, analysis.baseline);
  return analysis;
}

bool IsFailure(Status status) {
  return status != Status::kPassed && status != Status::kUnsupported &&
         status != Status::kPendingAudit;
}

const OutputCheck* WorstOutput(const CaseResult& result) {
  const auto severity = [](const OutputCheck& check) {
    const double budget = std::isnan(check.budget_used) ? HUGE_VAL : check.budget_used;
    return std::make_tuple(!check.problem.empty() || check.mismatches > 0, budget);
  };
  const OutputCheck* worst = nullptr;
  for (const OutputCheck& check : result.correctness.outputs) {
    if (worst == nullptr || severity(check) > severity(*worst)) worst = &check;
  }
  return worst;
}

std::string BriefAxisName(const Axes& axes, const std::string& name) {
  const std::string brief = Initials(name);
  for (const auto& [other, value] : axes) {
    if (other != name && (other == brief || Initials(other) == brief)) return name;
  }
  return brief.size() > 1 ? brief : name;
}

std::string AxesText(const Axes& axes, bool brief) {
  std::string text;
  for (const auto& [name, value] : axes) {
    const std::string& shown = brief ? BriefAxisName(axes, name) : name;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", shown, value);
  }
  return text;
}

std::string VerdictText(const CaseResult& result) {
  const std::string detail = result.status == Status::kPassed || result.sub.empty()
                                 ? result.correctness.grade()
                                 : result.sub;
  return detail.empty() ? StatusName(result.status)
                        : fmt::format("{} {}", StatusName(result.status), detail);
}

std::string ElementText(const OutputCheck& check) {
  if (check.worst.index.empty()) return check.output;
  return fmt::format("{}[{}]", check.output, fmt::join(check.worst.index, ", "));
}

std::string FailureText(const CaseView& view) {
  const CaseResult& result = *view.result;
  std::string text, element;
  const auto add = [&](const std::string& sentence) {
    // Verification's own sentence about the worst element would repeat ours.
    const bool repeats = !element.empty() && sentence.compare(0, element.size(), element) == 0;
    if (sentence.empty() || repeats || text.find(sentence) != std::string::npos) return;
    text += (text.empty() ? "" : "; ") + sentence;
  };
  const OutputCheck* worst = view.worst;
  if (worst != nullptr && worst->mismatches > 0 && !worst->worst.index.empty()) {
    const auto [got, expected] = FormatPair(worst->worst.got, worst->worst.expected);
    add(fmt::format("{}: got {}, expected {}, allowed +-{}; {} elements outside",
                    ElementText(*worst), got, expected, FormatValue(worst->worst.allowed),
                    FormatCount(worst->mismatches)));
    element = ElementText(*worst);
  }
  if (worst != nullptr) add(worst->problem);
  add(result.reason);
  for (const Finding& finding : result.correctness.findings) {
    if (finding.passed) continue;
    const std::string detail = finding.detail.empty() ? "" : fmt::format(", {}", finding.detail);
    const std::string sentence =
        fmt::format("{}: {} against a limit of {}{}", finding.name, FormatValue(finding.measured),
                    FormatValue(finding.limit), detail);
    if (result.reason != fmt::format("{}: {}", finding.name, finding.detail)) add(sentence);
  }
  return text.empty() ? "no reason recorded" : text;
}

std::string ShortUuid(const std::string& uuid) { return uuid.substr(0, 8); }

}  // namespace assay
