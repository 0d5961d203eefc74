// `assay timeline diff A B`: what changed between two recordings, and a verdict.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/common.h"
#include "cli/timeline.h"
#include "timeline/read.h"
#include "timeline/result.h"

namespace assay::cli {
namespace {

using namespace timeline;  // NOLINT

struct DiffFlags {
  std::string a, b, json;
  ScopeFlags scopes_a, scopes_b;
  std::vector<std::string> nvtx;
  DiffOptions options;
  int top = 15;
};

void Run(DiffFlags& flags, int& exit_code) {
  flags.scopes_a.nvtx = flags.scopes_b.nvtx = flags.nvtx;
  const Trace trace_a = ReadTrace(flags.a), trace_b = ReadTrace(flags.b);
  const LaunchIndex index_a(trace_a), index_b(trace_b);
  const std::vector<Scope> scopes_a = ScopesOf(trace_a, flags.scopes_a);
  const std::vector<Scope> scopes_b = ScopesOf(trace_b, flags.scopes_b);
  std::vector<ScopeDiff> diffs;
  for (const Scope& a : scopes_a) {
    for (const Scope& b : scopes_b) {
      if (a.name == b.name) {
        diffs.push_back(DiffScope({trace_a, index_a}, a, {trace_b, index_b}, b, flags.options));
      }
    }
  }
  if (diffs.empty()) BadInput("the two recordings have no scope of one name");
  DeliverText(flags.json, flags.json.empty() ? "" : DiffToJson(diffs));
  if (flags.json != "-") {
    fmt::print("{}", DiffText(diffs, TerminalWidth(1), UseColor(1), flags.top));
  }
  // The gravest verdict of the scopes decides.
  for (const ScopeDiff& diff : diffs) {
    const int code = VerdictExitCode(diff.verdict);
    if (exit_code != 1) exit_code = code == 1 ? 1 : std::max(exit_code, code);
  }
}

}  // namespace

void AddTimelineDiff(CLI::App& timeline, int& exit_code) {
  auto flags = std::make_shared<DiffFlags>();
  CLI::App* command = timeline.add_subcommand(
      "diff", "Compare two recordings per kernel and category, with causes and a verdict");
  command->add_option("a", flags->a, "Recording before")->required();
  command->add_option("b", flags->b, "Recording after")->required();
  command->add_option("--nvtx", flags->nvtx, "Range NAME or NAME#k in both recordings");
  command->add_option("--window-a", flags->scopes_a.windows, "START:END in trace ns of A");
  command->add_option("--window-b", flags->scopes_b.windows, "START:END in trace ns of B");
  command->add_option("--log-a", flags->scopes_a.log, "Window log of A");
  command->add_option("--log-b", flags->scopes_b.log, "Window log of B");
  command->add_option("--threshold", flags->options.threshold, "Relative change that counts")
      ->capture_default_str();
  command->add_option("--top", flags->top, "Kernels to print")->capture_default_str();
  command->add_option("--json", flags->json, "Write everything (- for the screen)");
  command->footer(
      "Exit codes: 0 neutral or improved; 1 regression; 2 bad input; 5 inconclusive;\n"
      "6 not comparable or incomplete.");
  command->callback([flags, &exit_code] { Run(*flags, exit_code); });
}

}  // namespace assay::cli
