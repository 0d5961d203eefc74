// The truth of kda_decode and kda_verify: the formulas of README.md in fp64, loop by loop.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "ops/kda_decode/spec.h"

namespace assay::kda_decode {
namespace {

// The i-th summand's index under the requested order of sums.
std::int64_t Ordered(std::int64_t i, SumOrder order) {
  return order == SumOrder::kForward ? i : kHeadSize - 1 - i;
}

struct HeadInputs {
  double beta = 0;
  double q[kHeadSize] = {}, k[kHeadSize] = {}, v[kHeadSize] = {}, decay[kHeadSize] = {};
};

void Normalise(double* x, SumOrder order) {
  double squares = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    squares += x[Ordered(i, order)] * x[Ordered(i, order)];
  }
  for (std::int64_t i = 0; i < kHeadSize; ++i) x[i] /= std::sqrt(squares + 1e-6);
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// ln of the decay of channel `d` of head `h`, from the raw gate.
double LogDecay(const Problem& problem, const Bundle& inputs, std::int64_t h, std::int64_t d,
                double a) {
  const double x = a + inputs["dt_bias"].as<float>()[h * kHeadSize + d];
  const Gate gate = GateOf(problem);
  if (gate == Gate::kPlain) return LowerBoundOf(problem) * Sigmoid(x);
  const double rate = std::exp(static_cast<double>(inputs["A_log"].as<float>()[h]));
  return gate == Gate::kBounded ? LowerBoundOf(problem) * Sigmoid(rate * x) : -rate * Softplus(x);
}

// Row `row` = token * H + h.
HeadInputs ReadHead(const Problem& problem, const Bundle& inputs, std::int64_t row,
                    SumOrder order) {
  const std::int64_t h = row % problem.axis("H"), at = row * kHeadSize;
  HeadInputs head;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    head.q[i] = ToFloat(inputs["q"].as<bf16>()[at + i]);
    head.k[i] = ToFloat(inputs["k"].as<bf16>()[at + i]);
    head.v[i] = ToFloat(inputs["v"].as<bf16>()[at + i]);
    const double a = ToFloat(inputs["a"].as<bf16>()[at + i]);
    head.decay[i] = std::exp(LogDecay(problem, inputs, h, i, a));
  }
  if (QkNormOf(problem)) {
    Normalise(head.q, order);
    Normalise(head.k, order);
  }
  for (double& x : head.q) x /= std::sqrt(128.0);
  head.beta = Sigmoid(ToFloat(inputs["b"].as<bf16>()[row]));
  return head;
}

// Row `v` of one head's state becomes what the token makes of it; the output, and the magnitude of
// the output's summands.
void StepRow(const HeadInputs& head, std::int64_t v, SumOrder order, double* state, double& output,
             double& magnitude) {
  for (std::int64_t i = 0; i < kHeadSize; ++i) state[i] *= head.decay[i];
  double predicted = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    predicted += state[Ordered(i, order)] * head.k[Ordered(i, order)];
  }
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    state[i] += head.beta * (head.v[v] - predicted) * head.k[i];
  }
  output = magnitude = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const double summand = state[Ordered(i, order)] * head.q[Ordered(i, order)];
    output += summand;
    magnitude += std::abs(summand);
  }
}

// Everything about one row: [128] outputs, their magnitudes, [128, 128] state.
struct RowTruth {
  double output[kHeadSize] = {}, magnitude[kHeadSize] = {};
  std::vector<double> state = std::vector<double>(kStateElements);
};

// Row `row` = (n * rows + r) * H + h: the committed state of (n, h), then tokens 0 to r.
RowTruth TruthOf(const Problem& problem, const Bundle& inputs, std::int64_t row, SumOrder order) {
  const std::int64_t heads = problem.axis("H"), h = row % heads, token = row / heads;
  const std::int64_t n = token / RowsOf(problem);
  RowTruth truth;
  if (const Tensor* state = inputs.find("state")) {
    const float* committed = state->as<float>() + (n * heads + h) * kStateElements;
    std::copy(committed, committed + kStateElements, truth.state.begin());
  }
  for (std::int64_t t = n * RowsOf(problem); t <= token; ++t) {
    const HeadInputs head = ReadHead(problem, inputs, t * heads + h, order);
    for (std::int64_t v = 0; v < kHeadSize; ++v) {
      StepRow(head, v, order, truth.state.data() + v * kHeadSize, truth.output[v],
              truth.magnitude[v]);
    }
  }
  return truth;
}

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  ExpectedRows output, state;
  output.value.resize(rows[0].size() * kHeadSize);
  output.scale.resize(rows[0].size() * kHeadSize);
  state.value.resize(rows[1].size() * kStateElements);
  ParallelFor(static_cast<std::int64_t>(rows[0].size()), 0, [&](std::int64_t i) {
    const RowTruth truth = TruthOf(problem, inputs, rows[0][static_cast<std::size_t>(i)], order);
    std::copy_n(truth.output, kHeadSize, output.value.begin() + i * kHeadSize);
    std::copy_n(truth.magnitude, kHeadSize, output.scale.begin() + i * kHeadSize);
    // As a rule both lists are the same, and one computation serves both.
    if (rows[0] == rows[1]) {
      std::copy(truth.state.begin(), truth.state.end(), state.value.begin() + i * kStateElements);
    }
  });
  ParallelFor(
      rows[0] == rows[1] ? 0 : static_cast<std::int64_t>(rows[1].size()), 0, [&](std::int64_t i) {
        const RowTruth truth =
            TruthOf(problem, inputs, rows[1][static_cast<std::size_t>(i)], order);
        std::copy(truth.state.begin(), truth.state.end(), state.value.begin() + i * kStateElements);
      });
  return {std::move(output), std::move(state)};
}

}  // namespace assay::kda_decode
