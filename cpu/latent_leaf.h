// The inner loops of latent attention: one table of functions per instruction set, all made from
// the templates of latent_tile.h. Only <cstdint> here, for the reason given in attention_leaf.h.
#pragma once

#include <cstdint>

namespace assay {
struct bf16;
}

namespace assay::cpu {

inline constexpr int kLatentDim = 512;
// Heads of a task are a multiple of this: the widest group that one register tile handles.
inline constexpr int kLatentGroup = 32;
// Rows of `weights` and of `panel` that a leaf may write beyond the list.
inline constexpr int kLatentPadding = 8;

// Some heads of one query token against its list of latent rows, and the buffers of the thread that
// works on it. Bit patterns of bf16 are passed as uint16; buffers are 64-byte aligned.
struct LatentTask {
  int heads = 0;                            // a multiple of kLatentGroup
  std::int64_t count = 0;                   // rows in the list, at least 1
  const std::uint16_t* q = nullptr;         // [heads, 512]
  const bf16* const* rows = nullptr;        // [count], each 512 long; or
  const float* const* wide_rows = nullptr;  // the same in fp32
  float scale_log2e = 0;                    // weight = exp2(scale_log2e * (score - largest)), > 0

  float* packed_q = nullptr;      // [512, kLatentGroup]
  float* row_tile = nullptr;      // [kLatentPadding, 512]
  float* weights = nullptr;       // [heads, count + kLatentPadding]
  float* panel = nullptr;         // [count + kLatentPadding, kLatentGroup]
  float* largest = nullptr;       // [heads], the largest score, unscaled
  float* sum = nullptr;           // [heads], the sum of the weights
  const float* factor = nullptr;  // [heads]
  std::uint16_t* out = nullptr;   // [heads, 512]
};

struct LatentLeaf {
  const char* name;
  // Fills weights, largest and sum; `weights` is in the leaf's own format.
  void (*weigh)(const LatentTask&);
  // out = round_bf16(factor * sum_j weight_j row_j), factor per head.
  void (*combine)(const LatentTask&);
};

const LatentLeaf& BaselineLatentLeaf();
const LatentLeaf& Avx2LatentLeaf();        // needs AVX2 and FMA
const LatentLeaf& Avx512LatentLeaf();      // needs AVX-512 F, BW, DQ and VL
const LatentLeaf& Avx512Bf16LatentLeaf();  // and AVX512-BF16; fp32 for wide_rows

}  // namespace assay::cpu
