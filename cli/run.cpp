// `assay run`: replay a suite, judge and time every case, store and show the results.
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <tuple>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/python.h"
#include "cli/sanitize.h"
#include "io/file.h"
#include "io/sha256.h"
#include "replay/device.h"
#include "replay/gpu.h"
#include "replay/plugin.h"
#include "replay/runner.h"
#include "replay/trace_family.h"
#include "report/html.h"
#include "report/json.h"
#include "report/terminal.h"

namespace assay::cli {
namespace {

constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells report it

struct RunFlags {
  std::string suite = "smoke", ledger, html, variant;
  std::vector<std::string> definitions, families, models, uuids, plugins;
  std::string shard, dataset;
  std::vector<std::string> references;
  bool resume = false, json = false, no_timing = false, distinct = false;
  PythonFlags python;
  std::string python_fingerprint;
  std::string flush = "read", cross_check, sanitize;
  GpuAnswer gpu;  // of the workers; asked only when a backend of the suite computes on a device
  RunOptions run;
};

std::atomic<bool> stop_requested{false};

// The first Ctrl-C ends the run between cases; the second one ends the program at once.
void RequestStop(int signal_number) {
  stop_requested = true;
  signal(signal_number, SIG_DFL);
}

void InstallStopHandlers() {
  struct sigaction action {};
  action.sa_handler = RequestStop;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Matches(const std::vector<std::string>& wanted, const std::string& value) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), value) != wanted.end();
}

// A uuid may be given by a prefix.
bool MatchesPrefix(const std::vector<std::string>& wanted, const std::string& value) {
  return wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& w) {
           return !w.empty() && value.starts_with(w);
         });
}

// A filter value that no workload of the suite has is a mistake, not an empty result.
void RequireMatches(const Suite& suite, const std::string& flag,
                    const std::vector<std::string>& wanted,
                    const std::function<std::string(const Workload&)>& value, bool prefix) {
  for (const std::string& one : wanted) {
    const bool found =
        std::any_of(suite.workloads.begin(), suite.workloads.end(), [&](const Workload& workload) {
          return prefix ? MatchesPrefix({one}, value(workload)) : value(workload) == one;
        });
    if (!found) {
      BadInput(fmt::format("{} {} matches no workload of suite '{}'", flag, one, suite.name));
    }
  }
}

void Filter(Suite& suite, const RunFlags& flags, const Registry& registry) {
  const auto family_of = [&](const Workload& workload) -> std::string {
    const Family* family = registry.FindDefinition(workload.definition).family;
    return family != nullptr ? family->name : "";
  };
  const auto definition = [](const Workload& w) { return w.definition; };
  const auto model = [](const Workload& w) { return w.model; };
  const auto uuid = [](const Workload& w) { return w.uuid; };
  RequireMatches(suite, "--definition", flags.definitions, definition, false);
  RequireMatches(suite, "--family", flags.families, family_of, false);
  RequireMatches(suite, "--model", flags.models, model, false);
  RequireMatches(suite, "--uuid", flags.uuids, uuid, true);
  std::erase_if(suite.workloads, [&](const Workload& w) {
    return !Matches(flags.definitions, w.definition) || !Matches(flags.families, family_of(w)) ||
           !Matches(flags.models, w.model) || !MatchesPrefix(flags.uuids, w.uuid);
  });
  if (suite.workloads.empty()) {
    BadInput(fmt::format("the filters leave no workload of suite '{}'", suite.name));
  }
}

// Other inputs make another workload: its uuid tells, so that ledgers and --resume do too. The
// content key stays, so that equal parts of the content stay equal.
void UseVariant(Suite& suite, const std::string& variant) {
  std::erase_if(suite.workloads, [&](const Workload& w) {
    const Family* family = ShippedRegistry().FindDefinition(w.definition).family;
    return family == nullptr || !Matches(family->variants, variant);
  });
  if (suite.workloads.empty()) {
    BadInput(fmt::format("--variant {}: no operator family of the workloads left has it", variant));
  }
  for (Workload& w : suite.workloads) {
    if (w.content_id.empty()) w.content_id = w.uuid;
    w.uuid += "@" + variant;
    w.variant = variant;
  }
}

// Part `index` of `count`, from 0.
struct Shard {
  int index = 0, count = 1;
};

// "auto": the rank that Slurm or Open MPI gave this process; alone without them.
Shard ShardFromLauncher() {
  const std::pair<const char*, const char*> launchers[] = {
      {"SLURM_PROCID", "SLURM_NTASKS"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}};
  for (const auto& [rank, size] : launchers) {
    const char* index = std::getenv(rank);
    const char* count = std::getenv(size);
    if (index != nullptr && count != nullptr) return {std::atoi(index), std::atoi(count)};
  }
  return {};
}

