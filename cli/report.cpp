// `assay report`: a stored run as one offline HTML page, Markdown or JSON.
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "io/file.h"
#include "report/html.h"
#include "report/json.h"
#include "report/markdown.h"
#include "report/operators.h"

namespace assay::cli {
namespace {

struct ReportFlags {
  std::string ledger, run = "last", html, markdown, json, against, against_ledger;
  double margin_percent = 2;
  std::vector<std::string> operators;  // ledgers
};

RunReport LoadRun(const std::string& path, const std::string& which) {
  const Ledger ledger = Ledger::Open(path, Ledger::Mode::kReadOnly);
  const RunInfo run = FindRun(ledger, which);
  RunReport report{run, ledger.CeilingsOf(run.id), ledger.Cases(run.id), {}};
  if (const auto gpu = ledger.FindCeilings(run.accelerator_id)) report.gpu = *gpu;
  return report;
}

// The README's table, from the last run of each ledger.
void PrintOperators(const std::vector<std::string>& ledgers) {
  std::vector<RunReport> runs;
  for (const std::string& path : ledgers) runs.push_back(LoadRun(path, "last"));
  fmt::print("{}", OperatorTable(runs));
}

// The run to compare with.
std::optional<RunReport> Other(const ReportFlags& flags, const std::string& run_id) {
  if (flags.against.empty()) {
    if (!flags.against_ledger.empty()) BadInput("--against-ledger needs --against with a run");
    return std::nullopt;
  }
  if (flags.html.empty()) BadInput("--against is for --html; `assay diff` compares in a terminal");
  const bool same = flags.against_ledger.empty();
  RunReport other = LoadRun(same ? flags.ledger : flags.against_ledger, flags.against);
  if (same && other.run.id == run_id) BadInput(fmt::format("both sides are run {}", run_id));
  return other;
}

void Report(const ReportFlags& flags) {
  if (!flags.operators.empty()) return PrintOperators(flags.operators);
  const RunReport report = LoadRun(flags.ledger, flags.run);
  const auto deliver = [](const std::string& path, const std::string& text) {
    if (path == "-") {
      fmt::print("{}", text);
    } else if (!path.empty()) {
      WriteFile(path, text);
      fmt::print("wrote {}\n", path);
    }
  };
  if (flags.html.empty() && flags.markdown.empty() && flags.json.empty()) {
    BadInput(
        "nothing to write: give --html, --markdown or --json with a file, or - for the screen");
  }
  const std::optional<RunReport> other = Other(flags, report.run.id);
  if (!flags.html.empty()) {
    HtmlOptions options;
    options.against = other ? &*other : nullptr;
    options.margin = flags.margin_percent / 100;
    deliver(flags.html, HtmlReport(report, options));
  }
  if (!flags.markdown.empty()) deliver(flags.markdown, MarkdownReport(report));
  if (!flags.json.empty()) deliver(flags.json, RunToJson(report) + "\n");
}

}  // namespace

void AddReportCommand(CLI::App& app, int&) {
  auto flags = std::make_shared<ReportFlags>();
  flags->ledger = DefaultLedger();
  CLI::App* command = app.add_subcommand("report", "Write a stored run as HTML, Markdown or JSON");
  command->add_option("run", flags->run, "Run id, a unique prefix of one, or 'last'")
      ->capture_default_str();
  command->add_option("--ledger", flags->ledger, "Where results are stored")->capture_default_str();
  command->add_option("--html", flags->html, "Write one offline page to this file");
  command->add_option("--against", flags->against, "In the page, compare with this run");
  command->add_option("--against-ledger", flags->against_ledger, "Its ledger, when another one");
  command->add_option("--margin", flags->margin_percent, "Changes below this many percent are none")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command->add_option("--markdown", flags->markdown, "Write tables for documents");
  command->add_option("--json", flags->json, "Write everything");
  command
      ->add_option("--operators", flags->operators,
                   "Print one table of all operators from the last runs of these ledgers")
      ->delimiter(',');
  command->callback([flags] { Report(*flags); });
}

}  // namespace assay::cli
