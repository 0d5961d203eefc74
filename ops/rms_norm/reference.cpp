// The truth of rms_norm: the formula of README.md in fp64, row by row.
#include <cmath>

#include "ops/rms_norm/spec.h"

namespace assay::rms_norm {

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const std::int64_t n = problem.axis("N");
  const bf16* weight = inputs["weight"].as<bf16>();
  ExpectedRows y;
  for (const std::int64_t row : rows[0]) {
    const bf16* x = inputs["x"].as<bf16>() + row * n;
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double value = ToFloat(x[order == SumOrder::kForward ? i : n - 1 - i]);
      squares += value * value;
    }
    const double rms = std::sqrt(squares / static_cast<double>(n) + double{EpsOf(problem)});
    for (std::int64_t i = 0; i < n; ++i) {
      y.value.push_back(ToFloat(x[i]) / rms * double{ToFloat(weight[i])});
    }
  }
  return {std::move(y)};
}

}  // namespace assay::rms_norm
