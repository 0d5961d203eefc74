// `assay ab`: does this serving speed-up hold? Subcommands compare, inspect, plan, collect,
// simulate.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "io/file.h"
#include "serving/collect.h"
#include "serving/pages.h"
#include "serving/readers.h"
#include "serving/simulate.h"

namespace assay::cli {
namespace {

using namespace assay::serving;  // NOLINT: this file is the room's command line

// What the command line says; one object lives as long as the app.
struct AbOptions {
  std::vector<std::string> off, on, rounds, treatment, allow, columns;
  std::string control_off, control_on, accuracy_off, accuracy_on;
  std::string metric = "p90:e2e_norm_intvty", margin = "2%", accuracy_margin = "2pp";
  std::string html, json, markdown;
  int resamples = 10000;
  std::uint64_t seed = 0;
  std::string run;                        // inspect
  std::vector<std::string> effects;       // plan, simulate
  std::string power = "80%";              // plan
  int trials = 400;                       // simulate
  std::string requests, output, command;  // collect
  CollectOptions collect;
};

// "2%", "2pp" or "0.02" as a share.
double Share(const std::string& text, const char* what) {
  std::string number = text;
  double scale = 1;
  for (const char* unit : {"pp", "%"}) {
    if (number.ends_with(unit)) {
      number.resize(number.size() - std::string(unit).size());
      scale = 0.01;
      break;
    }
  }
  std::size_t used = 0;
  double value = std::nan("");
  try {
    value = std::stod(number, &used) * scale;
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != number.size() || !(value >= 0 && value < 1)) {
    BadInput(fmt::format("{} \"{}\" is no share such as 2% or 0.02", what, text));
  }
  return value;
}

LoadOptions Columns(const AbOptions& options) {
  LoadOptions load;
  for (const std::string& column : options.columns) {
    const std::size_t equals = column.find('=');
    if (equals == std::string::npos) BadInput("--column \"" + column + "\" is not OURS=THEIRS");
    load.columns[column.substr(0, equals)] = column.substr(equals + 1);
  }
  return load;
}

// "OFF,ON,set" or "OFF,ON,swap".
Round LoadRound(const std::string& text, const LoadOptions& load) {
  const std::size_t first = text.find(','), last = text.rfind(',');
  const std::string order = last == std::string::npos ? "" : text.substr(last + 1);
  if (first == last || (order != "set" && order != "swap")) {
    BadInput("--round \"" + text + "\" is not OFF,ON,set or OFF,ON,swap");
  }
  return {LoadRun(text.substr(0, first), load),
          LoadRun(text.substr(first + 1, last - first - 1), load), order == "swap"};
}

CompareInput LoadInput(const AbOptions& options) {
  const LoadOptions load = Columns(options);
  if (options.off.size() != options.on.size()) {
    BadInput(fmt::format("{} off runs and {} on runs: rounds need one of each", options.off.size(),
                         options.on.size()));
  }
  CompareInput input;
  for (std::size_t i = 0; i < options.off.size(); ++i) {
    input.rounds.push_back({LoadRun(options.off[i], load), LoadRun(options.on[i], load), false});
  }
  for (const std::string& round : options.rounds) input.rounds.push_back(LoadRound(round, load));
  if (options.control_off.empty() != options.control_on.empty()) {
    BadInput("a control needs both --control-off and --control-on");
  }
  if (!options.control_off.empty()) {
    input.control =
        Round{LoadRun(options.control_off, load), LoadRun(options.control_on, load), false};
  }
  if (!options.accuracy_off.empty()) input.accuracy_off = ReadAccuracy(options.accuracy_off);
  if (!options.accuracy_on.empty()) input.accuracy_on = ReadAccuracy(options.accuracy_on);
  return input;
}

CompareOptions MakeCompareOptions(const AbOptions& options) {
  CompareOptions compare;
  compare.primary = ParseStatistic(options.metric);
  compare.margin = Share(options.margin, "--margin");
  compare.accuracy_margin = Share(options.accuracy_margin, "--acc-margin");
  compare.resamples = options.resamples;
  compare.seed = options.seed;
  for (const std::string& text : options.treatment) {
    const std::size_t equals = text.find('=');
    compare.treatment[text.substr(0, equals)] =
        equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  compare.allow.insert(options.allow.begin(), options.allow.end());
  return compare;
}

int RunCompare(const AbOptions& options) {
  const CompareInput input = LoadInput(options);
  const Comparison comparison = Compare(input, MakeCompareOptions(options));
  if (!options.html.empty()) WriteFile(options.html, HtmlPage(comparison, input, CommandLine()));
  if (!options.json.empty() && options.json != "-") WriteFile(options.json, JsonPage(comparison));
  if (!options.markdown.empty() && options.markdown != "-") {
    WriteFile(options.markdown, MarkdownPage(comparison));
  }
  const std::string page = options.json == "-"       ? JsonPage(comparison)
                           : options.markdown == "-" ? MarkdownPage(comparison)
                                                     : TextPage(comparison);
  std::fputs(page.c_str(), stdout);
  return comparison.exit_code;
}

std::vector<double> Effects(const AbOptions& options) {
  std::vector<double> effects;
  for (const std::string& effect : options.effects) effects.push_back(Share(effect, "--effect"));
  return effects.empty() ? std::vector<double>{0.03, 0.05, 0.1, 0.2} : effects;
}

void RunPlan(const AbOptions& options) {
  const LoadOptions load = Columns(options);
  std::vector<Run> off, on;
  for (const std::string& path : options.off) off.push_back(LoadRun(path, load));
  for (const std::string& path : options.on) on.push_back(LoadRun(path, load));
  const Plan plan = MakePlan(off, on, ParseStatistic(options.metric), Effects(options),
                             Share(options.margin, "--margin"), Share(options.power, "--power"));
  std::fputs(PlanPage(plan).c_str(), stdout);
}

void RunSimulate(const AbOptions& options) {
  const CompareInput input = LoadInput(options);
  if (input.rounds.empty()) BadInput("simulate needs --off and --on");
  const Statistic statistic = ParseStatistic(options.metric);
  std::vector<double> effects{0};
  for (const double effect : Effects(options)) effects.push_back(effect);
  fmt::print("{} on {} against {}, {} trials of {} resamples\n", NameOf(statistic),
             input.rounds[0].off.label, input.rounds[0].on.label, options.trials,
             std::min(options.resamples, 1000));
  fmt::print("{:>8} {:>8} {:>8} {:>12}\n", "effect", "faster", "slower", "excludes 1");
  for (const double effect : effects) {
    const ErrorRates rates =
        ErrorRatesOnData(input.rounds[0], statistic, std::log1p(effect), options.trials,
                         std::min(options.resamples, 1000), options.seed + 1);
    fmt::print("{:>7.1f}% {:>8} {:>8} {:>11.1f}%\n", 100 * effect, rates.faster, rates.slower,
               100 * rates.Share());
  }
}

int RunCollect(const AbOptions& options) {
  if (!options.command.empty()) {
    if (options.output.empty()) BadInput("--command needs --output for its facts");
    return RunClientCommand(options.command, options.output);
  }
  if (options.requests.empty() || options.output.empty() || options.collect.url.empty()) {
    BadInput("collect needs --url, --requests and --output, or --command");
  }
  const std::vector<RequestLine> requests = ReadRequestList(options.requests);
  std::ofstream out(options.output);
  if (!out) BadInput(options.output + " cannot be written");
  const CollectSummary summary = Collect(requests, options.collect, out);
  fmt::print("{} requests, {} errors, {:.1f} s\n", summary.requests, summary.errors,
             summary.duration_s);
  return summary.errors == summary.requests ? static_cast<int>(Fault::kDevice) : 0;
}

void AddInputOptions(CLI::App& command, AbOptions& options) {
  command.add_option("--off", options.off, "baseline runs: file, NAME:LINE or bundle folder");
  command.add_option("--on", options.on, "treatment runs, one per baseline run");
  command.add_option("--metric", options.metric, "primary statistic, chosen before")
      ->capture_default_str();
  command.add_option("--margin", options.margin, "relative effect of no interest")
      ->capture_default_str();
  command.add_option("--column", options.columns, "OURS=THEIRS column name in a CSV or JSONL");
  command.add_option("--resamples", options.resamples, "random swaps or bootstrap draws")
      ->capture_default_str()
      ->check(CLI::Range(100, 1000000));
  command.add_option("--seed", options.seed, "0: from the inputs")->capture_default_str();
}

void AddCompare(CLI::App& ab, const std::shared_ptr<AbOptions>& options, int& exit_code) {
  CLI::App* command = ab.add_subcommand("compare", "compare two arms and give a verdict");
  AddInputOptions(*command, *options);
  command->add_option("--round", options->rounds, "OFF,ON,set or OFF,ON,swap (swapped hardware)");
  command->add_option("--treatment", options->treatment, "declared difference: FACT or FACT=VALUE");
  command->add_option("--control-off", options->control_off, "untreated pair: noise floor");
  command->add_option("--control-on", options->control_on, "untreated pair: noise floor");
  command->add_option("--acc-off", options->accuracy_off, "scores by problem, off arm");
  command->add_option("--acc-on", options->accuracy_on, "scores by problem, on arm");
  command->add_option("--acc-margin", options->accuracy_margin, "non-inferiority margin")
      ->capture_default_str();
  command->add_option("--allow", options->allow, "gate that may not refuse; named in the verdict");
  command->add_option("--html", options->html, "write one offline page");
  command->add_option("--json", options->json, "write JSON; - prints it");
  command->add_option("--markdown", options->markdown, "write Markdown; - prints it");
  command->callback([options, &exit_code] { exit_code = RunCompare(*options); });
}

void AddOthers(CLI::App& ab, const std::shared_ptr<AbOptions>& options, int& exit_code) {
  CLI::App* inspect = ab.add_subcommand("inspect", "what one run holds, and its identities");
  inspect->add_option("run", options->run, "file, NAME:LINE or bundle folder")->required();
  inspect->add_option("--column", options->columns, "OURS=THEIRS column name");
  inspect->callback([options] {
    std::fputs(InspectPage(LoadRun(options->run, Columns(*options))).c_str(), stdout);
  });
  CLI::App* plan = ab.add_subcommand("plan", "turns and rounds for an effect, from pilot runs");
  AddInputOptions(*plan, *options);
  plan->add_option("--effect", options->effects, "wanted effects (default 3%, 5%, 10%, 20%)");
  plan->add_option("--power", options->power, "wanted power")->capture_default_str();
  plan->callback([options] { RunPlan(*options); });
  CLI::App* simulate =
      ab.add_subcommand("simulate", "false positives and power of the method on your own pairs");
  AddInputOptions(*simulate, *options);
  simulate->add_option("--effect", options->effects, "simulated effects");
  simulate->add_option("--trials", options->trials, "simulated comparisons")->capture_default_str();
  simulate->callback([options] { RunSimulate(*options); });
  CLI::App* collect = ab.add_subcommand("collect", "rerun a request list and record it");
  collect->add_option("--url", options->collect.url, "OpenAI-compatible server, http://host:port");
  collect->add_option("--requests", options->requests, "request list (JSONL)");
  collect->add_option("--output", options->output, "records to write");
  collect->add_option("--concurrency", options->collect.concurrency, "conversations in flight")
      ->capture_default_str();
  collect
      ->add_option("--warmup", options->collect.warmup_requests, "first requests that are warm-up")
      ->capture_default_str();
  collect->add_option("--timeout", options->collect.timeout_s, "seconds per request")
      ->capture_default_str();
  collect->add_option("--command", options->command,
                      "run another client instead; facts to --output");
  collect->callback([options, &exit_code] { exit_code = RunCollect(*options); });
}

}  // namespace

void AddAbCommand(CLI::App& app, int& exit_code) {
  CLI::App* ab = app.add_subcommand("ab", "does this serving speed-up hold?");
  ab->require_subcommand(1);
  ab->footer(
      "Exit codes: 0 faster or equivalent; 1 slower, mixed or accuracy not shown; 2 bad input; "
      "5 inconclusive or aggregates only; 6 not comparable.");
  const auto options = std::make_shared<AbOptions>();
  AddCompare(*ab, options, exit_code);
  AddOthers(*ab, options, exit_code);
}

}  // namespace assay::cli
