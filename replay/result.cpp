// Names of statuses, statistics of timing series, floors.
#include "replay/result.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "base/stats.h"

namespace assay {
namespace {

struct StatusRow {
  Status status;
  const char* name;
};

constexpr std::array kStatuses = {
    StatusRow{Status::kPassed, "passed"},
    StatusRow{Status::kIncorrect, "incorrect"},
    StatusRow{Status::kFailed, "failed"},
    StatusRow{Status::kOom, "oom"},
    StatusRow{Status::kTimeout, "timeout"},
    StatusRow{Status::kUnsupported, "unsupported"},
    StatusRow{Status::kSuspicious, "suspicious"},
    StatusRow{Status::kPendingAudit, "pending-audit"},
    StatusRow{Status::kInvalidReference, "invalid_reference"},
    StatusRow{Status::kInvalidRecord, "invalid_record"},
};

// From tight to loose: bit equality, a family's own checks (sets with near ties), the fp32 rule,
// the rules of our own kernels, the recorded tolerance, its two widenings for low-precision
// intermediates, the norms-only rule of states.
constexpr std::array<std::string_view, 8> kGradesByLooseness = {
    "exact", "checks", "fp32", "strict", "captured", "flash", "chunk", "gdn_state"};

// Each side of a ratio is known to 97.5 %, so that both together are to 95 %.
constexpr double kSideConfidence = 0.975;

std::size_t Looseness(std::string_view grade) {
  const auto it = std::find(kGradesByLooseness.begin(), kGradesByLooseness.end(), grade);
  return static_cast<std::size_t>(std::distance(kGradesByLooseness.begin(), it));
}

TimingSummary SummarizeMode(const std::string& mode, const std::vector<TimingSeries>& timing) {
  TimingSummary summary;
  summary.mode = mode;
  std::vector<double> pooled, medians, middles;  // nearest-rank medians; means of the middle two
  for (const TimingSeries& series : timing) {
    if (series.mode != mode) continue;
    summary.noisy = summary.noisy || series.stop != "converged";
    if (series.samples_ns.empty()) continue;
    const std::vector<double> sorted = Sorted(series.samples_ns);
    medians.push_back(QuantileSorted(sorted, 0.5));
    middles.push_back(Median(sorted));
    pooled.insert(pooled.end(), series.samples_ns.begin(), series.samples_ns.end());
  }
  if (pooled.empty()) return summary;
  std::sort(pooled.begin(), pooled.end());
  summary.repeats = static_cast<int>(medians.size());
  summary.samples = static_cast<std::int64_t>(pooled.size());
  summary.median_ns = Median(medians);
  const auto [low, high] = std::minmax_element(medians.begin(), medians.end());
  summary.spread = *low > 0 ? *high / *low : 1;
  summary.min_ns = pooled.front();
  summary.max_ns = pooled.back();
  summary.mean_ns = Mean(pooled);
  const auto interval = OrderStatisticInterval(pooled, 0.5);
  summary.ci_low_ns = interval ? interval->low : summary.min_ns;
  summary.ci_high_ns = interval ? interval->high : summary.max_ns;
  if (const auto side = OrderStatisticInterval(pooled, 0.5, kSideConfidence)) {
    const auto [least, most] = std::minmax_element(middles.begin(), middles.end());
    summary.ratio_side = Interval{std::min({side->low, *least, summary.median_ns}),
                                  std::max({side->high, *most, summary.median_ns})};
  }
  // Without a two-sided interval (n < 36, 72, 368) a percentile would just be the maximum.
  const auto percentile = [&](double q) -> std::optional<double> {
    if (!OrderStatisticInterval(pooled, q)) return std::nullopt;
    return QuantileSorted(pooled, q);
  };
  summary.p90_ns = percentile(0.90);
  summary.p95_ns = percentile(0.95);
  summary.p99_ns = percentile(0.99);
  return summary;
}

}  // namespace

void AddOnce(std::vector<std::string>& list, const std::string& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

const char* StatusName(Status status) { return kStatuses[static_cast<std::size_t>(status)].name; }

std::optional<Status> ParseStatus(std::string_view name) {
  for (const StatusRow& row : kStatuses) {
    if (row.name == name) return row.status;
  }
  return std::nullopt;
}

bool IsFailure(Status status) {
  return status != Status::kPassed && status != Status::kUnsupported &&
         status != Status::kPendingAudit;
}

std::string Correctness::grade() const {
  std::string loosest;
  for (const OutputCheck& check : outputs) {
    if (check.grade.empty()) return "";
    if (loosest.empty() || Looseness(check.grade) > Looseness(loosest)) loosest = check.grade;
  }
  return loosest;
}

std::vector<TimingSummary> Summarize(const std::vector<TimingSeries>& timing) {
  std::vector<std::string> modes;
  for (const TimingSeries& series : timing) {
    if (std::find(modes.begin(), modes.end(), series.mode) == modes.end()) {
      modes.push_back(series.mode);
    }
  }
  std::vector<TimingSummary> summaries;
  for (const std::string& mode : modes) {
    TimingSummary summary = SummarizeMode(mode, timing);
    if (summary.samples > 0) summaries.push_back(std::move(summary));
  }
  return summaries;
}

const TimingSummary* Headline(const std::vector<TimingSummary>& summaries) {
  for (const std::string_view prefix : {"cold_event", "cold", "rotate", "warm", ""}) {
    for (const TimingSummary& summary : summaries) {
      if (std::string_view(summary.mode).starts_with(prefix)) return &summary;
    }
  }
  return nullptr;
}

Floor FloorOf(const Cost& cost, const Ceilings& ceilings) {
  constexpr double kNsPerSecond = 1e9;
  Floor floor{cost.flops, cost.bytes, 0, ""};
  const auto consider = [&floor](double ns, const char* bound) {
    if (ns > floor.ns) {
      floor.ns = ns;
      floor.bound = bound;
    }
  };
  if (ceilings.copy_bytes > 0) consider(cost.bytes / ceilings.copy_bytes * kNsPerSecond, "memory");
  if (ceilings.bf16_flops > 0) consider(cost.flops / ceilings.bf16_flops * kNsPerSecond, "compute");
  consider(ceilings.launch_ns, "launch");
  return floor;
}

}  // namespace assay
