#include "serving/rank_tests.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "serving/distributions.h"

namespace assay::serving {
namespace {

// Doubles in numeric order as integers, so that bisection ends at the exact value.
std::int64_t ToOrder(double x) {
  const auto bits = std::bit_cast<std::int64_t>(x);
  return bits >= 0 ? bits : std::numeric_limits<std::int64_t>::min() - bits;
}
double FromOrder(std::int64_t order) {
  return std::bit_cast<double>(order >= 0 ? order
                                          : std::numeric_limits<std::int64_t>::min() - order);
}

// k-th smallest (1-based) of a multiset given by count(t) = number of elements <= t.
template <class Count>
double SelectByCount(double low, double high, std::int64_t k, const Count& count) {
  std::int64_t a = ToOrder(low), b = ToOrder(high);
  while (a < b) {
    const std::int64_t middle = static_cast<std::int64_t>(std::midpoint(a, b));  // rounds towards a
    if (count(FromOrder(middle)) >= k) {
      b = middle;
    } else {
      a = middle + 1;
    }
  }
  return FromOrder(a);
}

// Number of Walsh averages (x_i + x_j)/2, i <= j, at or below t, for sorted x.
std::int64_t CountWalsh(std::span<const double> x, double t) {
  std::int64_t count = 0;
  auto j = static_cast<std::int64_t>(x.size()) - 1;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i) {
    while (j >= i && 0.5 * (x[static_cast<std::size_t>(i)] + x[static_cast<std::size_t>(j)]) > t)
      --j;
    if (j < i) break;
    count += j - i + 1;
  }
  return count;
}

double WalshOrderStatistic(std::span<const double> sorted, std::int64_t k) {
  return SelectByCount(sorted.front(), sorted.back(), k,
                       [&](double t) { return CountWalsh(sorted, t); });
}

std::int64_t CountDifferences(std::span<const double> x, std::span<const double> y, double t) {
  std::int64_t count = 0;
  std::size_t i = x.size();
  // y_j - x_i <= t: for growing y_j the first admissible x_i grows.
  std::size_t first = 0;
  for (const double value : y) {
    while (first < i && value - x[first] > t) ++first;
    count += static_cast<std::int64_t>(x.size() - first);
  }
  return count;
}

// Exact null distribution of the signed-rank statistic: largest c with P(T+ <= c - 1) <= 0.025.
std::int64_t ExactSignedRankCut(std::int64_t n) {
  const auto total = static_cast<std::size_t>(n * (n + 1) / 2);
  std::vector<double> ways(total + 1, 0.0);
  ways[0] = 1;
  for (std::int64_t rank = 1; rank <= n; ++rank) {
    for (std::size_t sum = total; sum >= static_cast<std::size_t>(rank); --sum) {
      ways[sum] += ways[sum - static_cast<std::size_t>(rank)];
    }
  }
  const double all = std::ldexp(1.0, static_cast<int>(n));
  double below = 0;
  std::int64_t cut = 0;
  while (below + ways[static_cast<std::size_t>(cut)] <= 0.025 * all) {
    below += ways[static_cast<std::size_t>(cut)];
    ++cut;
  }
  return cut;
}

}  // namespace

std::optional<HodgesLehmann> PairedShift(std::span<const double> differences) {
  const std::vector<double> d = Sorted(differences);
  const auto n = static_cast<std::int64_t>(d.size());
  if (n == 0) return std::nullopt;
  HodgesLehmann result;
  result.count = n;
  result.median = Median(d);
  result.positive = d.end() - std::upper_bound(d.begin(), d.end(), 0.0);
  const std::int64_t averages = n * (n + 1) / 2;
  const double upper_middle = WalshOrderStatistic(d, averages / 2 + 1);
  result.center = averages % 2 == 1 ? upper_middle
                                    : 0.5 * (WalshOrderStatistic(d, averages / 2) + upper_middle);
  const double size = static_cast<double>(n);
  std::int64_t cut = 0;
  if (n <= 25) {
    cut = ExactSignedRankCut(n);
  } else {
    const double mean = size * (size + 1) / 4;
    const double sd = std::sqrt(size * (size + 1) * (2 * size + 1) / 24);
    cut = static_cast<std::int64_t>(std::floor(mean - 1.959964 * sd));
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  result.interval =
      cut < 1 ? Interval{-kInfinity, kInfinity}
              : Interval{WalshOrderStatistic(d, cut), WalshOrderStatistic(d, averages - cut + 1)};
  return result;
}

std::optional<MannWhitney> CompareUnpaired(std::span<const double> x, std::span<const double> y) {
  if (x.empty() || y.empty()) return std::nullopt;
  const std::vector<double> a = Sorted(x), b = Sorted(y);
  const double n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  MannWhitney result;
  double ties = 0;
  std::size_t low = 0, high = 0, at = 0;
  while (at < b.size()) {
    const double value = b[at];
    std::size_t same = at;
    while (same < b.size() && b[same] == value) ++same;
    while (low < a.size() && a[low] < value) ++low;
    high = std::max(high, low);
    while (high < a.size() && a[high] == value) ++high;
    const double equal = static_cast<double>(high - low);
    result.u += static_cast<double>(same - at) * (static_cast<double>(low) + 0.5 * equal);
    at = same;
  }
  std::vector<double> all = a;
  all.insert(all.end(), b.begin(), b.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size();) {
    std::size_t j = i;
    while (j < all.size() && all[j] == all[i]) ++j;
    const double t = static_cast<double>(j - i);
    ties += t * t * t - t;
    i = j;
  }
  result.superiority = result.u / (n * m);
  const double total = n + m;
  const double variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)));
  if (variance > 0) {
    result.p = 2 * NormalCdf(-std::abs(result.u - 0.5 * n * m) / std::sqrt(variance));
  }
  const auto pairs = static_cast<std::int64_t>(a.size()) * static_cast<std::int64_t>(b.size());
  const double lowest = b.front() - a.back(), highest = b.back() - a.front();
  const auto select = [&](std::int64_t k) {
    return SelectByCount(lowest, highest, k, [&](double t) { return CountDifferences(a, b, t); });
  };
  result.shift =
      pairs % 2 == 1 ? select(pairs / 2 + 1) : 0.5 * (select(pairs / 2) + select(pairs / 2 + 1));
  return result;
}

