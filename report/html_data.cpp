#include "report/html_data.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "report/analysis.h"
#include "report/run_diff.h"
#include "report/text.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

// From this many cases on, rows shrink to their essentials: 10,000 must stay below 5 MB.
constexpr std::size_t kCompactFrom = 3000;
// Fewer points than this say nothing about drift: the series is left out.
constexpr std::size_t kFewestSamples = 12;

// `digits` significant digits; the shortest decimal form is what ends in the file.
double Rounded(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = digits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value))));
  if (exponent > 22 || exponent < -22) return value;  // 10^22 is the last exact power
  const double power = std::pow(10.0, std::abs(exponent));
  return exponent >= 0 ? std::round(value * power) / power : std::round(value / power) * power;
}

class Writer {
 public:
  Writer(const RunReport& report, const Analysis& analysis, std::size_t max_samples)
      : report_(report), analysis_(analysis), compact_(report.cases.size() >= kCompactFrom) {
    std::size_t series = 0, samples = 0;
    for (const CaseResult& result : report.cases) {
      for (const TimingSeries& timing : result.timing) {
        ++series;
        samples += timing.samples_ns.size();
      }
    }
    thinned_ = samples > max_samples;
    samples_per_series_ = thinned_ && series > 0 ? max_samples / series : samples;
    if (samples_per_series_ < kFewestSamples && thinned_) samples_per_series_ = 0;
  }

  Json Document(const RunReport* against, double margin) {
    Json cases = Json::array();
    for (const CaseView& view : analysis_.cases) cases.push_back(Case(view));
    Json definitions = Json::array();
    for (const DefinitionSummary& summary : analysis_.definitions) {
      definitions.push_back({Text(summary.definition), Text(summary.backend),
                             Text(summary.input_source), summary.cases, summary.passed,
                             summary.failures, summary.timed, summary.noisy,
                             Time(summary.median_ns), Number(summary.geomean_x_floor, 5)});
    }
    Json document = {{"schema", 1},
                     {"run", Run()},
                     {"ceilings", CeilingFacts(report_.ceilings)},
                     {"gpu_ceilings",
                      report_.run.accelerator.empty() ? Json(nullptr) : CeilingFacts(report_.gpu)},
                     {"note", Note()},
                     {"baseline", Printable(analysis_.baseline)},
                     {"mixed_sources", analysis_.mixed_sources},
                     {"definitions", definitions},
                     {"comparisons", Comparisons()},
                     {"cases", cases},
                     {"against", against != nullptr ? Against(*against, margin) : Json(nullptr)},
                     {"axis_sets", axis_sets_}};
    document["strings"] = strings_;
    return document;
  }

 private:
  // Index of an interned string.
  std::size_t Text(const std::string& text) {
    const auto [it, fresh] = ids_.emplace(text, strings_.size());
    if (fresh) strings_.push_back(Printable(text));
    return it->second;
  }

