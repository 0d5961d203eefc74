// The inner loops of CPU attention: one table of functions per instruction set, all made from the
// templates of attention_tile.h. Only <cstdint> here: these files are compiled with wider
// instruction sets than the rest, so an inline function of a common header must not leak from them.
#pragma once

#include <cstdint>

namespace assay::cpu {

// Keys of one step of the online softmax. 128 keys of 64 channels are 32 KB in fp32, so a panel of
// K (64 keys x 128 channels) or of V (128 keys x 64 channels) lives in a 48 KB L1.
inline constexpr int kKeyBlock = 128;
// Query rows of one register tile; row counts given to a leaf are multiples of it.
inline constexpr int kRowStep = 6;

// Buffers are 64-byte aligned. Rows of scores are kKeyBlock floats apart, rows of q and o are
// head_dim apart. Bit patterns of bf16 are passed as uint16; counts are multiples of 64.
struct AttentionLeaf {
  const char* name;

  void (*widen)(const std::uint16_t* from, int count, float* to);
  // to = round_bf16(from * factor), nearest even, NaN kept quiet.
  void (*narrow)(const float* from, float factor, int count, std::uint16_t* to);
  // fp32 copy of `keys` rows, transposed: [kKeyBlock / panel][head_dim][panel]; missing keys are 0.
  void (*pack_keys)(const std::uint16_t* const* rows, int keys, int head_dim, float* packed);
  // fp32 copy of `keys` rows: [head_dim / panel][kKeyBlock][panel]. False when it holds Inf or NaN.
  bool (*pack_values)(const std::uint16_t* const* rows, int keys, int head_dim, float* packed);
  // s[rows, keys] = q[rows, head_dim] k^T; columns up to the end of the last panel are written.
  void (*scores)(const float* q, int rows, const float* packed_k, int keys, int head_dim, float* s);
  // One online softmax step: s becomes exp2((s - max) * scale_log2e), row_max and row_sum are
  // updated, factor[row] is what earlier sums of the row must be multiplied by.
  void (*softmax)(float* s, int rows, int keys, float scale_log2e, float* row_max, float* row_sum,
                  float* factor);
  // o = factor * o + p v.
  void (*accumulate)(const float* p, int rows, const float* packed_v, int keys, int head_dim,
                     const float* factor, float* o);
  // Element (key, channel) of the layout of pack_values, in floats.
  int (*value_offset)(int key, int channel);
};

const AttentionLeaf& BaselineAttentionLeaf();
const AttentionLeaf& Avx2AttentionLeaf();    // needs AVX2 and FMA
const AttentionLeaf& Avx512AttentionLeaf();  // needs AVX-512 F, BW, DQ and VL

}  // namespace assay::cpu
