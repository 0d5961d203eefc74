// Property tests of the sweep on random traces: the spec's identities, partitions of windows, and a
// brute-force count of every nanosecond.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "timeline/analyze.h"

namespace assay::timeline {
namespace {

// A trace of `rows` rows in [0, span) on two devices; lengths may be zero or negative.
Trace RandomTrace(std::uint64_t seed, int rows, Ns span) {
  Trace trace;
  trace.sources.emplace_back();
  TraceBuilder build(trace);
  trace.devices.resize(2);
  trace.devices[0].label = "0";
  trace.devices[1].label = "1";
  const std::uint32_t process = build.ProcessId(1, 0, 0);
  for (int k = 0; k < rows; ++k) {
    const auto r = [&](std::uint64_t n) { return Mix64(seed, n, static_cast<std::uint64_t>(k)); };
    GpuRow row;
    row.start = static_cast<Ns>(r(0) % static_cast<std::uint64_t>(span));
    row.end = row.start + static_cast<Ns>(r(1) % 40) - 2;
    row.category = static_cast<std::uint32_t>(r(2) % kCategories);
    const auto category = static_cast<Category>(row.category);
    if (category == Category::kMemcpy || category == Category::kMemset) {
      row.detail = static_cast<std::uint32_t>(trace.copies.size());
      trace.copies.push_back({static_cast<std::int64_t>(r(3) % 1000), -1, -1});
      row.name = trace.names.Intern(category == Category::kMemset ? "memset"
                                    : r(4) % 2                    ? "Host-to-Device"
                                                                  : "Device-to-Host");
    } else {
      row.detail = category == Category::kGraph ? 0 : build.ConfigId({});
      row.name = trace.names.Intern("kernel " + std::to_string(r(5) % 5));
      if (category == Category::kGraph) {
        row.detail = static_cast<std::uint32_t>(trace.copies.size());
        trace.copies.push_back({});
      }
    }
    row.stream = build.StreamId(static_cast<std::uint32_t>(r(6) % 2), process,
                                static_cast<std::int64_t>(r(7) % 3)) &
                 0xFFFFFFu;
    trace.gpu.push_back(row);
  }
  FinishTrace(trace);
  return trace;
}

std::vector<Window> RandomWindows(std::uint64_t seed, Ns span) {
  std::vector<Window> windows;
  const std::uint64_t count = 1 + Mix64(seed, 90, 0) % 5;
  for (std::uint64_t k = 0; k < count; ++k) {
    const auto begin = static_cast<Ns>(Mix64(seed, 91, k) % static_cast<std::uint64_t>(span)) - 20;
    windows.push_back({begin, begin + static_cast<Ns>(Mix64(seed, 92, k) % 200)});
  }
  return windows;
}

// Time per mask by looking at every nanosecond.
Buckets BruteForce(const Trace& trace, std::uint32_t device, const std::vector<Window>& windows) {
  Buckets buckets;
  for (const Window& window : Merge(windows)) {
    for (Ns t = window.begin; t < window.end; ++t) {
      unsigned mask = 0;
      for (const GpuRow& row : trace.gpu) {
        if (trace.DeviceOf(row) == device && row.start <= t && t < row.end) {
          mask |= 1u << row.category;
        }
      }
      ++buckets.ns[mask];
    }
  }
  return buckets;
}

TEST(Sweep, AgreesWithEveryNanosecond) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Ns span = 400;
    const Trace trace = RandomTrace(seed, 60, span);
    const LaunchIndex index(trace);
    const std::vector<Window> windows = RandomWindows(seed, span);
    const ScopeUse use = Analyze(trace, index, {"w", windows, ""});
    for (const DeviceUse& device : use.devices) {
      EXPECT_EQ(device.buckets.ns, BruteForce(trace, device.device, windows).ns) << seed;
      Ns gaps = 0;
      for (const Gap& gap : device.gaps) gaps += gap.end - gap.begin;
      if (device.gap_count <= 20) {
        EXPECT_EQ(gaps, device.gap()) << seed;
      }
    }
    EXPECT_EQ(BrokenInvariants(trace, use), std::vector<std::string>{}) << seed;
  }
}

