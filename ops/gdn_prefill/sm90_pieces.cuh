// Long sequences cut into pieces of some chunks, so that few of them fill the multiprocessors. The
// state is linear in the state before: over a piece, S' = S M + E, where row r of M is what the
// chain makes of row r of the identity without values, and E what it makes of zeros. Three steps: E
// and M of all pieces side by side, the states between the pieces one after the other
// (sm90_piece_starts.cu), and all pieces side by side from those.
#pragma once

#include "ops/gdn_prefill/sm90_chain.cuh"

namespace assay::gdn_prefill {

// Piece i of sequence s is number FirstPiece + i: distinct numbers, as FirstSlot. An empty sequence
// has one.
__host__ __device__ inline std::int64_t FirstPiece(std::int64_t cu_seqlen, std::int64_t sequence,
                                                   int chunks) {
  return cu_seqlen / (std::int64_t{chunks} * kChunk) + sequence;
}

struct Piece {
  std::int64_t sequence, begin, end;  // tokens
  std::int64_t number;                // of all pieces
  int index, count;                   // in its sequence; count 0 = the number is unused
};

__device__ inline int PiecesOf(std::int64_t tokens, int chunks) {
  const std::int64_t length = std::int64_t{chunks} * kChunk;
  return tokens == 0 ? 1 : static_cast<int>((tokens + length - 1) / length);
}

// By all threads of a CTA, with `shared` for the answer.
__device__ inline Piece FindPiece(const Args& args, int chunks, std::int64_t number,
                                  Piece& shared) {
  for (std::int64_t s = threadIdx.x; s < args.sequences; s += blockDim.x) {
    const std::int64_t begin = args.sequences == 1 ? 0 : args.cu_seqlens[s];
    const std::int64_t end = args.sequences == 1 ? args.tokens : args.cu_seqlens[s + 1];
    const std::int64_t first = FirstPiece(begin, s, chunks);
    if (number < first || number >= FirstPiece(end, s + 1, chunks)) continue;
    const auto index = static_cast<int>(number - first);
    const int count = PiecesOf(end - begin, chunks);
    const std::int64_t length = std::int64_t{chunks} * kChunk, from = begin + index * length;
    shared = {s, from, min(from + length, end), number, index, index < count ? count : 0};
  }
  __syncthreads();
  return shared;
}

}  // namespace assay::gdn_prefill
