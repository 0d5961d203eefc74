// The `cuda` backends of the attention rooms on a GPU, judged as `assay run` judges them: captured
// shapes, every generator variant, longer buffers, layouts of segments.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cuda/accelerator.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "ops/prefix_cached_block_causal/spec.h"
#include "replay/room_test.h"

namespace assay {
namespace {

// Tensors of `host`'s layouts in device memory.
class DeviceBundle {
 public:
  DeviceBundle(Accelerator& gpu, const Bundle& host)
      : gpu_(&gpu),
        base_(gpu.Allocate(Bundle::ArenaBytes(host.layouts()))),
        bundle(Bundle::Over(host.layouts(), base_)) {
    for (const Tensor& tensor : host.tensors()) {
      gpu_->Upload(bundle[tensor.name].data, tensor.data, tensor.bytes());
    }
  }
  DeviceBundle(const DeviceBundle&) = delete;
  DeviceBundle& operator=(const DeviceBundle&) = delete;
  ~DeviceBundle() { gpu_->Free(base_); }

  void Download(Bundle& host) {
    for (Tensor& tensor : host.tensors()) {
      gpu_->Download(tensor.data, bundle[tensor.name].data, tensor.bytes());
    }
  }

 private:
  Accelerator* gpu_;
  std::byte* base_;

 public:
  Bundle bundle;
};

class AttentionOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    gpu_ = OpenAccelerator(0, why_not);
    if (gpu_ == nullptr) GTEST_SKIP() << why_not;
  }

  // The default sample of rows, or all.
  void Judge(const Family& family, const Backend& backend, const std::string& definition,
             const Axes& axes, const std::string& variant = "", const Attributes& attributes = {},
             bool full = false) {
    TestCase test = MakeTestCase(family, definition, axes, 20261130, variant, attributes);
    ASSERT_EQ(backend.supports(test.problem, test.inputs), "");
    DeviceBundle inputs(*gpu_, test.inputs), outputs(*gpu_, test.outputs);
    const DeviceCall call =
        backend.prepare(test.problem, test.inputs, inputs.bundle, outputs.bundle);
    call(gpu_->stream());
    gpu_->Synchronize();
    outputs.Download(test.outputs);
    std::string name = definition + " " + variant;
    for (const auto& [axis, value] : axes) name += " " + axis + " " + std::to_string(value);
    const Expected expected =
        full ? ComputeExpected(family, test.problem, test.inputs, AllRows(test))
             : ComputeExpected(family, test.problem, test.inputs, 7);
    const Verdict verdict = Verify(family, test.problem, test.inputs, test.outputs, expected, 7);
    EXPECT_TRUE(verdict.passed()) << name << ": " << verdict.reason;
  }

  void JudgeDense(const std::string& definition, std::int64_t b, std::int64_t nq, std::int64_t nk,
                  const std::string& variant = "", const Attributes& attributes = {}) {
    static const Family family = noncausal_dense_attention::MakeFamily();
    Judge(family, noncausal_dense_attention::CudaBackend(),
          "noncausal_dense_attention_" + definition, {{"B", b}, {"Nq", nq}, {"Nk", nk}}, variant,
          attributes);
  }

  void JudgePrefix(std::int64_t b, std::int64_t np, std::int64_t nq,
                   const std::string& variant = "") {
    static const Family family = prefix_cached_block_causal::MakeFamily();
    Judge(family, prefix_cached_block_causal::CudaBackend(), "prefix_cached_block_causal_h32_d128",
          {{"B", b}, {"Np", np}, {"Nq", nq}}, variant);
  }

  void JudgeBlocks(const std::vector<std::int64_t>& segments, const std::string& variant = "") {
    static const Family family = prefix_cached_block_causal::MakeFamily();
    Judge(family, prefix_cached_block_causal::CudaBackend(),
          "prefix_cached_block_causal_h32_d128_prefix0",
          {{"B", 1}, {"Nq", segments[segments.size() - 2]}}, variant,
          {{"prefix_segments", segments}});
  }

  std::unique_ptr<Accelerator> gpu_;
};

TEST_F(AttentionOnDevice, DenseShapes) {
  for (const auto& [nq, nk] :
       {std::pair<int, int>{51, 51}, {126, 126}, {51, 1024}, {1120, 51}, {51, 2352}, {2560, 126}}) {
    JudgeDense("h32_d64", 2, nq, nk);
  }
  JudgeDense("h32_d128", 1, 1120, 1024);
  JudgeDense("h32_d128", 1, 1120, 1120);
  JudgeDense("h10_d128", 1, 4680, 512, "", {{"k_buffer", std::int64_t{600}}});
  for (const auto& [nq, nk] : {std::pair<int, int>{0, 5}, {5, 0}, {1, 1}, {200, 513}}) {
    JudgeDense("h32_d64", 1, nq, nk);
    JudgeDense("h32_d128", 1, nq, nk);
  }
}

TEST_F(AttentionOnDevice, DenseVariants) {
  for (const std::string& variant : noncausal_dense_attention::MakeFamily().variants) {
    JudgeDense("h32_d64", 2, 126, 300, variant);
    JudgeDense("h10_d128", 2, 126, 300, variant);
    JudgeDense("h10_d128", 1, 1500, 300, variant);
  }
}

TEST_F(AttentionOnDevice, CachedPrefix) {
  for (const std::int64_t np : {0, 1, 25, 32, 200}) JudgePrefix(1, np, 300, "sink");
  JudgePrefix(2, 25, 100);
  JudgePrefix(1, 25, 1024);
}

TEST_F(AttentionOnDevice, BlockCausal) {
  JudgeBlocks({0, 25, 0});
  JudgeBlocks({0, 32, 0}, "image_ids");
  JudgeBlocks({0, 8, 0, 8, 1032, 1, 1032, 1053, 0});
  JudgeBlocks({0, 63, 1, 63, 64, 1, 64, 100, 0, 100, 101, 1, 101, 300, 0}, "sink");
}

}  // namespace
}  // namespace assay
