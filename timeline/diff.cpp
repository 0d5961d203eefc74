// Diff of two scopes. Devices are mapped by rank, else uuid, else order: the same ranks may be
// devices 4-7 in one recording and 0-3 in the other.
#include "timeline/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/random.h"
#include "timeline/short_name.h"

namespace assay::timeline {

const char* VerdictName(Verdict verdict) {
  static constexpr const char* kNames[] = {"neutral", "improvement", "regression", "inconclusive",
                                           "not comparable"};
  return kNames[static_cast<int>(verdict)];
}

int VerdictExitCode(Verdict verdict) {
  static constexpr int kCodes[] = {0, 0, 1, 5, 6};
  return kCodes[static_cast<int>(verdict)];
}

namespace {

std::string ShapeText(const KernelConfig& c) {
  return fmt::format("{}x{}x{} / {}x{}x{}", c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1],
                     c.block[2]);
}

using Key = std::pair<std::string, std::string>;  // name, shape

// Work is compared per step: recordings may hold different numbers of them.
struct Side {
  Side(const Recording& recording, const Scope& scope)
      : trace(recording.trace),
        use(Analyze(recording.trace, recording.index, scope, Options())),
        coverage(AuditCoverage(recording.trace, recording.index, use)) {
    for (const Group& group : use.groups) {
      groups[{group.name, group.category == Category::kGraph ? "" : ShapeText(group.config)}] =
          &group;
    }
    for (const Window& step : scope.steps) {
      if (step.end > step.begin) steps.push_back(step);
    }
  }
  static AnalyzeOptions Options() {
    AnalyzeOptions options;
    options.key = GroupKey::kShape;
    options.top_gaps = 0;
    options.short_name = ShortName;
    return options;
  }
  // Clipped total of every key in every step.
  std::vector<std::map<Key, Ns>> PerStep() const {
    std::vector<std::map<Key, Ns>> totals;
    AnalyzeOptions options = Options();
    options.short_name = nullptr;
    for (const Window& step : steps) {
      totals.emplace_back();
      for (const Group& group : GroupsOf(trace, WindowMap({step}), options, -1)) {
        totals.back()[{group.name,
                       group.category == Category::kGraph ? "" : ShapeText(group.config)}] =
            group.total;
      }
    }
    return totals;
  }
  std::vector<double> StepLengths() const {
    std::vector<double> lengths;
    for (const Window& step : steps) lengths.push_back(static_cast<double>(step.end - step.begin));
    return lengths;
  }

  const Trace& trace;
  ScopeUse use;
  ScopeCoverage coverage;
  std::map<Key, const Group*> groups;
  std::vector<Window> steps;
};

std::vector<std::uint32_t> RankOrder(const Trace& trace) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t k = 0; k < trace.devices.size(); ++k) order.push_back(k);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const Device &x = trace.devices[a], &y = trace.devices[b];
    if (x.rank != y.rank) return x.rank < y.rank;
    return x.ordinal < y.ordinal;
  });
  return order;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> MapDevices(const Trace& a, const Trace& b) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  std::vector<bool> used(b.devices.size(), false);
  for (const std::uint32_t x : RankOrder(a)) {
    for (const std::uint32_t y : RankOrder(b)) {
      if (used[y] || a.devices[x].uuid.empty() || a.devices[x].uuid != b.devices[y].uuid ||
          a.devices[x].rank != b.devices[y].rank) {
        continue;
      }
      pairs.emplace_back(x, y);
      used[y] = true;
      break;
    }
  }
  if (pairs.size() == std::min(a.devices.size(), b.devices.size())) return pairs;
  pairs.clear();
  const auto order_a = RankOrder(a), order_b = RankOrder(b);
  for (std::size_t k = 0; k < std::min(order_a.size(), order_b.size()); ++k) {
    pairs.emplace_back(order_a[k], order_b[k]);
  }
  return pairs;
}

double Ratio(double smaller, double larger) {
  if (smaller > larger) std::swap(smaller, larger);
  return larger > 0 ? smaller / larger : 1;
}

// Multiset overlap of the keys, weighted by time: the share of time spent in common keys.
double KeyOverlap(const Side& a, const Side& b) {
  double common = 0, all = 0;
  for (const auto& [key, group] : a.groups) {
    all += static_cast<double>(group->total);
    if (b.groups.count(key)) common += static_cast<double>(group->total);
  }
  for (const auto& [key, group] : b.groups) {
    all += static_cast<double>(group->total);
    if (a.groups.count(key)) common += static_cast<double>(group->total);
  }
  return all > 0 ? common / all : 0;
}