std::optional<Ranks> QuantileRanks(std::int64_t n, double q, double confidence) {
  std::vector<double> ranks(static_cast<std::size_t>(n));
  std::iota(ranks.begin(), ranks.end(), 1.0);
  const std::optional<Interval> interval = OrderStatisticInterval(ranks, q, confidence);
  if (!interval.has_value()) return std::nullopt;
  return Ranks{static_cast<std::int64_t>(interval->low), static_cast<std::int64_t>(interval->high)};
}

std::int64_t SmallestCount(double q, double confidence) {
  // Equal tails: the widest interval is [x_1, x_n], so that max(q, 1 - q)^n <= (1 - confidence)/2.
  const double tail = 0.5 * (1 - confidence);
  return static_cast<std::int64_t>(
      std::ceil(std::log(tail) / std::log(std::max(q, 1 - q)) - 1e-12));
}

std::int64_t SmallestCountOneSided(double q, double confidence) {
  return static_cast<std::int64_t>(std::ceil(std::log1p(-confidence) / std::log(q) - 1e-12));
}

std::vector<double> BenjaminiHochberg(std::span<const double> p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  std::vector<double> adjusted(p.size());
  double smallest = 1;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const double rank = static_cast<double>(order.size() - i);
    smallest = std::min(smallest, p[order[i]] * static_cast<double>(p.size()) / rank);
    adjusted[order[i]] = smallest;
  }
  return adjusted;
}

double Autocorrelation(std::span<const double> series, std::int64_t lag) {
  const double mean = Mean(series);
  double top = 0, bottom = 0;
  for (std::size_t i = 0; i < series.size(); ++i) {
    bottom += (series[i] - mean) * (series[i] - mean);
    if (i + static_cast<std::size_t>(lag) < series.size()) {
      top += (series[i] - mean) * (series[i + static_cast<std::size_t>(lag)] - mean);
    }
  }
  return bottom > 0 ? top / bottom : 0;
}

double IntegratedAutocorrelationTime(std::span<const double> series) {
  double time = 1;
  const auto limit = static_cast<std::int64_t>(std::min<std::size_t>(series.size() / 4, 400));
  for (std::int64_t lag = 1; lag + 1 <= limit; lag += 2) {
    const double pair = Autocorrelation(series, lag) + Autocorrelation(series, lag + 1);
    if (pair <= 0) break;
    time += 2 * pair;
  }
  return std::max(1.0, time);
}

std::int64_t MserTruncation(std::span<const double> series) {
  constexpr std::size_t kBatch = 5;
  std::vector<double> batch;
  for (std::size_t i = 0; i + kBatch <= series.size(); i += kBatch) {
    batch.push_back(Mean(series.subspan(i, kBatch)));
  }
  if (batch.size() < 4) return 0;
  // Sums from the back, so that every truncation point costs O(1).
  double sum = 0, squares = 0, best = std::numeric_limits<double>::infinity();
  std::size_t best_at = 0;
  for (std::size_t at = batch.size(); at-- > 0;) {
    sum += batch[at];
    squares += batch[at] * batch[at];
    const double count = static_cast<double>(batch.size() - at);
    if (at > batch.size() / 2) continue;
    const double score = (squares - sum * sum / count) / (count * count);
    if (score <= best) {
      best = score;
      best_at = at;
    }
  }
  return static_cast<std::int64_t>(best_at * kBatch);
}

}  // namespace assay::serving
