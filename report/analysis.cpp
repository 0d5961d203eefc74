#include "report/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "report/text.h"

namespace assay {
namespace {

CaseView ViewOf(const CaseRow& row, std::size_t index) {
  CaseView view{.row = &row, .index = index, .headline = Headline(row.timing)};
  if (view.headline != nullptr && row.floor.ns > 0) {
    view.x_floor = view.headline->median_ns / row.floor.ns;
  }
  return view;
}

// By definition (first seen first), axes, uuid, backend; then the order of the run.
void SortForTables(std::vector<CaseView>& cases) {
  std::map<std::string, std::size_t> first_seen;
  for (const CaseView& view : cases) first_seen.emplace(view.row->definition, view.index);
  std::sort(cases.begin(), cases.end(), [&](const CaseView& a, const CaseView& b) {
    const CaseRow &x = *a.row, &y = *b.row;
    const std::size_t i = first_seen.at(x.definition), j = first_seen.at(y.definition);
    return std::tie(i, x.axes, x.uuid, x.backend, a.index) <
           std::tie(j, y.axes, y.uuid, y.backend, b.index);
  });
}

std::vector<std::pair<Status, std::int64_t>> CountStatuses(const std::vector<CaseRow>& rows) {
  std::map<Status, std::int64_t> counts;
  for (const CaseRow& row : rows) ++counts[row.status];
  return {counts.begin(), counts.end()};
}

std::vector<DefinitionSummary> SummarizeDefinitions(const std::vector<CaseView>& cases) {
  std::vector<DefinitionSummary> summaries;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> at;
  std::vector<std::vector<double>> medians, factors;
  for (const CaseView& view : cases) {
    const CaseRow& row = *view.row;
    const auto [it, fresh] = at.emplace(
        std::make_tuple(row.definition, row.backend, row.input_source), summaries.size());
    if (fresh) {
      summaries.push_back(
          {.definition = row.definition, .backend = row.backend, .input_source = row.input_source});
      medians.emplace_back();
      factors.emplace_back();
    }
    DefinitionSummary& summary = summaries[it->second];
    ++summary.cases;
    if (IsFailure(row.status)) ++summary.failures;
    if (row.status != Status::kPassed) continue;
    ++summary.passed;
    if (view.headline == nullptr) continue;
    ++summary.timed;
    if (view.headline->noisy) ++summary.noisy;
    medians[it->second].push_back(view.headline->median_ns);
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
  for (const TimingSummary& summary : view.row->timing) {
    if (summary.mode == mode) return &summary;
  }
  return nullptr;
}

std::optional<Comparison> Compare(const std::vector<CaseView>& cases, std::size_t base,
                                  std::size_t other) {
  const CaseView &a = cases[base], &b = cases[other];
  if (a.row->status != Status::kPassed || b.row->status != Status::kPassed) return {};
  if (a.headline == nullptr) return {};
  const TimingSummary& of_a = *a.headline;
  const TimingSummary* of_b = SummaryOf(b, of_a.mode);
  if (of_b == nullptr || of_a.median_ns <= 0 || of_b->median_ns <= 0) return {};
  Comparison comparison{base, other, of_a.mode, of_a.median_ns / of_b->median_ns, {}};
  const std::optional<Interval>&side_a = of_a.ratio_side, &side_b = of_b->ratio_side;
  if (side_a && side_b && side_b->low > 0) {
    comparison.interval = Interval{side_a->low / side_b->high, side_a->high / side_b->low};
  }
  return comparison;
}

std::string ChooseBaseline(const std::vector<CaseView>& cases, const std::string& wanted) {
  std::map<std::string, std::int64_t> timed;
  for (const CaseView& view : cases) timed[view.row->backend] += view.headline != nullptr;
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
    const CaseRow& row = *cases[i].row;
    if (row.backend == baseline) base_case[{row.definition, row.uuid}] = i;
  }
  std::vector<DefinitionComparison> comparisons;
  std::map<std::pair<std::string, std::string>, std::size_t> at;  // definition, backend
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseRow& row = *cases[i].row;
    const auto base = base_case.find({row.definition, row.uuid});
    if (row.backend == baseline || base == base_case.end()) continue;
    const auto comparison = Compare(cases, base->second, i);
    if (!comparison) continue;
    const auto [it, fresh] = at.emplace(std::pair(row.definition, row.backend), comparisons.size());
    if (fresh) {
      comparisons.push_back({.definition = row.definition, .backend = row.backend});
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
  const TimingSummary* summary = headline;
  // Below 6 samples there is no two-sided interval; the summary's limits are the plain range.
  if (summary == nullptr || summary->median_ns <= 0 || summary->samples < 6) return std::nullopt;
  return 0.5 * (summary->ci_high_ns - summary->ci_low_ns) / summary->median_ns;
}

Analysis Analyse(std::vector<CaseRow> rows, const std::string& baseline) {
  Analysis analysis;
  analysis.rows = std::make_shared<const std::vector<CaseRow>>(std::move(rows));
  std::set<std::string> sources;
  for (const CaseRow& row : *analysis.rows) {
    analysis.cases.push_back(ViewOf(row, analysis.cases.size()));
    if (!row.input_source.empty()) sources.insert(row.input_source);
  }
  analysis.mixed_sources = sources.size() > 1;
  SortForTables(analysis.cases);
  analysis.counts = CountStatuses(*analysis.rows);
  analysis.definitions = SummarizeDefinitions(analysis.cases);
  analysis.baseline = ChooseBaseline(analysis.cases, baseline);
  analysis.comparisons = CompareBackends(analysis.cases, analysis.baseline);
  return analysis;
}

Analysis Analyse(const RunReport& report, const std::string& baseline) {
  Analysis analysis = Analyse(RowsOf(report.cases), baseline);
  for (CaseView& view : analysis.cases) view.result = &report.cases[view.index];
  return analysis;
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

std::string VerdictText(const CaseRow& row) {
  const std::string& detail =
      row.status == Status::kPassed || row.sub.empty() ? row.grade : row.sub;
  return detail.empty() ? StatusName(row.status)
                        : fmt::format("{} {}", StatusName(row.status), detail);
}

std::string ElementText(const OutputCheck& check) {
  if (check.worst.index.empty()) return check.output;
  return fmt::format("{}[{}]", check.output, fmt::join(check.worst.index, ", "));
}

std::string FailureText(const CaseView& view) {
  const CaseRow& row = *view.row;
  std::string text, element;
  const auto add = [&](const std::string& sentence) {
    // Verification's own sentence about the worst element would repeat ours.
    const bool repeats = !element.empty() && sentence.compare(0, element.size(), element) == 0;
    if (sentence.empty() || repeats || text.find(sentence) != std::string::npos) return;
    text += (text.empty() ? "" : "; ") + sentence;
  };
  const std::optional<OutputCheck>& worst = row.worst;
  if (worst && worst->mismatches > 0 && !worst->worst.index.empty()) {
    const auto [got, expected] = FormatPair(worst->worst.got, worst->worst.expected);
    add(fmt::format("{}: got {}, expected {}, allowed +-{}; {} elements outside",
                    ElementText(*worst), got, expected, FormatValue(worst->worst.allowed),
                    FormatCount(worst->mismatches)));
    element = ElementText(*worst);
  }
  if (worst) add(worst->problem);
  add(row.reason);
  for (const Finding& finding : row.failed_findings) {
    const std::string detail = finding.detail.empty() ? "" : fmt::format(", {}", finding.detail);
    const std::string sentence =
        fmt::format("{}: {} against a limit of {}{}", finding.name, FormatValue(finding.measured),
                    FormatValue(finding.limit), detail);
    if (row.reason != fmt::format("{}: {}", finding.name, finding.detail)) add(sentence);
  }
  return text.empty() ? "no reason recorded" : text;
}

std::string ShortUuid(const std::string& uuid) { return uuid.substr(0, 8); }

}  // namespace assay
