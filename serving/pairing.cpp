#include "serving/pairing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "serving/rank_tests.h"

namespace assay::serving {
namespace {

struct Key {
  std::int32_t name, turn, ordinal;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t x = static_cast<std::uint32_t>(key.name) * 0x9E3779B97F4A7C15u;
    x ^= (static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.turn)) << 32) +
         static_cast<std::uint32_t>(key.ordinal);
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ (x >> 31);
  }
};

// Names of `on` translated to indices of `off`; names that `off` lacks get negative numbers.
std::vector<std::int32_t> Translate(const Run& off, const Run& on) {
  std::unordered_map<std::string_view, std::int32_t> index;
  for (std::size_t i = 0; i < off.names.size(); ++i) {
    index.emplace(off.names[i], static_cast<std::int32_t>(i));
  }
  std::vector<std::int32_t> to;
  for (std::size_t i = 0; i < on.names.size(); ++i) {
    const auto found = index.find(on.names[i]);
    to.push_back(found == index.end() ? -2 - static_cast<std::int32_t>(i) : found->second);
  }
  return to;
}

void SortByStart(const Run& off, std::vector<RequestPair>& pairs) {
  std::stable_sort(pairs.begin(), pairs.end(), [&](const RequestPair& a, const RequestPair& b) {
    return off.requests[a.off].start_ns < off.requests[b.off].start_ns;
  });
}

Pairing PairByKey(const Run& off, const Run& on) {
  Pairing pairing;
  pairing.key = off.key;
  const std::vector<std::int32_t> translate = Translate(off, on);
  std::unordered_map<Key, std::uint32_t, KeyHash> index;
  const std::vector<std::uint32_t> off_requests = MeasuredRequests(off);
  index.reserve(off_requests.size() * 2);
  for (const std::uint32_t i : off_requests) {
    const Request& r = off.requests[i];
    index.emplace(Key{r.conversation, r.turn, r.ordinal}, i);
    pairing.repeated_keys += r.ordinal > 0 ? 1 : 0;
  }
  std::vector<bool> taken(off.requests.size(), false);
  for (const std::uint32_t i : MeasuredRequests(on)) {
    const Request& r = on.requests[i];
    pairing.repeated_keys += r.ordinal > 0 ? 1 : 0;
    const auto found =
        index.find(Key{translate[static_cast<std::size_t>(r.conversation)], r.turn, r.ordinal});
    if (found == index.end()) {
      pairing.on_only.push_back(i);
    } else {
      pairing.both.push_back({found->second, i});
      taken[found->second] = true;
    }
  }
  for (const std::uint32_t i : off_requests) {
    if (!taken[i]) pairing.off_only.push_back(i);
  }
  SortByStart(off, pairing.both);
  return pairing;
}

// The i-th record of both files is the i-th prompt: true only if every input length agrees.
bool IndexMatches(const Run& off, const Run& on) {
  if (off.requests.size() != on.requests.size()) return false;
  for (std::size_t i = 0; i < off.requests.size(); ++i) {
    if (!(off.requests[i].isl == on.requests[i].isl)) return false;
  }
  return true;
}

Pairing PairByIndex(const Run& off, const Run& on) {
  Pairing pairing;
  pairing.key = KeyKind::kIndex;
  pairing.note = "pairs are assumed: same position in both files, every input length equal";
  for (std::uint32_t i = 0; i < off.requests.size(); ++i) {
    const bool a = off.requests[i].Measured(), b = on.requests[i].Measured();
    if (a && b) pairing.both.push_back({i, i});
    if (a && !b) pairing.off_only.push_back(i);
    if (b && !a) pairing.on_only.push_back(i);
  }
  return pairing;
}

using Lengths = std::pair<double, double>;

std::map<Lengths, std::vector<std::uint32_t>> ByLengths(const Run& run) {
  std::map<Lengths, std::vector<std::uint32_t>> groups;
  for (const std::uint32_t i : MeasuredRequests(run)) {
    const Request& r = run.requests[i];
    // Unknown lengths are one group: such a file is far from unique and stays unpaired.
    groups[{std::isnan(r.isl) ? -1 : r.isl, std::isnan(r.osl) ? -1 : r.osl}].push_back(i);
  }
  return groups;
}

double UniqueShare(const std::map<Lengths, std::vector<std::uint32_t>>& groups) {
  double unique = 0, all = 0;
  for (const auto& [lengths, members] : groups) {
    unique += members.size() == 1 ? 1 : 0;
    all += static_cast<double>(members.size());
  }
  return all > 0 ? unique / all : 0;
}

