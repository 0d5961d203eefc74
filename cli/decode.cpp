// `assay decode`: tokens from the step engine, with proof of which path ran and what it cost.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/check.h"
#include "engine/checkpoint.h"
#include "engine/cost.h"
#include "engine/generate.h"
#include "engine/synthetic.h"
#include "io/file.h"
#include "replay/device.h"
#include "report/table.h"

namespace assay::cli {
namespace {

using namespace engine;
using Json = nlohmann::json;

struct DecodeFlags {
  std::string model = "tiny", format = "bf16", tokens, executor = "cpu", commit = "replay", rule,
              check, simulate, index_share = "model", print_program;
  std::int64_t prompt_tokens = 32, max_new = 64, capacity = 0;
  PrefixOptions prefix;
  int mtp = 0, requests = 1, threads = 0, top_k = 0;
  std::uint64_t seed = 1;
  double temperature = 0, top_p = 1, plant = -1;
  bool json = false, floor = false;
};

WeightFormat ParseFormat(const std::string& name) {
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kFP8, WeightFormat::kMXFP4}) {
    if (name == WeightFormatName(format)) return format;
  }
  BadInput("--format " + name + ": bf16, fp8 and mxfp4 exist");
}

Model LoadModel(const DecodeFlags& flags) {
  if (std::filesystem::is_directory(flags.model)) return LoadCheckpoint(flags.model);
  const ModelConfig config = PresetConfig(flags.model);
  const ParameterCount count = CountParameters(config);
  const std::int64_t bytes = 2 * (count.trunk + count.mtp), available = AvailableMemoryBytes();
  if (flags.format == "bf16" && available > 0 && bytes > available) {
    BadInput(fmt::format("--model {} takes {:.1f} GB of memory, and {:.1f} GB are free",
                         flags.model, 1e-9 * static_cast<double>(bytes),
                         1e-9 * static_cast<double>(available)));
  }
  return MakeSyntheticModel(config, {.seed = flags.seed,
                                     .plant = flags.plant < 0 ? DefaultPlant(config) : flags.plant,
                                     .format = ParseFormat(flags.format)});
}

// One prompt per request: the file's lines, or synthetic tokens.
std::vector<std::vector<std::int32_t>> Prompts(const DecodeFlags& flags,
                                               const ModelConfig& config) {
  std::vector<std::vector<std::int32_t>> prompts;
  if (flags.tokens.empty()) {
    if (flags.prompt_tokens < 1) BadInput("--prompt-tokens must be at least 1");
    for (int request = 0; request < flags.requests; ++request) {
      prompts.push_back(SyntheticPrompt(config, flags.seed + static_cast<std::uint64_t>(request),
                                        flags.prompt_tokens));
    }
    return prompts;
  }
  std::istringstream lines(ReadFile(flags.tokens));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::vector<std::int32_t>& prompt = prompts.emplace_back();
    for (std::int32_t token = 0; words >> token;) prompt.push_back(token);
    if (!words.eof()) {
      BadInput(fmt::format("{}: line {} is no list of token ids", flags.tokens, prompts.size()));
    }
  }
  if (static_cast<int>(prompts.size()) < flags.requests) {
    BadInput(fmt::format("{} has {} lines, and --requests wants {}", flags.tokens, prompts.size(),
                         flags.requests));
  }
  prompts.resize(static_cast<std::size_t>(flags.requests));
  return prompts;
}

AcceptRule ParseRule(const DecodeFlags& flags) {
  if (flags.rule.empty()) return flags.temperature > 0 ? AcceptRule::kCoupled : AcceptRule::kGreedy;
  if (flags.rule == "greedy") return AcceptRule::kGreedy;
  if (flags.rule == "coupled") return AcceptRule::kCoupled;
  if (flags.rule == "rejection") return AcceptRule::kRejection;
  BadInput("--accept " + flags.rule + ": greedy, coupled and rejection exist");
}

