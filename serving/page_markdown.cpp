// Markdown for a pull request comment, and the review checklist that HTML and JSON print as well.
#include <fmt/format.h>

#include <cmath>

#include "report/table.h"
#include "serving/pages.h"

namespace assay::serving {
namespace {

std::string RatioText(const MetricResult& r) {
  const Interval i = r.RatioInterval();
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", r.Ratio(), i.low, i.high);
}

void AddMetricTable(const Comparison& c, std::string& out) {
  Table table({{"statistic"},
               {"population"},
               {"n", Align::kRight},
               {"off", Align::kRight},
               {"on", Align::kRight},
               {"on/off [95 %]"},
               {"improvement"}});
  for (const MetricResult& r : c.metrics) {
    if (!r.suppressed.empty()) {
      table.Add(
          {NameOf(r.statistic), r.population, "", "", "", "not estimable: " + r.suppressed, ""});
      continue;
    }
    table.Add({NameOf(r.statistic), r.population, std::to_string(std::min(r.n_off, r.n_on)),
               fmt::format("{:.5g}", r.off), fmt::format("{:.5g}", r.on), RatioText(r),
               EffectPercent(r.effect, *r.effect_interval)});
  }
  out += table.Markdown() + "\n";
}

const Gate* FindGate(const Comparison& c, const std::string& code) {
  for (const Gate& gate : c.gates) {
    if (gate.code == code) return &gate;
  }
  return nullptr;
}

// Answers a line from gates: "no" if one refuses, "open" if one warns or is unknown.
ChecklistLine FromGates(const Comparison& c, const char* id, const char* question,
                        const std::vector<std::string>& codes) {
  ChecklistLine line{id, question, "yes", ""};
  for (const std::string& code : codes) {
    const Gate* gate = FindGate(c, code);
    if (gate == nullptr) continue;
    const bool refuse = gate->status == GateStatus::kRefuse || gate->status == GateStatus::kAllowed;
    const bool open = gate->status == GateStatus::kWarn || gate->status == GateStatus::kUnknown;
    if (refuse) line.answer = "no";
    if (open && line.answer == "yes") line.answer = "open";
    if (refuse || open || line.evidence.empty()) {
      line.evidence += (line.evidence.empty() ? "" : "; ") + code + ": " + gate->sentence;
    }
  }
  return line;
}

}  // namespace

std::vector<ChecklistLine> ReviewChecklist(const Comparison& c) {
  const bool measured = c.level > 1 && c.Primary() != nullptr && c.Primary()->suppressed.empty();
  const auto answer = [](bool yes) { return std::string(yes ? "yes" : "no"); };
  std::vector<ChecklistLine> list;
  list.push_back(FromGates(c, "A1", "exactly one declared difference", {"G01"}));
  list.push_back(
      FromGates(c, "A2", "same image, commit, model revision, precision", {"G02", "G04"}));
  list.push_back(FromGates(c, "A3", "same GPUs, power cap, clocks", {"G03", "G17"}));
  list.push_back(FromGates(c, "A4", "same data set revision, seed, client, load, window",
                           {"G06", "G07", "G08"}));
  list.push_back(
      FromGates(c, "A5", "same speculative set-up, measured accept length equal", {"G05"}));
  list.push_back({"A6", "outputs are right: accuracy non-inferior",
                  c.accuracy.has_value() ? answer(c.accuracy->non_inferior) : "open",
                  c.accuracy.has_value()
                      ? fmt::format("{:+.2f} points on {} problems", 100 * c.accuracy->difference,
                                    c.accuracy->problems)
                      : "no accuracy pair given"});
  list.push_back(FromGates(c, "A7", "the baseline is healthy", {"G22"}));
  list.push_back(FromGates(c, "B4", "arms together on one node, sets swapped", {"G15"}));
  list.push_back(FromGates(c, "B6", "errors within limits and equal", {"G12", "G13"}));
  list.push_back(
      FromGates(c, "B7", "cache hit rate, KV pool, restart state equal", {"G10", "G11"}));
  list.push_back({"C1", "interval and n beside every number", answer(measured),
                  measured ? c.Primary()->method : "no interval without requests"});
  list.push_back(
      {"C2", "effect above the noise floor of a control",
       c.floor_source == "control" ? answer(std::abs(c.Primary()->effect) > c.floor) : "open",
       "floor: " + c.floor_source});
  list.push_back({"C3", "matched population next to the full one", answer(c.ledger.both > 0),
                  fmt::format("{} matched, {} off only, {} on only", c.ledger.both,
                              c.ledger.off_only, c.ledger.on_only)});
  list.push_back({"C4", "whole distribution, sign changes named", answer(!c.shift.empty()),
                  fmt::format("{} quantiles", c.shift.size())});
  list.push_back({"C5", "throughput factorised", answer(c.factorisation.has_value()), ""});
  list.push_back({"C6", "primary metric chosen before; the rest corrected", "yes",
                  NameOf(c.options.primary) + "; Benjamini-Hochberg on the rest"});
  list.push_back({"D1", "raw records attached; one command reproduces the table",
                  answer(c.level > 1), fmt::format("seed {}", c.seed)});
  list.push_back(FromGates(c, "D2", "the treated path was exercised", {"G21"}));
  return list;
}

std::string MarkdownPage(const Comparison& c) {
  std::string out = std::string("### Serving A/B\n\n**") + MarkdownEscape(c.sentence) + "**\n\n";
  for (const std::string& caveat : c.caveats)
    out += std::string("- caveat: ") + MarkdownEscape(caveat) + "\n";
  if (!c.caveats.empty()) out += "\n";
  if (c.level > 1) {
    AddMetricTable(c, out);
  } else {
    Table table({{"statistic"},
                 {"off", Align::kRight},
                 {"on", Align::kRight},
                 {"on/off"},
                 {"range if turns were independent"}});
    for (const PointEstimate& p : c.points) {
      table.Add({NameOf(p.statistic), fmt::format("{:.5g}", p.off), fmt::format("{:.5g}", p.on),
                 fmt::format("{:.3f}", p.on / p.off),
                 p.range.has_value() ? fmt::format("{:.3f} .. {:.3f}", p.range->low, p.range->high)
                                     : ""});
    }
    out += table.Markdown() + "\n";
  }
  if (c.factorisation.has_value()) {
    const Factorisation& f = *c.factorisation;
    out += fmt::format(
        "Throughput per GPU x{:.4f} = requests x{:.4f} * tokens per request x{:.4f}.\n\n", f.total,
        f.request_rate, f.tokens_per_request);
  }
  Table gates({{"gate"}, {"status"}, {"what was seen"}});
  for (const Gate& gate : c.gates) {
    if (gate.status == GateStatus::kPass) continue;
    gates.Add({gate.code, std::string(NameOf(gate.status)), gate.sentence});
  }
  if (!gates.empty()) out += gates.Markdown() + "\n";
  if (!c.missing.empty()) out += "Missing:\n\n";
  for (const std::string& item : c.missing) out += std::string("- ") + MarkdownEscape(item) + "\n";
  return out;
}

}  // namespace assay::serving
