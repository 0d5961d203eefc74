// `assay best`, `assay diff`, `assay merge`: what stored runs say together.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "io/file.h"
#include "report/analysis.h"
#include "report/best.h"
#include "report/run_diff.h"
#include "report/table.h"
#include "report/text.h"

namespace assay::cli {
namespace {

TextStyle Style() { return {.width = std::min(100, TerminalWidth(1)), .colour = UseColor(1)}; }

struct BestFlags {
  std::string ledger, run = "last", cpp;
  bool json = false;
};

void PrintBest(const BestFlags& flags) {
  const Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kReadOnly);
  const RunInfo run = FindRun(ledger, flags.run);
  const std::vector<Best> best = BestBackends(ledger.Rows(run.id));
  if (best.empty()) BadInput(fmt::format("run {} holds no passed case with a time", run.id));
  if (!flags.cpp.empty()) {
    WriteFile(flags.cpp, BestToCpp(best, run));
    fmt::print(stderr, "wrote {}\n", flags.cpp);
  }
  if (flags.json) {
    fmt::print("{}\n", BestToJson(best));
    return;
  }
  Table table({{"axes", Align::kLeft, Overflow::kEnd, 16, 0, 1},
               {"workloads", Align::kRight},
               {"fastest"},
               {"median", Align::kRight},
               {"next"},
               {"its ratio", Align::kRight}});
  std::string definition;
  for (const Best& one : best) {
    if (one.definition != definition) table.AddHeading(definition = one.definition);
    table.Add({one.axes_text, FormatCount(one.cases), one.backend, FormatTime(one.median_ns),
               one.second.empty() ? "-" : one.second,
               one.second.empty() ? "" : FormatFactor(one.second_ratio)});
  }
  fmt::print("{}", table.Text(Style()));
}

struct DiffFlags {
  std::string ledger, other_ledger, before, after = "last";
  double margin_percent = 2;
};

std::string RatioText(const CaseDiff& one) {
  return fmt::format("{} [{}, {}]", FormatFactor(*one.ratio), FormatFactor(one.interval.low),
                     FormatFactor(one.interval.high));
}

void PrintChanges(const char* title, const std::vector<const CaseDiff*>& list) {
  constexpr std::size_t kShown = 12;
  if (list.empty()) return;
  fmt::print("\n{} ({}):\n", title, FormatCount(static_cast<std::int64_t>(list.size())));
  Table table({{"definition", Align::kLeft, Overflow::kMiddle, 20, 0, 1},
               {"axes", Align::kLeft, Overflow::kEnd, 12, 0, 2},
               {"backend"},
               {"before", Align::kRight},
               {"after", Align::kRight},
               {"ratio, 95 %"}});
  for (std::size_t i = 0; i < std::min(kShown, list.size()); ++i) {
    const CaseDiff& one = *list[i];
    table.Add({one.after->definition, AxesText(one.after->axes), one.after->backend,
               FormatTime(Headline(one.before->timing)->median_ns),
               FormatTime(Headline(one.after->timing)->median_ns), RatioText(one)});
  }
  fmt::print("{}", table.Text(Style()));
  if (list.size() > kShown) fmt::print("... and {} more\n", list.size() - kShown);
}

void PrintStatusChanges(const char* title, const std::vector<const CaseDiff*>& list, Tone tone) {
  if (list.empty()) return;
  fmt::print("\n{} ({}):\n", title, list.size());
  Table table({{"definition", Align::kLeft, Overflow::kMiddle, 20, 0, 1},
               {"uuid", Align::kLeft, Overflow::kEnd, 8, 12, 0},
               {"backend"},
               {"before"},
               {"after"},
               {"reason", Align::kLeft, Overflow::kEnd, 12, 0, 2}});
  for (const CaseDiff* one : list) {
    table.Add({one->after->definition, one->after->uuid, one->after->backend,
               StatusName(one->before->status), Cell(StatusName(one->after->status), tone),
               one->after->reason});
  }
  fmt::print("{}", table.Text(Style()));
}

int Diff(const DiffFlags& flags) {
  const Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kReadOnly);
  const std::string& other_path = flags.other_ledger.empty() ? flags.ledger : flags.other_ledger;
  const Ledger other = Ledger::Open(other_path, Ledger::Mode::kReadOnly);
  const RunInfo before = FindRun(ledger, flags.before), after = FindRun(other, flags.after);
  if (before.id == after.id) BadInput(fmt::format("both sides are run {}", before.id));
  const std::vector<CaseRow> rows_before = ledger.Rows(before.id),
                             rows_after = other.Rows(after.id);
  const RunDiff diff =
      CompareRuns(before, rows_before, after, rows_after, flags.margin_percent / 100);
  if (diff.cases.empty()) {
    throw Error(Fault::kIncomplete,
                fmt::format("runs {} and {} have no case in common", before.id, after.id));
  }
  fmt::print("before {}\nafter  {}\n{} cases in both, {} only before, {} only after\n", before.id,
             after.id, FormatCount(static_cast<std::int64_t>(diff.cases.size())),
             diff.only_before.size(), diff.only_after.size());
  for (const std::string& difference : diff.environment) fmt::print("  {}\n", difference);
  PrintStatusChanges("passed before, not any more", diff.new_failures, Tone::kBad);
  PrintStatusChanges("passes now", diff.mended, Tone::kGood);
  PrintChanges("slower", diff.slower);
  PrintChanges("faster", diff.faster);
  if (!diff.groups.empty()) {
    fmt::print("\nmedian ratio of all cases (after / before; 1 = no change):\n");
    Table table({{"definition", Align::kLeft, Overflow::kMiddle, 20, 0, 1},
                 {"backend"},
                 {"cases", Align::kRight},
                 {"ratio", Align::kRight}});
    for (const GroupDiff& group : diff.groups) {
      table.Add(
          {group.definition, group.backend, FormatCount(group.cases), FormatFactor(group.median)});
    }
    fmt::print("{}", table.Text(Style()));
  }
  return diff.new_failures.empty() && diff.slower.empty() ? 0 : 1;
}

