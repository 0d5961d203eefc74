// Short names: nothing is lost by deleting brackets, and odd names stay whole.
#include <gtest/gtest.h>

#include "base/error.h"
#include "timeline/json_cursor.h"
#include "timeline/short_name.h"
#include "timeline/trace.h"

namespace assay::timeline {
namespace {

TEST(ShortName, KeepsTemplateArgumentsThatTellKernelsApart) {
  const std::string a = ShortName(
      "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, "
      "(bool)0, (bool)0, cutlass::bfloat16_t>, (bool)0, (bool)1>(flash::Flash_fwd_params)");
  const std::string b = ShortName(
      "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, (int)4, "
      "(bool)0, (bool)0, cutlass::bfloat16_t>, (bool)1, (bool)1>(flash::Flash_fwd_params)");
  EXPECT_EQ(a, "flash_fwd_kernel<Flash_fwd_kernel_traits<...>, false, true>");
  EXPECT_NE(a, b);
}

TEST(ShortName, UnderstandsWhatDemanglersPrint) {
  EXPECT_EQ(ShortName("rope_kernel(float*, int)"), "rope_kernel");
  EXPECT_EQ(ShortName("void gemm_tn<128, 256, (bool)1>(Params)"), "gemm_tn<128, 256, true>");
  EXPECT_EQ(ShortName("void at::native::(anonymous namespace)::CatArray<float, 4u>(float*)"),
            "CatArray<float, 4u>");
  EXPECT_EQ(ShortName("at::native::<unnamed>::softmax_warp<__nv_bfloat16, float>(float*, int)"),
            "softmax_warp<__nv_bfloat16, float>");
  EXPECT_EQ(ShortName("nvjet_sm90_tst_128x200_64x5_2x1_v_bz_coopA_bias_TNT"),
            "nvjet_sm90_tst_128x200_64x5_2x1_v_bz_coopA_bias_TNT");
  EXPECT_EQ(ShortName("graph 5"), "graph 5");
  EXPECT_EQ(ShortName("Memcpy DtoD (Device -> Device)"), "Memcpy DtoD (Device -> Device)");
  EXPECT_EQ(ShortName("bool ns::operator< <int>(A, B)").find("operator<") != std::string::npos,
            true);
}

TEST(ShortName, LeavesBrokenNamesWhole) {
  for (const char* name : {"void f<int(", "<<<<", "f(x))", "", "a<b", ")(", "operator"}) {
    EXPECT_EQ(ShortName(name), name);
  }
}

TEST(ShortName, SurvivesRandomBytes) {
  const std::string alphabet = "ab:<>(){}[] ,&*operator-";
  std::uint64_t state = 1;
  for (int round = 0; round < 20'000; ++round) {
    std::string name;
    for (int k = 0; k < round % 40; ++k) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      name += alphabet[(state >> 33) % alphabet.size()];
    }
    EXPECT_NO_THROW(ShortName(name)) << name;
  }
}

TEST(NameRules, FirstMatchWinsAndBadLinesAreNamed) {
  const NameRules rules = NameRules::Parse("# mine\nflash_fwd => attention\nfwd => other\n", "r");
  EXPECT_EQ(rules.Apply("void flash_fwd_kernel<int>(int)"), "attention");
  EXPECT_EQ(rules.Apply("my_fwd"), "other");
  EXPECT_EQ(rules.Apply("void g<1>(int)"), "g<1>");
  try {
    NameRules::Parse("a => b\nnonsense\n", "rules.txt");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rules.txt line 2: 'nonsense' is not PATTERN => SHORT NAME");
  }
}

TEST(ApiNames, LoseOneVersionAndOneSuffix) {
  EXPECT_EQ(NormalApiName("cudaLaunchKernel_v7000"), "cudaLaunchKernel");
  EXPECT_EQ(NormalApiName("cudaStreamGetCaptureInfo_v2_v11030"), "cudaStreamGetCaptureInfo_v2");
  EXPECT_EQ(NormalApiName("cudaMemcpyAsync_ptsz_v7000"), "cudaMemcpyAsync");
  EXPECT_EQ(NormalApiName("cuMemcpyHtoD_v2"), "cuMemcpyHtoD");
  EXPECT_EQ(NormalApiName("_v2"), "");
  EXPECT_EQ(NormalApiName("plain"), "plain");
}

TEST(MilliUnits, ParseTheTextExactly) {
  EXPECT_EQ(MilliUnits("1712195495521131.125"), 1712195495521131125);
  EXPECT_EQ(MilliUnits("0.0005"), 0);  // half to even
  EXPECT_EQ(MilliUnits("0.0015"), 2);
  EXPECT_EQ(MilliUnits("0.00151"), 2);
  EXPECT_EQ(MilliUnits("-2.5"), -2500);
  EXPECT_EQ(MilliUnits("12"), 12000);
  EXPECT_EQ(MilliUnits("1e3"), 1000000);
  EXPECT_FALSE(MilliUnits(""));
  EXPECT_FALSE(MilliUnits("abc"));
  EXPECT_FALSE(MilliUnits("99999999999999999999"));
  EXPECT_FALSE(MilliUnits("1.5x"));
}

TEST(Utf8, BadBytesBecomeReplacementCharacters) {
  EXPECT_EQ(ValidUtf8("ok \xC3\xA9"), "ok \xC3\xA9");
  EXPECT_EQ(ValidUtf8("\xFFx\xC3"), "\xEF\xBF\xBDx\xEF\xBF\xBD");
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace assay::timeline
