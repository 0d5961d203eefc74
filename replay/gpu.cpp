#include "replay/gpu.h"

#include <atomic>
#include <nlohmann/json.hpp>

#include "replay/worker_process.h"

namespace assay {
namespace {

constexpr double kAnswerTime = 60;  // a first CUDA context on a cold machine takes seconds

}  // namespace

GpuAnswer AskForGpu(const std::vector<std::string>& command) {
  const std::atomic<bool> stop{false};
  WorkerProcess worker(command, stop);
  worker.Post({{"op", "device"}}, {}, "device");
  const Reply reply = worker.Collect(kAnswerTime).front();
  GpuAnswer answer{reply.device, reply.reason};
  if (!answer.gpu && answer.why_not.empty()) answer.why_not = "the worker does not say";
  return answer;
}

std::string GpuText(const AcceleratorInfo& gpu) {
  return gpu.name + ", driver for CUDA " + gpu.driver;
}

}  // namespace assay
