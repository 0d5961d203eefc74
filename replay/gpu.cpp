#include "replay/gpu.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/device.h"
#include "replay/worker_process.h"

namespace assay {
namespace {

constexpr double kAnswerTime = 60;  // a first CUDA context on a cold machine takes seconds
constexpr double kCeilingsTime = 180;

Reply Ask(const std::vector<std::string>& command, const std::string& op, double timeout_s) {
  const std::atomic<bool> stop{false};
  WorkerProcess worker(command, stop);
  worker.Post({{"op", op}}, {}, op);
  return worker.Collect(timeout_s).front();
}

// The floors' rates among named ceilings; all of them are kept in `more`.
Ceilings CeilingsFromNames(const AcceleratorInfo& gpu, std::vector<Ceiling> named) {
  Ceilings ceilings;
  ceilings.device_id = gpu.uuid;
  ceilings.device = GpuText(gpu);
  ceilings.measured = Timestamp();
  const std::pair<const char*, double*> rates[] = {{"copy", &ceilings.copy_bytes},
                                                   {"read", &ceilings.read_bytes},
                                                   {"write", &ceilings.write_bytes},
                                                   {"bf16_matrix", &ceilings.bf16_flops},
                                                   {"launch", &ceilings.launch_ns}};
  for (const Ceiling& one : named) {
    for (const auto& [name, rate] : rates) {
      if (one.name == name) *rate = one.value;
    }
  }
  ceilings.more = std::move(named);
  return ceilings;
}

}  // namespace

GpuAnswer AskForGpu(const std::vector<std::string>& command) {
  const Reply reply = Ask(command, "device", kAnswerTime);
  GpuAnswer answer{reply.device, reply.reason};
  if (!answer.gpu && answer.why_not.empty()) answer.why_not = "the worker does not say";
  return answer;
}

Ceilings AskForGpuCeilings(const std::vector<std::string>& command) {
  const Reply reply = Ask(command, "ceilings", kCeilingsTime);
  if (reply.status == Status::kUnsupported) throw Error(Fault::kUnsupported, reply.reason);
  if (reply.status != Status::kPassed || !reply.device) {
    throw Error(Fault::kDevice, "the ceilings could not be measured: " + reply.reason);
  }
  return CeilingsFromNames(*reply.device, reply.ceilings);
}

std::string GpuText(const AcceleratorInfo& gpu) { return gpu.name + ", driver " + gpu.driver; }

}  // namespace assay
