// `assay selftest`: does Assay itself work? `mutations` feeds wrong kernels to the verification.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
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
}

}  // namespace assay::cli
