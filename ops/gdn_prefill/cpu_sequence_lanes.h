// The sequence kernel on vectors: lanes run along V, so that no sum over K crosses lanes. Included
// by the translation unit of one instruction set (see cpu/lanes.h). README.md derives the form.
#pragma once

#include <algorithm>

#include "cpu/lanes.h"
#include "ops/gdn_decode/gates.h"
#include "ops/gdn_prefill/cpu_sequence.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {
namespace {

using cpu::Broadcast;
using cpu::Floats;
using cpu::kLanes;
using cpu::Load;
using cpu::Store;

// Tokens advanced together: S is read once for 2 * kChunk products and once for the update. 4 x 2
// vectors x {k, q} are 16 accumulators; AVX2 and SSE have 16 registers, so one vector there.
constexpr int kChunk = 4;
constexpr int kVectors = kLanes == 16 ? 2 : 1;
constexpr int kGroupRows = kVectors * kLanes;
constexpr int kMaxGroups = kHeadSize / kGroupRows;
// Tokens whose q and k are widened at once: 64 KB that every group of rows then streams from L2, 1
// KB a token, while its 16 KB of state stay in L1.
constexpr int kBlockTokens = 64;
constexpr std::int64_t kKeyStride = kKeyHeads * kHeadSize;
constexpr std::int64_t kValueStride = kValueHeads * kHeadSize;

// The scalars of one chunk. D(i,j) = g_{j+1} ... g_i, a product, never a quotient: a wiped state
// (g = 0) and any decay are exact. D(i,-1) is the decay since the chunk began.
struct ChunkFactors {
  float beta[kChunk];
  float decay[kChunk];         // D(i,-1)
  float to_end[kChunk];        // D(last,i)
  float kk[kChunk][kChunk];    // D(i,j) k_i.k_j, j < i
  float qk[kChunk][kChunk];    // scale D(i,j) q_i.k_j, j <= i
  float output_decay[kChunk];  // scale D(i,-1)
};

struct TokenRows {
  float k[kHeadSize], q[kHeadSize];
};

// What all rows of a head share during kBlockTokens tokens.
struct Block {
  alignas(64) TokenRows rows[kBlockTokens];
  ChunkFactors chunks[kBlockTokens / kChunk];
};

// State as [group][K][row of the group].
struct Workspace {
  alignas(64) float state[kMaxGroups][kHeadSize][kGroupRows];
  Block block;
};

float Dot(const float* x, const float* y) {
  Floats sum = {};
  for (int i = 0; i < kHeadSize; i += kLanes) sum += Load(x + i) * Load(y + i);
  return cpu::Sum(sum);
}

void PrepareChunk(const TokenRows* rows, const gdn_decode::Gates* gates, int count, float scale,
                  ChunkFactors& factors) {
  for (int i = 0; i < count; ++i) {
    float decay = 1;  // D(i,j), from j = i downwards
    for (int j = i; j >= 0; --j) {
      factors.qk[i][j] = scale * decay * Dot(rows[i].q, rows[j].k);
      if (j < i) factors.kk[i][j] = decay * Dot(rows[i].k, rows[j].k);
      if (i == count - 1) factors.to_end[j] = decay;
      decay *= gates[j].g;
    }
    factors.beta[i] = gates[i].beta;
    factors.decay[i] = decay;
    factors.output_decay[i] = scale * decay;
  }
}

void PrepareBlock(const SequenceTask& task, std::int64_t first, int count, Block& block) {
  gdn_decode::Gates gates[kBlockTokens];
  for (int t = 0; t < count; ++t) {
    const std::int64_t token = first + t;
    for (int i = 0; i < kHeadSize; i += kLanes) {
      Store(Load(task.k + token * kKeyStride + i), block.rows[t].k + i);
      Store(Load(task.q + token * kKeyStride + i), block.rows[t].q + i);
    }
    gates[t] = gdn_decode::ComputeGates(task.a_log, task.a[token * kValueHeads], task.dt_bias,
                                        task.b[token * kValueHeads]);
  }
  for (int t = 0; t < count; t += kChunk) {
    PrepareChunk(block.rows + t, gates + t, std::min(kChunk, count - t), task.scale,
                 block.chunks[t / kChunk]);
  }
}

// One chunk of kCount tokens on one group of rows: products with the state before the chunk, the
// corrected updates u_i token by token, outputs, and the state after the chunk.
template <int kCount>
[[gnu::always_inline]] inline void AdvanceChunk(const ChunkFactors& factors, const TokenRows* rows,
                                                const bf16* v, bf16* output,
                                                float (*state)[kGroupRows]) {
  Floats s_k[kCount][kVectors] = {}, s_q[kCount][kVectors] = {};
  for (int i = 0; i < kHeadSize; ++i) {
#pragma GCC unroll 2
    for (int r = 0; r < kVectors; ++r) {
      const Floats s = Load(state[i] + r * kLanes);
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) {
        s_k[t][r] += s * Broadcast(rows[t].k[i]);
        s_q[t][r] += s * Broadcast(rows[t].q[i]);
      }
    }
  }
  Floats u[kCount][kVectors];
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t) {
#pragma GCC unroll 2
    for (int r = 0; r < kVectors; ++r) {
      Floats known = s_k[t][r] * factors.decay[t];
      Floats out = s_q[t][r] * factors.output_decay[t];
#pragma GCC unroll 4
      for (int j = 0; j < t; ++j) {
        known += u[j][r] * factors.kk[t][j];
        out += u[j][r] * factors.qk[t][j];
      }
      u[t][r] = (Load(v + t * kValueStride + r * kLanes) - known) * factors.beta[t];
      out += u[t][r] * factors.qk[t][t];
      Store(out, output + t * kValueStride + r * kLanes);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t) {
#pragma GCC unroll 2
    for (int r = 0; r < kVectors; ++r) u[t][r] = u[t][r] * factors.to_end[t];
  }
  const Floats decay = Broadcast(factors.decay[kCount - 1]);
  for (int i = 0; i < kHeadSize; ++i) {
#pragma GCC unroll 2
    for (int r = 0; r < kVectors; ++r) {
      Floats s = Load(state[i] + r * kLanes) * decay;
#pragma GCC unroll 4
      for (int t = 0; t < kCount; ++t) s += u[t][r] * Broadcast(rows[t].k[i]);
      Store(s, state[i] + r * kLanes);
    }
  }
}

