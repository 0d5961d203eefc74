// `assay timeline replays`: foreign attention replays and Nsight Compute tables, shown and stored.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/common.h"
#include "cli/timeline.h"
#include "io/file.h"
#include "replay/ledger.h"
#include "timeline/read.h"
#include "timeline/replays.h"

namespace assay::cli {
namespace {

using namespace timeline;  // NOLINT

struct ReplayFlags {
  std::vector<std::string> files;
  std::string baseline = "vllm_fa2", ledger;
};

void Store(Ledger& ledger, const std::vector<ForeignRun>& runs) {
  std::size_t cases = 0;
  for (const ForeignRun& run : runs) {
    for (const RunInfo& known : ledger.Runs()) {
      if (known.id == run.run.id) BadInput("the ledger holds run " + known.id + " already");
    }
    ledger.BeginRun(run.run, {});
    for (const CaseResult& result : run.cases) ledger.Add(run.run.id, result);
    ledger.FinishRun(run.run.id, "");
    cases += run.cases.size();
  }
  fmt::print(stderr, "{} foreign results stored in {} runs\n", cases, runs.size());
}

std::string NcuText(const std::vector<NcuLaunch>& launches, const std::string& path) {
  std::string text = fmt::format("{}: {} launches under Nsight Compute\n", path, launches.size());
  for (const NcuLaunch& launch : launches) {
    text += fmt::format("  {} {} grid {} block {}: {} metrics\n", launch.id, launch.kernel,
                        launch.grid, launch.block, launch.metrics.size());
    for (const std::string& problem : NcuProblems(launch))
      text += "  implausible: " + problem + "\n";
  }
  return text;
}

void Run(const ReplayFlags& flags) {
  std::vector<ForeignRun> runs;
  for (const std::string& path : flags.files) {
    const std::string text = ReadWholeFile(path);
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    if (first != text.npos && text[first] == '[') {
      const std::vector<ForeignReplay> replays = ParseReplays(text, path);
      fmt::print("{}", ReplayText(replays, flags.baseline, TerminalWidth(1), UseColor(1)));
      if (!flags.ledger.empty()) {
        for (ForeignRun& run : ReplayRuns(replays, path)) runs.push_back(std::move(run));
      }
    } else {
      const std::vector<NcuLaunch> launches = ParseNcuCsv(text, path);
      fmt::print("{}", NcuText(launches, path));
      runs.push_back(NcuRun(launches, path));
    }
  }
  if (!flags.ledger.empty()) {
    Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kAppend);
    Store(ledger, runs);
  }
}

}  // namespace

void AddTimelineReplays(CLI::App& timeline, int&) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = timeline.add_subcommand(
      "replays", "Show and store foreign attention replays (JSON) and Nsight Compute tables (CSV)");
  command->add_option("files", flags->files, "Files to read")->required();
  command->add_option("--baseline", flags->baseline, "Backend that speed-ups refer to")
      ->capture_default_str();
  command->add_option("--ledger", flags->ledger, "Store the results in this ledger too");
  command->callback([flags] { Run(*flags); });
}

}  // namespace assay::cli
