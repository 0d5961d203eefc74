// Our conversions against the host versions of the CUDA toolkit's types, code by code. Built where
// the toolkit is; needs no device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"

namespace assay {
namespace {

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }

bool SameOrNaN(float a, float b) { return (std::isnan(a) && std::isnan(b)) || Bits(a) == Bits(b); }

// Calls `visit` for every upper half of fp32 with tricky lower halves, NaN left out.
template <class Visit>
void ForFloats(const Visit& visit) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x5A5Au, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      if (!std::isnan(x)) visit(x);
    }
  }
}

TEST(CudaTypes, DecodeEvery16BitCode) {
  for (unsigned code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    ASSERT_TRUE(SameOrNaN(ToFloat(bf16{bits}), __bfloat162float(__nv_bfloat16_raw{bits}))) << code;
    ASSERT_TRUE(SameOrNaN(ToFloat(f16{bits}), __half2float(__half_raw{bits}))) << code;
  }
}

TEST(CudaTypes, DecodeEvery8And4BitCode) {
  for (unsigned code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const auto half = [&](__nv_fp8_interpretation_t kind) {
      return __half2float(__nv_cvt_fp8_to_halfraw(bits, kind));
    };
    EXPECT_TRUE(SameOrNaN(ToFloat(e4m3{bits}), half(__NV_E4M3))) << code;
    EXPECT_TRUE(SameOrNaN(ToFloat(e5m2{bits}), half(__NV_E5M2))) << code;
    EXPECT_TRUE(SameOrNaN(ToFloat(ue8m0{bits}), __bfloat162float(__nv_cvt_e8m0_to_bf16raw(bits))))
        << code;
    if (code < 16) {
      EXPECT_TRUE(
          SameOrNaN(E2M1ToFloat(code), __half2float(__nv_cvt_fp4_to_halfraw(bits, __NV_E2M1))))
          << code;
    }
  }
}

TEST(CudaTypes, EncodeFloats) {
  ForFloats([](float x) {
    ASSERT_EQ(ToBF16(x).bits, __nv_bfloat16_raw(__float2bfloat16_rn(x)).x) << x;
    ASSERT_EQ(ToF16(x).bits, __half_raw(__float2half_rn(x)).x) << x;
    ASSERT_EQ(ToE4M3(x).bits, __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) << x;
    ASSERT_EQ(ToE5M2(x).bits, __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2)) << x;
    ASSERT_EQ(ToE2M1(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest)) << x;
  });
}

TEST(CudaTypes, EncodeDoublesWithoutDoubleRounding) {
  ForFloats([](float single) {
    // A little more and a little less than what fp32 can say.
    for (const double x : {single * (1 + 0x1p-40), single * (1 - 0x1p-40)}) {
      ASSERT_EQ(ToBF16(x).bits, __nv_bfloat16_raw(__double2bfloat16(x)).x) << x;
      ASSERT_EQ(ToF16(x).bits, __half_raw(__double2half(x)).x) << x;
      ASSERT_EQ(ToE4M3(x).bits, __nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E4M3)) << x;
      ASSERT_EQ(ToE2M1(x), __nv_cvt_double_to_fp4(x, __NV_E2M1, cudaRoundNearest)) << x;
    }
  });
}

TEST(CudaTypes, EncodeNaN) {
  const float nan = std::nanf("");
  EXPECT_EQ(ToE4M3(nan).bits, __nv_cvt_float_to_fp8(nan, __NV_SATFINITE, __NV_E4M3));
  EXPECT_EQ(ToE2M1(nan), __nv_cvt_float_to_fp4(nan, __NV_E2M1, cudaRoundNearest));
}

}  // namespace
}  // namespace assay