Pairing PairByLengths(const Run& off, const Run& on) {
  Pairing pairing;
  const auto a = ByLengths(off), b = ByLengths(on);
  const double unique = std::min(UniqueShare(a), UniqueShare(b));
  if (!(unique >= 0.95)) {
    pairing.off_only = MeasuredRequests(off);
    pairing.on_only = MeasuredRequests(on);
    pairing.note = fmt::format(
        "unpaired: no key, input lengths differ by position, and (isl, osl) is unique for {:.0f} %",
        100 * unique);
    return pairing;
  }
  pairing.key = KeyKind::kIndex;
  pairing.note = "pairs are assumed: same (isl, osl, occurrence)";
  for (const auto& [lengths, members] : a) {
    const auto found = b.find(lengths);
    const std::size_t common =
        found == b.end() ? 0 : std::min(members.size(), found->second.size());
    for (std::size_t i = 0; i < common; ++i) pairing.both.push_back({members[i], found->second[i]});
    for (std::size_t i = common; i < members.size(); ++i) pairing.off_only.push_back(members[i]);
  }
  std::vector<bool> taken(on.requests.size(), false);
  for (const RequestPair& pair : pairing.both) taken[pair.on] = true;
  for (const std::uint32_t i : MeasuredRequests(on)) {
    if (!taken[i]) pairing.on_only.push_back(i);
  }
  SortByStart(off, pairing.both);
  return pairing;
}

// Clusters named the same in both arms are one unit. Elements without a cluster make it impossible.
bool ClusterUnits(const Run& off, const Run& on, const std::vector<std::uint32_t>& off_elements,
                  const std::vector<std::uint32_t>& on_elements, bool joint, Units& units) {
  const std::vector<std::int32_t> translate = Translate(off, on);
  std::unordered_map<std::int32_t, std::int32_t> unit_off, unit_on;
  std::unordered_map<std::int32_t, std::int32_t>& unit_of_on = joint ? unit_off : unit_on;
  const auto add = [](std::unordered_map<std::int32_t, std::int32_t>& map, std::int32_t cluster) {
    return map.try_emplace(cluster, static_cast<std::int32_t>(map.size())).first->second;
  };
  for (const std::uint32_t i : off_elements) {
    if (off.requests[i].cluster < 0) return false;
    units.off.push_back(add(unit_off, off.requests[i].cluster));
  }
  for (const std::uint32_t i : on_elements) {
    if (on.requests[i].cluster < 0) return false;
    const std::int32_t cluster = translate[static_cast<std::size_t>(on.requests[i].cluster)];
    units.on.push_back(add(unit_of_on, cluster));
  }
  const auto count_off = static_cast<std::int32_t>(unit_off.size());
  const auto count_on = static_cast<std::int32_t>(unit_on.size());
  units.plan.strata = joint ? std::vector<std::int32_t>{0, count_off}
                            : std::vector<std::int32_t>{0, count_off, count_off + count_on};
  if (!joint) {
    for (std::int32_t& unit : units.on) unit += count_off;
  }
  units.plan.clusters = joint ? count_off : std::min(count_off, count_on);
  units.plan.effective = units.plan.clusters;
  return true;
}

// Units are numbered in order of first appearance (time): neighbours are merged.
void CapUnits(Units& units) {
  const std::int32_t count = units.plan.units();
  if (count <= kMostUnits) return;
  const double shrink = static_cast<double>(kMostUnits) / count;
  const auto merged = [&](std::int32_t unit) { return static_cast<std::int32_t>(unit * shrink); };
  for (std::int32_t& unit : units.off) unit = merged(unit);
  for (std::int32_t& unit : units.on) unit = merged(unit);
  for (std::int32_t& begin : units.plan.strata) begin = merged(begin);
  units.plan.strata.back() = kMostUnits;
  units.plan.effective = kMostUnits / static_cast<double>(units.plan.strata.size() - 1);
  units.plan.name = "clusters, grouped in time";
}

// Time cells of an ordered population of `n`, cut so that a block of `length` is at most 8 cells.
void BlockUnits(std::size_t n, double length, std::vector<std::int32_t>& unit, UnitPlan& plan,
                std::int32_t first_unit) {
  const auto cell = static_cast<std::size_t>(
      std::max({1.0, std::floor(length / 8), std::ceil(static_cast<double>(n) / kMostUnits)}));
  for (std::size_t i = 0; i < n; ++i) {
    unit.push_back(first_unit + static_cast<std::int32_t>(i / cell));
  }
  const auto cells = static_cast<std::int32_t>((n + cell - 1) / cell);
  plan.strata.push_back(first_unit + cells);
  plan.block = std::max(plan.block,
                        static_cast<std::int32_t>(std::ceil(length / static_cast<double>(cell))));
  plan.effective = std::max(2.0, static_cast<double>(n) / length);
  plan.name = "moving blocks in time";
}

// Block length: n^(1/3), or the integrated autocorrelation time where that is longer; at most n/4.
double BlockLength(std::span<const double> series) {
  const double n = static_cast<double>(series.size());
  const double length = std::max(std::cbrt(n), IntegratedAutocorrelationTime(series));
  return std::clamp(std::ceil(length), 1.0, std::max(1.0, std::floor(n / 4)));
}

}  // namespace

