// Kernel groups and copies of a scope: counts, clipped and unclipped sums, nearest-rank quantiles.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "timeline/analyze.h"

namespace assay::timeline {
namespace {

Ns Length(const GpuRow& row) { return std::max<Ns>(0, row.end - row.start); }

std::size_t Rank(double p, std::size_t n) {
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(n)));
  return std::clamp<std::size_t>(rank, 1, n) - 1;
}

Quantiles QuantilesOfRange(Ns* first, Ns* last) {
  Quantiles q;
  const auto n = static_cast<std::size_t>(last - first);
  q.count = static_cast<std::int64_t>(n);
  if (n == 0) return q;
  // Each selection works on the part behind the one before.
  Ns* from = first;
  const auto select = [&](double p) {
    Ns* const nth = first + Rank(p, n);
    if (nth >= from) std::nth_element(from, nth, last);
    from = nth;
    return *nth;
  };
  q.min = *std::min_element(first, last);
  q.p50 = select(0.50);
  q.p95 = select(0.95);
  q.p99 = select(0.99);
  q.max = *std::max_element(from, last);
  return q;
}

bool IsGroupRow(const GpuRow& row) {
  const auto category = static_cast<Category>(row.category);
  return category == Category::kCompute || category == Category::kComm ||
         category == Category::kGraph;
}

// Dense group numbers for rows under the chosen key.
class Keys {
 public:
  Keys(const Trace& trace, const AnalyzeOptions& options) : trace_(trace), options_(options) {}

  std::uint32_t Of(const GpuRow& row) {
    const bool kernel = static_cast<Category>(row.category) != Category::kGraph;
    if (options_.key == GroupKey::kShape && kernel) {
      const std::uint64_t key = (std::uint64_t{row.name} << 32) | ShapeOf(row.detail);
      return by_shape_.try_emplace(key, Next()).first->second;
    }
    if (by_name_.size() <= row.name) by_name_.resize(row.name + 1, kUnset);
    std::uint32_t& id = by_name_[row.name];
    if (id == kUnset) {
      if (options_.key == GroupKey::kShort && options_.short_name) {
        id = by_short_.try_emplace(options_.short_name(trace_.names[row.name]), Next())
                 .first->second;
      } else {
        id = Next();
      }
      if (id == count_) ++count_;
    }
    return id;
  }
  std::uint32_t count() const {
    return options_.key == GroupKey::kShape ? static_cast<std::uint32_t>(by_shape_.size()) + count_
                                            : count_;
  }

 private:
  static constexpr std::uint32_t kUnset = 0xFFFFFFFFu;
  std::uint32_t Next() const { return count(); }
  // Launch shapes that differ only in registers or shared memory are one shape.
  std::uint32_t ShapeOf(std::uint32_t config) {
    if (shapes_.empty()) {
      std::map<std::vector<std::int32_t>, std::uint32_t> seen;
      for (const KernelConfig& c : trace_.configs) {
        std::vector<std::int32_t> shape(c.grid, c.grid + 3);
        shape.insert(shape.end(), c.block, c.block + 3);
        shapes_.push_back(
            seen.try_emplace(shape, static_cast<std::uint32_t>(seen.size())).first->second);
      }
    }
    return shapes_[config];
  }

  const Trace& trace_;
  const AnalyzeOptions& options_;
  std::vector<std::uint32_t> by_name_;
  std::unordered_map<std::string, std::uint32_t> by_short_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_shape_;
  std::vector<std::uint32_t> shapes_;
  std::uint32_t count_ = 0;
};

}  // namespace

Quantiles QuantilesOf(std::vector<Ns>& values) {
  return QuantilesOfRange(values.data(), values.data() + values.size());
}

