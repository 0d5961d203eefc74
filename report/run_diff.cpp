#include "report/run_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace assay {
namespace {

void AddDifference(std::vector<std::string>& list, const char* what, const std::string& before,
                   const std::string& after) {
  if (before != after) list.push_back(fmt::format("{}: {} -> {}", what, before, after));
}

std::vector<std::string> EnvironmentDifferences(const RunInfo& before, const RunInfo& after) {
  std::vector<std::string> list;
  AddDifference(list, "device", before.device, after.device);
  AddDifference(list, "host", before.host, after.host);
  AddDifference(list, "os", before.os, after.os);
  AddDifference(list, "compiler", before.compiler, after.compiler);
  AddDifference(list, "commit", before.commit, after.commit);
  AddDifference(list, "threads", std::to_string(before.threads), std::to_string(after.threads));
  AddDifference(list, "seed", std::to_string(before.seed), std::to_string(after.seed));
  return list;
}

CaseDiff Compare(const CaseRow& before, const CaseRow& after) {
  CaseDiff diff{&before, &after, {}, {}};
  const TimingSummary* a = Headline(before.timing);
  const TimingSummary* b = Headline(after.timing);
  const bool comparable = before.status == Status::kPassed && after.status == Status::kPassed &&
                          a != nullptr && b != nullptr && a->mode == b->mode && a->median_ns > 0;
  if (!comparable) return diff;
  diff.ratio = b->median_ns / a->median_ns;
  diff.interval = RatioInterval(*a, *b);
  return diff;
}

void Classify(RunDiff& diff, double margin) {
  for (const CaseDiff& one : diff.cases) {
    const bool was = one.before->status == Status::kPassed;
    const bool is = one.after->status == Status::kPassed;
    if (was && !is) diff.new_failures.push_back(&one);
    if (!was && is) diff.mended.push_back(&one);
    if (!one.ratio) continue;
    if (*one.ratio > 1 + margin && one.interval.low > 1) diff.slower.push_back(&one);
    if (*one.ratio < 1 / (1 + margin) && one.interval.high < 1) diff.faster.push_back(&one);
  }
  const auto by_size = [](const CaseDiff* x, const CaseDiff* y) {
    return std::abs(std::log(*x->ratio)) > std::abs(std::log(*y->ratio));
  };
  std::stable_sort(diff.slower.begin(), diff.slower.end(), by_size);
  std::stable_sort(diff.faster.begin(), diff.faster.end(), by_size);
}

std::vector<GroupDiff> Groups(const std::vector<CaseDiff>& cases) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> ratios;
  for (const CaseDiff& one : cases) {
    if (one.ratio) ratios[{one.after->definition, one.after->backend}].push_back(*one.ratio);
  }
  std::vector<GroupDiff> groups;
  for (const auto& [name, values] : ratios) {
    groups.push_back(
        {name.first, name.second, static_cast<std::int64_t>(values.size()), Median(values)});
  }
  return groups;
}

}  // namespace

Interval RatioInterval(const TimingSummary& before, const TimingSummary& after) {
  const double a = std::log(before.median_ns), b = std::log(after.median_ns);
  const double a_low = a - std::log(before.ci_low_ns), a_high = std::log(before.ci_high_ns) - a;
  const double b_low = b - std::log(after.ci_low_ns), b_high = std::log(after.ci_high_ns) - b;
  return {std::exp(b - a - std::hypot(b_low, a_high)), std::exp(b - a + std::hypot(b_high, a_low))};
}

RunDiff CompareRuns(const RunInfo& before, const std::vector<CaseRow>& rows_before,
                    const RunInfo& after, const std::vector<CaseRow>& rows_after, double margin) {
  RunDiff diff;
  diff.environment = EnvironmentDifferences(before, after);
  std::map<std::pair<std::string, std::string>, const CaseRow*> left;
  for (const CaseRow& row : rows_before) left[{row.uuid, row.backend}] = &row;
  for (const CaseRow& row : rows_after) {
    const auto found = left.find({row.uuid, row.backend});
    if (found == left.end()) {
      diff.only_after.push_back(&row);
      continue;
    }
    diff.cases.push_back(Compare(*found->second, row));
    left.erase(found);
  }
  for (const CaseRow& row : rows_before) {
    if (left.contains({row.uuid, row.backend})) diff.only_before.push_back(&row);
  }
  Classify(diff, margin);
  diff.groups = Groups(diff.cases);
  return diff;
}

}  // namespace assay
