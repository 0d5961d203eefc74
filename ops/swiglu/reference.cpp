// The truth of swiglu: the formula of README.md in fp64.
#include <cmath>

#include "ops/swiglu/spec.h"

namespace assay::swiglu {
namespace {

// A NaN stays: no comparison with it holds.
double AtMost(double x, double limit) { return x > limit ? limit : x; }
double AtLeast(double x, double limit) { return x < limit ? limit : x; }

}  // namespace

// There are no sums: both orders are the same.
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder) {
  const std::int64_t n = problem.axis("N");
  const double limit = LimitOf(problem);
  ExpectedRows y;
  for (const std::int64_t row : rows[0]) {
    for (std::int64_t i = row * n; i < (row + 1) * n; ++i) {
      const double gate = AtMost(ToFloat(inputs["gate"].as<bf16>()[i]), limit);
      const double up = AtLeast(AtMost(ToFloat(inputs["up"].as<bf16>()[i]), limit), -limit);
      y.value.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  return {std::move(y)};
}

}  // namespace assay::swiglu
