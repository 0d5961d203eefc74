// What both attention rooms need for verification: the fp64 row and the rows to look at.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::attention {

// One visible key: `dim` channels of K and of V.
struct VisibleKey {
  const bf16* k = nullptr;
  const bf16* v = nullptr;
};

// value[d] = sum_j p_j v_j[d] and weight[d] = sum_j p_j |v_j[d]| with p = softmax(q.k_j / sqrt(dim)),
// all in fp64, sums in the given order; zeros when `keys` is empty.
void AttendRow(const bf16* q, const std::vector<VisibleKey>& keys, std::int64_t dim, SumOrder order,
               double* value, double* weight);

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
std::int64_t SliceOfRow(const Problem& problem, std::int64_t row);

// Captured grade, flash grade and the relative L2 guard of both pages.
OutputPolicy Policy();

}  // namespace assay::attention
