// What a user reads when a library is absent, incomplete, of another version, or refuses: exact
// sentences, from libraries of ours that fail on demand. No GPU is needed.
#include <gmock/gmock.h>

#include <cstdlib>

#include "base/error.h"
#include "cuda/notes.h"
#include "ops/dense_gemm_bf16_nt/spec.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "ops/prefix_cached_block_causal/spec.h"
#include "peers/cublaslt.h"
#include "peers/cudnn.h"

namespace assay::peers {
namespace {

// A problem whose "device" tensors are in host memory: nothing here comes to reading them.
struct Case {
  Family family;
  Problem problem;
  Bundle inputs, outputs;

  Case(Family made, std::string_view definition, const Axes& axes, const std::string& variant = "",
       const Attributes& attributes = {})
      : family(std::move(made)),
        problem(MakeProblem(family, definition, axes, attributes, variant)),
        inputs(Bundle::Allocate(family.input_layouts(problem))),
        outputs(Bundle::Allocate(OutputLayouts(family, problem))) {}

  std::string Reason(const Backend& backend) const { return backend.supports(problem, inputs); }
  // The message with which `prepare` refuses; "" when it does not.
  std::string Refusal(const Backend& backend) {
    try {
      backend.prepare(problem, inputs, inputs, outputs);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kUnsupported) << error.what();
      return error.what();
    }
    return "";
  }
};

Case Product() {
  return Case(dense_gemm_bf16_nt::MakeFamily(), "dense_gemm_bf16_nt_n4096_k4096", {{"M", 3}});
}
Case Attention(std::int64_t nk = 5, const std::string& variant = "") {
  return Case(noncausal_dense_attention::MakeFamily(), "noncausal_dense_attention_h32_d64",
              {{"B", 1}, {"Nq", 3}, {"Nk", nk}}, variant);
}

const std::vector<std::string> kNowhere = {"libassay-nowhere.so.1", "/nowhere/libassay.so.1"};
constexpr const char* kNowhereText =
    "the library was not found; tried libassay-nowhere.so.1, /nowhere/libassay.so.1";

TEST(CublasLt, AbsentIncompleteOrOtherVersions) {
  const Case product = Product();
  for (const std::size_t which : {0, 1}) {
    const auto reason = [&](const std::vector<std::string>& paths) {
      return product.Reason(CublasLtBackends(paths)[which]);
    };
    EXPECT_EQ(reason({FAKE_CUBLASLT}), "");
    EXPECT_EQ(reason(kNowhere), kNowhereText);
    EXPECT_EQ(reason({FAKE_CUBLASLT_WITHOUT_MATMUL}),
              std::string(FAKE_CUBLASLT_WITHOUT_MATMUL) + " has no function cublasLtMatmul");
    EXPECT_EQ(reason({FAKE_CUBLASLT_12}),
              std::string(FAKE_CUBLASLT_12) + " is version 12.4.5, this build speaks version 13");
  }
}

TEST(CublasLt, RefusalsNameTheCall) {
  Case product = Product();
  const auto refusal = [&](const char* fault) {
    setenv("FAKE_CUBLASLT", fault, 1);
    return product.Refusal(CublasLtBackends({FAKE_CUBLASLT})[0]);
  };
  EXPECT_EQ(refusal("create"),
            "cuBLASLt: cublasLtCreate failed with 1 (CUBLAS_STATUS_NOT_INITIALIZED)");
  EXPECT_EQ(refusal("no algorithm"), "cuBLASLt has no algorithm for M 3, N 4096, K 4096");
  EXPECT_EQ(refusal(""), "cuBLASLt has no algorithm for M 3, N 4096, K 4096");
}

TEST(CublasLt, OtherFailuresAreTheDevices) {
  Case product = Product();
  for (const auto& [fault, text] :
       {std::pair("set",
                  "cuBLASLt: cublasLtMatmulDescSetAttribute failed with 7 "
                  "(CUBLAS_STATUS_INVALID_VALUE)"),
        std::pair("heuristic",
                  "cuBLASLt: cublasLtMatmulAlgoGetHeuristic failed with 7 "
                  "(CUBLAS_STATUS_INVALID_VALUE)")}) {
    setenv("FAKE_CUBLASLT", fault, 1);
    try {
      CublasLtBackends({FAKE_CUBLASLT})[0].prepare(product.problem, product.inputs, product.inputs,
                                                   product.outputs);
      FAIL() << "prepared in spite of: " << fault;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kDevice);
      EXPECT_STREQ(error.what(), text);
    }
  }
}