std::optional<SimulatedLengths> ParseSimulation(const DecodeFlags& flags) {
  if (flags.simulate.empty()) return std::nullopt;
  const std::size_t colon = flags.simulate.find(':');
  const std::string mode = flags.simulate.substr(0, colon);
  SimulatedLengths lengths;
  lengths.seed = flags.seed;
  if (mode == "match-expected") {
    lengths.mode = LengthMode::kMatchExpected;
  } else if (mode == "normal") {
    lengths.mode = LengthMode::kNormal;
  } else if (mode == "geometric") {
    lengths.mode = LengthMode::kGeometric;
  } else {
    BadInput("--simulate " + flags.simulate + ": match-expected:E, normal:E and geometric:E exist");
  }
  std::istringstream number(colon == std::string::npos ? "" : flags.simulate.substr(colon + 1));
  if (!(number >> lengths.mean) || !number.eof()) {
    BadInput("--simulate " + flags.simulate + ": the wanted mean length is missing");
  }
  return lengths;
}

GenerateOptions ParseGeneration(const DecodeFlags& flags) {
  GenerateOptions options;
  options.drafts = flags.mtp;
  options.rule = ParseRule(flags);
  options.sampling = {flags.temperature, flags.top_k, flags.top_p};
  options.sample_drafts = options.rule == AcceptRule::kRejection;
  options.simulated = ParseSimulation(flags);
  options.max_new = flags.max_new;
  options.prefix = flags.prefix;
  if (flags.index_share == "on") options.share_index = true;
  if (flags.index_share == "off") options.share_index = false;
  return options;
}

struct Checking {
  CheckMode mode = CheckMode::kNone;
  int every = 1;
};

Checking ParseCheck(const std::string& text) {
  if (text.empty()) return {};
  const std::size_t colon = text.find(':');
  const std::string mode = text.substr(0, colon);
  Checking checking;
  if (mode == "shadow") checking.mode = CheckMode::kShadow;
  if (mode == "unroll") checking.mode = CheckMode::kUnroll;
  if (mode == "ref") checking.mode = CheckMode::kReference;
  if (mode == "products") checking.mode = CheckMode::kProducts;
  std::istringstream number(colon == std::string::npos ? "1" : text.substr(colon + 1));
  if (checking.mode == CheckMode::kNone || !(number >> checking.every) || !number.eof() ||
      checking.every < 1) {
    BadInput("--check " + text +
             ": shadow:N, unroll:N, ref:N and products:N exist (every N-th step)");
  }
  return checking;
}

std::unique_ptr<Executor> MakeExecutor(const std::string& name, int threads) {
  if (name == "cpu") return MakeCpuExecutor({.arithmetic = Arithmetic::kFast, .threads = threads});
  if (name == "cpu-bit") {
    return MakeCpuExecutor({.arithmetic = Arithmetic::kTensorCore, .threads = threads});
  }
  if (name == "cpu-ref64") return MakeReferenceExecutor();
  BadInput("--executor " + name + ": cpu, cpu-bit and cpu-ref64 exist");
}

// Everything that a run consists of; members refer to those before them.
struct Run {
  Model model;
  State state;
  std::unique_ptr<Executor> primary, fallback, shadow;
  Dispatcher dispatcher;
  Generator generator;
  Checker checker;

  Run(Model loaded, const DecodeFlags& flags, const StateOptions& options)
      : model(std::move(loaded)),
        state(model.config, options),
        primary(MakeExecutor(flags.executor, flags.threads)),
        fallback(MakeExecutor(flags.executor, 1)),
        // In another order on more threads: equal bits prove that order does not matter.
        shadow(MakeCpuExecutor(
            {.arithmetic = flags.executor == "cpu" ? Arithmetic::kFast : Arithmetic::kTensorCore,
             .threads = 2,
             .order_seed = flags.seed,
             .check_order = true})),
        dispatcher(model, state, *primary, *fallback, {.drafts_on_primary = true}),
        generator(model, state, dispatcher, ParseGeneration(flags)),
        checker(dispatcher.runner(), *shadow) {}
};

StateOptions SizeState(const DecodeFlags& flags, std::size_t longest_prompt) {
  const bool reference = flags.executor == "cpu-ref64";
  if (flags.commit != "replay" && flags.commit != "scratch") {
    BadInput("--commit " + flags.commit + ": replay and scratch exist");
  }
  StateOptions options;
  const int snapshots = flags.prefix.interval != 0 ? flags.prefix.snapshots : 0;
  options.slots = flags.requests + snapshots + 1;  // one for forks of check mode
  options.rows_per_request = flags.mtp + 1;
  options.commit =
      reference || flags.commit == "scratch" ? CommitMode::kScratch : CommitMode::kReplay;
  const std::int64_t per_request =
      static_cast<std::int64_t>(longest_prompt) + flags.max_new + 2 * (flags.mtp + 1);
  options.tokens = flags.capacity > 0 ? flags.capacity
                                      : (flags.requests + 1) * (per_request + kPoolPageTokens) +
                                            snapshots * kPoolPageTokens;
  return options;
}

