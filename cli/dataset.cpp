// `assay dataset`: FlashInfer-Trace folders checked, imported and exported.
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "replay/stored_inputs.h"
#include "replay/trace_export.h"
#include "replay/trace_family.h"

namespace assay::cli {
namespace {

struct DatasetFlags {
  std::string folder, suite, ledger, run;
  bool no_blobs = false;
  TraceExport out;
};

// Everything of a folder that is not tensor data.
struct Loaded {
  std::vector<TraceDefinition> definitions;
  Registry registry = BuiltInRegistry();
  Suite suite;
  std::vector<TraceSolution> solutions;
  std::vector<TraceLine> traces;
  std::vector<TraceProblem> problems;
};

Loaded Load(const std::string& folder) {
  Loaded loaded;
  for (TraceDefinition& definition : LoadTraceDefinitions(folder, loaded.problems)) {
    try {
      loaded.registry = WithTraceDefinitions(loaded.registry, {definition});
      loaded.definitions.push_back(std::move(definition));
    } catch (const Error& error) {
      loaded.problems.push_back({"definitions", 0, error.what()});
    }
  }
  loaded.suite = LoadTraceSuite(folder, loaded.definitions, loaded.registry);
  for (const SuiteProblem& problem : loaded.suite.problems) {
    const bool inside = problem.file.starts_with(folder + "/");
    loaded.problems.push_back({inside ? problem.file.substr(folder.size() + 1) : problem.file,
                               problem.line, problem.message});
  }
  loaded.solutions = LoadTraceSolutions(folder, loaded.problems);
  loaded.traces = LoadTraceLines(folder, loaded.problems);
  return loaded;
}

void Print(const std::string& folder, const std::vector<TraceProblem>& problems) {
  for (const TraceProblem& problem : problems) {
    const std::string line = problem.line > 0 ? fmt::format(":{}", problem.line) : "";
    fmt::print(stderr, "{}/{}{}: {}\n", folder, problem.file, line, problem.message);
  }
}

// Names that point nowhere.
void CheckNames(Loaded& loaded) {
  std::set<std::string> solutions, missing;
  for (const TraceSolution& solution : loaded.solutions) {
    solutions.insert(solution.name);
    if (loaded.registry.FindDefinition(solution.definition).family == nullptr) {
      missing.insert(fmt::format("solution '{}' is for definition '{}', which is not here",
                                 solution.name, solution.definition));
    }
  }
  for (const TraceLine& line : loaded.traces) {
    if (solutions.contains(line.solution)) continue;
    missing.insert(fmt::format("traces name solution '{}', which is not here", line.solution));
  }
  for (const std::string& sentence : missing) loaded.problems.push_back({"solutions", 0, sentence});
}

// Opens what a workload stores and lets its family look at it.
void CheckBlobs(Loaded& loaded) {
  for (const Workload& workload : loaded.suite.workloads) {
    const Family* family = loaded.registry.FindDefinition(workload.definition).family;
    if (family == nullptr) continue;
    try {
      const Problem problem = MakeProblem(*family, workload.definition, workload.axes,
                                          workload.attributes, workload.variant);
      const auto stored = StoredInputs::Open(workload, *family, problem);
      if (stored == nullptr) continue;
      Bundle inputs = Bundle::AllocateShared(stored->layouts());
      stored->Fill(0, 0, inputs);
      if (family->validate_inputs) family->validate_inputs(problem, inputs);
    } catch (const Error& error) {
      loaded.problems.push_back(
          {"workloads", 0, fmt::format("record {}: {}", workload.uuid, error.what())});
    }
  }
}

int Check(const DatasetFlags& flags) {
  Loaded loaded = Load(flags.folder);
  CheckNames(loaded);
  if (!flags.no_blobs) CheckBlobs(loaded);
  Print(flags.folder, loaded.problems);
  fmt::print("{}: {} definitions, {} workloads, {} solutions, {} traces; {} problems\n",
             flags.folder, loaded.definitions.size(), loaded.suite.workloads.size(),
             loaded.solutions.size(), loaded.traces.size(), loaded.problems.size());
  return loaded.problems.empty() ? 0 : static_cast<int>(Fault::kInput);
}

int Import(const DatasetFlags& flags) {
  if (flags.suite.empty() && flags.ledger.empty()) {
    BadInput("nothing to write: give --suite or --ledger with a file");
  }
  const Loaded loaded = Load(flags.folder);
  Print(flags.folder, loaded.problems);
  if (!flags.suite.empty()) {
    WriteSuite(flags.suite, loaded.suite.workloads);
    fmt::print("{} workloads written to {}\n", loaded.suite.workloads.size(), flags.suite);
  }
  if (!flags.ledger.empty()) {
    const auto [run, cases] =
        RunFromTraces(flags.folder, loaded.traces, loaded.registry, loaded.suite);
    Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kAppend);
    for (const RunInfo& known : ledger.Runs()) {
      if (known.id == run.id) BadInput(fmt::format("{} has run {} already", flags.ledger, run.id));
    }
    ledger.BeginRun(run, {});
    for (const CaseResult& result : cases) ledger.Add(run.id, result);
    ledger.FinishRun(run.id, run.finished);
    fmt::print("{} recorded evaluations written to {} as run {}\n", cases.size(), flags.ledger,
               run.id);
  }
  return loaded.problems.empty() ? 0 : static_cast<int>(Fault::kInput);
}

// The workloads to export: of the base dataset, or of a suite.
Loaded Source(const DatasetFlags& flags) {
  if (!flags.out.base.empty() && !flags.suite.empty()) {
    BadInput("the workloads come from --from or from --suite, not from both");
  }
  if (!flags.out.base.empty()) return Load(flags.out.base);
  Loaded loaded;
  loaded.suite = LoadSuite(SuitePath(flags.suite), loaded.registry);
  return loaded;
}

void KeepWorkloadsOf(const std::vector<CaseResult>& cases, Suite& suite) {
  std::set<std::string> uuids;
  for (const CaseResult& result : cases) uuids.insert(result.uuid);
  std::erase_if(suite.workloads, [&](const Workload& w) { return !uuids.contains(w.uuid); });
}

void Export(const DatasetFlags& flags) {
  if (flags.out.base.empty() && flags.suite.empty()) {
    BadInput("nothing to export: give --suite, or --from with a dataset");
  }
  Loaded source = Source(flags);
  RunInfo run;
  std::vector<CaseResult> cases;
  if (!flags.run.empty()) {
    const Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kReadOnly);
    run = FindRun(ledger, flags.run);
    cases = ledger.Cases(run.id);
    if (flags.out.base.empty()) KeepWorkloadsOf(cases, source.suite);
  }
  const TraceExportCounts counts =
      ExportTraces(flags.out, source.registry, source.suite, run, cases);
  fmt::print(
      "{}: {} files copied; {} definitions, {} workloads, {} blobs, {} solutions, {} traces "
      "written\n",
      flags.out.out, counts.copied, counts.definitions, counts.workloads, counts.blobs,
      counts.solutions, counts.traces);
  for (const std::string& why : counts.why) fmt::print("left out: {}\n", why);
}

}  // namespace

void AddDatasetCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DatasetFlags>();
  CLI::App* command =
      app.add_subcommand("dataset", "FlashInfer-Trace folders: check, import, export");
  command->require_subcommand(1);

  CLI::App* check = command->add_subcommand("check", "Read everything, say what is wrong");
  check->add_option("folder", flags->folder, "Dataset")->required();
  check->add_flag("--no-blobs", flags->no_blobs, "Leave tensor files closed");
  check->callback([flags, &exit_code] { exit_code = Check(*flags); });

  CLI::App* from = command->add_subcommand("import", "Workloads to a suite, traces to a ledger");
  from->add_option("folder", flags->folder, "Dataset")->required();
  from->add_option("--suite", flags->suite, "Suite file to write");
  from->add_option("--ledger", flags->ledger, "Ledger that gets the traces as a run");
  from->callback([flags, &exit_code] { exit_code = Import(*flags); });

  CLI::App* to = command->add_subcommand("export", "Workloads and a run to a new folder");
  to->add_option("folder", flags->out.out, "Folder to write; must be new or empty")->required();
  to->add_option("--from", flags->out.base, "Dataset to start from, copied byte for byte");
  to->add_option("--suite", flags->suite, "Workloads of a suite instead");
  to->add_option("--run", flags->run, "Run to add as traces: id, unique prefix or 'last'");
  to->add_option("--ledger", flags->ledger, "Ledger of the run");
  to->add_flag("--write-inputs", flags->out.write_inputs, "Store generated inputs in blob/");
  to->add_flag("--unverified", flags->out.unverified,
               "Also suspicious and unaudited cases, as PASSED");
  to->callback([flags] {
    if (flags->ledger.empty()) flags->ledger = DefaultLedger();
    Export(*flags);
  });

  command->footer(
      "Examples:\n"
      "  assay dataset check ./flashinfer-trace\n"
      "  assay run --dataset ./flashinfer-trace --backend cpu\n"
      "  assay dataset export ./mine --from ./flashinfer-trace --run last\n"
      "  assay dataset export ./smoke --suite smoke --write-inputs");
}

}  // namespace assay::cli
