// The real libraries on a real GPU: every backend's output is judged as `assay run` judges it, run
// directly and as a replayed CUDA graph, on fresh inputs each time.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "base/stats.h"
#include "cuda/accelerator.h"
#include "cuda/notes.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "ops/prefix_cached_block_causal/spec.h"
#include "peers/cublaslt.h"
#include "peers/cudnn.h"
#include "replay/room_test.h"

namespace assay::peers {
namespace {

// A bundle on the device.
class DeviceBundle {
 public:
  DeviceBundle(Accelerator& gpu, const std::vector<TensorLayout>& layouts)
      : gpu_(&gpu),
        base_(gpu.Allocate(Bundle::ArenaBytes(layouts))),
        bundle(Bundle::Over(layouts, base_)) {}
  DeviceBundle(const DeviceBundle&) = delete;
  DeviceBundle& operator=(const DeviceBundle&) = delete;
  ~DeviceBundle() { gpu_->Free(base_); }

  void Upload(const Bundle& host) {
    for (const Tensor& tensor : host.tensors()) {
      gpu_->Upload(bundle[tensor.name].data, tensor.data, tensor.bytes());
    }
  }
  void Download(Bundle& host) {
    for (Tensor& tensor : host.tensors()) {
      gpu_->Download(tensor.data, bundle[tensor.name].data, tensor.bytes());
    }
  }
  void Poison() {
    for (const Tensor& tensor : bundle.tensors()) gpu_->Fill(tensor.data, 0xFF, tensor.bytes());
  }

 private:
  Accelerator* gpu_;
  std::byte* base_;

 public:
  Bundle bundle;
};

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    gpu_ = OpenAccelerator(0, why_not);
    if (gpu_ == nullptr) GTEST_SKIP() << why_not;
    key_ = std::random_device()();
    RecordProperty("key", std::to_string(key_));
  }

  // Judges one backend; prints its time. Skips nothing: an absent library is a failure here, since
  // the machine has a GPU (its reason is the message).
  void Judge(const Family& family, const Backend& backend, std::string_view definition,
             const Axes& axes, const std::string& variant = "", const Attributes& attributes = {}) {
    TestCase test = MakeTestCase(family, definition, axes, key_, variant, attributes);
    ASSERT_EQ(backend.supports(test.problem, test.inputs), "");
    DeviceBundle inputs(*gpu_, test.inputs.layouts()), outputs(*gpu_, test.outputs.layouts());
    inputs.Upload(test.inputs);
    TakeNotes();
    const DeviceCall call =
        backend.prepare(test.problem, test.inputs, inputs.bundle, outputs.bundle);
    const std::vector<std::string> notes = TakeNotes();

    outputs.Poison();
    call(gpu_->stream());
    gpu_->Synchronize();
    outputs.Download(test.outputs);
    const Expected expected = ComputeExpected(family, test.problem, test.inputs, key_);
    const Verdict direct = Verify(family, test.problem, test.inputs, test.outputs, expected, key_);
    EXPECT_TRUE(direct.passed()) << direct.reason << ", key " << key_;

    const std::unique_ptr<Recording> recording = gpu_->Record(call);
    outputs.Poison();
    std::vector<double> times;
    for (int i = 0; i < kReplays; ++i) times.push_back(recording->Replay());
    std::vector<std::byte> first(test.outputs.tensors()[0].bytes());
    std::memcpy(first.data(), test.outputs.tensors()[0].data, first.size());
    outputs.Download(test.outputs);
    EXPECT_EQ(std::memcmp(first.data(), test.outputs.tensors()[0].data, first.size()), 0)
        << "the replayed graph gives other bits than the direct call, key " << key_;
    Report(family, test, backend, direct, times);
    EXPECT_EQ(notes.size(), backend.name == "cublaslt_best" ? 2u : 1u);
    for (const std::string& note : notes) std::printf("  %s\n", note.c_str());
  }

 private:
  static constexpr int kReplays = 25;

  void Report(const Family& family, const TestCase& test, const Backend& backend,
              const Verdict& verdict, const std::vector<double>& times) {
    std::string axes;
    for (const auto& [name, value] : test.problem.axes) {
      axes += name + " " + std::to_string(value) + " ";
    }
    const double ns = Median(times);
    const double flops = family.cost(test.problem, test.inputs).flops;
    std::printf("%-14s %-34s %-10s rel L2 %.2e  %9.1f us  %6.1f TFLOP/s (graph, warm)\n",
                backend.name.c_str(), axes.c_str(), verdict.correctness.grade().c_str(),
                verdict.correctness.outputs[0].max_rel_l2, ns / 1e3, flops / ns / 1e3);
  }

 protected:
  std::unique_ptr<Accelerator> gpu_;
  std::uint64_t key_ = 0;
};

using CublasLtOnDevice = OnDevice;
using CudnnOnDevice = OnDevice;

TEST_F(CublasLtOnDevice, AnyNumberOfRows) {
  const Family family = dense_gemm_bf16_nt::MakeFamily();
  for (const Backend& backend : CublasLtBackends()) {
    for (const std::int64_t m : {1, 7, 51, 126, 2352}) {
      Judge(family, backend, "dense_gemm_bf16_nt_n4096_k4096", {{"M", m}});
    }
    Judge(family, backend, "dense_gemm_bf16_nt_n12288_k4096", {{"M", 4125}});
    Judge(family, backend, "dense_gemm_bf16_nt_n4096_k12288", {{"M", 4096}});
  }
}

TEST_F(CudnnOnDevice, LengthsThatFillNoTile) {
  const Family family = noncausal_dense_attention::MakeFamily();
  const Backend backend = CudnnDenseAttention();
  const auto judge = [&](const char* definition, std::int64_t b, std::int64_t nq, std::int64_t nk,
                         const std::string& variant = "", const Attributes& attributes = {}) {
    Judge(family, backend, definition, {{"B", b}, {"Nq", nq}, {"Nk", nk}}, variant, attributes);
  };
  constexpr const char *k64 = "noncausal_dense_attention_h32_d64",
                       *k128 = "noncausal_dense_attention_h32_d128";
  judge(k64, 1, 51, 2352);
  judge(k64, 2, 2352, 51);
  judge(k64, 4, 126, 126);
  judge(k64, 1, 1, 1);
  judge(k128, 1, 2352, 2352);
  judge(k128, 2, 2560, 1024);
  judge(k128, 1, 65, 63, "extreme_positive");
  judge("noncausal_dense_attention_h10_d128", 1, 4680, 512);
  judge("noncausal_dense_attention_h10_d128", 1, 880, 1760, "", {{"k_buffer", std::int64_t{4400}}});
}

TEST_F(CudnnOnDevice, CachedPrefix) {
  const Family family = prefix_cached_block_causal::MakeFamily();
  const Backend backend = CudnnPrefixCachedAttention();
  Judge(family, backend, "prefix_cached_block_causal_h32_d128",
        {{"B", 2}, {"Np", 25}, {"Nq", 100}});
  Judge(family, backend, "prefix_cached_block_causal_h32_d128",
        {{"B", 1}, {"Np", 25}, {"Nq", 4096}});
  Judge(family, backend, "prefix_cached_block_causal_h32_d128_prefix0", {{"B", 1}, {"Nq", 300}}, "",
        {{"prefix_segments", std::vector<std::int64_t>{0, 300, 1}}});
}

}  // namespace
}  // namespace assay::peers
