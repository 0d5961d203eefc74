// `assay report`: a stored run as one offline HTML page, Markdown or JSON.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "io/file.h"
#include "report/html.h"
#include "report/json.h"
#include "report/markdown.h"

namespace assay::cli {
namespace {

struct ReportFlags {
  std::string ledger, run = "last", html, markdown, json;
};

void Report(const ReportFlags& flags) {
  const Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kReadOnly);
  const RunInfo run = FindRun(ledger, flags.run);
  const RunReport report{run, ledger.CeilingsOf(run.id), ledger.Cases(run.id)};
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
  if (!flags.html.empty()) deliver(flags.html, HtmlReport(report));
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
  command->add_option("--markdown", flags->markdown, "Write tables for documents");
  command->add_option("--json", flags->json, "Write everything");
  command->callback([flags] { Report(*flags); });
}

}  // namespace assay::cli
