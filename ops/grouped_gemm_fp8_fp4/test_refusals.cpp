// Every refusal of the page, by typed calls, bundles, axes and attributes.
#include <gmock/gmock.h>

#include <utility>

#include "ops/grouped_gemm_fp8_fp4/test_small.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

using ::testing::HasSubstr;

TEST(GroupedGemm, RefusesBadRows) {
  SmallCase made = MakeSmall(WithRows({2, 0, 5}));
  std::int32_t* rows = made.test.inputs["m_indices"].as<std::int32_t>();
  const auto validate = [&] { made.family->validate_inputs(made.test.problem, made.test.inputs); };
  EXPECT_EQ(ErrorOf(validate), "no error");
  rows[4] = 3;
  EXPECT_THAT(ErrorOf(validate), HasSubstr("m_indices[4] = 3 is outside 0..2"));
  EXPECT_THAT(ErrorOf([&] { RunCpu(ArgsOf(made.test), 0); }), HasSubstr("m_indices[4] = 3"));
  rows[4] = -2;
  EXPECT_THAT(ErrorOf(validate), HasSubstr("m_indices[4] = -2 is outside 0..2"));
  rows[4] = -1;
  EXPECT_THAT(ErrorOf(validate), HasSubstr("padding rows need padding_rows = zero"));
  Args args = ArgsOf(made.test);
  args.padding = PaddingRows::kZero;
  EXPECT_EQ(Refusal(args), "");
}

TEST(GroupedGemm, RefusesBadOffsets) {
  for (const char* variant : {"offsets", "offsets_i64"}) {
    Small small = WithRows({2, 0, 5});
    small.variant = variant;
    SmallCase made = MakeSmall(small);
    const auto error = [&](std::int64_t at, std::int64_t value) {
      Tensor& offsets = made.test.inputs["expert_offsets"];
      const bool wide = offsets.dtype == DType::kI64;
      const std::int64_t kept =
          wide ? offsets.as<std::int64_t>()[at] : offsets.as<std::int32_t>()[at];
      const auto set = [&](std::int64_t x) {
        if (wide) {
          offsets.as<std::int64_t>()[at] = x;
        } else {
          offsets.as<std::int32_t>()[at] = static_cast<std::int32_t>(x);
        }
      };
      set(value);
      const std::string text =
          ErrorOf([&] { made.family->validate_inputs(made.test.problem, made.test.inputs); });
      set(kept);
      return text;
    };
    EXPECT_EQ(error(0, 0), "no error");
    EXPECT_THAT(error(0, 1), HasSubstr("expert_offsets[0] = 1, expected 0"));
    EXPECT_THAT(error(2, 1), HasSubstr("expert_offsets[2] = 1 is below expert_offsets[1] = 2"));
    EXPECT_THAT(error(3, 6), HasSubstr("expert_offsets[3] = 6, expected M = 7"));
    EXPECT_THAT(error(2, -1), HasSubstr("expert_offsets[2] = -1 is below"));
  }
}

TEST(GroupedGemm, RefusesNaNThatIsUsed) {
  for (const char* variant : {"tokens", "packed_scales", "padded_scales"}) {
    Small small = WithRows({2, 0, 5});
    small.variant = variant;
    SmallCase made = MakeSmall(small);
    const auto error = [&](const char* name, std::size_t at, std::uint8_t value) {
      std::byte& byte = made.test.inputs[name].data[at];
      const std::byte kept = std::exchange(byte, std::byte{value});
      const std::string text =
          ErrorOf([&] { made.family->validate_inputs(made.test.problem, made.test.inputs); });
      byte = kept;
      return text;
    };
    EXPECT_THAT(error("A", 3 * 256 + 12, 0xFF), HasSubstr("A[3,12] is NaN in a row of expert 2"));
    const bool packed = std::string(variant) == "packed_scales";
    const std::size_t row = std::string(variant) == "padded_scales" ? 16 : 8;
    // Group 6 of row 4; group 5 of column 63 of expert 2 and of the idle expert 1.
    const std::size_t a_at = packed ? (8 + 4) * 4 + 2 : 4 * row + 6;
    EXPECT_THAT(error("SFA", a_at, 255), HasSubstr("scale SFA[4,6] is NaN (byte 255)"));
    const auto w_at = [&](std::size_t e) {
      return packed ? ((e * 2 + 1) * 64 + 63) * 4 + 1 : (e * 64 + 63) * row + 5;
    };
    EXPECT_THAT(error("SFW", w_at(2), 255), HasSubstr("scale SFW[2,63,5] is NaN (byte 255)"));
    EXPECT_EQ(error("SFW", w_at(1), 255), "no error");
  }
}

