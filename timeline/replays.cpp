// Foreign attention replays.
#include "timeline/replays.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/stats.h"
#include "replay/import.h"
#include "report/table.h"
#include "report/text.h"

namespace assay::timeline {
namespace {

using nlohmann::json;

std::optional<ErrorFigures> Errors(const json& entry, const char* key) {
  if (!entry.contains(key) || entry[key].is_null()) return std::nullopt;
  const json& e = entry[key];
  return ErrorFigures{e.at("max_abs").get<double>(), e.at("rmse").get<double>(),
                      e.at("relative_l2").get<double>(), e.at("finite").get<bool>(),
                      e.at("allclose").get<bool>()};
}

std::string TextOf(const json& entry, const char* key) {
  return entry.contains(key) && entry[key].is_string() ? entry[key].get<std::string>() : "";
}

ForeignReplay ParseEntry(const json& entry) {
  ForeignReplay r;
  r.configuration = entry.at("configuration").get<std::string>();
  r.input = entry.at("input_file").get<std::string>();
  r.backend = entry.at("backend").get<std::string>();
  r.status = entry.at("status").get<std::string>();
  r.directory = TextOf(entry, "replay_directory");
  r.error = TextOf(entry, "error");
  r.audit = TextOf(entry, "audit_status");
  if (entry.contains("context")) {
    r.role = TextOf(entry["context"], "role");
    r.layer = TextOf(entry["context"], "layer");
  }
  const auto q_shape = entry.at("q_shape").get<std::vector<std::int64_t>>();
  const auto k_shape = entry.at("k_shape").get<std::vector<std::int64_t>>();
  if (q_shape.size() != 3 || k_shape.size() != 3) {
    throw std::runtime_error("q_shape and k_shape must be [length, heads, head_dim]");
  }
  r.heads = q_shape[1];
  r.head_dim = q_shape[2];
  r.q_len = entry.at("q_len").get<std::int64_t>();
  r.k_len = entry.at("k_len").get<std::int64_t>();
  r.k_pool = k_shape[0];
  if (r.k_len > r.k_pool || r.q_len > q_shape[0] || r.q_len <= 0 || r.k_len <= 0) {
    throw std::runtime_error("lengths exceed their tensors");
  }
  r.reference = Errors(entry, "reference_error");
  r.oracle = Errors(entry, "oracle_error");
  if (entry.contains("repeats") && entry["repeats"].is_array()) {
    for (const json& repeat : entry["repeats"]) {
      r.repeats.push_back({repeat.at("p50_ms").get<double>(), repeat.at("p95_ms").get<double>(),
                           repeat.at("p99_ms").get<double>(), repeat.at("mean_ms").get<double>(),
                           repeat.at("n").get<std::int64_t>()});
    }
  }
  if (r.status == "measured" && r.repeats.empty()) {
    throw std::runtime_error("measured, but without repeats");
  }
  return r;
}

}  // namespace

double ForeignReplay::p50_ms() const {
  std::vector<double> medians;
  for (const Repeat& repeat : repeats) medians.push_back(repeat.p50_ms);
  return medians.empty() ? 0 : Median(medians);
}

double ForeignReplay::tflops() const {
  const double ms = p50_ms();
  if (ms <= 0) return 0;
  return 4.0 * static_cast<double>(heads) * static_cast<double>(q_len) *
         static_cast<double>(k_len) * static_cast<double>(head_dim) / (ms * 1e-3) / 1e12;
}

std::optional<bool> ForeignReplay::gate() const {
  if (!reference || !oracle) return std::nullopt;
  return reference->finite && reference->allclose && oracle->finite && oracle->allclose;
}

std::vector<ForeignReplay> ParseReplays(std::string_view text, const std::string& path) {
  const json entries = json::parse(text, nullptr, false);
  if (!entries.is_array()) BadInput(path + " is not a JSON list of replays");
  std::vector<ForeignReplay> replays;
  for (std::size_t k = 0; k < entries.size(); ++k) {
    try {
      replays.push_back(ParseEntry(entries[k]));
    } catch (const std::exception& problem) {
      BadInput(fmt::format("{}, entry {}: {}", path, k, problem.what()));
    }
  }
  return replays;
}

std::vector<ReplayRow> ReplayMatrix(const std::vector<ForeignReplay>& replays) {
  std::map<std::pair<std::string, std::string>, ReplayRow> rows;
  for (const ForeignReplay& r : replays) {
    ReplayRow& row = rows[{r.configuration, r.directory + "/" + r.input}];
    row.configuration = r.configuration;
    row.input = r.input;
    row.role = r.role;
    row.heads = r.heads;
    row.q_len = r.q_len;
    row.k_len = r.k_len;
    row.backends.push_back(&r);
  }
  std::vector<ReplayRow> list;
  for (auto& [key, row] : rows) {
    std::stable_sort(row.backends.begin(), row.backends.end(),
                     [](const ForeignReplay* a, const ForeignReplay* b) {
                       const double x = a->p50_ms(), y = b->p50_ms();
                       if ((x > 0) != (y > 0)) return x > 0;
                       return x != y ? x < y : a->backend < b->backend;
                     });
    for (const ForeignReplay* r : row.backends) {
      if (!row.winner && r->p50_ms() > 0 && r->gate() == true && r->audit == "verified") {
        row.winner = r;
      }
    }
    list.push_back(std::move(row));
  }
  return list;
}

std::optional<double> Speedup(const ForeignReplay& replay, const ForeignReplay& baseline) {
  if (replay.gate() != true || baseline.gate() != true) return std::nullopt;
  if (replay.p50_ms() <= 0 || baseline.p50_ms() <= 0) return std::nullopt;
  return baseline.p50_ms() / replay.p50_ms();
}

std::string ReplayText(const std::vector<ForeignReplay>& replays, const std::string& baseline,
                       int width, bool colour) {
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  std::map<Shape, std::map<std::string, std::vector<const ForeignReplay*>>> shapes;
  for (const ForeignReplay& r : replays) {
    shapes[{r.heads, r.q_len, r.k_len}][r.backend].push_back(&r);
  }
  Table table({{"heads", Align::kRight},
               {"q_len", Align::kRight},
               {"k_len", Align::kRight},
               {"inputs", Align::kRight},
               {"winner"},
               {"p50", Align::kRight},
               {"TFLOP/s", Align::kRight},
               {"over " + baseline, Align::kRight},
               {"ref err", Align::kRight},
               {"oracle err", Align::kRight},
               {"audit"},
               {"failures", Align::kLeft, Overflow::kEnd, 8, 0, 1}});
  for (const auto& [shape, backends] : shapes) {
    const ForeignReplay* winner = nullptr;
    double best = 0;
    std::set<std::string> failures;
    std::size_t inputs = 0, pending = 0;
    const auto median = [](const std::vector<const ForeignReplay*>& list) {
      std::vector<double> values;
      for (const ForeignReplay* r : list) {
        if (r->p50_ms() > 0 && r->gate() == true) values.push_back(r->p50_ms());
      }
      return values.empty() ? 0.0 : Median(values);
    };
    for (const auto& [backend, list] : backends) {
      inputs = std::max(inputs, list.size());
      bool verified = true;
      for (const ForeignReplay* r : list) {
        if (r->status != "measured") failures.insert(backend + " " + r->status);
        if (r->audit == "pending") ++pending;
        verified &= r->audit == "verified";
      }
      const double ms = median(list);
      if (ms > 0 && verified && (best == 0 || ms < best)) {
        best = ms;
        winner = list.front();
      }
    }
    const auto base = backends.find(baseline);
    const double base_ms = base == backends.end() ? 0 : median(base->second);
    std::string failed;
    for (const std::string& failure : failures) failed += (failed.empty() ? "" : ", ") + failure;
    const auto& [heads, q_len, k_len] = shape;
    if (!winner) {
      table.Add({std::to_string(heads), FormatCount(q_len), FormatCount(k_len),
                 std::to_string(inputs), "none verified", "", "", "", "", "", "", failed});
      continue;
    }
    const double flops =
        4.0 * static_cast<double>(heads * q_len) * static_cast<double>(k_len * winner->head_dim);
    table.Add({std::to_string(heads), FormatCount(q_len), FormatCount(k_len),
               std::to_string(inputs), winner->backend, FormatTime(best * 1e6),
               fmt::format("{:.0f}", flops / (best * 1e-3) / 1e12),
               base_ms > 0 ? FormatFactor(base_ms / best) : "not claimed",
               fmt::format("{:.1e}", winner->reference->relative_l2),
               fmt::format("{:.1e}", winner->oracle->relative_l2),
               pending ? fmt::format("{} pending", pending) : "verified", failed});
  }
  TextStyle style;
  style.width = width;
  style.colour = colour;
  std::size_t measured = 0, oom = 0;
  for (const ForeignReplay& r : replays) {
    measured += r.status == "measured";
    oom += r.status == "oom";
  }
  return table.Text(style) +
         fmt::format(
             "{} replays: {} measured, {} out of memory; times are medians over inputs of "
             "the median of {} repeats; measured elsewhere, not by this program\n",
             replays.size(), measured, oom, 3);
}

std::vector<ForeignRun> ReplayRuns(const std::vector<ForeignReplay>& replays,
                                   const std::string& path) {
  // The suite's own workloads give the uuids, so that foreign rows stand beside ours.
  std::map<std::tuple<std::string, std::int64_t, std::int64_t>, Workload> workloads;
  for (Workload& workload : WorldModelWorkloads(path)) {
    workloads[{workload.definition, workload.axes.at("Nq"), workload.axes.at("Nk")}] = workload;
  }
  std::map<std::string, ForeignRun> runs;
  for (const ForeignReplay& r : replays) {
    ForeignRun& out = runs[r.configuration];
    if (out.run.id.empty()) {
      out.run.id = "foreign-attention-" + r.configuration;
      out.run.command = "imported from " + path.substr(path.rfind('/') + 1);
      out.run.device = "H200 (foreign recording)";
      out.run.device_id = "foreign";
    }
    CaseResult result;
    const std::string definition = fmt::format("noncausal_dense_attention_h{}_d128", r.heads);
    const auto found = workloads.find({definition, r.q_len, r.k_len});
    if (found == workloads.end()) BadInput(path + ": no workload for " + r.input);
    result.uuid = found->second.uuid;
    result.definition = definition;
    result.family = "noncausal_dense_attention";
    result.backend = r.backend;
    result.model = "worldmodel";
    result.phase = "denoise";
    result.request = r.configuration + "/" + r.input;
    result.axes = found->second.axes;
    result.status = r.status == "oom"        ? Status::kOom
                    : r.status != "measured" ? Status::kFailed
                    : r.audit == "pending"   ? Status::kPendingAudit
                    : r.gate() == false      ? Status::kIncorrect
                                             : Status::kPassed;
    result.reason = r.error;
    result.input_source = "blob";
    result.flags.push_back("foreign");
    result.flags.push_back("audit:" + r.audit);
    result.flags.push_back(!r.gate() ? "gate:null" : *r.gate() ? "gate:true" : "gate:false");
    for (const auto& [name, errors] :
         {std::pair("reference", r.reference), std::pair("oracle", r.oracle)}) {
      if (!errors) continue;
      OutputCheck check;
      check.output = std::string("O against ") + name;
      check.grade = errors->allclose ? "allclose" : "";
      check.max_abs = errors->max_abs;
      check.max_rel_l2 = errors->relative_l2;
      result.correctness.outputs.push_back(check);
    }
    for (std::size_t k = 0; k < r.repeats.size(); ++k) {
      if (k == 0) {
        result.flags.push_back(fmt::format("summary_only:n={}", r.repeats[k].n));
      }
      result.timing.push_back(
          {"foreign_event", static_cast<int>(k), "imported", {r.repeats[k].p50_ms * 1e6}});
    }
    out.cases.push_back(std::move(result));
  }
  std::vector<ForeignRun> list;
  for (auto& [name, run] : runs) list.push_back(std::move(run));
  return list;
}

}  // namespace assay::timeline