// ---- output ----

std::string OpTable(const StepStats& stats, std::int64_t steps) {
  Table table({{"task"},
               {"per step", Align::kRight},
               {"us per step", Align::kRight},
               {"share", Align::kRight}});
  double total = 0;
  for (const double seconds : stats.seconds) total += seconds;
  for (std::size_t op = 0; op < stats.tasks.size(); ++op) {
    if (stats.tasks[op] == 0) continue;
    const auto count = static_cast<double>(steps);
    table.Add({OpName(static_cast<Op>(op)),
               fmt::format("{:.0f}", static_cast<double>(stats.tasks[op]) / count),
               fmt::format("{:.1f}", 1e6 * stats.seconds[op] / count),
               fmt::format("{:.1f} %", 100 * stats.seconds[op] / total)});
  }
  return table.Text({.width = TerminalWidth(1)});
}

struct Summary {
  std::int64_t emitted = 0, verify_steps = 0;
  AcceptStats accepted;
  StepBytes bytes;            // of one verify step, on average
  double read_bandwidth = 0;  // bytes per second; 0 = not measured
  double step_seconds = 0;
};

Summary Summarise(const Run& run, const DecodeFlags& flags) {
  Summary summary;
  std::vector<const Generated*> results;
  std::int64_t context = 0;
  for (int request = 0; request < run.generator.requests(); ++request) {
    results.push_back(&run.generator.result(request));
    summary.emitted += static_cast<std::int64_t>(results.back()->tokens.size());
    context += run.state.length(run.generator.slot(request)) / run.generator.requests();
  }
  summary.accepted = StatsOf(results, flags.mtp);
  summary.verify_steps = std::max<std::int64_t>(1, run.dispatcher.counters().of(Phase::kVerify));
  summary.step_seconds = run.generator.times().verify / static_cast<double>(summary.verify_steps);
  const int together = std::min(flags.requests, kMaxRows / (flags.mtp + 1));
  summary.bytes =
      TrunkStepBytes(run.model, together, together * (flags.mtp + 1), context,
                     run.dispatcher.stats(Phase::kVerify).distinct_experts / summary.verify_steps);
  if (flags.floor) summary.read_bandwidth = MeasureCeilings(flags.threads).read_bytes;
  return summary;
}

void PrintText(const Run& run, const DecodeFlags& flags, const Summary& summary) {
  for (int request = 0; request < run.generator.requests(); ++request) {
    fmt::print("request {}: {}\n", request, fmt::join(run.generator.result(request).tokens, " "));
  }
  const CycleTimes& times = run.generator.times();
  const double seconds = std::max(times.total(), 1e-9);
  fmt::print("\n{} tokens in {:.3f} s: {:.1f} tokens/s; executor {}, {} cycles\n", summary.emitted,
             seconds, static_cast<double>(summary.emitted) / seconds, run.primary->name(),
             run.generator.cycles());
  if (flags.mtp > 0) {
    fmt::print("accepted length{}: {:.3f} over cycles, {:.3f} over requests; 1..{}: {}\n",
               flags.simulate.empty() ? "" : " (simulated)", summary.accepted.mean_over_cycles,
               summary.accepted.mean_over_requests, flags.mtp + 1,
               fmt::join(summary.accepted.histogram, " "));
  }
  const double cycles =
      1e6 / static_cast<double>(std::max<std::int64_t>(1, run.generator.cycles()));
  fmt::print("a cycle: draft {:.0f} us, verify {:.0f} us, commit {:.0f} us, extend {:.0f} us\n",
             cycles * times.draft, cycles * times.verify, cycles * times.commit,
             cycles * times.extend);
  fmt::print("{}", run.dispatcher.counters().Text());
  if (const PrefixCounters* prefixes = run.generator.prefixes()) fmt::print("{}", prefixes->Text());
  fmt::print("bytes of a verify step: {:.1f} MB, {:.2f} GB/s\n",
             1e-6 * static_cast<double>(summary.bytes.total()),
             1e-9 * static_cast<double>(summary.bytes.total()) / summary.step_seconds);
  if (summary.read_bandwidth > 0) {
    const double floor = static_cast<double>(summary.bytes.total()) / summary.read_bandwidth;
    fmt::print(
        "floor at {:.2f} GB/s read here: {:.0f} us; a verify step takes {:.0f} us: {:.1f} %\n",
        1e-9 * summary.read_bandwidth, 1e6 * floor, 1e6 * summary.step_seconds,
        100 * floor / summary.step_seconds);
  }
  if (run.checker.findings().checked > 0) fmt::print("{}", run.checker.findings().Text());
  if (run.primary->name() != "cpu-ref64") {
    fmt::print("\n{}", OpTable(run.dispatcher.stats(Phase::kVerify), summary.verify_steps));
  }
}

