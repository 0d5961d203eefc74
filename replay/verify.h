// Judges the outputs of one run against the fp64 reference, by the family's policies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/result.h"

namespace assay {

// The truth for one content set; computed once and used for every backend.
struct Expected {
  RowLists rows;
  std::vector<ExpectedRows> outputs;
  std::string invalid;  // why the reference judges nobody; "" = it is sound
};

// Runs the reference on the family's default rows (or on `rows` when given: sorted, unique, at
// least one per output that has rows), then again in reverse summation order on a few of them; the
// two must agree to 1e-6 relative. A NaN on finite inputs makes the reference invalid as well.
Expected ComputeExpected(const Family& family, const Problem& problem, const Bundle& inputs,
                         std::uint64_t seed);
Expected ComputeExpected(const Family& family, const Problem& problem, const Bundle& inputs,
                         RowLists rows);

struct Verdict {
  Status status = Status::kPassed;  // kPassed, kIncorrect or kInvalidReference
  std::string sub, reason;
  std::vector<std::string> flags;
  Correctness correctness;

  bool passed() const { return status == Status::kPassed; }
};

// Shape and dtype first, then rows, then whole-output checks. Where the reference is NaN or
// infinite the output must be so too; above the rounding limit of the output's type infinity is
// required, and within 1 % of it either result is right. Such elements leave all norms.
Verdict Verify(const Family& family, const Problem& problem, const Bundle& inputs,
               const Bundle& outputs, const Expected& expected, std::uint64_t seed);

// Element `index` of a tensor as a double; e2m1 is not an output type and throws.
double ElementAsDouble(const Tensor& tensor, std::int64_t index);

}  // namespace assay
