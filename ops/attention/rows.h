// What both attention rooms need for verification: the fp64 row and the rows to look at.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::attention {

// One key: `dim` channels of K and of V.
struct Key {
  const bf16* k = nullptr;
  const bf16* v = nullptr;
};

// Rows of one (batch, head), computed together so that its keys are widened once.
struct RowGroup {
  std::vector<const bf16*> q;  // one a row, dim channels
  std::vector<Key> keys;       // in key order
  std::int64_t dim = 0;
  double scale = 0;  // of the scores; 0 = 1 / sqrt(dim)
  // Does row number `row` see key number `key`? Null = every row sees every key.
  std::function<bool(std::size_t row, std::size_t key)> visible;
  std::vector<double*> value, weight;  // one a row: where the results go, dim doubles each
};

// value[d] = sum_j p_j v_j[d] and weight[d] = sum_j p_j |v_j[d]| over visible keys with
// p = softmax(scale q.k_j), all in fp64, sums over keys in the given order; zeros when a row
// sees no key. An invisible key has no influence whatever it holds.
void AttendRows(const RowGroup& group, SumOrder order);

// Calls body(batch, head, positions) for the rows of an output [batch, queries, heads, dim]; all
// rows[positions[i]] of one call belong to that (batch, head). Calls run in parallel.
void ForEachHead(const std::vector<std::int64_t>& rows, std::int64_t queries, std::int64_t heads,
                 const std::function<void(std::int64_t batch, std::int64_t head,
                                          const std::vector<std::size_t>& positions)>& body);

// Query numbers in [0, queries): 0, 1, the last, and the neighbours of the first and last multiples
// of the kernels' tile heights 64, 128, 176 and 192, and of every number in `borders`.
std::vector<std::int64_t> EdgeQueries(std::int64_t queries,
                                      const std::vector<std::int64_t>& borders = {});

// Sorted rows (b, q, h) of an output [batch, queries, heads, dim]: every edge query of every (b, h)
// and `random` seeded ones.
std::vector<std::int64_t> SampleRows(std::int64_t batch, std::int64_t queries, std::int64_t heads,
                                     const std::vector<std::int64_t>& edges, std::int64_t random,
                                     std::uint64_t seed);
std::vector<std::int64_t> AllOutputRows(std::int64_t batch, std::int64_t queries,
                                        std::int64_t heads);

// (batch, head) of a row of an output whose problem has axes Nq and H.
std::int64_t SliceOfRow(const Problem& problem, const Bundle& inputs, std::int64_t row);

// Captured grade, flash grade and the relative L2 guard of both pages.
OutputPolicy Policy();

}  // namespace assay::attention