Json ToJson(const Run& run, const DecodeFlags& flags, const Summary& summary) {
  Json json = {{"model", run.model.config.name},
               {"executor", run.primary->name()},
               {"drafts", flags.mtp},
               {"commit", CommitModeName(run.state.options().commit)},
               {"emitted", summary.emitted},
               {"cycles", run.generator.cycles()},
               {"accepted_length",
                {{"over_cycles", summary.accepted.mean_over_cycles},
                 {"over_requests", summary.accepted.mean_over_requests},
                 {"histogram", summary.accepted.histogram},
                 {"simulated", !flags.simulate.empty()}}},
               {"seconds",
                {{"draft", run.generator.times().draft},
                 {"verify", run.generator.times().verify},
                 {"commit", run.generator.times().commit},
                 {"extend", run.generator.times().extend}}},
               {"verify_step_bytes", summary.bytes.total()}};
  if (summary.read_bandwidth > 0) json["read_bytes_per_second"] = summary.read_bandwidth;
  for (int request = 0; request < run.generator.requests(); ++request) {
    json["requests"].push_back({{"tokens", run.generator.result(request).tokens},
                                {"lengths", run.generator.result(request).lengths}});
  }
  const PathCounters& counters = run.dispatcher.counters();
  for (std::size_t reason = 0; reason < counters.steps.size(); ++reason) {
    json["steps"][FallbackName(static_cast<Fallback>(reason))] = counters.steps[reason];
  }
  if (const PrefixCounters* prefixes = run.generator.prefixes()) {
    json["prefixes"] = {{"taken", prefixes->taken},
                        {"evicted", prefixes->evicted},
                        {"restored", prefixes->restored},
                        {"reused_tokens", prefixes->reused_tokens}};
  }
  const CheckFindings& findings = run.checker.findings();
  if (findings.checked > 0) {
    json["check"] = {{"steps", findings.checked},       {"problems", findings.problems},
                     {"rows", findings.rows},           {"same_top", findings.same_top},
                     {"near_ties", findings.near_ties}, {"worst_error", findings.worst_error}};
    if (findings.products.products > 0) {
      json["check"]["products"] = {{"compared", findings.products.products},
                                   {"beyond", findings.products.beyond},
                                   {"worst", findings.products.worst},
                                   {"worst_task", findings.worst_product},
                                   {"worst_of_any_operands", findings.products.worst_proven}};
    }
  }
  return json;
}

void PrintProgram(const DecodeFlags& flags) {
  const ModelConfig config = std::filesystem::is_directory(flags.model)
                                 ? ReadConfig(ReadFile(flags.model + "/config.json"), flags.model)
                                 : PresetConfig(flags.model);
  const std::int64_t reach = flags.prompt_tokens + flags.max_new + flags.mtp;
  const Program program = BuildProgram(config, {.requests = flags.requests,
                                                .rows_per_request = flags.mtp + 1,
                                                .context = Runner::ContextBucket(config, reach),
                                                .workers = std::max(1, flags.threads)});
  const std::vector<std::string> problems = Validate(program);
  for (const std::string& problem : problems) fmt::print(stderr, "{}\n", problem);
  if (!problems.empty()) throw Error(Fault::kInternal, "the step program is wrong");
  if (flags.print_program == "json") {
    fmt::print("{}", ProgramJson(program));
  } else if (flags.print_program == "svg") {
    fmt::print("{}", ProgramSvg(program));
  } else if (flags.print_program == "text") {
    fmt::print("{}", ProgramText(program, 4));
  } else {
    BadInput("--print-program " + flags.print_program + ": text, json and svg exist");
  }
}

