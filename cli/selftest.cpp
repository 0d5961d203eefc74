// `assay selftest`: does Assay itself work? `mutations` feeds wrong kernels to the verification.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "replay/hazards.h"
#include "replay/mutations.h"
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
}

}  // namespace assay::cli