TEST(GroupedGemm, RefusesWrongForms) {
  SmallCase made = MakeSmall({});
  const auto error = [&](const std::vector<TensorLayout>& layouts) {
    const Bundle inputs = Bundle::Allocate(layouts);
    return ErrorOf([&] { made.family->validate_inputs(made.test.problem, inputs); });
  };
  const std::vector<TensorLayout> right = made.test.inputs.layouts();
  const auto with = [&](std::size_t at, DType dtype, const Shape& shape) {
    std::vector<TensorLayout> layouts = right;
    layouts[at].dtype = dtype;
    layouts[at].shape = shape;
    return error(layouts);
  };
  EXPECT_THAT(with(0, DType::kE5M2, {24, 256}),
              HasSubstr("'A' is float8_e5m2[24,256], expected float8_e4m3fn[24,256]"));
  EXPECT_THAT(with(1, DType::kUE8M0, {24, 7}), HasSubstr("'SFA' is float8_e8m0fnu[24,7], expected "
                                                         "float8_e8m0fnu[24,8] or int32[2,24]"));
  EXPECT_THAT(with(1, DType::kF32, {24, 8}), HasSubstr("'SFA' is float32[24,8]"));
  EXPECT_THAT(with(1, DType::kI32, {2, 26}), HasSubstr("'SFA' is int32[2,26]"));
  EXPECT_THAT(with(2, DType::kE2M1, {8, 64, 128}), HasSubstr("'W' is float4_e2m1[8,64,128]"));
  EXPECT_THAT(with(2, DType::kU8, {8, 64, 256}), HasSubstr("expected uint8[8,64,128]"));
  EXPECT_THAT(with(3, DType::kUE8M0, {8, 64, 4}), HasSubstr("'SFW' is float8_e8m0fnu[8,64,4]"));
  EXPECT_THAT(with(4, DType::kI64, {24}), HasSubstr("'m_indices' is int64[24]"));
  std::vector<TensorLayout> layouts = right;
  layouts.pop_back();
  EXPECT_THAT(error(layouts), HasSubstr("neither m_indices nor expert_offsets is given"));
  layouts = right;
  layouts.push_back({"expert_offsets", DType::kI32, {8}});
  EXPECT_THAT(error(layouts), HasSubstr("'expert_offsets' is int32[8], expected int32[9]"));
  layouts = right;
  layouts.erase(layouts.begin());
  EXPECT_THAT(error(layouts), HasSubstr("input 'A' is missing"));
  // The other legal names of the same bytes.
  EXPECT_EQ(with(2, DType::kU8, {8, 64, 128}), "no error");
  EXPECT_EQ(with(1, DType::kU8, {24, 80}), "no error");
  EXPECT_EQ(with(3, DType::kI32, {8, 2, 68}), "no error");
}

