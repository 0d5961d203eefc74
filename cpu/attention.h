// Softmax attention of bf16 tensors on the CPU, shared by the attention rooms: flash style, fp32
// inside, one rounding at the end, key sequences of two pieces, row limits and visibility masks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace assay::cpu {

// Distances in elements between neighbours of one axis; the channels of a head are contiguous.
struct AttentionStrides {
  std::int64_t batch = 0, token = 0, head = 0;

  static AttentionStrides Contiguous(std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
    return {tokens * heads * dim, heads * dim, dim};
  }
};

// A piece of the key sequence.
struct AttentionKeys {
  std::int64_t count = 0;
  const bf16* k = nullptr;  // [batch, count, heads, head_dim]
  AttentionStrides k_strides;
  const bf16* v = nullptr;  // [batch, count, heads, head_dim]
  AttentionStrides v_strides;
};

// Bytes, 0 = this query does not see this key. Strides of 0 broadcast.
struct AttentionMask {
  const std::uint8_t* visible = nullptr;  // [batch, heads, queries, keys]; null = all visible
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

// O = round_bf16(softmax(scale * Q K^T over visible keys) V); rows without a visible key are 0.
struct Attention {
  std::int64_t batch = 0, queries = 0, heads = 0;
  std::int64_t head_dim = 0;  // a multiple of 64
  float scale = 0;
  const bf16* q = nullptr;  // [batch, queries, heads, head_dim]
  AttentionStrides q_strides;
  std::array<AttentionKeys, 2> keys;  // one sequence: all of keys[0], then all of keys[1]
  AttentionMask mask;
  const std::int64_t* limits = nullptr;  // [queries]: query i sees keys j < limits[i]; null = all
  bf16* o = nullptr;                     // [batch, queries, heads, head_dim], overwritten
  AttentionStrides o_strides;
};

// Every output row is computed in the same order whatever `threads` is (as in ParallelRanges), so
// results are bitwise reproducible on one machine.
void Run(const Attention& attention, int threads);

struct AttentionLeaf;  // inner loops for one instruction set, see attention_leaf.h
// The instruction sets that this machine can run, best first; `Run` takes the first.
std::vector<const AttentionLeaf*> RunnableAttentionLeaves();
void RunWith(const AttentionLeaf& leaf, const Attention& attention, int threads);

}  // namespace assay::cpu
