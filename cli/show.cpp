// `assay show`: a stored run as a table, or everything about one case.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "report/json.h"
#include "report/terminal.h"

namespace assay::cli {
namespace {

struct ShowFlags {
  std::string ledger, run = "last", uuid;
  bool json = false, runs = false;
};

void ShowRuns(const Ledger& ledger) {
  Table table({{"run"},
               {"device", Align::kLeft, Overflow::kMiddle, 16, 0, 2},
               {"build"},
               {"command", Align::kLeft, Overflow::kEnd, 20, 0, 1}});
  for (const RunInfo& run : ledger.Runs()) {
    table.Add({run.id, MachineOf(run), run.build, run.command});
  }
  fmt::print("{}", table.Text({.width = TerminalWidth(1)}));
}

void ShowCases(const RunReport& report, const std::string& uuid, const TerminalOptions& options) {
  bool found = false;
  for (const CaseResult& result : report.cases) {
    if (!result.uuid.starts_with(uuid)) continue;
    found = true;
    fmt::print("{}", CaseDetails(result, options));
  }
  if (!found) BadInput(fmt::format("run {} has no case with uuid {}", report.run.id, uuid));
}

void Show(const ShowFlags& flags) {
  const Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kReadOnly);
  if (flags.runs) return ShowRuns(ledger);
  const RunInfo run = FindRun(ledger, flags.run);
  const TerminalOptions options{.width = std::min(100, TerminalWidth(1)), .colour = UseColor(1)};
  if (!flags.json && flags.uuid.empty()) {  // everything that tables need is in the rows
    fmt::print("{}", TerminalReport(Analyse(ledger.Rows(run.id)), options));
    return;
  }
  const RunReport report{run, ledger.CeilingsOf(run.id), ledger.Cases(run.id), {}};
  if (!flags.uuid.empty()) return ShowCases(report, flags.uuid, options);
  fmt::print("{}\n", RunToJson(report));
}

}  // namespace

void AddShowCommand(CLI::App& app, int&) {
  auto flags = std::make_shared<ShowFlags>();
  flags->ledger = DefaultLedger();
  CLI::App* command = app.add_subcommand("show", "A stored run as a table, or one case in full");
  command->add_option("run", flags->run, "Run id, a unique prefix of one, or 'last'")
      ->capture_default_str();
  command->add_option("--uuid", flags->uuid, "Everything about this workload (a prefix is enough)");
  command->add_option("--ledger", flags->ledger, "Where results are stored")->capture_default_str();
  command->add_flag("--runs", flags->runs, "List the runs of the ledger");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags] { Show(*flags); });
}

}  // namespace assay::cli