Shard ParseShard(const std::string& text) {
  if (text.empty()) return {};
  Shard shard;
  if (text == "auto") {
    shard = ShardFromLauncher();
  } else {
    char rest = 0;
    if (std::sscanf(text.c_str(), "%d/%d%c", &shard.index, &shard.count, &rest) != 2) {
      BadInput(fmt::format("--shard {}: expected i/n, for example 0/4, or auto", text));
    }
  }
  if (shard.count < 1 || shard.index < 0 || shard.index >= shard.count) {
    BadInput(fmt::format("--shard {}: part {} of {} does not exist; parts count from 0", text,
                         shard.index, shard.count));
  }
  return shard;
}

// Every count-th workload: neighbours in a suite cost about the same, so the parts do, too.
void KeepShard(Suite& suite, const Shard& shard) {
  std::vector<Workload> kept;
  for (std::size_t i = 0; i < suite.workloads.size(); ++i) {
    if (static_cast<int>(i % static_cast<std::size_t>(shard.count)) == shard.index) {
      kept.push_back(std::move(suite.workloads[i]));
    }
  }
  suite.workloads = std::move(kept);
}

// Captures of the same call at other steps, layers or requests differ in content only: of the
// attributes, those count that the operator reads.
void KeepDistinct(Suite& suite, const Registry& registry) {
  std::set<std::tuple<std::string, Axes, Attributes>> seen;
  std::erase_if(suite.workloads, [&](const Workload& w) {
    Attributes read = w.attributes;
    if (const Family* family = registry.FindDefinition(w.definition).family) {
      std::erase_if(read, [&](const auto& attribute) {
        return std::ranges::find(family->attributes, attribute.first) == family->attributes.end();
      });
    }
    return !seen.insert({w.definition, w.axes, std::move(read)}).second;
  });
}

// What can be run: built in, or defined by the dataset.
struct Definitions {
  std::vector<TraceDefinition> of_dataset;
  Registry registry = ShippedRegistry();
};

Definitions DefinitionsFor(const RunFlags& flags) {
  Definitions definitions;
  if (flags.dataset.empty()) return definitions;
  std::vector<TraceProblem> problems;
  definitions.of_dataset = LoadTraceDefinitions(flags.dataset, problems);
  for (const TraceProblem& problem : problems) {
    fmt::print(stderr, "{}/{}: {}\n", flags.dataset, problem.file, problem.message);
  }
  definitions.registry = WithTraceDefinitions(ShippedRegistry(), definitions.of_dataset);
  return definitions;
}

Suite LoadFiltered(const RunFlags& flags, const Definitions& definitions) {
  const Registry& registry = definitions.registry;
  Suite suite = flags.dataset.empty()
                    ? LoadSuite(SuitePath(flags.suite), registry)
                    : LoadTraceSuite(flags.dataset, definitions.of_dataset, registry);
  for (const SuiteProblem& problem : suite.problems) {
    fmt::print(stderr, "{}:{}:{}: {}\n", problem.file, problem.line, problem.column,
               problem.message);
  }
  Filter(suite, flags, registry);
  if (!flags.variant.empty()) UseVariant(suite, flags.variant);
  if (flags.distinct) KeepDistinct(suite, registry);
  KeepShard(suite, ParseShard(flags.shard));
  return suite;
}

MachineCeilings CeilingsFor(Ledger& ledger, const RunInfo& run, bool quiet) {
  MachineCeilings ceilings;
  if (auto known = ledger.FindCeilings(run.device_id)) {
    ceilings.host = *known;
  } else {
    if (!quiet) fmt::print(stderr, "measuring what this machine can do (once, a few seconds)\n");
    ceilings.host = MeasureCeilings(run.threads);
    ledger.StoreCeilings(ceilings.host);
  }
  if (run.accelerator_id.empty()) return ceilings;
  if (auto known = ledger.FindCeilings(run.accelerator_id)) {
    ceilings.gpu = *known;
  } else if (!quiet) {
    fmt::print(stderr, "no ceilings of {} are known: run `assay device --gpu` for floors\n",
               run.accelerator);
  }
  return ceilings;
}

// The truth of one workload may take hundreds of megabytes, which are freed before those of the
// next are asked for. By default the C library gives them to the kernel in between, which zeroes
// every page again: a fifth of the time of verifying long GDN prefills.
void KeepFreedMemory() {
#ifdef __GLIBC__
  constexpr int kKeptBytes = 1 << 30;
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
#endif
}

