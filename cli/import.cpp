// `assay import`: turns captured records into our compact suites.
#include "replay/import.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"

namespace assay::cli {
namespace {

Suite Import(const std::string& input, const std::string& kind) {
  if (kind == "step") return {kind, StepWorkloads(), {}};
  if (input.empty()) BadInput("suite " + kind + " is made of captured records: name their file");
  if (kind == "worldmodel") return {kind, WorldModelWorkloads(input), {}};
  Suite suite = ImportRecords(input, BuiltInRegistry());
  if (kind == "smoke") suite.workloads = SmokeWorkloads(suite.workloads);
  return suite;
}

}  // namespace

void AddImportCommand(CLI::App& app, int& exit_code) {
  struct Options {
    std::string input, output, suite = "serving";
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("import", "Turn captured records (JSONL) into a suite file");
  command->add_option("records", options->input,
                      "JSONL file of captured operator calls; suite step needs none");
  command->add_option("--out", options->output, "Suite file to write")->required();
  command->add_option("--suite", options->suite, "Which workloads to make of them")
      ->check(CLI::IsMember({"serving", "smoke", "step", "worldmodel"}))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  assay import serving_workloads.jsonl --out suites/serving.jsonl\n"
      "  assay import serving_workloads.jsonl --suite smoke --out suites/smoke.jsonl\n"
      "  assay import worldmodel_attention_replays.json --suite worldmodel --out "
      "suites/worldmodel.jsonl\n"
      "  assay import --suite step --out suites/step.jsonl");
  command->callback([options, &exit_code] {
    const Suite suite = Import(options->input, options->suite);
    for (const SuiteProblem& problem : suite.problems) {
      fmt::print(stderr, "{}:{}:{}: {}\n", problem.file, problem.line, problem.column,
                 problem.message);
    }
    WriteSuite(options->output, suite.workloads);
    fmt::print("{} workloads written to {}, {} lines refused\n", suite.workloads.size(),
               options->output, suite.problems.size());
    if (!suite.problems.empty()) exit_code = 2;
  });
}

}  // namespace assay::cli
