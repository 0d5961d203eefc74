// `assay timeline`: where the time of a profiled run went, and what the recording lacks.
#include "cli/timeline.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "io/file.h"
#include "timeline/read.h"
#include "timeline/result.h"
#include "timeline/short_name.h"

namespace assay::cli {

using namespace timeline;  // NOLINT: this file is all about that room

void AddScopeOptions(CLI::App& command, ScopeFlags& flags) {
  command.add_option("--window", flags.windows, "START:END in trace ns; several form one scope")
      ->take_all();
  command.add_option("--host-window", flags.host_windows,
                     "START:END in seconds of the host's monotonic clock (Python's perf_counter)");
  command.add_option("--epoch-window", flags.epoch_windows, "START:END in seconds since 1970");
  command.add_option("--nvtx", flags.nvtx,
                     "Range NAME (all of its occurrences) or NAME#k (the k-th, from 1)");
  command.add_option("--window-log", flags.log,
                     "JSONL of {\"name\", \"t\", \"clock\"}: first line opens, second closes");
}

std::vector<Scope> ScopesOf(const Trace& trace, const ScopeFlags& flags) {
  std::vector<Scope> scopes;
  Scope declared{"windows", {}, ""};
  for (const std::string& text : flags.windows) declared.steps.push_back(ParseWindow(text));
  for (const std::string& text : flags.host_windows) {
    declared.steps.push_back(ParseClockWindow(trace, "host", text, declared.note));
  }
  for (const std::string& text : flags.epoch_windows) {
    declared.steps.push_back(ParseClockWindow(trace, "epoch", text, declared.note));
  }
  if (!declared.steps.empty()) scopes.push_back(declared);
  for (const std::string& name : flags.nvtx) scopes.push_back(NvtxScope(trace, name));
  if (!flags.log.empty()) {
    for (Scope& scope : LogScopes(trace, ReadFile(flags.log), flags.log)) {
      scopes.push_back(std::move(scope));
    }
  }
  if (scopes.empty()) scopes.push_back(FullScope(trace));
  return scopes;
}

void DeliverText(const std::string& path, const std::string& content) {
  if (path == "-") {
    fmt::print("{}", content);
  } else if (!path.empty()) {
    WriteFile(path, content);
    fmt::print(stderr, "wrote {}\n", path);
  }
}

namespace {

struct TimelineFlags {
  std::vector<std::string> files, comm;
  ScopeFlags scopes;
  std::string json, html, perfetto, csv, names, key = "name";
  int top = 10, gaps = 20;
};

AnalyzeOptions OptionsOf(const TimelineFlags& flags) {
  AnalyzeOptions options;
  options.top_gaps = flags.gaps;
  options.key = flags.key == "short"   ? GroupKey::kShort
                : flags.key == "shape" ? GroupKey::kShape
                                       : GroupKey::kName;
  options.short_name = ShortName;
  if (!flags.names.empty()) {
    const auto rules =
        std::make_shared<NameRules>(NameRules::Parse(ReadFile(flags.names), flags.names));
    options.short_name = [rules](const std::string& name) { return rules->Apply(name); };
  }
  return options;
}

void Run(const TimelineFlags& flags, int& exit_code) {
  ReadOptions read;
  for (const std::string& part : flags.comm) read.comm.Add(part);
  const Trace trace = ReadRun(flags.files, read);
  const LaunchIndex index(trace);
  const TimelineResult result =
      AnalyzeRun(trace, index, ScopesOf(trace, flags.scopes), OptionsOf(flags));
  for (const ScopeResult& scope : result.scopes) {
    for (const std::string& broken : BrokenInvariants(trace, scope.use)) {
      throw Error(Fault::kInternal, "scope " + scope.use.scope.name + ": " + broken);
    }
  }
  DeliverText(flags.json, flags.json.empty() ? "" : ResultToJson(result));
  DeliverText(flags.html, flags.html.empty() ? "" : ResultToHtml(result));
  DeliverText(flags.perfetto, flags.perfetto.empty() ? "" : ResultToPerfetto(result));
  if (!flags.csv.empty()) {
    for (const std::string& table : CsvTables()) {
      DeliverText(flags.csv + "_" + table + ".csv", ResultToCsv(result, table));
    }
  }
  if (flags.json != "-") {
    fmt::print("{}", SummaryText(result, TerminalWidth(1), UseColor(1), flags.top));
  }
  // Incomplete evidence is a result, but scripts must be able to see it.
  bool active = false, complete = true;
  for (const ScopeResult& scope : result.scopes) {
    for (const DeviceUse& device : scope.use.devices) active |= device.active();
    for (const DeviceCoverage& device : scope.coverage.devices) {
      complete &= device.verdict == Coverage::kComplete || device.verdict == Coverage::kUnknown;
    }
  }
  if (!active || !complete) exit_code = static_cast<int>(Fault::kIncomplete);
}

}  // namespace

void AddTimelineCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<TimelineFlags>();
  CLI::App* command = app.add_subcommand(
      "timeline", "Say where the time of a profiled run went, and what the recording lacks");
  command->add_option("files", flags->files,
                      "Nsight Systems SQLite exports, Kineto JSON (.gz), rocprofv3 JSON or CSV; "
                      "several files of one run are merged on their clocks");
  AddScopeOptions(*command, flags->scopes);
  command->add_option("--comm", flags->comm,
                      "More lower-case name parts that mark communication kernels");
  command->add_option("--key", flags->key, "Group kernels by name, short form, or name and shape")
      ->check(CLI::IsMember({"name", "short", "shape"}))
      ->capture_default_str();
  command->add_option("--names", flags->names, "File of rules PATTERN => SHORT NAME");
  command->add_option("--top", flags->top, "Kernel groups to print")->capture_default_str();
  command->add_option("--gaps", flags->gaps, "Gaps to keep per device")->capture_default_str();
  command->add_option("--json", flags->json, "Write everything (- for the screen)");
  command->add_option("--html", flags->html, "Write one offline page");
  command->add_option("--perfetto", flags->perfetto, "Write a trace for Perfetto");
  command->add_option("--csv", flags->csv, "Write PREFIX_devices.csv, PREFIX_groups.csv, ...");
  command->require_subcommand(0, 1);
  command->footer(
      "Examples:\n"
      "  nsys export --type sqlite --output run.sqlite run.nsys-rep\n"
      "  assay timeline run.sqlite --nvtx step --html run.html\n"
      "  assay timeline diff before.sqlite after.sqlite --nvtx step\n"
      "Exit codes: 0 ok; 2 bad input; 6 no activity or incomplete recording.");
  command->callback([command, flags, &exit_code] {
    if (!command->get_subcommands().empty()) return;
    if (flags->files.empty()) BadInput("timeline needs a trace file, or diff, record or replays");
    Run(*flags, exit_code);
  });
  AddTimelineDiff(*command, exit_code);
  AddTimelineRecord(*command, exit_code);
  AddTimelineReplays(*command, exit_code);
}

}  // namespace assay::cli
