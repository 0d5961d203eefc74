// Matching of communication kernels across devices.
#include "timeline/collectives.h"

#include <algorithm>
#include <map>

#include "timeline/analyze.h"

namespace assay::timeline {

std::vector<CollectiveUse> AnalyzeCollectives(const Trace& trace, const WindowMap& map) {
  // Rows come by start, so each list is in the order of the calls.
  std::map<std::uint32_t, std::map<std::uint32_t, std::vector<const GpuRow*>>> by_name;
  for (const GpuRow& row : trace.gpu) {
    if (static_cast<Category>(row.category) == Category::kComm && map.Contains(row.start)) {
      by_name[row.name][trace.DeviceOf(row)].push_back(&row);
    }
  }
  std::vector<CollectiveUse> uses;
  for (const auto& [name, devices] : by_name) {
    if (devices.size() < 2) continue;
    CollectiveUse use;
    use.name = trace.names[name];
    use.devices = static_cast<std::int64_t>(devices.size());
    std::size_t fewest = SIZE_MAX, all = 0;
    for (const auto& [device, rows] : devices) {
      fewest = std::min(fewest, rows.size());
      all += rows.size();
    }
    use.calls = static_cast<std::int64_t>(fewest);
    use.unmatched = static_cast<std::int64_t>(all - fewest * devices.size());
    std::vector<Ns> latencies, skews;
    for (std::size_t k = 0; k < fewest; ++k) {
      Ns latency = INT64_MAX, first = INT64_MAX, last = INT64_MIN, sum = 0;
      for (const auto& [device, rows] : devices) {
        const Ns length = std::max<Ns>(0, rows[k]->end - rows[k]->start);
        latency = std::min(latency, length);
        first = std::min(first, rows[k]->start);
        last = std::max(last, rows[k]->start);
        sum += length;
      }
      latencies.push_back(latency);
      skews.push_back(last - first);
      use.waited += sum - latency * use.devices;
    }
    use.latency_p50 = QuantilesOf(latencies).p50;
    const Quantiles skew = QuantilesOf(skews);
    use.skew_p50 = skew.p50;
    use.skew_max = skew.max;
    uses.push_back(std::move(use));
  }
  std::sort(uses.begin(), uses.end(), [](const CollectiveUse& a, const CollectiveUse& b) {
    return a.waited != b.waited ? a.waited > b.waited : a.name < b.name;
  });
  return uses;
}

}  // namespace assay::timeline