TEST(Sweep, SubWindowsAddUpAndNestedWindowsAreMonotone) {
  for (std::uint64_t seed = 100; seed < 160; ++seed) {
    const Ns span = 20'000;
    const Trace trace = RandomTrace(seed, 3'000, span);
    const LaunchIndex index(trace);
    const ScopeUse whole = Analyze(trace, index, {"whole", {{0, span}}, ""});
    std::vector<Ns> cuts = {0, span};
    for (std::uint64_t k = 0; k < 6; ++k) {
      cuts.push_back(static_cast<Ns>(Mix64(seed, 93, k) % static_cast<std::uint64_t>(span)));
    }
    std::sort(cuts.begin(), cuts.end());
    std::vector<Buckets> sums(2);
    std::vector<Ns> clipped(2);
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
      const ScopeUse part = Analyze(trace, index, {"part", {{cuts[k], cuts[k + 1]}}, ""});
      for (std::size_t d = 0; d < 2; ++d) {
        for (int mask = 0; mask < kMasks; ++mask) {
          sums[d].ns[static_cast<std::size_t>(mask)] +=
              part.devices[d].buckets.ns[static_cast<std::size_t>(mask)];
        }
        for (const Ns ns : part.devices[d].clipped) clipped[d] += ns;
        EXPECT_LE(part.devices[d].busy(), whole.devices[d].busy());
        EXPECT_LE(part.devices[d].compute_comm(), whole.devices[d].compute_comm());
        EXPECT_LE(part.devices[d].gap(), whole.devices[d].gap());
      }
    }
    // Contiguous windows given together are one window: an event counts once.
    std::vector<Window> pieces;
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k) pieces.push_back({cuts[k], cuts[k + 1]});
    const ScopeUse joined = Analyze(trace, index, {"joined", pieces, ""});
    for (std::size_t d = 0; d < 2; ++d) {
      EXPECT_EQ(sums[d].ns, whole.devices[d].buckets.ns);
      EXPECT_EQ(joined.devices[d].buckets.ns, whole.devices[d].buckets.ns);
      EXPECT_EQ(joined.devices[d].overlapping, whole.devices[d].overlapping);
      Ns all = 0;
      for (const Ns ns : whole.devices[d].clipped) all += ns;
      EXPECT_EQ(clipped[d], all);
    }
  }
}

TEST(Sweep, CopiesPartitionByDirectionAndDevice) {
  const Trace trace = RandomTrace(7, 5'000, 100'000);
  const WindowMap map({{10'000, 40'000}, {60'000, 61'000}});
  Ns per_device = 0, all = 0;
  std::int64_t count = 0, count_all = 0;
  for (std::int64_t device = 0; device < 2; ++device) {
    for (const CopyUse& copy : CopiesOf(trace, map, device)) {
      per_device += copy.clipped;
      count += copy.count;
    }
  }
  for (const CopyUse& copy : CopiesOf(trace, map, -1)) {
    all += copy.clipped;
    count_all += copy.count;
  }
  EXPECT_EQ(per_device, all);
  EXPECT_EQ(count, count_all);
  EXPECT_GT(count, 0);
}

TEST(Quantiles, AreNearestRank) {
  std::vector<Ns> values;
  for (Ns k = 100; k >= 1; --k) values.push_back(k * 10);
  const Quantiles q = QuantilesOf(values);
  EXPECT_EQ(q.min, 10);
  EXPECT_EQ(q.p50, 500);
  EXPECT_EQ(q.p95, 950);
  EXPECT_EQ(q.p99, 990);
  EXPECT_EQ(q.max, 1000);
  std::vector<Ns> one = {7};
  EXPECT_EQ(QuantilesOf(one).p99, 7);
  std::vector<Ns> none;
  EXPECT_EQ(QuantilesOf(none).count, 0);
}

TEST(WindowMap, PositionsClipAndInvert) {
  const WindowMap map({{30, 40}, {10, 20}, {20, 25}, {50, 50}});
  EXPECT_EQ(map.windows(), (std::vector<Window>{{10, 25}, {30, 40}}));
  EXPECT_EQ(map.total(), 25);
  EXPECT_EQ(map.Position(5), 0);
  EXPECT_EQ(map.Position(12), 2);
  EXPECT_EQ(map.Position(27), 15);
  EXPECT_EQ(map.Position(31), 16);
  EXPECT_EQ(map.Position(99), 25);
  EXPECT_EQ(map.TimeAt(14), 24);
  EXPECT_EQ(map.TimeAt(15), 30);
  EXPECT_TRUE(map.Overlaps(24, 31));
  EXPECT_FALSE(map.Overlaps(25, 30));
  EXPECT_TRUE(map.Overlaps(10, 10));
  EXPECT_FALSE(map.Overlaps(25, 25));
  EXPECT_FALSE(WindowMap({}).Contains(0));
}

}  // namespace
}  // namespace assay::timeline
