// A worker process whose only family is the faulty one. Its first argument may name a fault of the
// worker itself: "mute" (never greets), "old" (another protocol), "babble" (no JSON), "no_gpu"
// (every other one has a simulated GPU).
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "replay/fake_accelerator.h"
#include "replay/faulty_family.h"
#include "replay/worker.h"

int main(int argc, char** argv) {
  const int fd = std::atoi(argv[argc - 1]);
  const std::string fault = argc > 3 ? argv[1] : "";
  const auto say = [fd](const char* text) {
    return write(fd, text, std::strlen(text)) > 0 ? 0 : 1;
  };
  if (fault == "mute") return 3;
  if (fault == "old") return say("{\"protocol\": 0}\n");
  if (fault == "babble") return say("hello\n");
  assay::DeviceHooks hooks;
  hooks.open = [&](std::string& why_not) -> std::unique_ptr<assay::Accelerator> {
    if (fault != "no_gpu") return std::make_unique<assay::FakeAccelerator>();
    why_not = "no usable GPU: no CUDA-capable device is detected";
    return nullptr;
  };
  hooks.measure_ceilings = [] {
    return std::vector<assay::NamedCeiling>{{"copy", 4e12, "B/s", "simulated"},
                                            {"bf16_matrix", 8e14, "FLOP/s", "simulated"},
                                            {"launch", 700, "ns", "simulated"}};
  };
  return assay::ServeWorker(assay::FaultyRegistry(), fd, nlohmann::json::array(), hooks);
}