void Decode(const DecodeFlags& flags, int& exit_code) {
  if (flags.requests < 1 || flags.max_new < 1 || flags.mtp < 0) {
    BadInput("--requests and --max-new must be at least 1, --mtp at least 0");
  }
  if (!flags.print_program.empty()) return PrintProgram(flags);
  const Checking checking = ParseCheck(flags.check);
  Model model = LoadModel(flags);
  const auto prompts = Prompts(flags, model.config);
  std::size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  Run run(std::move(model), flags, SizeState(flags, longest));
  std::int64_t steps = 0;
  if (checking.mode != CheckMode::kNone) {
    run.dispatcher.set_after_verify([&](Executor& executor) {
      if (++steps % checking.every == 0) run.checker.Check(checking.mode, executor);
    });
  }
  for (std::size_t request = 0; request < prompts.size(); ++request) {
    run.generator.Add(prompts[request], flags.seed + request);
  }
  while (run.generator.Cycle()) {
  }
  const Summary summary = Summarise(run, flags);
  if (flags.json) {
    fmt::print("{}\n", ToJson(run, flags, summary).dump(2));
  } else {
    PrintText(run, flags, summary);
  }
  if (!run.checker.findings().problems.empty()) exit_code = 1;
}

}  // namespace

void AddDecodeCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command =
      app.add_subcommand("decode", "Decode with the step engine, plain or speculative");
  command->add_option("--model", flags->model, "tiny, small, S16, .. or the folder of a checkpoint")
      ->capture_default_str();
  command->add_option("--format", flags->format, "Synthetic weights: bf16, fp8 or mxfp4")
      ->capture_default_str();
  command->add_option("--plant", flags->plant, "Strength of the planted permutation (0 = none)");
  command->add_option("--prompt-tokens", flags->prompt_tokens, "Length of the synthetic prompts")
      ->capture_default_str();
  command->add_option("--tokens", flags->tokens, "File with a line of token ids per request");
  command->add_option("--max-new", flags->max_new, "Tokens to emit per request")
      ->capture_default_str();
  command->add_option("--mtp", flags->mtp, "Drafts per cycle (0 = plain decoding)")
      ->capture_default_str();
  command->add_option("--requests", flags->requests, "Requests at a time")->capture_default_str();
  command->add_option("--executor", flags->executor, "cpu, cpu-bit or cpu-ref64")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Threads (0 = all cores)")
      ->capture_default_str();
  command->add_option("--commit", flags->commit, "replay or scratch")->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0 = greedy")->capture_default_str();
  command->add_option("--top-k", flags->top_k, "Sample among the k best (0 = all)");
  command->add_option("--top-p", flags->top_p,
                      "Sample among the smallest set with this probability");
  command->add_option("--accept", flags->rule, "greedy, coupled or rejection");
  command->add_option("--simulate", flags->simulate,
                      "Accepted lengths by lot: match-expected:E, ..");
  command->add_option("--mtp-index-share", flags->index_share, "on, off, or what the model says")
      ->check(CLI::IsMember({"on", "off", "model"}));
  command->add_option("--seed", flags->seed, "Weights, prompts and sampling")
      ->capture_default_str();
  command->add_option("--check", flags->check,
                      "Run every N-th step again: shadow:N, unroll:N, ref:N, products:N");
  command->add_option("--capacity", flags->capacity,
                      "Cache tokens of all requests (0 = as needed)");
  command->add_option("--prefix-interval", flags->prefix.interval,
                      "Snapshots every so many tokens, for prompts that begin alike (0 = none)");
  command->add_option("--prefix-snapshots", flags->prefix.snapshots, "Snapshots at a time")
      ->capture_default_str();
  command->add_option("--print-program", flags->print_program,
                      "Print the step program: text, json, svg");
  command->add_flag("--floor", flags->floor, "Measure the memory's read rate and compare");
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, &exit_code] { Decode(*flags, exit_code); });
}

}  // namespace assay::cli
