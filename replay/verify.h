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

// Runs the reference on the family's default rows (or on `rows` when given), then again in reverse
// summation order on a few of them; the two must agree to 1e-6 relative.
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

Verdict Verify(const Family& family, const Problem& problem, const Bundle& inputs,
               const Bundle& outputs, const Expected& expected, std::uint64_t seed);

// Element `index` of a tensor as a double; e2m1 is not an output type and throws.
double ElementAsDouble(const Tensor& tensor, std::int64_t index);

}  // namespace assay
