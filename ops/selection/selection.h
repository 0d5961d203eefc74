// What the rooms of exact top-k selections share: the fp64 choice, and the judge of choices that
// differ from it. Scores of an fp32 kernel are off by a few units in the last place, so candidates
// near the cut may change places; nothing else may.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/family.h"

namespace assay::selection {

// One candidate: its fp64 score (a NaN ranks last), and the error that an fp32 kernel may make in
// it.
struct Candidate {
  double score = 0, band = 0;
};

using Ids = std::vector<std::int32_t>;

// Ids of the `k` best candidates, ascending; all when there are no more. Higher score first, NaN
// last, then lower id.
Ids TopK(const std::vector<Candidate>& candidates, std::int64_t k);

// "" when ids [k] are min(k, n) strictly ascending ids of [0, n) and then -1. `what` names a
// candidate in messages ("group").
std::string FormProblem(const std::int32_t* ids, std::int64_t k, std::int64_t n,
                        const std::string& what);

// Why the set `got` of k well-formed ids is not a right answer; "" when all that was swapped lies
// in the near-tie band of the lowest selected score. `exact_tie` says that two candidates of equal
// fp64 score have equal scores in any precision: then the lower id must win.
std::string SelectionProblem(const std::vector<Candidate>& candidates, const Ids& got,
                             const std::string& what,
                             const std::function<bool(std::int32_t, std::int32_t)>& exact_tie);

// How the rows of one output of ids are judged.
struct RowRule {
  std::string output, what;  // "block_ids"; a candidate: "group"
  std::int64_t k = 0;
  std::function<std::int64_t(std::int64_t row)> candidates;  // how many the row has
  // SelectionProblem of the row's well-formed ids.
  std::function<std::string(std::int64_t row, const Ids& ids)> problem;
};

// Findings ids_well_formed, selection and near_tie_rows (which counts and never fails).
std::vector<Finding> RowChecks(const RowRule& rule, const Bundle& outputs,
                               const std::vector<std::int64_t>& rows, const ExpectedRows& expected);

}  // namespace assay::selection
