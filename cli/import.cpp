// `assay import`: turns captured records into our compact suites.
#include "replay/import.h"

#include <fmt/format.h>

#include "cli/commands.h"

namespace assay::cli {

void AddImportCommand(CLI::App& app, int& exit_code) {
  struct Options {
    std::string input, output;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("import", "Turn captured records (JSONL) into a suite file");
  command->add_option("records", options->input, "JSONL file of captured operator calls")
      ->required();
  command->add_option("--out", options->output, "Suite file to write")->required();
  command->footer("Example:\n  assay import serving_workloads.jsonl --out serving.jsonl");
  command->callback([options, &exit_code] {
    const Suite suite = ImportRecords(options->input, BuiltInRegistry());
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
