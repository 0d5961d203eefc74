// Prints how often the method errs (A/A, coverage, power against plan) and how fast it is on large
// files that it writes itself. Run: serving_bench [errors|speed] [trials or requests]
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/parallel.h"
#include "serving/pages.h"
#include "serving/plan.h"
#include "serving/readers.h"
#include "serving/simulate.h"

namespace {

using namespace assay::serving;  // NOLINT: this file is the room's bench

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Processor time of all threads: what a busy machine cannot stretch.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double PeakMegabytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Writes one arm in a format: assay records or the larger lines of aiperf.
void WriteArm(const Run& run, const std::string& path, bool aiperf) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) std::abort();
  for (const Request& r : run.requests) {
    const std::string& name = run.names[static_cast<std::size_t>(r.conversation)];
    const std::string line =
        aiperf
            ? fmt::format(
                  R"({{"metadata":{{"session_num":0,"x_request_id":"fdb931c6-4f05-462d-a591-04d3c1140e05","x_correlation_id":"e9774bf0-73fe-4038-b71d-e0010f55d99f","conversation_id":"{0}","turn_index":{1},"source_trace_id":"{0}","source_kind":"weka_main","agent_depth":0,"root_correlation_id":"root-{0}","credit_issued_ns":{2},"request_start_ns":{2},"request_ack_ns":{2},"request_end_ns":{3},"worker_id":"worker_e121ba40","benchmark_phase":"profiling","was_cancelled":false,"context_overflow_skip":false}},"metrics":{{"output_sequence_length":{{"value":{4},"unit":"tokens"}},"request_latency":{{"value":{5},"unit":"ms"}},"time_to_first_token":{{"value":{6},"unit":"ms"}},"input_sequence_length":{{"value":{7},"unit":"tokens"}},"http_req_sending":{{"value":0.37422,"unit":"ms"}},"inter_chunk_latency":{{"value":[22.041824,21.9,20.1,19.4,22.041824,21.9,20.1,19.4,22.041824],"unit":"ms"}},"http_req_waiting":{{"value":2331.434538,"unit":"ms"}},"usage_total_tokens":{{"value":194545,"unit":"tokens"}},"inter_token_latency":{{"value":22.041824,"unit":"ms"}}}}}}
)",
                  name, r.turn, r.start_ns, r.end_ns, r.osl, 1e3 * r.e2e_s, 1e3 * r.ttft_s, r.isl)
            : fmt::format(
                  R"({{"conversation":"{}","turn":{},"start_ns":{},"ttft_s":{},"e2e_s":{},"isl":{},"osl":{}}}
)",
                  name, r.turn, r.start_ns, r.ttft_s, r.e2e_s, r.isl, r.osl);
    std::fwrite(line.data(), 1, line.size(), file);
  }
  std::fclose(file);
}

void SpeedOf(const char* what, const SimulationOptions& o, bool aiperf) {
  const auto folder = std::filesystem::temp_directory_path() / "assay_serving_bench";
  std::filesystem::create_directories(folder);
  const std::string off = (folder / "off.jsonl").string(), on = (folder / "on.jsonl").string();
  {
    const Round round = SimulateRound(o, 1);
    WriteArm(round.off, off, aiperf);
    WriteArm(round.on, on, aiperf);
  }
  const double megabytes = static_cast<double>(std::filesystem::file_size(off)) / 1e6;
  const double start = Seconds(), cpu = CpuSeconds();
  CompareInput input;
  input.rounds.push_back({LoadRun(off), LoadRun(on), false});
  const double loaded = Seconds(), cpu_loaded = CpuSeconds();
  CompareOptions options;
  options.allow = {"G01", "G04", "G06", "G08"};
  const Comparison c = Compare(input, options);
  const double compared = Seconds(), cpu_compared = CpuSeconds();
  const std::string html = HtmlPage(c, input, "bench");
  const double written = Seconds();
  fmt::print(
      "{:<26} {:>8} {:>8} {:>6.1f} {:>6.2f} {:>7.2f} {:>6.2f} {:>7.2f} {:>8.2f} {:>8.2f} "
      "{:>7.0f}\n",
      what, input.rounds[0].off.requests.size(), c.Primary()->clusters, megabytes, loaded - start,
      compared - loaded, written - compared, written - start, cpu_loaded - cpu,
      cpu_compared - cpu_loaded, PeakMegabytes());
  std::filesystem::remove_all(folder);
}

void Speed(int requests) {
  fmt::print(
      "threads {}, 10,000 draws; times in s, one arm's size; peak MB includes the generator\n",
      assay::HardwareThreads());
  fmt::print("{:<26} {:>8} {:>8} {:>6} {:>6} {:>7} {:>6} {:>7} {:>8} {:>8} {:>7}\n", "input",
             "requests", "clusters", "MB", "load", "compare", "html", "total", "cpu load",
             "cpu comp", "peak MB");
  SimulationOptions o;
  o.speedup = 1.1;
  o.turns = 25;
  o.clusters = requests / o.turns;
  SpeedOf("assay records", o, false);
  SpeedOf("aiperf records", o, true);
  o.turns = 1000;
  o.clusters = requests / o.turns;
  SpeedOf("assay records, long turns", o, false);
  o.turns = 1;
  o.clusters = requests;
  SpeedOf("assay records, one turn", o, false);
}

void LoadMillion() {
  SimulationOptions o;
  o.turns = 100;
  o.clusters = 10000;
  const std::string path =
      (std::filesystem::temp_directory_path() / "assay_serving_million.jsonl").string();
  {
    const Round round = SimulateRound(o, 1);
    WriteArm(round.off, path, false);
  }
  const double start = Seconds(), cpu = CpuSeconds();
  const Run run = LoadRun(path);
  const double cpu_used = CpuSeconds() - cpu;
  fmt::print("{} lines ({:.0f} MB) read in {:.2f} s ({:.2f} s of processor time)\n",
             run.requests.size(), static_cast<double>(std::filesystem::file_size(path)) / 1e6,
             Seconds() - start, cpu_used);
  std::filesystem::remove(path);
}