std::vector<Group> GroupsOf(const Trace& trace, const WindowMap& map, const AnalyzeOptions& options,
                            std::int64_t device) {
  Keys keys(trace, options);
  std::vector<Group> groups;
  // (group, config) uses, to name the commonest launch shape.
  std::unordered_map<std::uint64_t, std::int64_t> configs;
  const auto each = [&](auto&& visit) {
    for (const GpuRow& row : trace.gpu) {
      if (!IsGroupRow(row)) continue;
      if (device >= 0 && trace.DeviceOf(row) != device) continue;
      if (map.Overlaps(row.start, row.end)) visit(row);
    }
  };
  struct Recent {
    std::uint64_t key = ~std::uint64_t{0};
    std::int64_t* uses = nullptr;
  };
  std::vector<Recent> recent(1024);
  each([&](const GpuRow& row) {
    const std::uint32_t id = keys.Of(row);
    if (id >= groups.size()) {
      groups.resize(id + 1);
      groups[id].name = trace.names[row.name];
      groups[id].category = static_cast<Category>(row.category);
      if (options.short_name) groups[id].short_name = options.short_name(groups[id].name);
      if (options.key == GroupKey::kShort) groups[id].name = groups[id].short_name;
    }
    Group& group = groups[id];
    ++group.count;
    group.starting += map.Contains(row.start);
    group.total += map.Position(std::max(row.end, row.start)) - map.Position(row.start);
    group.full_total += Length(row);
    if (group.category != Category::kGraph) {
      const std::uint64_t key = (std::uint64_t{id} << 32) | row.detail;
      Recent& slot = recent[(id * 31 + row.detail) % 1024];
      if (slot.key != key) slot = {key, &configs[key]};  // map nodes do not move
      ++*slot.uses;
    }
  });
  std::vector<std::size_t> at(groups.size() + 1, 0);
  for (std::size_t k = 0; k < groups.size(); ++k) {
    at[k + 1] = at[k] + static_cast<std::size_t>(groups[k].count);
  }
  std::vector<Ns> lengths(at.back());
  std::vector<std::size_t> fill(at.begin(), at.end() - 1);
  each([&](const GpuRow& row) { lengths[fill[keys.Of(row)]++] = Length(row); });
  for (std::size_t k = 0; k < groups.size(); ++k) {
    groups[k].length = QuantilesOfRange(lengths.data() + at[k], lengths.data() + at[k + 1]);
  }
  std::vector<std::pair<std::int64_t, std::uint32_t>> best(groups.size(), {0, 0});
  for (const auto& [key, uses] : configs) {
    const auto id = static_cast<std::size_t>(key >> 32);
    const auto config = static_cast<std::uint32_t>(key);
    ++groups[id].shapes;
    // Ties by the smaller id, so that the result does not depend on the hash table's order.
    if (uses > best[id].first || (uses == best[id].first && config < best[id].second)) {
      best[id] = {uses, config};
    }
  }
  for (std::size_t k = 0; k < groups.size(); ++k) {
    if (best[k].first > 0) groups[k].config = trace.configs[best[k].second];
  }
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) {
    if (a.total != b.total) return a.total > b.total;
    if (a.name != b.name) return a.name < b.name;
    return std::tie(a.config.grid[0], a.config.grid[1], a.config.grid[2], a.config.block[0],
                    a.config.block[1], a.config.block[2]) <
           std::tie(b.config.grid[0], b.config.grid[1], b.config.grid[2], b.config.block[0],
                    b.config.block[1], b.config.block[2]);
  });
  return groups;
}

double CopyUse::gb_per_s() const {
  return full > 0 ? static_cast<double>(bytes_full) / static_cast<double>(full) : 0;
}

std::vector<CopyUse> CopiesOf(const Trace& trace, const WindowMap& map, std::int64_t device) {
  std::map<std::pair<std::uint32_t, std::string>, CopyUse> uses;  // total order: category, name
  std::vector<CopyUse*> by_name;
  for (const GpuRow& row : trace.gpu) {
    const auto category = static_cast<Category>(row.category);
    if (category != Category::kMemcpy && category != Category::kMemset) continue;
    if (device >= 0 && trace.DeviceOf(row) != device) continue;
    if (!map.Overlaps(row.start, row.end)) continue;
    if (by_name.size() <= row.name) by_name.resize(row.name + 1, nullptr);
    CopyUse*& use = by_name[row.name];
    if (!use || use->category != category) {
      use = &uses[{row.category, trace.names[row.name]}];
      use->direction = trace.names[row.name];
      use->category = category;
    }
    const Ns clipped = map.Position(std::max(row.start, row.end)) - map.Position(row.start);
    const Ns full = Length(row);
    const std::int64_t bytes = trace.copies[row.detail].bytes;
    ++use->count;
    use->clipped += clipped;
    use->full += full;
    use->bytes_full += bytes;
    use->bytes_pro_rata += full > 0 ? static_cast<double>(bytes) * static_cast<double>(clipped) /
                                          static_cast<double>(full)
                                    : static_cast<double>(bytes);
  }
  std::vector<CopyUse> copies;
  for (auto& [key, use] : uses) copies.push_back(std::move(use));
  return copies;
}

}  // namespace assay::timeline