  static Json Number(double value, int digits) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    const double rounded = Rounded(value, digits);
    // Integers need no ".0".
    if (rounded == std::floor(rounded) && std::abs(rounded) < 1e15) {
      return static_cast<std::int64_t>(rounded);
    }
    return rounded;
  }

  Json Time(double ns) const { return Number(ns, compact_ ? 5 : 12); }

  static Json Percentile(const std::optional<double>& ns) {
    return ns ? Number(*ns, 12) : Json(nullptr);
  }

  // Values of the axes, after the index of their list of names.
  Json AxisValues(const Axes& axes) {
    Json names = Json::array(), values = Json::array();
    std::string key;
    for (const auto& [name, value] : axes) {
      names.push_back(Printable(name));
      values.push_back(value);
      key += name;
      key += '\n';
    }
    const auto [it, fresh] = axis_ids_.emplace(key, axis_sets_.size());
    if (fresh) axis_sets_.push_back(names);
    values.insert(values.begin(), it->second);
    return values;
  }

  Json Checks(const CaseResult& result) {
    Json checks = Json::array();
    for (const OutputCheck& check : result.correctness.outputs) {
      Json row = {Text(check.output),
                  Text(check.grade),
                  check.rows_checked,
                  check.rows_total,
                  check.mismatches,
                  Number(check.max_abs, compact_ ? 3 : 6),
                  Number(check.max_rel_l2, compact_ ? 3 : 6),
                  Number(check.budget_used, compact_ ? 3 : 6)};
      if (!compact_ || result.status != Status::kPassed) {
        row.push_back(Text(check.problem));
        row.push_back(check.worst.index);
        row.push_back(Number(check.worst.got, 12));
        row.push_back(Number(check.worst.expected, 12));
        row.push_back(Number(check.worst.allowed, 6));
      }
      checks.push_back(std::move(row));
    }
    return checks;
  }

  Json Findings(const CaseResult& result) {
    Json findings = Json::array();
    for (const Finding& finding : result.correctness.findings) {
      findings.push_back({Text(finding.name), finding.passed ? 1 : 0, Number(finding.measured, 6),
                          Number(finding.limit, 6), Text(finding.detail)});
    }
    return findings;
  }

  Json Timings(const CaseView& view) {
    Json timings = Json::array();
    for (const TimingSummary& summary : view.row->timing) {
      Json row = {Text(summary.mode),        Time(summary.median_ns), Time(summary.ci_low_ns),
                  Time(summary.ci_high_ns),  summary.repeats,         summary.samples,
                  Number(summary.spread, 4), summary.noisy ? 1 : 0};
      if (!compact_) {
        row.push_back(Time(summary.min_ns));
        row.push_back(Time(summary.max_ns));
        row.push_back(Time(summary.mean_ns));
        row.push_back(Percentile(summary.p90_ns));
        row.push_back(Percentile(summary.p95_ns));
        row.push_back(Percentile(summary.p99_ns));
      }
      timings.push_back(std::move(row));
    }
    return timings;
  }

  // Every k-th sample, so that drift stays visible; the first and the count are always there.
  Json Samples(const CaseResult& result) {
    Json all = Json::array();
    if (samples_per_series_ == 0) return all;
    for (const TimingSeries& series : result.timing) {
      const std::size_t count = series.samples_ns.size();
      const std::size_t stride = (count + samples_per_series_ - 1) / samples_per_series_;
      Json samples = Json::array();
      for (std::size_t i = 0; i < count; i += std::max<std::size_t>(stride, 1)) {
        samples.push_back(Number(series.samples_ns[i], thinned_ ? 4 : 7));
      }
      all.push_back({Text(series.mode), series.repeat, Text(series.stop), count, samples});
    }
    return all;
  }

  Json Hashes(const CaseResult& result) {
    Json hashes = Json::array();
    if (compact_) return hashes;
    for (const auto& [tensor, hash] : result.input_hashes) {
      hashes.push_back({Text(tensor), Text(hash)});
    }
    return hashes;
  }

  static std::ptrdiff_t HeadlineNumber(const CaseView& view) {
    return view.headline == nullptr ? -1 : view.headline - view.row->timing.data();
  }

  // The order is that of `CASE_FIELDS` in page/data.js.
  Json Case(const CaseView& view) {
    const CaseResult& result = *view.result;
    Json flags = Json::array();
    for (const std::string& flag : result.flags) flags.push_back(Text(flag));
    const Floor& floor = result.floor;
    return {
        Printable(result.uuid),
        Text(result.definition),
        Text(result.family),
        Text(result.backend),
        AxisValues(result.axes),
        Text(StatusName(result.status)),
        Text(result.sub),
        Text(result.correctness.grade()),
        Text(result.reason),
        flags,
        Number(result.correctness.outputs.empty() ? -1 : result.correctness.share_checked, 6),
        result.correctness.content_sets,
        Checks(result),
        Findings(result),
        HeadlineNumber(view),
        Timings(view),
        {Number(floor.ns, compact_ ? 5 : 12), Number(floor.flops, 6), Number(floor.bytes, 6),
         Text(floor.bound)},
        {Text(result.model), Text(result.phase), Text(result.request), Text(result.input_source)},
        {Printable(result.started), Number(result.seconds, 3), Number(result.setup_ms, 3),
         Number(result.overhead_ms, 3), result.peak_bytes},
        Samples(result),
        Hashes(result),
        EngineErrors(result)};
  }

  Json EngineErrors(const CaseResult& result) {
    Json errors = Json::array();
    for (const EngineError& error : result.engine) {
      errors.push_back({Text(error.output), Number(error.max_abs, 4), Number(error.max_rel, 4),
                        Number(error.rel_l2, 4), error.differing, error.elements});
    }
    return errors;
  }

  // "There" is the other run, "here" this one; ratios are here / there.
  Json Against(const RunReport& other, double margin) {
    std::vector<CaseRow> there, here;
    for (const CaseResult& result : other.cases) there.push_back(RowOf(result));
    for (const CaseResult& result : report_.cases) here.push_back(RowOf(result));
    const RunDiff diff = CompareRuns(other.run, there, report_.run, here, margin);
    Json changes = Json::array(), groups = Json::array(), environment = Json::array();
    AddChanges("broken", diff.new_failures, changes);
    AddChanges("mended", diff.mended, changes);
    AddChanges("slower", diff.slower, changes);
    AddChanges("faster", diff.faster, changes);
    for (const GroupDiff& group : diff.groups) {
      groups.push_back(
          {Text(group.definition), Text(group.backend), group.cases, Number(group.median, 5)});
    }
    for (const std::string& line : diff.environment) environment.push_back(Printable(line));
    return {{"run", Printable(other.run.id)},
            {"both", diff.cases.size()},
            {"only_there", diff.only_before.size()},
            {"only_here", diff.only_after.size()},
            {"environment", std::move(environment)},
            {"changes", std::move(changes)},
            {"groups", std::move(groups)}};
  }

  void AddChanges(const std::string& kind, const std::vector<const CaseDiff*>& list,
                  Json& changes) {
    for (const CaseDiff* change : list) {
      const CaseRow& there = *change->before;
      const CaseRow& here = *change->after;
      Json row = {Text(kind), Text(here.definition), Text(AxesText(here.axes)), Text(here.backend)};
      if (change->ratio && (kind == "slower" || kind == "faster")) {
        row.push_back(Number(Headline(there.timing)->median_ns, 6));
        row.push_back(Number(Headline(here.timing)->median_ns, 6));
        row.push_back(Number(*change->ratio, 5));
        row.push_back({Number(change->interval.low, 5), Number(change->interval.high, 5)});
      } else {
        row.push_back(StatusName(there.status));
        row.push_back(StatusName(here.status));
        row.push_back(nullptr);
        row.push_back(nullptr);
      }
      row.push_back(Text(here.reason));
      changes.push_back(std::move(row));
    }
  }

  Json Comparisons() {
    Json comparisons = Json::array();
    const auto interval = [](const std::optional<Interval>& range) {
      return range ? Json::array({Number(range->low, 5), Number(range->high, 5)}) : Json(nullptr);
    };
    for (const DefinitionComparison& comparison : analysis_.comparisons) {
      Json workloads = Json::array();
      for (const Comparison& workload : comparison.workloads) {
        workloads.push_back({workload.base, workload.other, Text(workload.mode),
                             Number(workload.speedup, 5), interval(workload.interval)});
      }
      comparisons.push_back({Text(comparison.definition), Text(comparison.backend),
                             Number(comparison.median, 5), interval(comparison.interval),
                             Number(comparison.worst, 5), Number(comparison.best, 5), workloads});
    }
    return comparisons;
  }

  // Label and value, in the order of the page.
  Json Run() const {
    const RunInfo& run = report_.run;
    Json facts = Json::array();
    const auto add = [&](const char* label, const std::string& value) {
      if (!value.empty()) facts.push_back({label, Printable(value)});
    };
    add("Run", run.id);
    add("Started", run.started);
    add("Finished", run.finished);
    add("Command", run.command);
    add("Commit", run.commit);
    add("Build", run.build);
    add("Compiler", run.compiler);
    add("Host", run.host);
    add("System", run.os);
    add("Device", run.device);
    add("Device identity", run.device_id);
    if (!run.accelerator.empty()) add("GPU", run.accelerator);
    add("Threads", run.threads > 0 ? std::to_string(run.threads) : "");
    add("Seed", std::to_string(run.seed));
    return facts;
  }

  static Json CeilingFacts(const Ceilings& ceilings) {
    return {{"device", Printable(ceilings.device)}, {"measured", Printable(ceilings.measured)},
            {"copy_bytes", ceilings.copy_bytes},    {"read_bytes", ceilings.read_bytes},
            {"write_bytes", ceilings.write_bytes},  {"bf16_flops", ceilings.bf16_flops},
            {"f32_flops", ceilings.f32_flops},      {"launch_ns", ceilings.launch_ns}};
  }

  std::string Note() const {
    std::string note;
    if (samples_per_series_ == 0 && thinned_) {
      note = "Single timing samples are left out of this page; the ledger has them all.";
    } else if (thinned_) {
      note = fmt::format(
          "Plots of samples show at most {} samples of each repeat, evenly spaced; the statistics "
          "and the ledger use all.",
          samples_per_series_);
    }
    if (compact_) {
      note += fmt::format(
          "{}In a run of this size the page leaves out input hashes, the extremes of timings and "
          "the "
          "worst elements of passed outputs.",
          note.empty() ? "" : " ");
    }
    return note;
  }

  const RunReport& report_;
  const Analysis& analysis_;
  const bool compact_;
  bool thinned_ = false;
  std::size_t samples_per_series_ = 0;
  std::vector<std::string> strings_;
  std::unordered_map<std::string, std::size_t> ids_;
  Json axis_sets_ = Json::array();
  std::unordered_map<std::string, std::size_t> axis_ids_;
};

}  // namespace

std::string HtmlData(const RunReport& report, std::size_t max_samples, const RunReport* against,
                     double margin) {
  const Analysis analysis = Analyse(report);
  const std::string json = Writer(report, analysis, max_samples).Document(against, margin).dump();
  std::string out;
  out.reserve(json.size() + json.size() / 64);
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";  // ends neither the block ("</script") nor starts a comment ("<!--")
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace assay
