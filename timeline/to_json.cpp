// Stable JSON of a result.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "timeline/result.h"

namespace assay::timeline {
namespace {

using nlohmann::ordered_json;

double Ms(Ns ns) { return static_cast<double>(ns) / 1e6; }

ordered_json QuantilesJson(const Quantiles& q) {
  return {{"count", q.count}, {"min_ns", q.min}, {"p50_ns", q.p50},
          {"p95_ns", q.p95},  {"p99_ns", q.p99}, {"max_ns", q.max}};
}

ordered_json TopEntry(const Group& group) {
  return {{"name", group.name},
          {"count", group.count},
          {"total_ms", Ms(group.total)},
          {"mean_us", group.mean_ns() / 1e3},
          {"max_us", static_cast<double>(group.length.max) / 1e3}};
}

ordered_json TopList(const std::vector<Group>& groups, bool by_count) {
  std::vector<const Group*> order;
  for (const Group& group : groups) {
    if (group.category != Category::kGraph) order.push_back(&group);
  }
  if (by_count) {
    std::stable_sort(order.begin(), order.end(),
                     [](const Group* a, const Group* b) { return a->count > b->count; });
  }
  constexpr std::size_t kTop = 20;
  ordered_json list = ordered_json::array();
  for (std::size_t k = 0; k < std::min(kTop, order.size()); ++k)
    list.push_back(TopEntry(*order[k]));
  return list;
}

ordered_json GroupJson(const Group& group, Ns all) {
  ordered_json entry = {
      {"name", group.name},
      {"short_name", group.short_name},
      {"category", CategoryName(group.category)},
      {"count", group.count},
      {"starting_inside", group.starting},
      {"total_ns", group.total},
      {"unclipped_total_ns", group.full_total},
      {"share", all > 0 ? static_cast<double>(group.total) / static_cast<double>(all) : 0},
      {"mean_ns", group.mean_ns()},
      {"length", QuantilesJson(group.length)}};
  if (group.category != Category::kGraph) {
    const KernelConfig& c = group.config;
    entry["grid"] = {c.grid[0], c.grid[1], c.grid[2]};
    entry["block"] = {c.block[0], c.block[1], c.block[2]};
    entry["registers"] = c.registers;
    entry["static_smem_bytes"] = c.static_smem_bytes;
    entry["dynamic_smem_bytes"] = c.dynamic_smem_bytes;
    entry["launch_shapes"] = group.shapes;
  }
  return entry;
}

ordered_json GapJson(const Trace& trace, const Gap& gap) {
  const auto name = [&](std::int64_t row) -> ordered_json {
    if (row < 0) return nullptr;
    return trace.names[trace.gpu[static_cast<std::size_t>(row)].name];
  };
  return {{"begin_ns", gap.begin},
          {"end_ns", gap.end},
          {"length_ns", gap.end - gap.begin},
          {"before", name(gap.before)},
          {"after", name(gap.after)},
          {"waited_for_launch", gap.waited_for_launch},
          {"correlated_host_calls", gap.host}};
}

// Time with each set of categories at work: {"idle": 3, "compute+memcpy": 5}.
ordered_json BucketsJson(const DeviceUse& use) {
  ordered_json buckets = ordered_json::object();
  for (unsigned mask = 0; mask < kMasks; ++mask) {
    if (use.buckets.ns[mask] == 0) continue;
    std::string name;
    for (int c = 0; c < kCategories; ++c) {
      if (mask & (1u << c)) {
        if (!name.empty()) name += '+';
        name += CategoryName(static_cast<Category>(c));
      }
    }
    buckets[name.empty() ? "idle" : name] = use.buckets.ns[mask];
  }
  return buckets;
}

ordered_json RowsJson(const DeviceUse& use) {
  ordered_json rows = ordered_json::object();
  for (int c = 0; c < kCategories; ++c) {
    const auto k = static_cast<std::size_t>(c);
    rows[CategoryName(static_cast<Category>(c))] = {{"overlapping", use.overlapping[k]},
                                                    {"starting_inside", use.starting[k]},
                                                    {"clipped_sum_ns", use.clipped[k]},
                                                    {"unclipped_sum_ns", use.full[k]}};
  }
  return rows;
}

ordered_json StreamsJson(const Trace& trace, const DeviceUse& use) {
  ordered_json streams = ordered_json::array();
  for (const StreamUse& stream : use.streams) {
    streams.push_back({{"stream", trace.streams[stream.stream].id},
                       {"pid", trace.processes[trace.streams[stream.stream].process].pid},
                       {"rows", stream.rows},
                       {"busy_ns", stream.busy}});
  }
  return streams;
}

ordered_json DeviceJson(const Trace& trace, const DeviceUse& use) {
  const Device& info = trace.devices[use.device];
  ordered_json gaps = ordered_json::array();
  for (const Gap& gap : use.gaps) gaps.push_back(GapJson(trace, gap));
  return {{"device", info.ordinal},
          {"key", info.key},
          {"label", info.label},
          {"model", info.model},
          {"rank", info.rank < 0 ? ordered_json(nullptr) : ordered_json(info.rank)},
          {"state", use.active() ? "active" : "no activity"},
          {"window_ms", Ms(use.window)},
          {"non_nccl_ms", Ms(use.compute())},
          {"nccl_ms", Ms(use.comm())},
          {"memcpy_ms", Ms(use.memcpy())},
          {"non_nccl_nccl_overlap_ms", Ms(use.compute_comm())},
          {"kernel_memcpy_overlap_ms", Ms(use.kernel_memcpy())},
          {"observed_busy_ms", Ms(use.busy_kernel_memcpy())},
          {"no_observed_kernel_or_memcpy_ms", Ms(use.window - use.busy_kernel_memcpy())},
          {"window_ns", use.window},
          {"compute_ns", use.compute()},
          {"comm_ns", use.comm()},
          {"exposed_comm_ns", use.exposed_comm()},
          {"compute_comm_overlap_ns", use.compute_comm()},
          {"memcpy_ns", use.memcpy()},
          {"kernel_memcpy_overlap_ns", use.kernel_memcpy()},
          {"memset_ns", use.memset()},
          {"kernel_memset_overlap_ns", use.kernel_memset()},
          {"graph_ns", use.graph()},
          {"busy_ns", use.busy()},
          {"gap_ns", use.gap()},
          {"buckets_ns", BucketsJson(use)},
          {"rows", RowsJson(use)},
          {"kernels_without_length", use.zero_rows},
          {"kernel_length", QuantilesJson(use.kernel_length)},
          {"same_stream_overlaps", use.same_stream_overlaps},
          {"same_stream_overlap_ns", use.same_stream_overlap_ns},
          {"first_ns", use.first},
          {"last_ns", use.last},
          {"launch",
           {{"kernels", use.launch.kernels},
            {"kernels_without_call", use.launch.without_call},
            {"queue_delay", QuantilesJson(use.launch.queue_delay)},
            {"negative_delays", use.launch.negative},
            {"launch_bound_ns", use.launch.bound_ns}}},
          {"streams", StreamsJson(trace, use)},
          {"gap_count", use.gap_count},
          {"gap_histogram_decades_from_1us", use.gap_histogram},
          {"gaps", gaps}};
}

ordered_json CoverageJson(const Trace& trace, const ScopeCoverage& coverage) {
  ordered_json devices = ordered_json::array();
  for (const DeviceCoverage& device : coverage.devices) {
    ordered_json checks = ordered_json::array();
    for (const Check& check : device.checks) {
      checks.push_back(
          {{"id", check.id}, {"state", CheckStateName(check.state)}, {"text", check.text}});
    }
    ordered_json entry = {{"device", trace.devices[device.device].label},
                          {"verdict", CoverageName(device.verdict)},
                          {"factor", device.factor},
                          {"checks", checks}};
    if (device.verdict == Coverage::kTruncated) entry["truncated_at_ns"] = device.truncated_at;
    devices.push_back(entry);
  }
  return {
      {"complete", coverage.complete()}, {"text", coverage.Sentence(trace)}, {"devices", devices}};
}

ordered_json CopiesJson(const ScopeUse& use) {
  ordered_json copies = ordered_json::array();
  for (const CopyUse& copy : use.copies) {
    copies.push_back({{"direction", copy.direction},
                      {"kind", CategoryName(copy.category)},
                      {"count", copy.count},
                      {"summed_gpu_ms", Ms(copy.clipped)},
                      {"bytes_full_overlapping_calls", copy.bytes_full},
                      {"bytes_pro_rata", std::llround(copy.bytes_pro_rata)},
                      {"clipped_ns", copy.clipped},
                      {"unclipped_ns", copy.full},
                      {"achieved_gb_per_s", copy.gb_per_s()}});
  }
  return copies;
}

ordered_json WaitsJson(const ScopeUse& use) {
  ordered_json waits = ordered_json::array();
  for (const WaitUse& wait : use.waits) {
    waits.push_back({{"api", wait.api},
                     {"kind", wait.kind},
                     {"count", wait.count},
                     {"summed_thread_ms", Ms(wait.thread_ns)},
                     {"thread_equivalents", use.window > 0 ? static_cast<double>(wait.thread_ns) /
                                                                 static_cast<double>(use.window)
                                                           : 0},
                     {"threads", wait.threads},
                     {"longest_ns", wait.max_ns}});
  }
  return waits;
}

ordered_json ThreadsJson(const Trace& trace, const ScopeUse& use) {
  ordered_json threads = ordered_json::array();
  for (const ThreadUse& thread : use.threads) {
    if (thread.thread >= trace.threads.size()) continue;
    const Thread& info = trace.threads[thread.thread];
    threads.push_back({{"pid", trace.processes[info.process].pid},
                       {"tid", info.tid},
                       {"name", info.name},
                       {"calls", thread.calls},
                       {"api_ns", thread.api_ns},
                       {"sync_ns", thread.sync_ns},
                       {"os_ns", thread.os_ns}});
  }
  return threads;
}

ordered_json RangesJson(const ScopeResult& result) {
  ordered_json ranges = ordered_json::array();
  for (const RangeUse& range : result.ranges) {
    ranges.push_back({{"name", range.name},
                      {"domain", range.domain},
                      {"count", range.count},
                      {"unclosed", range.unclosed},
                      {"depth", range.depth},
                      {"host_ns", range.host_ns},
                      {"self_ns", range.self_ns},
                      {"gpu_rows", range.gpu_rows},
                      {"gpu_sum_ns", range.gpu_sum_ns},
                      {"gpu_union_ns", range.gpu_union_ns},
                      {"gpu_first_ns", range.gpu_first},
                      {"gpu_last_ns", range.gpu_last}});
  }
  return ranges;
}

ordered_json CollectivesJson(const ScopeResult& result) {
  ordered_json collectives = ordered_json::array();
  for (const CollectiveUse& c : result.collectives) {
    collectives.push_back({{"name", c.name},
                           {"devices", c.devices},
                           {"calls", c.calls},
                           {"unmatched", c.unmatched},
                           {"latency_p50_ns", c.latency_p50},
                           {"skew_p50_ns", c.skew_p50},
                           {"skew_max_ns", c.skew_max},
                           {"waited_ns", c.waited}});
  }
  return collectives;
}

ordered_json ScopeJson(const Trace& trace, const ScopeResult& result) {
  const ScopeUse& use = result.use;
  ordered_json windows = ordered_json::array();
  for (const Window& step : use.scope.steps) windows.push_back({step.begin, step.end});
  Ns all = 0;
  for (const Group& group : use.groups) all += group.total;
  ordered_json groups = ordered_json::array(), devices = ordered_json::array();
  for (const Group& group : use.groups) groups.push_back(GroupJson(group, all));
  for (const DeviceUse& device : use.devices) devices.push_back(DeviceJson(trace, device));
  return {
      {"name", use.scope.name},
      {"note", use.scope.note},
      {"windows_ns", windows},
      {"window_ns", use.window},
      {"coverage", CoverageJson(trace, result.coverage)},
      {"top_time", TopList(use.groups, false)},
      {"top_count", TopList(use.groups, true)},
      {"groups", use.groups.size()},
      {"devices", devices},
      {"copies", CopiesJson(use)},
      {"wait_apis", WaitsJson(use)},
      {"threads", ThreadsJson(trace, use)},
      {"kernel_groups", groups},
      {"ranges", RangesJson(result)},
      {"collectives", CollectivesJson(result)},
      {"launch_calls", use.launch_calls},
      {"launch_calls_without_row", use.launch_calls_without_row},
      {"graph_launch_calls", use.graph_launch_calls},
      {"graph_launches_without_row", use.graph_launches_without_row},
      {"overlap_interpretation",
       "Same-device overlapping activity intervals: not proof of simultaneous execution or of "
       "net speed-up. Thread times are summed over threads and must not be added to wall time."}};
}

ordered_json SourceJson(const SourceInfo& source) {
  ordered_json tables = ordered_json::array();
  for (const TableState& table : source.tables) {
    static constexpr const char* kStates[] = {"absent", "empty", "present"};
    tables.push_back(
        {{"table", table.name}, {"state", kStates[table.state]}, {"rows", table.rows}});
  }
  const auto optional = [](const std::optional<Ns>& value) {
    return value ? ordered_json(*value) : ordered_json(nullptr);
  };
  return {{"file", source.path},
          {"format", source.format},
          {"product", source.product},
          {"schema", source.schema},
          {"system_clock_ns", optional(source.system_clock)},
          {"clock_mapping", !source.system_clock          ? "none"
                            : source.system_clock_assumed ? "assumed"
                                                          : "recorded"},
          {"utc_epoch_ns", optional(source.utc_epoch)},
          {"shift_ns", source.shift},
          {"rank", source.rank < 0 ? ordered_json(nullptr) : ordered_json(source.rank)},
          {"warnings", source.warnings},
          {"tables", tables}};
}

std::string Dump(const ordered_json& json) {
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string ResultToJson(const TimelineResult& result) {
  const Trace& trace = result.trace;
  ordered_json sources = ordered_json::array(), scopes = ordered_json::array();
  for (const SourceInfo& source : trace.sources) sources.push_back(SourceJson(source));
  for (const ScopeResult& scope : result.scopes) scopes.push_back(ScopeJson(trace, scope));
  const ordered_json json = {{"assay_timeline", kTimelineJsonVersion},
                             {"sources", sources},
                             {"gpu_rows", trace.gpu.size()},
                             {"api_rows", trace.api.size()},
                             {"range_rows", trace.ranges.size()},
                             {"os_rows", trace.os.size()},
                             {"rejected_events", trace.rejected_events},
                             {"reversed_rows", trace.reversed_rows},
                             {"rows_outside_session", trace.outside_session},
                             {"unknown_categories", trace.unknown_categories},
                             {"graph_mode", trace.graph_mode},
                             {"graph_rows_without_times", trace.graphs_untimed},
                             {"profiler_overhead_ns", trace.overhead_ns},
                             {"repeated_correlation_ids", result.index.duplicates()},
                             {"scopes", scopes}};
  return Dump(json);
}

std::string DiffToJson(const std::vector<ScopeDiff>& diffs) {
  ordered_json list = ordered_json::array();
  for (const ScopeDiff& diff : diffs) {
    ordered_json categories = ordered_json::array(), keys = ordered_json::array();
    for (const CategoryDelta& c : diff.categories) {
      categories.push_back(
          {{"quantity", c.quantity}, {"a_ns", c.a}, {"b_ns", c.b}, {"delta_ns", c.b - c.a}});
    }
    for (const KeyDelta& key : diff.keys) {
      ordered_json entry = {{"name", key.name},
                            {"shape", key.shape},
                            {"category", CategoryName(key.category)},
                            {"cause", key.cause},
                            {"count_a", key.count_a},
                            {"count_b", key.count_b},
                            {"total_a_ns", key.total_a},
                            {"total_b_ns", key.total_b},
                            {"median_a_ns", key.median_a},
                            {"median_b_ns", key.median_b},
                            {"from_count_ns", key.from_count},
                            {"from_speed_ns", key.from_speed}};
      if (key.total_ratio) entry["total_ratio"] = {key.total_ratio->low, key.total_ratio->high};
      keys.push_back(entry);
    }
    ordered_json entry = {{"scope", diff.scope},
                          {"verdict", VerdictName(diff.verdict)},
                          {"reason", diff.reason},
                          {"comparability", diff.comparability},
                          {"notes", diff.notes},
                          {"change", diff.change},
                          {"noise", diff.noise},
                          {"windows_a", diff.steps_a},
                          {"windows_b", diff.steps_b},
                          {"categories_per_window", categories},
                          {"keys", keys}};
    if (diff.change_interval) {
      entry["change_interval"] = {diff.change_interval->low, diff.change_interval->high};
    }
    list.push_back(entry);
  }
  return Dump({{"assay_timeline_diff", kTimelineJsonVersion}, {"scopes", list}});
}

}  // namespace assay::timeline
