// What both recurrent kernels (sm90_recurrent.cu, sm90_recurrent16.cu) share: what a CTA works on,
// and pairs of bf16 as words and as operands.
#pragma once

#include <cstdint>

#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {
namespace {

// What a CTA works on, in chunks of kTokens.
template <int kTokens>
struct RecurrentTask {
  std::int64_t begin = 0, tokens = 0;  // of the sequence
  std::int64_t state_head = 0;         // s * 8 + h
  int head = 0, row = 0;               // h and the first row
  __device__ std::int64_t chunks() const { return (tokens + kTokens - 1) / kTokens; }
};

// Of this CTA, when each has kRows rows of V.
template <int kRows, int kTokens>
__device__ RecurrentTask<kTokens> FindTask(const Args& args) {
  constexpr int kCtas = static_cast<int>(kHeadSize) / kRows;
  RecurrentTask<kTokens> task;
  task.state_head = blockIdx.x / kCtas;
  task.head = static_cast<int>(task.state_head % kValueHeads);
  task.row = static_cast<int>(blockIdx.x % kCtas) * kRows;
  if (args.sequences == 1) {  // known without a look: saves a trip to memory
    task.tokens = args.tokens;
  } else {
    const std::int64_t* cu = args.cu_seqlens + task.state_head / kValueHeads;
    task.begin = cu[0];
    task.tokens = cu[1] - cu[0];
  }
  return task;
}

__device__ float Low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float High(std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ float Widen(bf16 x) { return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16); }

// d += a b with a [16,16], b [16,8] bf16, d fp32; fragments as in cuda/mma.cuh.
__device__ void MmaBF16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                        std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace
}  // namespace assay::gdn_prefill