std::string ModelOf(const Trace& trace) {
  return trace.devices.empty() ? "" : trace.devices.front().model;
}

void Compare(const Side& a, const Side& b, ScopeDiff& diff) {
  double score = 1;
  const auto lower = [&](double factor, const std::string& note) {
    score *= factor;
    if (factor < 0.999) diff.notes.push_back(note);
  };
  if (a.trace.sources.front().format != b.trace.sources.front().format) {
    lower(0.5, "the recordings come from different profilers");
  }
  lower(Ratio(static_cast<double>(a.trace.devices.size()),
              static_cast<double>(b.trace.devices.size())),
        fmt::format("{} against {} devices", a.trace.devices.size(), b.trace.devices.size()));
  if (ModelOf(a.trace) != ModelOf(b.trace) && !ModelOf(a.trace).empty() &&
      !ModelOf(b.trace).empty()) {
    lower(0.5, "different GPU models: " + ModelOf(a.trace) + " and " + ModelOf(b.trace));
  }
  const double per_step_a = static_cast<double>(a.use.window) / static_cast<double>(a.steps.size());
  const double per_step_b = static_cast<double>(b.use.window) / static_cast<double>(b.steps.size());
  const double length = Ratio(per_step_a, per_step_b);
  // A factor of two in step time can be the very effect; beyond, it is probably not the same work.
  lower(std::min(1.0, 2 * length),
        fmt::format("window lengths differ by a factor of {:.2f}", length > 0 ? 1 / length : 0));
  const double overlap = KeyOverlap(a, b);
  lower(
      std::min(1.0, 1.25 * overlap),
      fmt::format("only {:.1f} % of the kernel time is in kernels that both have", 100 * overlap));
  diff.comparability = score;
}

// Percentile bootstrap of sum(b)/n_b over sum(a)/n_a across steps, fixed key.
std::optional<Interval> BootstrapRatioOfMeans(const std::vector<double>& a,
                                              const std::vector<double>& b, int resamples) {
  if (a.size() < 2 || b.size() < 2) return std::nullopt;
  constexpr std::uint64_t kSeed = 0x7133A55A;
  const auto mean = [&](const std::vector<double>& values, std::uint64_t tensor,
                        std::uint64_t round) {
    double sum = 0;
    for (std::size_t k = 0; k < values.size(); ++k) {
      const std::uint64_t r = Mix64(kSeed, tensor, round * values.size() + k);
      sum += values[r % values.size()];
    }
    return sum / static_cast<double>(values.size());
  };
  std::vector<double> ratios;
  for (int round = 0; round < resamples; ++round) {
    const double below = mean(a, 1, static_cast<std::uint64_t>(round));
    const double above = mean(b, 2, static_cast<std::uint64_t>(round));
    if (below > 0) ratios.push_back(above / below);
  }
  if (ratios.empty()) return std::nullopt;
  std::sort(ratios.begin(), ratios.end());
  return Interval{QuantileSorted(ratios, 0.025), QuantileSorted(ratios, 0.975)};
}

// Relative spread of repeats: (max - min) / median, halved, of the noisier side.
double Spread(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const std::vector<double> sorted = Sorted(values);
  const double middle = Median(sorted);
  return middle > 0 ? (sorted.back() - sorted.front()) / middle / 2 : 0;
}

// The word for what changed about a kernel that both sides have.
const char* CauseOf(const KeyDelta& delta, double calls_a, double calls_b, double steps_a) {
  const Ns count = std::llabs(delta.from_count), speed = std::llabs(delta.from_speed);
  if (std::fabs(calls_b - calls_a) > 0.02 * calls_a && count >= speed) {
    return calls_b > calls_a ? "more launches" : "fewer launches";
  }
  const double median_ratio =
      delta.median_a > 0 ? static_cast<double>(delta.median_b) / static_cast<double>(delta.median_a)
                         : 1;
  if (speed * 50 > static_cast<Ns>(delta.total_a / steps_a) || std::fabs(median_ratio - 1) > 0.02) {
    return delta.from_speed > 0 ? "slower" : "faster";
  }
  return "same";
}