// One line on the terminal: what is running, how far, how long it will take at the pace so far.
class Progress {
 public:
  Progress(std::size_t total, bool shown) : total_(total), shown_(shown) {}

  void Show(const PlannedCase& planned) {
    if (!shown_) return;
    const double elapsed = Seconds();
    std::string eta;
    if (done_ > 0) {
      const auto left = static_cast<long>(elapsed / static_cast<double>(done_) *
                                          static_cast<double>(total_ - done_));
      eta = fmt::format("  ETA {}:{:02}", left / 60, left % 60);
    }
    std::string line = fmt::format("[{}/{}] {} {}{}", done_ + 1, total_,
                                   planned.workload->definition, planned.backend, eta);
    line.resize(static_cast<std::size_t>(std::max(20, TerminalWidth(2) - 1)), ' ');
    fmt::print(stderr, "\r{}", line);
  }
  void CaseDone() { ++done_; }
  void Clear() const {
    if (shown_) fmt::print(stderr, "\r{:{}}\r", "", std::max(20, TerminalWidth(2) - 1));
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const std::size_t total_;
  const bool shown_;
  std::size_t done_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// What --resume may skip depends on the bytes of plugins, references and Python peers as well.
std::string BuildWithPlugins(const std::string& build, const RunFlags& flags) {
  std::string text = build;
  for (const std::string& path : flags.plugins) {
    text += "+" + Sha256Hex(ReadFile(path)).substr(0, 12);
  }
  for (const std::string& path : flags.references) {
    text += "+" + Sha256Hex(ReadFile(path)).substr(0, 12);
  }
  if (!flags.python_fingerprint.empty()) text += "+" + flags.python_fingerprint;
  return text;
}

// --resume goes on with the newest run when this same binary made it with the same seed.
RunInfo BeginOrResume(Ledger& ledger, RunFlags& flags, MachineCeilings& ceilings) {
  RunInfo run = DescribeRun(CommandLine(), flags.run.threads);
  run.seed = flags.run.seed;
  run.build = BuildWithPlugins(run.build, flags);
  flags.run.build = run.build;
  if (flags.gpu.gpu) {
    run.accelerator = GpuText(*flags.gpu.gpu);
    run.accelerator_id = flags.gpu.gpu->uuid;
  }
  if (flags.run.timing) ceilings = CeilingsFor(ledger, run, flags.json);
  if (flags.resume) {
    const std::vector<RunInfo> runs = ledger.Runs();
    if (!runs.empty() && runs.back().build == run.build && runs.back().seed == run.seed) {
      flags.run.done = ledger.Done(run.build);
      return runs.back();
    }
  }
  ledger.BeginRun(run, ceilings.host);
  return run;
}

int ExitCode(const std::vector<CaseResult>& cases) {
  bool any_ran = false, any_unsupported = false;
  for (const CaseResult& result : cases) {
    switch (result.status) {
      case Status::kPassed:
      case Status::kPendingAudit:
      case Status::kSuspicious:
        any_ran = true;
        break;
      case Status::kUnsupported:
        any_unsupported = true;
        break;
      default:
        return 1;
    }
  }
  return any_unsupported && !any_ran ? static_cast<int>(Fault::kUnsupported) : 0;
}

void Print(const RunReport& report, const RunFlags& flags) {
  if (flags.json) {
    fmt::print("{}\n", RunToJson(report));
    return;
  }
  fmt::print("{}", TerminalReport(
                       report, {.width = std::min(100, TerminalWidth(1)), .colour = UseColor(1)}));
  if (!flags.html.empty()) fmt::print("report: {}\n", flags.html);
}

// Adds the Python peers to a registry, and to what runs.
Registry WithPythonPeers(const Registry& registry, RunFlags& flags) {
  if (!flags.python.wanted()) return registry;
  const PythonPeers peers = FindPythonPeers(flags.python, registry);
  flags.python_fingerprint = peers.fingerprint;
  for (const PluginBackend& peer : peers.backends) {
    std::vector<std::string>& command = flags.run.backend_commands[peer.name];
    command = peers.command;
    command.insert(command.end(), {"--backend", peer.name});
  }
  return WithDescribedBackends(registry, peers.backends);
}

void Append(std::vector<std::string>& command, const std::string& flag,
            const std::vector<std::string>& values) {
  for (const std::string& value : values) command.insert(command.end(), {flag, value});
}

// `base` with the references of the dataset's own definitions.
Registry WithReferences(const Registry& base, const RunFlags& flags, const Suite& suite) {
  std::vector<std::string> command = flags.run.worker_command;
  Append(command, "--plugin", flags.references);
  const Registry registry = flags.references.empty()
                                ? base
                                : WithPluginReferences(base, DescribePlugins(command), command);
  if (const auto missing = DefinitionWithoutReference(registry, suite); !missing.empty()) {
    BadInput(
        fmt::format("definition {} of the dataset has no fp64 reference here; give "
                    "--reference a plugin that computes it",
                    missing));
  }
  return registry;
}

// The registry with the plugins' kernels; without --backend, only those run.
Registry WithPlugins(RunFlags& flags, const Definitions& definitions, const Suite& suite) {
  flags.run.worker_command = OwnWorkerCommand();
  if (!flags.dataset.empty()) {
    Append(flags.run.worker_command, "--definitions", {flags.dataset});
  }
  const Registry registry = WithReferences(definitions.registry, flags, suite);
  if (flags.plugins.empty()) return registry;
  Append(flags.run.worker_command, "--plugin", flags.plugins);
  const std::vector<PluginBackend> kernels = DescribePlugins(flags.run.worker_command);
  if (flags.run.backends.empty()) {
    for (const PluginBackend& kernel : kernels) flags.run.backends.push_back(kernel.name);
  }
  return WithDescribedBackends(registry, kernels);
}

// Every backend that may run: built in, of plugins, of Python. With plugins and without --backend,
// what came by flags runs alone.
Registry RegistryFor(RunFlags& flags, const Definitions& definitions, const Suite& suite) {
  const bool all = flags.run.backends.empty();
  const Registry registry = WithPythonPeers(WithPlugins(flags, definitions, suite), flags);
  if (all && !flags.plugins.empty()) {
    for (const auto& [name, command] : flags.run.backend_commands) {
      flags.run.backends.push_back(name);
    }
  }
  return registry;
}

// Does any backend that may run compute on a device? Opening one takes a moment, so ask only then.
bool MayUseGpu(const Registry& registry, const Suite& suite, const RunFlags& flags) {
  return std::any_of(suite.workloads.begin(), suite.workloads.end(), [&](const Workload& workload) {
    const Family* family = registry.FindDefinition(workload.definition).family;
    if (family == nullptr) return false;
    return std::any_of(family->backends.begin(), family->backends.end(), [&](const Backend& b) {
      return b.on_device() && Matches(flags.run.backends, b.name);
    });
  });
}

int Run(RunFlags flags) {
  const Definitions definitions = DefinitionsFor(flags);
  const Suite suite = LoadFiltered(flags, definitions);
  flags.run.timing = !flags.no_timing;
  flags.run.flush_by_write = flags.flush == "write";
  flags.run.cross_check = flags.cross_check == "cupti";
  if (!flags.sanitize.empty()) {
    flags.run.timing = false;  // a checked kernel runs many times slower
    flags.run.worker_leave_s = 60;
  }
  if (flags.run.jobs > 1 && flags.run.timing) {
    BadInput(
        fmt::format("--jobs {} shares the machine between cases, so their times would mean "
                    "nothing: add --no-timing",
                    flags.run.jobs));
  }
  const Registry registry = RegistryFor(flags, definitions, suite);
  if (MayUseGpu(registry, suite, flags)) {
    flags.gpu = AskForGpu(flags.run.worker_command);
    flags.run.why_no_gpu = flags.gpu.why_not;
  }
  PlanCases(registry, suite, flags.run);  // refuses unknown backends before any file exists
  if (!flags.html.empty()) WriteFile(flags.html, "");  // an unwritable place is known at once
  Ledger ledger = Ledger::Open(flags.ledger, Ledger::Mode::kAppend);
  MachineCeilings ceilings;
  const RunInfo run = BeginOrResume(ledger, flags, ceilings);
  const std::vector<PlannedCase> plan = PlanCases(registry, suite, flags.run);

  const Sanitizer sanitizer(flags.sanitize);
  if (!flags.sanitize.empty()) {
    flags.run.worker_command = sanitizer.Command(flags.run.worker_command);
  }

  InstallStopHandlers();
  KeepFreedMemory();
  Progress progress(plan.size(), isatty(2) == 1 && !flags.json);
  RunCallbacks callbacks;
  callbacks.on_start = [&](const PlannedCase& planned, std::size_t) { progress.Show(planned); };
  callbacks.on_result = [&](const CaseResult& result) {
    ledger.Add(run.id, result);
    progress.CaseDone();
  };
  RunCases(plan, flags.run, ceilings, callbacks, stop_requested);
  progress.Clear();

  RunReport report{run, ceilings.host, ledger.Cases(run.id), ceilings.gpu};
  if (!stop_requested) ledger.FinishRun(run.id, Timestamp());
  if (!flags.html.empty()) WriteFile(flags.html, HtmlReport(report));
  Print(report, flags);
  if (stop_requested) {
    fmt::print(stderr, "interrupted; the same command with --resume continues\n");
    return kInterrupted;
  }
  if (!flags.sanitize.empty()) {
    const Sanitizer::Verdict verdict = sanitizer.Read();
    fmt::print(flags.json ? stderr : stdout, "{}: {}", flags.sanitize, verdict.text);
    if (!verdict.clean) return 1;
  }
  return ExitCode(report.cases);
}

}  // namespace

void AddRunCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  flags->ledger = DefaultLedger();
  CLI::App* command = app.add_subcommand("run", "Replay, verify and time workloads");
  const auto list = [&](const char* name, std::vector<std::string>& values, const char* help) {
    command->add_option(name, values, help)->delimiter(',');
  };
  CLI::Option* suite = command->add_option("--suite", flags->suite, "Built-in suite or JSONL file")
                           ->take_last()  // so that `./run --suite mine.jsonl` works
                           ->capture_default_str();
  command
      ->add_option("--dataset", flags->dataset,
                   "FlashInfer-Trace folder instead of a suite: its workloads and stored inputs")
      ->excludes(suite);
  list("--reference", flags->references,
       "Plugins that compute, in float64, the dataset's own definitions");
  list("--definition", flags->definitions, "Only these definitions (comma-separated)");
  list("--family", flags->families, "Only these operator families");
  list("--model", flags->models, "Only workloads captured from these models");
  list("--uuid", flags->uuids, "Only these workloads (a prefix is enough)");
  command->add_option("--variant", flags->variant,
                      "Inputs of this generator variant, for the operator families that have it");
  list("--backend", flags->run.backends, "Only these backends; default: all that are built in");
  list("--plugin", flags->plugins, "Kernels in shared libraries; without --backend only they run");
  AddPythonFlags(*command, flags->python);
  command->add_option("--seed", flags->run.seed, "Number of the first input content set");
  command->add_option("--threads", flags->run.threads, "Threads per worker; 0 = all cores")
      ->check(CLI::Range(0, 4096));
  command->add_option("--timeout", flags->run.timeout_s, "Seconds a backend may take per request")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--budget", flags->run.budget_s, "Seconds of timing per case")
      ->check(CLI::PositiveNumber)
      ->take_last()
      ->capture_default_str();
  command->add_option("--repeats", flags->run.repeats, "Fresh processes per timing")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--flush", flags->flush, "How a GPU's L2 cache is emptied: read or write")
      ->check(CLI::IsMember({"read", "write"}))
      ->capture_default_str();
  command
      ->add_option("--cross-check", flags->cross_check,
                   "Also time a GPU's calls by a second clock: cupti")
      ->check(CLI::IsMember({"cupti"}));
  command->add_option(
      "--shard", flags->shard,
      "Only part i of n (\"0/4\"), or \"auto\": the rank that Slurm or Open MPI gave");
  command
      ->add_option("--sanitize", flags->sanitize,
                   "Verify only, each worker under compute-sanitizer's memcheck, racecheck, "
                   "synccheck or initcheck")
      ->check(CLI::IsMember({"memcheck", "racecheck", "synccheck", "initcheck"}));
  command->add_flag("--distinct", flags->distinct,
                    "Of workloads that differ in content and origin only, the first");
  command->add_flag("--no-timing", flags->no_timing, "Verify only");
  command
      ->add_option("--jobs", flags->run.jobs,
                   "Workloads verified side by side, each on its share of the cores; needs "
                   "--no-timing")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--bitwise", flags->run.bitwise,
                    "Also require the exact bits of kernels that document their order of sums");
  command->add_flag("--resume", flags->resume, "Skip what this build has already done");
  command->add_option("--ledger", flags->ledger, "Where results are stored")
      ->take_last()
      ->capture_default_str();
  command->add_option("--html", flags->html, "Also write the report page to this file")
      ->take_last();
  command->add_flag("--json", flags->json, "Print results as JSON");
  command->footer(
      "Examples:\n"
      "  assay run --suite smoke --html report.html\n"
      "  assay run --suite serving --family gdn_decode,gdn_prefill --budget 2 --resume\n"
      "  assay run --suite serving --variant original_address --no-timing\n"
      "  assay run --plugin ./libmine.so --family gdn_decode\n"
      "  assay run --python --peers mine.py --family noncausal_dense_attention\n"
      "  assay run --suite mine.jsonl --backend cpu --json");
  command->callback([flags, &exit_code] { exit_code = Run(*flags); });
}

}  // namespace assay::cli
