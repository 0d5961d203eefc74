// The truth of gdn_decode: the two-step recurrence of README.md in fp64, loop by loop.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "ops/gdn_decode/spec.h"

namespace assay::gdn_decode {
namespace {

double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The k-th summand's index under the requested order of sums.
std::int64_t Ordered(std::int64_t k, SumOrder order) {
  return order == SumOrder::kForward ? k : kHeadSize - 1 - k;
}

struct HeadInputs {
  double g = 0, beta = 0, scale = 0;
  double q[kHeadSize] = {}, k[kHeadSize] = {}, v[kHeadSize] = {};
  const float* state = nullptr;  // [128 (V), 128 (K)], null = zeros
};

HeadInputs ReadHead(const Bundle& inputs, std::int64_t n, std::int64_t h) {
  const std::int64_t c = h / 2;
  HeadInputs head;
  const double a_log = inputs["A_log"].as<float>()[h];
  const double dt_bias = inputs["dt_bias"].as<float>()[h];
  const double a = ToFloat(inputs["a"].as<bf16>()[n * kValueHeads + h]);
  const double b = ToFloat(inputs["b"].as<bf16>()[n * kValueHeads + h]);
  head.g = std::exp(-std::exp(a_log) * Softplus(a + dt_bias));
  head.beta = 1 / (1 + std::exp(-b));
  const Tensor* scale = inputs.find("scale");
  head.scale = scale != nullptr ? scale->as<float>()[0] : 0;
  if (head.scale == 0) head.scale = 1 / std::sqrt(128.0);
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    head.q[i] = ToFloat(inputs["q"].as<bf16>()[(n * kKeyHeads + c) * kHeadSize + i]);
    head.k[i] = ToFloat(inputs["k"].as<bf16>()[(n * kKeyHeads + c) * kHeadSize + i]);
    head.v[i] = ToFloat(inputs["v"].as<bf16>()[(n * kValueHeads + h) * kHeadSize + i]);
  }
  if (const Tensor* state = inputs.find("state")) {
    head.state = state->as<float>() + (n * kValueHeads + h) * kStateElements;
  }
  return head;
}

// Row `v` of one head: its new state, output and the magnitude of the output's summands.
void StepRow(const HeadInputs& head, std::int64_t v, SumOrder order, double* state, double& output,
             double& magnitude) {
  for (std::int64_t k = 0; k < kHeadSize; ++k) {
    state[k] = head.g * (head.state != nullptr ? head.state[v * kHeadSize + k] : 0.0);
  }
  double r = 0;
  for (std::int64_t k = 0; k < kHeadSize; ++k) {
    r += state[Ordered(k, order)] * head.k[Ordered(k, order)];
  }
  for (std::int64_t k = 0; k < kHeadSize; ++k) {
    state[k] += head.beta * (head.v[v] - r) * head.k[k];
  }
  double sum = 0, sum_abs = 0;
  for (std::int64_t k = 0; k < kHeadSize; ++k) {
    const double summand = state[Ordered(k, order)] * head.q[Ordered(k, order)];
    sum += summand;
    sum_abs += std::abs(summand);
  }
  output = head.scale * sum;
  magnitude = std::abs(head.scale) * sum_abs;
}

// Where `row` is in the sorted list, or -1.
std::int64_t PositionOf(const std::vector<std::int64_t>& rows, std::int64_t row) {
  const auto it = std::lower_bound(rows.begin(), rows.end(), row);
  return it != rows.end() && *it == row ? it - rows.begin() : -1;
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem&, const Bundle& inputs, const RowLists& rows,
                                    SumOrder order) {
  ExpectedRows output, new_state;
  output.value.resize(rows[0].size() * kHeadSize);
  output.scale.resize(rows[0].size() * kHeadSize);
  new_state.value.resize(rows[1].size() * kStateElements);
  // Both outputs number their rows (n, h) as n * 8 + h.
  std::vector<std::int64_t> heads;
  std::set_union(rows[0].begin(), rows[0].end(), rows[1].begin(), rows[1].end(),
                 std::back_inserter(heads));
  ParallelFor(static_cast<std::int64_t>(heads.size()), 0, [&](std::int64_t i) {
    const std::int64_t row = heads[static_cast<std::size_t>(i)];
    const HeadInputs head = ReadHead(inputs, row / kValueHeads, row % kValueHeads);
    const std::int64_t output_at = PositionOf(rows[0], row);
    const std::int64_t state_at = PositionOf(rows[1], row);
    for (std::int64_t v = 0; v < kHeadSize; ++v) {
      double state[kHeadSize], value = 0, magnitude = 0;
      StepRow(head, v, order, state, value, magnitude);
      if (output_at >= 0) {
        const auto at = static_cast<std::size_t>(output_at * kHeadSize + v);
        output.value[at] = value;
        output.scale[at] = magnitude;
      }
      if (state_at >= 0) {
        std::copy(state, state + kHeadSize,
                  new_state.value.begin() + state_at * kStateElements + v * kHeadSize);
      }
    }
  });
  return {std::move(output), std::move(new_state)};
}

}  // namespace assay::gdn_decode
