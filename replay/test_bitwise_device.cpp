// Every device backend that documents its order of sums, on a real GPU and fresh inputs, against
// the CPU model, bit for bit.
#include <gtest/gtest.h>

#include <random>

#include "cuda/accelerator.h"
#include "ops/registry.h"
#include "replay/bitwise.h"
#include "replay/room_test.h"

namespace assay {
namespace {

// Tensors on the device for as long as it lives.
class DeviceBundle {
 public:
  DeviceBundle(Accelerator& gpu, const std::vector<TensorLayout>& layouts)
      : gpu_(gpu),
        memory_(gpu.Allocate(Bundle::ArenaBytes(layouts))),
        bundle(Bundle::Over(layouts, memory_)) {}
  DeviceBundle(const DeviceBundle&) = delete;
  DeviceBundle& operator=(const DeviceBundle&) = delete;
  ~DeviceBundle() { gpu_.Free(memory_); }

  void Upload(const Bundle& host) {
    for (const Tensor& tensor : host.tensors()) {
      gpu_.Upload(bundle[tensor.name].data, tensor.data, tensor.bytes());
    }
  }
  void Download(Bundle& host) {
    for (Tensor& tensor : host.tensors()) {
      gpu_.Download(tensor.data, bundle[tensor.name].data, tensor.bytes());
    }
  }

 private:
  Accelerator& gpu_;
  std::byte* memory_;

 public:
  Bundle bundle;
};

void ExpectModelledBits(Accelerator& gpu, const Family& family, const Backend& backend,
                        const std::string& definition, const Axes& axes) {
  const std::uint64_t key = std::random_device{}();
  TestCase test = MakeTestCase(family, definition, axes, key);
  DeviceBundle inputs(gpu, test.inputs.layouts()), outputs(gpu, test.outputs.layouts());
  inputs.Upload(test.inputs);
  outputs.Upload(test.outputs);  // poison
  backend.prepare(test.problem, test.inputs, inputs.bundle, outputs.bundle)(gpu.stream());
  gpu.Synchronize();
  outputs.Download(test.outputs);
  const Finding finding =
      CheckBitwise(family, backend, test.problem, test.inputs, test.outputs, key);
  EXPECT_TRUE(finding.passed) << definition << ", " << backend.name << ", key " << key << ": "
                              << finding.detail;
}

TEST(BitwiseOnDevice, BackendsKeepTheirDocumentedOrder) {
  std::string why_not;
  const std::unique_ptr<Accelerator> gpu = OpenAccelerator(0, why_not);
  if (gpu == nullptr) GTEST_SKIP() << why_not;
  int backends = 0;
  for (const Family& family : BuiltInRegistry().families()) {
    for (const Backend& backend : family.backends) {
      if (!backend.on_device() || backend.bitwise.expected_bits == nullptr) continue;
      ++backends;
      for (const Definition& definition : family.definitions) {
        ASSERT_EQ(definition.variables, std::vector<std::string>{"M"}) << "other axes need values";
        for (const std::int64_t m : {1, 65, 300, 4125}) {
          ExpectModelledBits(*gpu, family, backend, definition.name, {{"M", m}});
        }
      }
    }
  }
  if (backends == 0) GTEST_SKIP() << "no device backend documents its order of sums";
}

}  // namespace
}  // namespace assay