std::string Row(const char* what, int trials, int hits, double target) {
  const double share = static_cast<double>(hits) / trials;
  const double se = std::sqrt(target * (1 - target) / trials);
  return fmt::format("{:<58} {:>6} {:>7.1f}% {:>8.1f}% +- {:.1f}\n", what, trials, 100 * share,
                     100 * target, 200 * se);
}

// Counts trials in which `hit` says yes.
template <class Hit>
int Count(int trials, const SimulationOptions& o, std::uint64_t seed, const Hit& hit,
          const Statistic& statistic = {}) {
  std::vector<char> yes(static_cast<std::size_t>(trials), 0);
  assay::ParallelFor(trials, 0, [&](std::int64_t t) {
    const Round round = SimulateRound(o, seed + static_cast<std::uint64_t>(t));
    yes[static_cast<std::size_t>(t)] = hit(RunTrial(round, statistic, 1000, 3)) ? 1 : 0;
  });
  int count = 0;
  for (const char y : yes) count += y;
  return count;
}

// The hardest 15 % of the turns fall back to the old speed: the effect differs where quantiles are
// read, and the arms are not copies up to a factor. The truth is that of 200 times as many
// conversations.
void HardTurns(int trials) {
  for (const auto& [clusters, turns] : {std::pair(40, 25), {20, 30}}) {
    for (const double speedup : {1.1, 1.3, 1.9}) {
      SimulationOptions o;
      o.clusters = clusters;
      o.turns = turns;
      o.speedup = speedup;
      o.treated_share = 0.85;
      o.hard_turns_fall_back = true;
      SimulationOptions many = o;
      many.clusters *= 200;
      const Round population = SimulateRound(many, 1);
      for (const Statistic statistic : {Statistic{Metric::kE2eNormIntvty, 0.9},
                                        {Metric::kE2eNormIntvty, 0.5},
                                        {Metric::kE2eNormIntvty, 0.0}}) {
        const double truth =
            std::log(Value(population.on, statistic) / Value(population.off, statistic));
        const auto covers = [truth](const Trial& t) {
          return t.interval.low <= truth && truth <= t.interval.high;
        };
        fmt::print("{}",
                   Row(fmt::format("coverage, hard turns fall back, x{}, {}, {} x {}", speedup,
                                   NameOf(statistic).substr(0, NameOf(statistic).find(':')),
                                   clusters, turns)
                           .c_str(),
                       trials, Count(trials, o, 900000, covers, statistic), 0.95));
      }
    }
  }
}

void Errors(int trials) {
  fmt::print("{:<58} {:>6} {:>8} {:>9}\n", "p90:e2e_norm_intvty, 1000 draws", "trials", "seen",
             "nominal");
  const auto excludes = [](const Trial& t) { return t.interval.low > 0 || t.interval.high < 0; };
  for (const double q : {0.9, 0.5, 0.0}) {
    for (const auto& [clusters, turns] : {std::pair(100, 100), {40, 25}, {20, 30}, {10, 30}}) {
      SimulationOptions o;
      o.clusters = clusters;
      o.turns = turns;
      const Statistic statistic{Metric::kE2eNormIntvty, q};
      const std::string name = NameOf(statistic);
      // The small ones are cheap and deserve a narrower range.
      const int count = clusters * turns > 1000 ? trials : 4 * trials;
      fmt::print("{}", Row(fmt::format("A/A excludes 1, {}, {} clusters x {} turns",
                                       name.substr(0, name.find(':')), clusters, turns)
                               .c_str(),
                           count, Count(count, o, 100000, excludes, statistic), 0.05));
    }
  }
  for (const int clusters : {20, 10}) {
    SimulationOptions o;
    o.clusters = clusters;
    o.turns = 300 / clusters;
    o.speedup = 1.25;
    const double truth = std::log(1.25);
    const int covered = Count(trials, o, 300000, [truth](const Trial& t) {
      return t.interval.low <= truth && truth <= t.interval.high;
    });
    fmt::print("{}", Row(fmt::format("coverage, {} clusters, n = 300", clusters).c_str(), trials,
                         covered, 0.95));
  }
  HardTurns(trials);
  for (const int clusters : {20, 40}) {
    SimulationOptions o;
    o.clusters = clusters;
    o.turns = 25;
    double se = 0, units = 0;
    for (int t = 0; t < 100; ++t) {
      const Trial pilot =
          RunTrial(SimulateRound(o, 500000 + static_cast<std::uint64_t>(t)), {}, 1000, 3);
      se += pilot.standard_error / 100;
      units = pilot.units;
    }
    const double mde = MinimumDetectableEffect(se, units);
    for (const double factor : {0.5, 1.0, 1.5}) {
      o.speedup = std::exp(factor * mde);
      const double planned = PowerOf(factor * mde, se, units, 0);
      const int found = Count(trials, o, 700000, [](const Trial& t) { return t.interval.low > 0; });
      fmt::print("{}", Row(fmt::format("power at {:.1f} MDE ({:+.1f} %), {} clusters", factor,
                                       100 * std::expm1(factor * mde), clusters)
                               .c_str(),
                           trials, found, planned));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  if (what == "errors" || what == "all") Errors(argc > 2 ? std::atoi(argv[2]) : 1000);
  if (what == "speed" || what == "all") {
    Speed(argc > 2 && what == "speed" ? std::atoi(argv[2]) : 100000);
    LoadMillion();
  }
  return 0;
}