void AdvanceGroup(const Block& block, int count, const bf16* v, bf16* output,
                  float (*state)[kGroupRows]) {
  int t = 0;
  for (; t + kChunk <= count; t += kChunk) {
    AdvanceChunk<kChunk>(block.chunks[t / kChunk], block.rows + t, v + t * kValueStride,
                         output + t * kValueStride, state);
  }
  const ChunkFactors& factors = block.chunks[t / kChunk];
  const TokenRows* rows = block.rows + t;
  v += t * kValueStride;
  output += t * kValueStride;
  static_assert(kChunk == 4, "the tail below has 1, 2 or 3 tokens");
  if (count - t == 3) AdvanceChunk<3>(factors, rows, v, output, state);
  if (count - t == 2) AdvanceChunk<2>(factors, rows, v, output, state);
  if (count - t == 1) AdvanceChunk<1>(factors, rows, v, output, state);
}

// Copies kLanes x kLanes tiles between the two layouts; `from` has rows of V, `to` rows of K or the
// other way round.
void TransposeTile(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  Floats tile[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) tile[i] = Load(from + i * from_stride);
  cpu::Transpose(tile);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) Store(tile[i], to + i * to_stride);
}

// `rows` is the group's first row of the [128 (V), 128 (K)] state; null = zeros.
void LoadGroup(const float* rows, float (*state)[kGroupRows]) {
  if (rows == nullptr) {
    std::fill(state[0], state[0] + kHeadSize * kGroupRows, 0.0f);
    return;
  }
  for (int row = 0; row < kGroupRows; row += kLanes) {
    for (int i = 0; i < kHeadSize; i += kLanes) {
      TransposeTile(rows + row * kHeadSize + i, kHeadSize, state[i] + row, kGroupRows);
    }
  }
}

void StoreGroup(const float (*state)[kGroupRows], float* rows) {
  for (int row = 0; row < kGroupRows; row += kLanes) {
    for (int i = 0; i < kHeadSize; i += kLanes) {
      TransposeTile(state[i] + row, kGroupRows, rows + row * kHeadSize + i, kHeadSize);
    }
  }
}

void RunSequence(const SequenceTask& task) {
  Workspace work;
  const auto groups = static_cast<int>((task.row_end - task.row_begin) / kGroupRows);
  const auto row_of = [&](int group) { return task.row_begin + group * kGroupRows; };
  for (int group = 0; group < groups; ++group) {
    const float* rows = task.state == nullptr ? nullptr : task.state + row_of(group) * kHeadSize;
    LoadGroup(rows, work.state[group]);
  }
  for (std::int64_t first = 0; first < task.tokens; first += kBlockTokens) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kBlockTokens, task.tokens - first));
    PrepareBlock(task, first, count, work.block);
    for (int group = 0; group < groups; ++group) {
      const std::int64_t at = first * kValueStride + row_of(group);
      AdvanceGroup(work.block, count, task.v + at, task.output + at, work.state[group]);
    }
  }
  for (int group = 0; group < groups; ++group) {
    StoreGroup(work.state[group], task.new_state + row_of(group) * kHeadSize);
  }
}

}  // namespace
}  // namespace assay::gdn_prefill
