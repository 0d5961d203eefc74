// The inner loops of the CPU kernel and their builds for each instruction set.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace assay::qsa_index_topk_decode {

// Scores groups [begin, end) of one row; begin is the first group of a page.
struct ScoreTask {
  const bf16* q = nullptr;  // [4, 128]
  const std::byte* cache = nullptr;
  std::int64_t page_stride_bytes = 0;
  const std::int32_t* pages = nullptr;  // the row's page table
  std::int64_t begin = 0, end = 0;
  // [end - begin]: head sums before the division by sqrt(128), >= 0 or NaN with its sign bit set.
  float* scores = nullptr;
};

// Scratch entries that a selection needs beyond its n scores.
inline constexpr std::int64_t kSelectSlack = 64;

struct SelectTask {
  const float* scores = nullptr;  // [n], as a ScoreTask leaves them
  std::int64_t n = 0, top_k = 0;  // n >= top_k > 0
  std::int32_t* ids = nullptr;    // [top_k], ascending
  // Running maxima, then keys and ids of candidates. [SelectColumns(top_k)], [n + slack] twice.
  std::int32_t *columns = nullptr, *keys = nullptr, *candidates = nullptr;
};

// Interleaved columns into which a selection sorts its scores: enough that the top_k best of their
// maxima leave few other candidates, and whole blocks of any instruction set.
constexpr std::int64_t SelectColumns(std::int64_t top_k) {
  return top_k <= 512 ? 1024 : (2 * top_k + 63) / 64 * 64;
}

struct Leaf {
  void (*score)(const ScoreTask& task);
  void (*select)(const SelectTask& task);
};

extern const Leaf kLeafBaseline;
extern const Leaf kLeafAvx2;
extern const Leaf kLeafAvx512;

}  // namespace assay::qsa_index_topk_decode
