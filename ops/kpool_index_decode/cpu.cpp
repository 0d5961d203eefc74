// The CPU backend of kpool_index_decode: a page of pools is decoded once for all rows of its
// request and scored head by head in vector lanes; then each row selects.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "base/parallel.h"
#include "base/simd.h"
#include "ops/kpool_index_decode/spec.h"

namespace assay::kpool_index_decode {
namespace {

constexpr std::int64_t kPagesPerTask = 4;
constexpr int kTile = 4;  // pools at once: 4 x 32 sums hide the latency of a multiply-add

const std::array<float, 256>& CodeTable() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (unsigned code = 0; code < 256; ++code) {
      values[code] = ToFloat(e4m3{static_cast<std::uint8_t>(code)});
    }
    return values;
  }();
  return table;
}

// Queries of a row as fp32, heads innermost: [128, 32].
void TransposeQuery(const e4m3* q, float* out) {
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t d = 0; d < kHeadSize; ++d) {
      out[d * kHeads + h] = CodeTable()[q[h * kHeadSize + d].bits];
    }
  }
}

// Scores of 4 pools, keys [4, 128] fp32: the dot products of all heads in lanes, then heads in
// ascending order.
ASSAY_VECTOR_CLONES void ScoreTile(const float* q, const float* weights, const float* keys,
                                   const float* scales, float* scores) {
  float dots[kTile][kHeads] = {};
  for (std::int64_t d = 0; d < kHeadSize; ++d) {
    for (int pool = 0; pool < kTile; ++pool) {
      const float key = keys[pool * kHeadSize + d];
      for (std::int64_t h = 0; h < kHeads; ++h) dots[pool][h] += key * q[d * kHeads + h];
    }
  }
  for (int pool = 0; pool < kTile; ++pool) {
    float sum = 0;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const float dot = dots[pool][h];
      sum += weights[h] * (dot < 0 ? 0.0f : dot);  // a NaN stays
    }
    scores[pool] = sum * scales[pool];
  }
}

// What all tasks read and write: queries [rows, 128, 32] and the scores of each row.
struct Scoring {
  std::vector<float> queries, scores;
  std::vector<std::int64_t> first_score;  // of each row
};

// Pools [begin, end) of request `b` for all its rows; `begin` is a multiple of 64.
void ScorePools(const Args& args, std::int64_t b, std::int64_t begin, std::int64_t end,
                Scoring& scoring) {
  alignas(64) float keys[kTile * kHeadSize];
  float scales[kTile], scores[kTile];
  for (std::int64_t pool = begin; pool < end; pool += kTile) {
    const std::int64_t count = std::min<std::int64_t>(kTile, end - pool);
    for (std::int64_t i = 0; i < kTile; ++i) {
      // The rest of the last tile repeats its last pool; the results are not used.
      const std::int64_t source = pool + std::min(i, count - 1);
      const std::uint8_t* key = KeyOf(args, b, source);
      for (std::int64_t d = 0; d < kHeadSize; ++d) keys[i * kHeadSize + d] = CodeTable()[key[d]];
      scales[i] = ScaleOf(args, b, source);
    }
    for (std::int64_t row = b * args.rows; row < (b + 1) * args.rows; ++row) {
      const std::int64_t visible = std::min(VisiblePools(args, row) - pool, count);
      if (visible <= 0) continue;
      ScoreTile(scoring.queries.data() + row * kHeads * kHeadSize, args.weights + row * kHeads,
                keys, scales, scores);
      std::copy(scores, scores + visible,
                scoring.scores.data() + scoring.first_score[static_cast<std::size_t>(row)] + pool);
    }
  }
}

// Larger for better scores, 0 for a NaN; -0 equals 0.
std::uint32_t Rank(float score) {
  if (std::isnan(score)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The k best of n scores, ascending; equal ones by lower position. Rank and position make one
// number, so that one comparison orders both.
void Select(const float* scores, std::int64_t n, std::int64_t k, std::int32_t* ids) {
  const std::int64_t count = std::min(n, k);
  if (n <= k) {
    for (std::int64_t i = 0; i < n; ++i) ids[i] = static_cast<std::int32_t>(i);
  } else {
    std::vector<std::uint64_t> order(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = std::uint64_t{~Rank(scores[i])} << 32 | i;
    }
    std::nth_element(order.begin(), order.begin() + k - 1, order.end());
    for (std::int64_t i = 0; i < k; ++i) {
      ids[i] = static_cast<std::int32_t>(order[static_cast<std::size_t>(i)]);
    }
    std::sort(ids, ids + k);
  }
  std::fill(ids + count, ids + k, -1);
}

}  // namespace

void RunCpu(const Args& args, int threads) {
  Check(args);
  const std::int64_t rows = args.batch * args.rows;
  Scoring scoring;
  scoring.queries.resize(static_cast<std::size_t>(rows * kHeads * kHeadSize));
  struct Piece {
    std::int64_t b, begin, end;
  };
  std::vector<Piece> pieces;
  std::int64_t scores = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    TransposeQuery(args.q + row * kHeads * kHeadSize,
                   scoring.queries.data() + row * kHeads * kHeadSize);
    scoring.first_score.push_back(scores);
    const std::int64_t n = VisiblePools(args, row);
    scores += n;
    // The last row sees the most; below top_k nothing needs a score.
    if (row % args.rows != args.rows - 1 || n <= args.top_k) continue;
    for (std::int64_t begin = 0; begin < n; begin += kPagesPerTask * kPagePools) {
      pieces.push_back({row / args.rows, begin, std::min(begin + kPagesPerTask * kPagePools, n)});
    }
  }
  scoring.scores.resize(static_cast<std::size_t>(scores));
  ParallelFor(static_cast<std::int64_t>(pieces.size()), threads, [&](std::int64_t i) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    ScorePools(args, piece.b, piece.begin, piece.end, scoring);
  });
  ParallelFor(rows, threads, [&](std::int64_t row) {
    Select(scoring.scores.data() + scoring.first_score[static_cast<std::size_t>(row)],
           VisiblePools(args, row), args.top_k, args.pool_ids + row * args.top_k);
  });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary =
      "keys decoded once for all rows of a request, 32 heads in lanes, exact selection";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::kpool_index_decode
