// `assay selftest`: does Assay itself work? `mutations` feeds wrong kernels to the verification,
// `hazards` cheats, `timing` measures work of known length on a GPU.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "replay/hazards.h"
#include "replay/mutations.h"
#include "replay/timing_selftest.h"
#include "replay/worker.h"
#include "report/table.h"

namespace assay::cli {
namespace {

int SelftestMutations(const std::string& suite_name) {
  const Suite suite = LoadSuite(SuitePath(suite_name), BuiltInRegistry());
  Table table({{"definition", Align::kLeft, Overflow::kMiddle, 20, 0, 1},
               {"mutant"},
               {"verdict"},
               {"why it was rejected", Align::kLeft, Overflow::kEnd, 20, 0, 2}});
  std::size_t survivors = 0, total = 0;
  for (const auto& [definition, workloads] : WorkloadsByDefinition(BuiltInRegistry(), suite)) {
    const Family& family = *BuiltInRegistry().FindDefinition(definition).family;
    for (const MutantOutcome& outcome : TryMutants(family, workloads)) {
      ++total;
      if (!outcome.killed) ++survivors;
      table.Add(
          {outcome.definition, outcome.mutant,
           Cell(outcome.killed ? "killed" : "SURVIVED", outcome.killed ? Tone::kGood : Tone::kBad),
           outcome.killed ? outcome.reason : outcome.mistake});
    }
  }
  fmt::print("{}", table.Text({.width = TerminalWidth(1), .colour = UseColor(1)}));
  fmt::print("{} mutants, {} killed, {} survived\n", total, total - survivors, survivors);
  return survivors == 0 ? 0 : 1;
}

int SelftestHazards() {
  std::vector<std::string> worker = OwnWorkerCommand();
  worker.push_back("--hazards");
  Table table({{"hazard"},
               {"what it does", Align::kLeft, Overflow::kEnd, 20, 0, 1},
               {"verdict"},
               {"result"}});
  std::size_t missed = 0;
  const std::vector<HazardOutcome> outcomes = TryHazards(worker);
  for (const HazardOutcome& outcome : outcomes) {
    if (!outcome.caught) ++missed;
    const CaseResult& result = outcome.result;
    const std::string sub = result.sub.empty() ? "" : " (" + result.sub + ")";
    table.Add(
        {outcome.hazard->kernel.name, outcome.hazard->kernel.summary,
         Cell(outcome.caught ? "caught" : "MISSED", outcome.caught ? Tone::kGood : Tone::kBad),
         StatusName(result.status) + sub});
    if (!outcome.caught && !result.reason.empty()) table.Add({"", result.reason, "", ""});
  }
  fmt::print("{}", table.Text({.width = TerminalWidth(1), .colour = UseColor(1)}));
  fmt::print("{} hazards, {} caught, {} missed\n", outcomes.size(), outcomes.size() - missed,
             missed);
  return missed == 0 ? 0 : 1;
}

// Here, not in a worker: there is nothing to isolate.
int SelftestTiming() {
  std::string why_not;
  const std::unique_ptr<Accelerator> gpu = OpenLocalAccelerator(why_not);
  if (gpu == nullptr) throw Error(Fault::kUnsupported, "selftest timing: " + why_not);
  const std::unique_ptr<TimingProbes> probes = MakeTimingProbes(*gpu, std::size_t{256} << 20);
  Table table({{"work", Align::kLeft, Overflow::kEnd, 20, 0, 1},
               {"mode"},
               {"known us", Align::kRight},
               {"measured us", Align::kRight},
               {"accepted us"},
               {"verdict"}});
  std::size_t failed = 0;
  const std::vector<TimingTrial> trials = TryTiming(*gpu, *probes);
  for (const TimingTrial& trial : trials) {
    if (!trial.passed) ++failed;
    const bool refused = trial.mode.empty();
    table.Add({trial.name, trial.mode,
               trial.known_ns == 0 ? "" : fmt::format("{:.2f}", trial.known_ns * 1e-3),
               refused ? "" : fmt::format("{:.2f}", trial.median_ns * 1e-3),
               refused ? trial.answer
                       : fmt::format("{:.2f} to {:.2f}", trial.low_ns * 1e-3, trial.high_ns * 1e-3),
               Cell(trial.passed ? "right" : "WRONG", trial.passed ? Tone::kGood : Tone::kBad)});
  }
  fmt::print("{}\n{}", gpu->info().name,
             table.Text({.width = TerminalWidth(1), .colour = UseColor(1)}));
  fmt::print("{} trials, {} right, {} wrong\n", trials.size(), trials.size() - failed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

void AddSelftestCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("selftest", "Check that Assay's own judgement works");
  command->require_subcommand(1);
  auto suite = std::make_shared<std::string>("smoke");
  CLI::App* mutations = command->add_subcommand(
      "mutations", "Feed deliberately wrong kernels to the verification: none may pass");
  mutations->add_option("--suite", *suite, "Suite whose workloads are used, the cheapest that fit")
      ->capture_default_str();
  mutations->callback([suite, &exit_code] { exit_code = SelftestMutations(*suite); });
  CLI::App* hazards = command->add_subcommand(
      "hazards", "Run kernels that cheat, break rules or break down: each must be named for it");
  hazards->callback([&exit_code] { exit_code = SelftestHazards(); });
  CLI::App* timing = command->add_subcommand(
      "timing", "Time work of known length on the GPU: every result must be the known one");
  timing->callback([&exit_code] { exit_code = SelftestTiming(); });
}

}  // namespace assay::cli
