// `assay worker`: the process that the runner starts; hidden, not for people.
#include "replay/worker.h"

#include <sched.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/common.h"
#include "cuda/ceilings.h"
#include "peers/matrix_rate.h"
#include "replay/hazards.h"
#include "replay/plugin.h"
#include "replay/trace_family.h"

namespace assay::cli {
namespace {

struct WorkerFlags {
  int fd = -1;
  std::vector<std::string> plugins;
  std::string definitions;
  std::vector<int> cpus;
  bool hazards = false;
};

// Own kernels and, where its library is there, cuBLASLt's matrix rates.
std::vector<Ceiling> MeasureGpu() {
  std::vector<Ceiling> all = MeasureDeviceCeilings();
  std::string why_not;
  const std::vector<Ceiling> rates = peers::MeasureMatrixRates(why_not);
  all.insert(all.end(), rates.begin(), rates.end());
  if (rates.empty()) all.push_back({"bf16_matrix", 0, "FLOP/s", "not measured: " + why_not});
  return all;
}

// Before any thread starts: they inherit it, and "all cores" becomes these.
void PinTo(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int Serve(const WorkerFlags& flags) {
  PinTo(flags.cpus);
  Registry registry = ShippedRegistry();
  if (!flags.definitions.empty()) {
    std::vector<TraceProblem> told_by_the_runner;
    registry =
        WithTraceDefinitions(registry, LoadTraceDefinitions(flags.definitions, told_by_the_runner));
  }
  nlohmann::json described = nlohmann::json::array();
  const auto add = [&](std::span<const AssayBackend> kernels) {
    registry = WithPluginBackends(registry, kernels);
    for (auto& one : DescriptionOf(kernels)) described.push_back(std::move(one));
  };
  for (const std::string& path : flags.plugins) add(LoadPlugin(path));
  if (flags.hazards) add(HazardKernels());
  return ServeWorker(registry, flags.fd, described, {OpenLocalAccelerator, MeasureGpu});
}

}  // namespace

void AddWorkerCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<WorkerFlags>();
  CLI::App* command = app.add_subcommand("worker", "Serve the runner (internal)");
  command->group("");
  command->add_option("--fd", flags->fd, "Socket of the runner")->required();
  command->add_option("--plugin", flags->plugins, "Shared libraries with kernels");
  command->add_option("--definitions", flags->definitions, "Dataset with further definitions");
  command->add_option("--cpus", flags->cpus, "Cores to stay on")
      ->delimiter(',')
      ->check(CLI::Range(0, CPU_SETSIZE - 1));
  command->add_flag("--hazards", flags->hazards, "Serve the kernels of `assay selftest hazards`");
  command->callback([flags, &exit_code] { exit_code = Serve(*flags); });
}

}  // namespace assay::cli