TEST(Cudnn, AbsentIncompleteOrOtherVersions) {
  const Case attention = Attention();
  const auto reason = [&](const std::vector<std::string>& paths) {
    return attention.Reason(CudnnDenseAttention(paths));
  };
  EXPECT_EQ(reason({FAKE_CUDNN}), "");
  EXPECT_EQ(reason(kNowhere), kNowhereText);
  EXPECT_EQ(reason({FAKE_CUDNN_WITHOUT_EXECUTE}),
            std::string(FAKE_CUDNN_WITHOUT_EXECUTE) + " has no function cudnnBackendExecute");
  EXPECT_EQ(reason({FAKE_CUDNN_OLD}),
            std::string(FAKE_CUDNN_OLD) + " is version 9.10.2, supported is 9 from 9.13.1");
  EXPECT_EQ(reason({FAKE_CUDNN_10}),
            std::string(FAKE_CUDNN_10) + " is version 10.0.0, supported is 9 from 9.13.1");
}

TEST(Cudnn, RefusalsCarryItsOwnWords) {
  Case attention = Attention();
  const auto refusal = [&](const char* fault) {
    setenv("FAKE_CUDNN", fault, 1);
    return attention.Refusal(CudnnDenseAttention({FAKE_CUDNN}));
  };
  EXPECT_EQ(refusal("create"),
            "cuDNN: cudnnCreate failed with 1001 (CUDNN_STATUS_NOT_INITIALIZED)");
  EXPECT_EQ(refusal("set"),
            "cuDNN: cudnnBackendSetAttribute failed with 2000 "
            "(CUDNN_STATUS_BAD_PARAM): what cuDNN said last");
  EXPECT_EQ(refusal("operation"),
            "cuDNN: the attention operation failed with 2000 "
            "(CUDNN_STATUS_BAD_PARAM): what cuDNN said last");
  EXPECT_EQ(refusal("plan"),
            "cuDNN: the execution plan failed with 3001 "
            "(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN): what cuDNN said last");
  EXPECT_EQ(refusal("no engine"), "cuDNN proposes no engine for this attention");
  EXPECT_THAT(TakeNotes(), ::testing::Contains("cuDNN 9.19.0 from " FAKE_CUDNN));
}

TEST(Cudnn, ProblemsWithoutAGraphAreRefusedBeforeTheLibraryIsOpened) {
  const Backend backend = CudnnDenseAttention(kNowhere);
  EXPECT_EQ(Attention(5, "masked_rows").Reason(backend),
            "cuDNN's attention operation takes no visibility mask");
  EXPECT_EQ(Attention(0).Reason(backend), "cuDNN takes no empty tensors; Nk = 0");
}

TEST(Cudnn, OfTheCachedPrefixOnlyUnmaskedRows) {
  const Backend backend = CudnnPrefixCachedAttention({FAKE_CUDNN});
  const auto reason = [&](const Attributes& segments, const std::string& definition,
                          const Axes& axes) {
    return Case(prefix_cached_block_causal::MakeFamily(), definition, axes, "", segments)
        .Reason(backend);
  };
  const auto prefix0 = [&](std::vector<std::int64_t> segments, std::int64_t nq) {
    return reason({{"prefix_segments", std::move(segments)}},
                  "prefix_cached_block_causal_h32_d128_prefix0", {{"B", 1}, {"Nq", nq}});
  };
  constexpr const char* kMasked =
      "cuDNN's attention operation has no mask for causal text runs or several segments";
  EXPECT_EQ(reason({}, "prefix_cached_block_causal_h32_d128", {{"B", 2}, {"Np", 3}, {"Nq", 4}}),
            "");
  EXPECT_EQ(prefix0({0, 6, 1}, 6), "");
  EXPECT_EQ(prefix0({0, 6, 0}, 6), kMasked);
  EXPECT_EQ(prefix0({0, 2, 0, 2, 6, 1}, 6), kMasked);
  EXPECT_EQ(prefix0({0, 2, 1, 2, 6, 1}, 6), kMasked);
}

}  // namespace
}  // namespace assay::peers
