// What the two kernels of the chunk path agree on: how sequences are cut into chunks, and the
// workspace through which the first hands its results to the second. README.md has the algebra.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/gdn_prefill/sm90.h"

namespace assay::gdn_prefill {

inline constexpr int kChunk = 64;  // tokens

// From here on a float rounds to an infinity in fp16.
inline constexpr float kHalfOverflow = 65520;

// Matrices of fp16 in rows of 64, 128 bytes; unit u (16 bytes) of row r lies at u ^ (r % 8): the
// 128-byte swizzle of wgmma, and ldmatrix reads eight rows without bank conflicts. They are copied
// as they are between global and shared memory.
struct KeyTile {  // of a chunk and key head, [half of the head][token]; behind the sequence zeros
  std::uint16_t k[2][kChunk * 64];
  std::uint16_t q[2][kChunk * 64];
};
enum Gate { kBeta, kBetaDecay, kFromStart, kToEnd, kGates };
struct HeadTile {                    // of a chunk and value head
  std::uint16_t t[kChunk * kChunk];  // (I + A)^-1, [token i][token j], zeros above the diagonal
  std::uint16_t p[kChunk * kChunk];  // e^(G_i - G_j) q_i . k_j for j <= i, else 0
  // Per token i: beta_i, beta_i e^(G_i), e^(G_i), e^(G_63 - G_i). Behind the sequence beta = 0 and
  // g = 1. NaN in kFromStart[63] sends the (sequence, head) to the recurrence.
  float gates[kGates][kChunk];
};
static_assert(sizeof(KeyTile) == 32768 && sizeof(HeadTile) == 17408);

// Chunk i of sequence s is number FirstSlot + i: distinct numbers that need no sums over the other
// sequences, at the price of some that stay unused.
__host__ __device__ inline std::int64_t FirstSlot(std::int64_t cu_seqlen, std::int64_t sequence) {
  return cu_seqlen / kChunk + sequence;
}

// A box of a state's map. The wide chain stores 16 rows at a time.
inline constexpr int kStateRows = 64, kStateColumns = 32, kWideStoreRows = 16;

// Of what the chains of 64 rows move by TMA.
struct ChainMaps {
  CUtensorMap v;
  // fp32 [sequences (ends, starts: pieces) x 8 x 128, 128], box 64 x 32 (new_state of the wide
  // chain: 16 x 32) with the 128-byte swizzle. What is absent is a copy of new_state.
  CUtensorMap state, new_state, ends, starts;
};

struct Workspace {
  KeyTile* keys = nullptr;              // [slots, 4]
  HeadTile* heads = nullptr;            // [slots, 8]
  const std::int32_t* order = nullptr;  // [sequences]: which come first; null = 0, 1, ..
  // The wide chain: CTA c walks items first_item[c] .. first_item[c + 1] - 1 (WideSchedule).
  const std::int32_t *items = nullptr, *first_item = nullptr;
  int ctas = 0;
  // Pieces (sm90_pieces.cuh); 0 = sequences are not cut.
  int piece_chunks = 0;
  float *ends = nullptr,
        *starts = nullptr;               // [pieces, 8, 128, 128]: E and the states before pieces
  std::uint16_t* transitions = nullptr;  // M: [pieces, 8] of [2][128][64] in fp16, swizzled
  int* arrivals = nullptr;               // [sequences, 8, 2], zeros between calls
};

// sm90_factors.cu. The first kernel: everything that depends on q, k and gates alone. It lets a
// programmatic dependent start at once.
void LaunchFactors(const Args& args, const Workspace& workspace, Stream stream);

// The second kernel, a programmatic dependent of the first: walks the chunks of each sequence in
// order. 16 or 32 rows of V a CTA (sm90_chain_narrow.cu); `v_map`: args.v as [tokens, 8, 128], box
// 16 x 1 x 64.
void LaunchNarrowChain(const Args& args, const Workspace& workspace, const CUtensorMap& v_map,
                       int rows, Stream stream);
// 64 rows (sm90_chain_wide.cu); maps.v as above.
void LaunchWideChain(const Args& args, const Workspace& workspace, const ChainMaps& maps,
                     Stream stream);
// 64 rows, two CTAs on a multiprocessor (sm90_chain_paired.cu); with pieces three kernels. maps.v
// has boxes of 64 x 1 x 64 with the 128-byte swizzle.
void LaunchPairedChain(const Args& args, const Workspace& workspace, const ChainMaps& maps,
                       Stream stream);
// sm90_piece_starts.cu
void LaunchPieceStarts(const Args& args, const Workspace& workspace, Stream stream);

// Bytes from the start of a matrix with rows of 64.
__device__ inline int Swizzled(int row, int unit) { return (row * 8 + (unit ^ (row & 7))) * 16; }

// The same of k or q: units 0-15 of a token.
__device__ inline int SwizzledKey(int row, int unit) {
  return unit / 8 * kChunk * 128 + Swizzled(row, unit % 8);
}

// Two floats as fp16, `low` in the lower half.
__device__ inline std::uint32_t PackHalf(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace assay::gdn_prefill
