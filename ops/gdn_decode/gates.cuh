// The two gates of a token and value head on the device, in fp32 and without branches: a branch
// would make a thread wait for the gates' inputs before it asks for the state. (gates.h is the same
// for the CPU.)
#pragma once

namespace assay::gdn_decode {

// ln(1 + e^x) to about 3e-7 relative: max(x, 0) + ln(1 + t) with t = e^-|x|, and
// ln(1 + t) = 2 (s + s^3 / 3 + s^5 / 5 + ...) with s = t / (2 + t) <= 1/3.
__device__ inline float Softplus(float x) {
  const float t = expf(-fabsf(x));
  const float s = __fdividef(t, 2.0f + t);
  const float s2 = s * s;
  float sum = 1.0f / 15;
  sum = fmaf(sum, s2, 1.0f / 13);
  sum = fmaf(sum, s2, 1.0f / 11);
  sum = fmaf(sum, s2, 1.0f / 9);
  sum = fmaf(sum, s2, 1.0f / 7);
  sum = fmaf(sum, s2, 1.0f / 5);
  sum = fmaf(sum, s2, 1.0f / 3);
  return fmaf(2 * s, fmaf(sum, s2, 1.0f), fmaxf(x, 0.0f));
}

// e^y for y <= 0. Near 0 as 1 + y (1 + y / 2! + ...), which is within half an ulp of 1: the state
// remembers thousands of tokens there, and a decay that leans the same way in each would show.
__device__ inline float ExpOfDecay(float y) {
  float sum = 1.0f / 40320;
  sum = fmaf(sum, y, 1.0f / 5040);
  sum = fmaf(sum, y, 1.0f / 720);
  sum = fmaf(sum, y, 1.0f / 120);
  sum = fmaf(sum, y, 1.0f / 24);
  sum = fmaf(sum, y, 1.0f / 6);
  sum = fmaf(sum, y, 0.5f);
  sum = fmaf(sum, y, 1.0f);
  const float near = fmaf(sum, y, 1.0f), far = expf(y);
  return y > -0.5f ? near : far;
}

// exp(-exp(A_log) softplus(x)) with x = a + dt_bias, 0..1. x = inf gives 0 even where e^A_log
// underflows.
__device__ inline float Decay(float exp_a_log, float x) {
  const float g = ExpOfDecay(-exp_a_log * Softplus(x));
  return x == INFINITY ? 0.0f : g;
}

// 1 / (1 + exp(-b)), 0..1.
__device__ inline float Beta(float b) { return __fdividef(1.0f, 1.0f + expf(-b)); }

}  // namespace assay::gdn_decode