// One of the groups may be null: the kernel is on one side only.
KeyDelta DeltaOf(const Key& key, const Group* ga, const Group* gb, double steps_a, double steps_b) {
  const Group& any = ga ? *ga : *gb;
  KeyDelta delta;
  delta.name = key.first;
  delta.shape = key.second;
  delta.short_name = any.short_name;
  delta.category = any.category;
  if (ga) {
    delta.count_a = ga->count;
    delta.total_a = ga->total;
    delta.median_a = ga->length.p50;
  }
  if (gb) {
    delta.count_b = gb->count;
    delta.total_b = gb->total;
    delta.median_b = gb->length.p50;
  }
  // B's total at A's length per call is the part of the change that the number of calls made.
  const double calls_a = static_cast<double>(delta.count_a) / steps_a;
  const double calls_b = static_cast<double>(delta.count_b) / steps_b;
  const double mean_a = any.mean_ns();
  const double change =
      static_cast<double>(delta.total_b) / steps_b - static_cast<double>(delta.total_a) / steps_a;
  delta.from_count = static_cast<Ns>(std::llround((calls_b - calls_a) * mean_a));
  delta.from_speed = static_cast<Ns>(std::llround(change)) - delta.from_count;
  delta.cause = !ga ? "new" : !gb ? "gone" : CauseOf(delta, calls_a, calls_b, steps_a);
  return delta;
}

// Time of one kernel in each step.
std::vector<double> SeriesOf(const std::vector<std::map<Key, Ns>>& steps, const Key& key) {
  std::vector<double> values;
  for (const auto& step : steps) {
    const auto found = step.find(key);
    values.push_back(found == step.end() ? 0 : static_cast<double>(found->second));
  }
  return values;
}

