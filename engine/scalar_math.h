// Scalar arithmetic that rounds the same on every machine: one rounding per function, no
// contraction, fixed reduction trees, an exponential of our own. Every executor that claims equal
// bits computes everything but its matrix products with these.
//
// Host code gets plain operators (the build forbids contraction); device code names the rounding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define ASSAY_HOST_DEVICE __host__ __device__
#else
#define ASSAY_HOST_DEVICE
#endif

namespace assay::engine::exact {

#ifdef __CUDA_ARCH__
__device__ inline float Mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float Sub(float a, float b) { return __fsub_rn(a, b); }
__device__ inline float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline float Div(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float Sqrt(float a) { return __fsqrt_rn(a); }
__device__ inline float FromBits(std::uint32_t bits) { return __uint_as_float(bits); }
#else
inline float Mul(float a, float b) { return a * b; }
inline float Add(float a, float b) { return a + b; }
inline float Sub(float a, float b) { return a - b; }
inline float Fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float Div(float a, float b) { return a / b; }
inline float Sqrt(float a) { return std::sqrt(a); }
inline float FromBits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
#endif

// The larger operand; a NaN on the left wins, one on the right loses.
ASSAY_HOST_DEVICE inline float Max(float a, float b) { return b > a ? b : a; }
ASSAY_HOST_DEVICE inline float Min(float a, float b) { return b < a ? b : a; }
ASSAY_HOST_DEVICE inline float Abs(float a) { return a < 0 ? -a : a; }

// 2^n for -126 <= n <= 127.
ASSAY_HOST_DEVICE inline float PowerOfTwo(int n) {
  return FromBits(static_cast<std::uint32_t>(n + 127) << 23);
}

// e^x within 2 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, then the Taylor polynomial of degree 7 by
// fma, then two exact scalings (results below 2^-126 are rounded once more).
ASSAY_HOST_DEVICE inline float Exp(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to integer
  if (!(x == x)) return x;
  const float clamped = Min(Max(x, -104.0f), 89.0f);  // beyond: 0 and infinity
  const float n = Sub(Add(Mul(clamped, kLog2E), kRound), kRound);
  const float r = Fma(-n, kLn2Low, Fma(-n, kLn2High, clamped));
  float p = 1.0f / 5040;
  p = Fma(p, r, 1.0f / 720);
  p = Fma(p, r, 1.0f / 120);
  p = Fma(p, r, 1.0f / 24);
  p = Fma(p, r, 1.0f / 6);
  p = Fma(p, r, 0.5f);
  p = Fma(p, r, 1.0f);
  p = Fma(p, r, 1.0f);
  const int whole = static_cast<int>(n), half = whole / 2;
  return Mul(Mul(p, PowerOfTwo(half)), PowerOfTwo(whole - half));
}

ASSAY_HOST_DEVICE inline float Sigmoid(float x) { return Div(1.0f, Add(1.0f, Exp(-x))); }
ASSAY_HOST_DEVICE inline float Silu(float x) { return Div(x, Add(1.0f, Exp(-x))); }
// ln(1 + y) for y >= 0: with 1 + y = m 2^n, n ln 2 + 2 atanh((m - 1) / (m + 1)). Small y keep their
// digits, because m - 1 is y itself there.
ASSAY_HOST_DEVICE inline float Log1p(float y) {
  constexpr float kSqrt2 = 1.41421356f, kLn2 = 0.693147181f;
  float m = Add(1.0f, y), n = 0, above = y;
  if (m > kSqrt2) {
    while (m > kSqrt2) m = Mul(m, 0.5f), n = Add(n, 1.0f);
    above = Sub(m, 1.0f);
  }
  const float t = Div(above, Add(above, 2.0f)), t2 = Mul(t, t);
  float p = 1.0f / 9;
  p = Fma(p, t2, 1.0f / 7);
  p = Fma(p, t2, 1.0f / 5);
  p = Fma(p, t2, 1.0f / 3);
  p = Fma(p, t2, 1.0f);
  return Fma(n, kLn2, Mul(Mul(2.0f, t), p));
}
ASSAY_HOST_DEVICE inline float Softplus(float x) { return x > 20 ? x : Log1p(Exp(x)); }
// 1 / sqrt(x), two roundings.
ASSAY_HOST_DEVICE inline float InverseSqrt(float x) { return Div(1.0f, Sqrt(x)); }

// ---- reduction trees ----
// A sum over n elements runs in 32 lanes: lane l takes elements l, l + 32, ... in ascending order,
// then lanes are added pairwise at distances 16, 8, 4, 2, 1. On a GPU that is one warp.
inline constexpr int kTreeLanes = 32;

[[gnu::always_inline]] inline float SumLanes(float (&lanes)[kTreeLanes]) {
  for (int step = kTreeLanes / 2; step > 0; step /= 2) {
    for (int lane = 0; lane < step; ++lane) lanes[lane] = Add(lanes[lane], lanes[lane + step]);
  }
  return lanes[0];
}

// sum of term(i) for i < n; n may be any length.
template <class Term>
[[gnu::always_inline]] inline float SumTree(std::int64_t n, const Term& term) {
  float lanes[kTreeLanes] = {};
  std::int64_t i = 0;
  for (; i + kTreeLanes <= n; i += kTreeLanes) {
    for (int lane = 0; lane < kTreeLanes; ++lane) lanes[lane] = Add(lanes[lane], term(i + lane));
  }
  for (int lane = 0; i + lane < n; ++lane) lanes[lane] = Add(lanes[lane], term(i + lane));
  return SumLanes(lanes);
}

// sum of a(i) * b(i) with one rounding per step.
template <class A, class B>
[[gnu::always_inline]] inline float DotTree(std::int64_t n, const A& a, const B& b) {
  float lanes[kTreeLanes] = {};
  std::int64_t i = 0;
  for (; i + kTreeLanes <= n; i += kTreeLanes) {
    for (int lane = 0; lane < kTreeLanes; ++lane) {
      lanes[lane] = Fma(a(i + lane), b(i + lane), lanes[lane]);
    }
  }
  for (int lane = 0; i + lane < n; ++lane) {
    lanes[lane] = Fma(a(i + lane), b(i + lane), lanes[lane]);
  }
  return SumLanes(lanes);
}

// ---- the index key's rotation ----
// x <- H x with H_ij = (-1)^popcount(i & j) / sqrt(n), n a power of two: butterflies at distances
// 1, 2, 4, ..., then one multiplication.
inline void Hadamard(float* x, int n) {
  for (int step = 1; step < n; step *= 2) {
    for (int block = 0; block < n; block += 2 * step) {
      for (int i = block; i < block + step; ++i) {
        const float a = x[i], b = x[i + step];
        x[i] = Add(a, b);
        x[i + step] = Sub(a, b);
      }
    }
  }
  const float scale = InverseSqrt(static_cast<float>(n));
  for (int i = 0; i < n; ++i) x[i] = Mul(x[i], scale);
}

}  // namespace assay::engine::exact