struct MergeFlags {
  std::string out;
  std::vector<std::string> in;
};

void Merge(const MergeFlags& flags) {
  Ledger out = Ledger::Open(flags.out, Ledger::Mode::kAppend);
  std::set<std::string> known;
  for (const RunInfo& run : out.Runs()) known.insert(run.id);
  std::vector<Ledger> inputs;
  std::vector<std::pair<std::size_t, RunInfo>> order;  // the ledger keeps runs as they are added
  for (const std::string& path : flags.in) {
    inputs.push_back(Ledger::Open(path, Ledger::Mode::kReadOnly));
    for (RunInfo& run : inputs.back().Runs()) order.emplace_back(inputs.size() - 1, std::move(run));
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second.started < b.second.started;
  });
  std::size_t runs = 0, cases = 0;
  for (const auto& [number, run] : order) {
    if (!known.insert(run.id).second) {
      fmt::print(stderr, "{}: run {} is there already, left out\n", flags.in[number], run.id);
      continue;
    }
    const Ledger& in = inputs[number];
    const Ceilings ceilings = in.CeilingsOf(run.id);
    if (!ceilings.device_id.empty()) out.StoreCeilings(ceilings);
    out.BeginRun(run, ceilings);
    for (const CaseResult& result : in.Cases(run.id)) {
      out.Add(run.id, result);
      ++cases;
    }
    if (!run.finished.empty()) out.FinishRun(run.id, run.finished);
    ++runs;
  }
  fmt::print("{}: {} runs with {} cases added\n", flags.out, runs, cases);
}

}  // namespace

void AddBestCommand(CLI::App& app, int&) {
  auto flags = std::make_shared<BestFlags>();
  flags->ledger = DefaultLedger();
  CLI::App* command =
      app.add_subcommand("best", "The fastest verified backend of every shape in a run");
  command->add_option("run", flags->run, "Run id, a unique prefix of one, or 'last'")
      ->capture_default_str();
  command->add_option("--ledger", flags->ledger, "Where results are stored")->capture_default_str();
  command->add_option("--cpp", flags->cpp, "Write a dispatch table as a C++ header");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags] { PrintBest(*flags); });
}

void AddDiffCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DiffFlags>();
  flags->ledger = DefaultLedger();
  CLI::App* command = app.add_subcommand("diff", "Two runs: new failures, slower and faster cases");
  command->add_option("before", flags->before, "Run id or a unique prefix")->required();
  command->add_option("after", flags->after, "Run id, a unique prefix, or 'last'")
      ->capture_default_str();
  command->add_option("--ledger", flags->ledger, "Where results are stored")->capture_default_str();
  command->add_option("--after-ledger", flags->other_ledger, "Ledger of `after`, when another one");
  command->add_option("--margin", flags->margin_percent, "Changes below this many percent are none")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->footer(
      "Exit code 1: a case fails that passed, or one is slower beyond margin and interval.");
  command->callback([flags, &exit_code] { exit_code = Diff(*flags); });
}

void AddMergeCommand(CLI::App& app, int&) {
  auto flags = std::make_shared<MergeFlags>();
  CLI::App* command = app.add_subcommand("merge", "Copy the runs of several ledgers into one");
  command->add_option("out", flags->out, "Ledger to write, made when missing")->required();
  command->add_option("in", flags->in, "Ledgers to read")->required();
  command->callback([flags] { Merge(*flags); });
}

}  // namespace assay::cli