TEST(GroupedGemm, RefusesBadCalls) {
  SmallCase made = MakeSmall({});
  const auto error = [&](const std::function<void(Args&)>& change) {
    Args args = ArgsOf(made.test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_EQ(error([](Args&) {}), "no error");
  EXPECT_THAT(error([](Args& a) { a.n = 96; }), HasSubstr("N = 96 is not a multiple of 64"));
  EXPECT_THAT(error([](Args& a) { a.k = 240; }), HasSubstr("K = 240 is not a multiple of 32"));
  EXPECT_THAT(error([](Args& a) { a.m = -1; }), HasSubstr("M = -1 is negative"));
  EXPECT_THAT(error([](Args& a) { a.lda = 255; }), HasSubstr("row stride of A, 255, is below"));
  EXPECT_THAT(error([](Args& a) { a.lda = 264; }), HasSubstr("row stride of A, 264, is not"));
  EXPECT_THAT(error([](Args& a) { a.sfa_stride = 7; }), HasSubstr("SFA, 7, is below"));
  EXPECT_THAT(error([](Args& a) { a.sfw_stride = 7; }), HasSubstr("SFW, 7, is below"));
  EXPECT_THAT(error([](Args& a) { a.ldd = 63; }), HasSubstr("row stride of D, 63, is below"));
  EXPECT_THAT(error([](Args& a) { a.a += 8; }), HasSubstr("A is not aligned to 16 bytes"));
  EXPECT_THAT(error([](Args& a) { a.w += 8; }), HasSubstr("W is not aligned to 16 bytes"));
  EXPECT_THAT(error([](Args& a) { a.w = nullptr; }), HasSubstr("W is null"));
  EXPECT_THAT(error([](Args& a) { a.sfa = nullptr; }), HasSubstr("SFA must be given once"));
  EXPECT_THAT(error([](Args& a) {
                a.sfw_packed = a.m_indices;
                a.sfw_packed_stride = 64;
              }),
              HasSubstr("SFW must be given once"));
  EXPECT_THAT(error([](Args& a) {
                a.sfa_packed = a.m_indices;
                a.sfa_packed_stride = 23;
              }),
              HasSubstr("row stride of SFA, 23, is below"));
  EXPECT_THAT(error([](Args& a) {
                a.sfa_packed = a.m_indices;
                a.sfa_packed_stride = 26;
              }),
              HasSubstr("row stride of SFA, 26, is not a multiple of 4"));
  EXPECT_THAT(error([](Args& a) { a.d = reinterpret_cast<bf16*>(const_cast<e4m3*>(a.a)) + 1000; }),
              HasSubstr("D overlaps A"));
  EXPECT_THAT(error([](Args& a) { a.m_indices = nullptr; }), HasSubstr("neither m_indices nor"));
}

TEST(GroupedGemm, RefusesBadAxesAndAttributes) {
  const auto error = [](const Small& small) { return ErrorOf([&] { MakeSmall(small); }); };
  EXPECT_THAT(error({.n = 96}), HasSubstr("N = 96 is not a multiple of 64"));
  EXPECT_THAT(error({.k = 100}), HasSubstr("K = 100 is not a multiple of 32"));
  EXPECT_THAT(error({.experts = 0}), HasSubstr("E = 0"));
  EXPECT_THAT(error({.k = 96, .variant = "packed_scales"}), HasSubstr("not a multiple of 128"));
  EXPECT_THAT(error({.attributes = {{"padding_rows", std::string("skip")}}}),
              HasSubstr("padding_rows must be the text \"zero\""));
  EXPECT_THAT(error({.variant = "offsets", .attributes = {{"padding_rows", std::string("zero")}}}),
              HasSubstr("cannot be told by expert_offsets"));
  EXPECT_THAT(error({.m = 5, .attributes = {{"expert_rows", List{2, 2}}}}),
              HasSubstr("expert_rows sums to 4, but M = 5"));
  EXPECT_THAT(error({.m = 5, .attributes = {{"expert_rows", List{6, -1}}}}),
              HasSubstr("expert_rows[0] = 6 is outside 0..5"));
  EXPECT_THAT(error({.experts = 1, .m = 5, .attributes = {{"expert_rows", List{5, 0}}}}),
              HasSubstr("expert_rows has 2 entries, but E = 1"));
}

}  // namespace
}  // namespace assay::grouped_gemm_fp8_fp4