void FillKeys(const Side& a, const Side& b, const DiffOptions& options, ScopeDiff& diff) {
  const double steps_a = static_cast<double>(std::max<std::size_t>(1, a.steps.size()));
  const double steps_b = static_cast<double>(std::max<std::size_t>(1, b.steps.size()));
  std::map<Key, std::pair<const Group*, const Group*>> keys;
  for (const auto& [key, group] : a.groups) keys[key].first = group;
  for (const auto& [key, group] : b.groups) keys[key].second = group;
  const bool repeated = a.steps.size() >= 2 && b.steps.size() >= 2;
  const auto per_step_a = repeated ? a.PerStep() : std::vector<std::map<Key, Ns>>();
  const auto per_step_b = repeated ? b.PerStep() : std::vector<std::map<Key, Ns>>();
  // Every key gets the same resamples; a thousand keys times 10,000 would take minutes.
  const int resamples = keys.size() > 64 ? std::min(options.resamples, 1'000) : options.resamples;
  for (const auto& [key, sides] : keys) {
    const auto& [ga, gb] = sides;
    KeyDelta delta = DeltaOf(key, ga, gb, steps_a, steps_b);
    if (repeated && ga && gb) {
      delta.total_ratio =
          BootstrapRatioOfMeans(SeriesOf(per_step_a, key), SeriesOf(per_step_b, key), resamples);
    }
    const bool differs = !ga || !gb ||
                         delta.count_a * static_cast<std::int64_t>(b.steps.size()) !=
                             delta.count_b * static_cast<std::int64_t>(a.steps.size()) ||
                         delta.total_a != delta.total_b;
    if (differs) diff.keys.push_back(std::move(delta));
  }
  std::sort(diff.keys.begin(), diff.keys.end(), [](const KeyDelta& x, const KeyDelta& y) {
    const Ns dx = std::llabs(x.from_count + x.from_speed);
    const Ns dy = std::llabs(y.from_count + y.from_speed);
    if (dx != dy) return dx > dy;
    return std::tie(x.name, x.shape) < std::tie(y.name, y.shape);
  });
}

void FillCategories(const Side& a, const Side& b, ScopeDiff& diff) {
  const auto add = [&](const char* name, auto quantity) {
    Ns sum_a = 0, sum_b = 0;
    for (const auto& [x, y] : diff.devices) {
      sum_a += quantity(a.use.devices[x]);
      sum_b += quantity(b.use.devices[y]);
    }
    diff.categories.push_back(
        {name, sum_a / static_cast<Ns>(a.steps.size()), sum_b / static_cast<Ns>(b.steps.size())});
  };
  add("window", [](const DeviceUse& d) { return d.window; });
  add("busy", [](const DeviceUse& d) { return d.busy(); });
  add("gap", [](const DeviceUse& d) { return d.gap(); });
  add("compute", [](const DeviceUse& d) { return d.compute(); });
  add("comm", [](const DeviceUse& d) { return d.comm(); });
  add("exposed comm", [](const DeviceUse& d) { return d.exposed_comm(); });
  add("overlap", [](const DeviceUse& d) { return d.compute_comm(); });
  add("memcpy", [](const DeviceUse& d) { return d.memcpy(); });
  add("memset", [](const DeviceUse& d) { return d.memset(); });
  add("graph", [](const DeviceUse& d) { return d.graph(); });
  const auto change = [&](std::size_t k) { return diff.categories[k].b - diff.categories[k].a; };
  const Ns window = diff.categories[0].a;
  if (window > 0 && change(2) * 50 > window) diff.notes.push_back("more gap");
  if (window > 0 && -change(6) * 50 > window) diff.notes.push_back("less overlap");
}

void Judge(const Side& a, const Side& b, const DiffOptions& options, ScopeDiff& diff) {
  const std::vector<double> lengths_a = a.StepLengths(), lengths_b = b.StepLengths();
  diff.change = Mean(lengths_b) / Mean(lengths_a) - 1;
  diff.noise = std::max({options.noise_floor, Spread(lengths_a), Spread(lengths_b)});
  if (const auto ratio = BootstrapRatioOfMeans(lengths_a, lengths_b, options.resamples)) {
    diff.change_interval = Interval{ratio->low - 1, ratio->high - 1};
  }
  if (!a.coverage.complete() || !b.coverage.complete()) {
    diff.verdict = Verdict::kNotComparable;
    diff.reason = fmt::format(
        "no verdict: coverage of {} is not complete ({})", a.coverage.complete() ? "B" : "A",
        a.coverage.complete() ? b.coverage.Sentence(b.trace) : a.coverage.Sentence(a.trace));
    return;
  }
  constexpr double kLeastComparability = 0.5;
  if (diff.comparability < kLeastComparability) {
    diff.verdict = Verdict::kNotComparable;
    diff.reason = fmt::format("no verdict: comparability {:.2f} is below {:.2f}",
                              diff.comparability, kLeastComparability);
    return;
  }
  const double size = std::fabs(diff.change);
  const bool in_noise =
      diff.change_interval && diff.change_interval->low <= 0 && diff.change_interval->high >= 0;
  if (size < options.threshold) {
    diff.verdict = Verdict::kNeutral;
    diff.reason = fmt::format("step time changed by {:+.2f} %, below the threshold of {:.1f} %",
                              100 * diff.change, 100 * options.threshold);
  } else if (size <= diff.noise || in_noise) {
    diff.verdict = Verdict::kInconclusive;
    diff.reason = fmt::format("step time changed by {:+.2f} %, within the noise of {:.2f} %",
                              100 * diff.change, 100 * diff.noise);
  } else {
    diff.verdict = diff.change > 0 ? Verdict::kRegression : Verdict::kImprovement;
    diff.reason = fmt::format("step time changed by {:+.2f} % (noise {:.2f} %, {} and {} windows)",
                              100 * diff.change, 100 * diff.noise, a.steps.size(), b.steps.size());
  }
}

}  // namespace

ScopeDiff DiffScope(const Recording& a, const Scope& scope_a, const Recording& b,
                    const Scope& scope_b, const DiffOptions& options) {
  ScopeDiff diff;
  diff.scope = scope_a.name;
  const Side side_a(a, scope_a), side_b(b, scope_b);
  diff.steps_a = side_a.steps.size();
  diff.steps_b = side_b.steps.size();
  diff.devices = MapDevices(a.trace, b.trace);
  if (side_a.steps.empty() || side_b.steps.empty() || a.trace.gpu.empty() || b.trace.gpu.empty()) {
    diff.verdict = Verdict::kNotComparable;
    diff.reason = "no verdict: one side has no GPU activity in the scope";
    return diff;
  }
  Compare(side_a, side_b, diff);
  FillCategories(side_a, side_b, diff);
  FillKeys(side_a, side_b, options, diff);
  Judge(side_a, side_b, options, diff);
  return diff;
}

}  // namespace assay::timeline
