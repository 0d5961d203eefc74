// `assay device`: who this machine is and what it can do at most; with --gpu, its GPU.
#include "replay/device.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/common.h"
#include "replay/gpu.h"
#include "report/table.h"
#include "report/text.h"

namespace assay::cli {
namespace {

struct DeviceOptions {
  std::string ledger;
  int threads = 0;
  bool json = false, gpu = false;
};

std::string Rate(double per_second, const char* unit) {
  return fmt::format("{:.1f} {}", per_second * 1e-9, unit);
}

void PrintCeilings(const Ceilings& ceilings) {
  Table table({{"ceiling"}, {"measured", Align::kRight}, {"how"}});
  table.Add({"copy", Rate(ceilings.copy_bytes, "GB/s"), "bytes read plus bytes written"});
  table.Add({"read", Rate(ceilings.read_bytes, "GB/s"), "sum of 64-bit words"});
  table.Add({"write", Rate(ceilings.write_bytes, "GB/s"), "memset"});
  table.Add(
      {"bf16 matrix", Rate(ceilings.bf16_flops, "GFLOP/s"), "4096 x 2048 x 4096, random data"});
  table.Add({"fp32 matrix", Rate(ceilings.f32_flops, "GFLOP/s"), "own loops, fp32 FMA"});
  fmt::print("{}  [{}]  {}\n{}", ceilings.device, ceilings.device_id, ceilings.measured,
             table.Text({.width = TerminalWidth(1)}));
}

std::string Measured(const Ceiling& ceiling) {
  return ceiling.unit == "ns" ? FormatTime(ceiling.value) : FormatRate(ceiling.value, ceiling.unit);
}

void PrintGpuCeilings(const Ceilings& ceilings) {
  Table table(
      {{"ceiling"}, {"measured", Align::kRight}, {"how", Align::kLeft, Overflow::kEnd, 20, 0, 1}});
  for (const Ceiling& one : ceilings.more) table.Add({one.name, Measured(one), one.how});
  fmt::print("{}  [{}]  {}\n{}", ceilings.device, ceilings.device_id, ceilings.measured,
             table.Text({.width = TerminalWidth(1)}));
}

void Measure(const DeviceOptions& options) {
  Ledger ledger = Ledger::Open(options.ledger, Ledger::Mode::kAppend);
  const Ceilings ceilings =
      options.gpu ? AskForGpuCeilings(OwnWorkerCommand()) : MeasureCeilings(options.threads);
  ledger.StoreCeilings(ceilings);
  if (options.json) {
    fmt::print("{}\n", CeilingsToJson(ceilings));
  } else if (options.gpu) {
    PrintGpuCeilings(ceilings);
  } else {
    PrintCeilings(ceilings);
  }
}

}  // namespace

void AddDeviceCommand(CLI::App& app, int&) {
  auto options = std::make_shared<DeviceOptions>();
  options->ledger = DefaultLedger();
  CLI::App* command =
      app.add_subcommand("device", "Measure this machine's ceilings and store them");
  command->add_option("--ledger", options->ledger, "Where to store them")->capture_default_str();
  command->add_option("--threads", options->threads, "Threads to measure with; 0 = all");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_flag("--gpu", options->gpu, "Measure the GPU instead of the CPU");
  command->callback([options] { Measure(*options); });
}

}  // namespace assay::cli
