// The tables of a result as CSV.
#include <fmt/format.h>

#include "base/error.h"
#include "timeline/csv.h"
#include "timeline/result.h"

namespace assay::timeline {
namespace {

class CsvWriter {
 public:
  template <class... Fields>
  void Row(const Fields&... fields) {
    std::string line;
    ((line += Text(fields) + ","), ...);
    line.back() = '\n';
    text_ += line;
  }
  const std::string& text() const { return text_; }

 private:
  static std::string Text(const std::string& value) { return CsvField(value); }
  static std::string Text(const char* value) { return CsvField(value); }
  static std::string Text(std::int64_t value) { return std::to_string(value); }
  static std::string Text(int value) { return std::to_string(value); }
  static std::string Text(double value) { return fmt::format("{:.6g}", value); }
  std::string text_;
};

std::string RowName(const Trace& trace, std::int64_t row) {
  return row < 0 ? "(border of the window)"
                 : trace.names[trace.gpu[static_cast<std::size_t>(row)].name];
}

void Devices(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "device", "window_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "memcpy_ns",
          "memset_ns", "graph_ns", "compute_comm_overlap_ns", "kernel_memcpy_overlap_ns", "busy_ns",
          "gap_ns", "coverage");
  for (const ScopeResult& scope : result.scopes) {
    for (const DeviceUse& d : scope.use.devices) {
      csv.Row(scope.use.scope.name, result.trace.devices[d.device].label, d.window, d.compute(),
              d.comm(), d.exposed_comm(), d.memcpy(), d.memset(), d.graph(), d.compute_comm(),
              d.kernel_memcpy(), d.busy(), d.gap(),
              CoverageName(scope.coverage.devices[d.device].verdict));
    }
  }
}

void Groups(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "category", "count", "total_ns", "mean_ns", "min_ns", "p50_ns", "p95_ns",
          "p99_ns", "max_ns", "grid", "block", "registers", "static_smem_bytes",
          "dynamic_smem_bytes", "name");
  for (const ScopeResult& scope : result.scopes) {
    for (const Group& g : scope.use.groups) {
      const auto triple = [](const std::int32_t(&v)[3]) {
        return fmt::format("{}x{}x{}", v[0], v[1], v[2]);
      };
      csv.Row(scope.use.scope.name, CategoryName(g.category), g.count, g.total, g.mean_ns(),
              g.length.min, g.length.p50, g.length.p95, g.length.p99, g.length.max,
              triple(g.config.grid), triple(g.config.block), static_cast<int>(g.config.registers),
              static_cast<int>(g.config.static_smem_bytes),
              static_cast<int>(g.config.dynamic_smem_bytes), g.name);
    }
  }
}

void Copies(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "direction", "count", "clipped_ns", "unclipped_ns", "bytes_full",
          "bytes_pro_rata", "gb_per_s");
  for (const ScopeResult& scope : result.scopes) {
    for (const CopyUse& c : scope.use.copies) {
      csv.Row(scope.use.scope.name, c.direction, c.count, c.clipped, c.full, c.bytes_full,
              c.bytes_pro_rata, c.gb_per_s());
    }
  }
}

void Waits(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "api", "kind", "count", "thread_ns", "threads", "longest_ns");
  for (const ScopeResult& scope : result.scopes) {
    for (const WaitUse& w : scope.use.waits) {
      csv.Row(scope.use.scope.name, w.api, w.kind, w.count, w.thread_ns, w.threads, w.max_ns);
    }
  }
}

void Gaps(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "device", "begin_ns", "end_ns", "length_ns", "waited_for_launch", "before",
          "after");
  for (const ScopeResult& scope : result.scopes) {
    for (const DeviceUse& d : scope.use.devices) {
      for (const Gap& gap : d.gaps) {
        csv.Row(scope.use.scope.name, result.trace.devices[d.device].label, gap.begin, gap.end,
                gap.end - gap.begin, static_cast<int>(gap.waited_for_launch),
                RowName(result.trace, gap.before), RowName(result.trace, gap.after));
      }
    }
  }
}

void Ranges(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "name", "domain", "count", "host_ns", "self_ns", "gpu_rows", "gpu_sum_ns",
          "gpu_union_ns");
  for (const ScopeResult& scope : result.scopes) {
    for (const RangeUse& r : scope.ranges) {
      csv.Row(scope.use.scope.name, r.name, r.domain, r.count, r.host_ns, r.self_ns, r.gpu_rows,
              r.gpu_sum_ns, r.gpu_union_ns);
    }
  }
}

void CoverageChecks(const TimelineResult& result, CsvWriter& csv) {
  csv.Row("scope", "device", "verdict", "check", "state", "text");
  for (const ScopeResult& scope : result.scopes) {
    for (const DeviceCoverage& d : scope.coverage.devices) {
      for (const Check& check : d.checks) {
        csv.Row(scope.use.scope.name, result.trace.devices[d.device].label, CoverageName(d.verdict),
                check.id, CheckStateName(check.state), check.text);
      }
    }
  }
}

struct Table {
  const char* name;
  void (*write)(const TimelineResult& result, CsvWriter& csv);
};
constexpr Table kTables[] = {
    {"devices", Devices}, {"groups", Groups}, {"copies", Copies},          {"waits", Waits},
    {"gaps", Gaps},       {"ranges", Ranges}, {"coverage", CoverageChecks}};

}  // namespace

const std::vector<std::string>& CsvTables() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Table& table : kTables) all.push_back(table.name);
    return all;
  }();
  return names;
}

std::string ResultToCsv(const TimelineResult& result, const std::string& table) {
  for (const Table& known : kTables) {
    if (known.name != table) continue;
    CsvWriter csv;
    known.write(result, csv);
    return csv.text();
  }
  BadInput("there is no CSV table '" + table + "'");
}

}  // namespace assay::timeline