std::vector<std::uint32_t> MeasuredRequests(const Run& run) {
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < run.requests.size(); ++i) {
    if (run.requests[i].Measured()) indices.push_back(i);
  }
  return indices;
}

Pairing PairRuns(const Run& off, const Run& on) {
  if (off.key == on.key && off.key >= KeyKind::kPromptHash) {
    Pairing pairing = PairByKey(off, on);
    if (!pairing.both.empty()) return pairing;
    Pairing fallback = IndexMatches(off, on) ? PairByIndex(off, on) : PairByLengths(off, on);
    fallback.note = "no " + std::string(NameOf(off.key)) + " occurs in both arms; " + fallback.note;
    return fallback;
  }
  if (off.requests.empty() || on.requests.empty()) return {};
  return IndexMatches(off, on) ? PairByIndex(off, on) : PairByLengths(off, on);
}

Units UnitsOfPairs(const Run& off, const Run& on, const std::vector<RequestPair>& pairs) {
  std::vector<std::uint32_t> off_elements, on_elements;
  for (const RequestPair& pair : pairs) off_elements.push_back(pair.off);
  Units units;
  // A pair belongs to the cluster of its off request.
  const bool clustered = ClusterUnits(off, on, off_elements, {}, true, units);
  if (clustered && units.plan.clusters >= kFewClusters) {
    CapUnits(units);
  } else {
    const std::int32_t clusters = clustered ? units.plan.clusters : 0;
    std::vector<double> series;
    for (const RequestPair& pair : pairs) {
      const double d = std::log(Cost(on.requests[pair.on], Metric::kE2ePerToken) /
                                Cost(off.requests[pair.off], Metric::kE2ePerToken));
      series.push_back(std::isfinite(d) ? d : 0);
    }
    units = {};
    BlockUnits(pairs.size(), BlockLength(series), units.off, units.plan, 0);
    units.plan.few_clusters = clustered;
    units.plan.clusters = clusters;
  }
  units.on = units.off;
  return units;
}

Units UnitsOfAll(const Run& off, const Run& on, const std::vector<std::uint32_t>& off_requests,
                 const std::vector<std::uint32_t>& on_requests, bool joint) {
  Units units;
  if (ClusterUnits(off, on, off_requests, on_requests, joint, units) &&
      units.plan.clusters >= kFewClusters) {
    CapUnits(units);
    return units;
  }
  const std::int32_t clusters = units.plan.clusters;
  units = {};
  const auto series = [](const Run& run, const std::vector<std::uint32_t>& indices) {
    std::vector<double> costs;
    for (const std::uint32_t i : indices) {
      const double cost = std::log(Cost(run.requests[i], Metric::kE2ePerToken));
      costs.push_back(std::isfinite(cost) ? cost : 0);
    }
    return costs;
  };
  const auto by_start = [](const Run& run, const std::vector<std::uint32_t>& indices) {
    std::vector<std::uint32_t> order(indices.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return run.requests[indices[a]].start_ns < run.requests[indices[b]].start_ns;
    });
    return order;
  };
  const auto arm = [&](const Run& run, const std::vector<std::uint32_t>& indices,
                       std::vector<std::int32_t>& unit) {
    const std::vector<std::uint32_t> order = by_start(run, indices);
    std::vector<std::uint32_t> sorted;
    for (const std::uint32_t i : order) sorted.push_back(indices[i]);
    std::vector<std::int32_t> in_order;
    BlockUnits(indices.size(), BlockLength(series(run, sorted)), in_order, units.plan,
               units.plan.units());
    unit.assign(indices.size(), 0);
    for (std::size_t i = 0; i < order.size(); ++i) unit[order[i]] = in_order[i];
  };
  arm(off, off_requests, units.off);
  const double effective = units.plan.effective;
  arm(on, on_requests, units.on);
  units.plan.effective = std::min(units.plan.effective, effective);
  units.plan.clusters = clusters;
  units.plan.few_clusters = clusters > 0;
  return units;
}

void AppendRound(Units& all, const Units& round, std::int32_t round_index) {
  const bool first = all.off.empty() && all.on.empty();
  const std::int32_t shift = all.plan.units();
  for (const std::int32_t unit : round.off) all.off.push_back(unit + shift);
  for (const std::int32_t unit : round.on) all.on.push_back(unit + shift);
  for (std::size_t s = 1; s < round.plan.strata.size(); ++s) {
    all.plan.strata.push_back(round.plan.strata[s] + shift);
    all.plan.round_of_stratum.push_back(round_index);
  }
  all.plan.block = std::max(all.plan.block, round.plan.block);
  all.plan.effective = first ? round.plan.effective : all.plan.effective + round.plan.effective;
  all.plan.clusters += round.plan.clusters;
  all.plan.few_clusters = all.plan.few_clusters || round.plan.few_clusters;
  all.plan.name = round.plan.name;
}

}  // namespace assay::serving
