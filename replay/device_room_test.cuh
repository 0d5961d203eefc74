// What the GPU tests of the rooms need beside room_test.h: a test case mirrored in device memory,
// red zones included. Test code only.
#pragma once

#include <cstring>

#include "cuda/device_test.cuh"
#include "replay/room_test.h"

namespace assay {

class OnDevice {
 public:
  // Uploads the inputs and the poisoned outputs.
  explicit OnDevice(TestCase& test)
      : test_(test),
        input_memory_(test.inputs.arena().size()),
        output_memory_(test.outputs.arena().size()),
        inputs_(Bundle::Over(test.inputs.layouts(), input_memory_.data())),
        outputs_(Bundle::Over(test.outputs.layouts(), output_memory_.data())) {
    Copy(input_memory_.data(), test.inputs.arena());
    PoisonOutputs();
  }

  // Addresses are device memory.
  Bundle& inputs() { return inputs_; }
  Bundle& outputs() { return outputs_; }

  void PoisonOutputs() {
    test_.outputs.Poison();
    Copy(output_memory_.data(), test_.outputs.arena());
  }

  // Waits for the kernels before; brings the outputs to the test case. Fails where a red zone was
  // written or an input changed.
  void Download() {
    CheckCuda(cudaDeviceSynchronize(), "kernels of a room's test");
    std::span<std::byte> outputs = test_.outputs.arena(), inputs = test_.inputs.arena();
    CheckCuda(
        cudaMemcpy(outputs.data(), output_memory_.data(), outputs.size(), cudaMemcpyDeviceToHost),
        "cudaMemcpy of outputs");
    const std::vector<std::byte> now = input_memory_.Get();
    EXPECT_EQ(std::memcmp(now.data(), inputs.data(), inputs.size()), 0) << "an input was modified";
    EXPECT_EQ(test_.outputs.CheckRedZones(), std::nullopt);
  }

 private:
  static void Copy(std::byte* to, std::span<std::byte> from) {
    CheckCuda(cudaMemcpy(to, from.data(), from.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  TestCase& test_;
  DeviceArray<std::byte> input_memory_, output_memory_;
  Bundle inputs_, outputs_;
};

}  // namespace assay
