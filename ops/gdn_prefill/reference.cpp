// The truth of gdn_prefill: the recurrence of README.md in fp64, token by token, never the chunk
// form. The state of one head is kept as [K][V], so that the inner loops run over independent rows.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {
namespace {

// V rows advanced together: 128 x 32 doubles are 32 KB, the L1 of any server core.
constexpr std::int64_t kRows = 32;

double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The whole input in fp64, with gates.
struct Inputs {
  std::vector<double> q, k, v;  // [T, 4, 128], [T, 4, 128], [T, 8, 128]
  std::vector<double> g, beta;  // [T, 8]
  const float* state = nullptr;
  const std::int64_t* cu_seqlens = nullptr;
  double scale = 0;
  bool zero_empty_states = false;
};

std::vector<double> Widen(const Tensor& tensor) {
  std::vector<double> wide(static_cast<std::size_t>(tensor.elements()));
  const bf16* data = tensor.as<bf16>();
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = ToFloat(data[i]);
  return wide;
}

Inputs ReadInputs(const Problem& problem, const Bundle& bundle) {
  Inputs inputs;
  inputs.q = Widen(bundle["q"]);
  inputs.k = Widen(bundle["k"]);
  inputs.v = Widen(bundle["v"]);
  const std::vector<double> a = Widen(bundle["a"]), b = Widen(bundle["b"]);
  const float* a_log = bundle["A_log"].as<float>();
  const float* dt_bias = bundle["dt_bias"].as<float>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    const std::size_t h = i % kValueHeads;
    const double decay = std::exp(static_cast<double>(a_log[h]));
    inputs.g.push_back(std::exp(-decay * Softplus(a[i] + dt_bias[h])));
    inputs.beta.push_back(1 / (1 + std::exp(-b[i])));
  }
  if (const Tensor* state = bundle.find("state")) inputs.state = state->as<float>();
  inputs.cu_seqlens = bundle["cu_seqlens"].as<std::int64_t>();
  const Tensor* scale = bundle.find("scale");
  inputs.scale = scale != nullptr ? scale->as<float>()[0] : 0;
  if (inputs.scale == 0) inputs.scale = 1 / std::sqrt(128.0);
  inputs.zero_empty_states = ZeroEmptyStates(problem);
  return inputs;
}

// For every row number of an output, where it is in the list of wanted rows; -1 = not wanted.
std::vector<std::int64_t> Positions(const std::vector<std::int64_t>& rows, std::int64_t count) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count), -1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    positions[static_cast<std::size_t>(rows[i])] = static_cast<std::int64_t>(i);
  }
  return positions;
}

// kRows rows of the state of one (s, h).
struct Block {
  alignas(64) double s[kHeadSize][kRows] = {};

  // S = g S; S += beta (v - S k) k^T; out = S q; out_abs = sum |S q|.
  void Step(double g, double beta, const double* q, const double* k, const double* v,
            SumOrder order, double* out, double* out_abs) {
    double r[kRows] = {};
    for (std::int64_t step = 0; step < kHeadSize; ++step) {
      const std::int64_t i = order == SumOrder::kForward ? step : kHeadSize - 1 - step;
      for (std::int64_t row = 0; row < kRows; ++row) {
        s[i][row] = g * s[i][row];
        r[row] += s[i][row] * k[i];
      }
    }
    double u[kRows];
    for (std::int64_t row = 0; row < kRows; ++row) u[row] = beta * (v[row] - r[row]);
    double sum[kRows] = {}, sum_abs[kRows] = {};
    for (std::int64_t step = 0; step < kHeadSize; ++step) {
      const std::int64_t i = order == SumOrder::kForward ? step : kHeadSize - 1 - step;
      for (std::int64_t row = 0; row < kRows; ++row) {
        s[i][row] += u[row] * k[i];
        sum[row] += s[i][row] * q[i];
        sum_abs[row] += std::abs(s[i][row] * q[i]);
      }
    }
    for (std::int64_t row = 0; row < kRows; ++row) {
      out[row] = sum[row];
      out_abs[row] = sum_abs[row];
    }
  }
};

class Walk {
 public:
  Walk(const Inputs& inputs, const RowLists& rows, std::int64_t tokens, std::int64_t sequences,
       SumOrder order)
      : inputs_(inputs),
        order_(order),
        output_at_(Positions(rows[0], tokens * kValueHeads)),
        state_at_(Positions(rows[1], sequences * kValueHeads)) {
    output.value.resize(rows[0].size() * kHeadSize);
    output.scale.resize(rows[0].size() * kHeadSize);
    new_state.value.resize(rows[1].size() * kStateElements);
  }

  // Rows [first, first + kRows) of head h of sequence s, as far as anything wanted needs them.
  void Run(std::int64_t s, std::int64_t h, std::int64_t first) {
    const std::int64_t begin = inputs_.cu_seqlens[s], end = inputs_.cu_seqlens[s + 1];
    const std::int64_t state_at = state_at_[static_cast<std::size_t>(s * kValueHeads + h)];
    std::int64_t stop = end;
    if (state_at < 0) {
      while (stop > begin && OutputAt(stop - 1, h) < 0) --stop;
      if (stop == begin) return;
    }
    Block block;
    const bool zeros = inputs_.state == nullptr || (begin == end && inputs_.zero_empty_states);
    if (!zeros) LoadState(s, h, first, block);
    for (std::int64_t t = begin; t < stop; ++t) Token(t, h, first, block);
    if (state_at >= 0) StoreState(state_at, first, block);
  }

  ExpectedRows output, new_state;

 private:
  std::int64_t OutputAt(std::int64_t t, std::int64_t h) const {
    return output_at_[static_cast<std::size_t>(t * kValueHeads + h)];
  }

  void LoadState(std::int64_t s, std::int64_t h, std::int64_t first, Block& block) const {
    const float* head = inputs_.state + (s * kValueHeads + h) * kStateElements;
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      for (std::int64_t row = 0; row < kRows; ++row) {
        block.s[i][row] = head[(first + row) * kHeadSize + i];
      }
    }
  }

  void StoreState(std::int64_t at, std::int64_t first, const Block& block) {
    double* head = new_state.value.data() + at * kStateElements;
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      for (std::int64_t row = 0; row < kRows; ++row) {
        head[(first + row) * kHeadSize + i] = block.s[i][row];
      }
    }
  }

  void Token(std::int64_t t, std::int64_t h, std::int64_t first, Block& block) {
    const std::int64_t key_row = (t * kKeyHeads + h / 2) * kHeadSize;
    const std::int64_t value_row = t * kValueHeads + h;
    const auto gate = static_cast<std::size_t>(value_row);
    double out[kRows], out_abs[kRows];
    block.Step(inputs_.g[gate], inputs_.beta[gate], inputs_.q.data() + key_row,
               inputs_.k.data() + key_row, inputs_.v.data() + value_row * kHeadSize + first, order_,
               out, out_abs);
    const std::int64_t at = OutputAt(t, h);
    if (at < 0) return;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto element = static_cast<std::size_t>(at * kHeadSize + first + row);
      output.value[element] = inputs_.scale * out[row];
      output.scale[element] = std::abs(inputs_.scale) * out_abs[row];
    }
  }

  const Inputs& inputs_;
  const SumOrder order_;
  const std::vector<std::int64_t> output_at_, state_at_;
};

}  // namespace

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& bundle,
                                    const RowLists& rows, SumOrder order) {
  const Inputs inputs = ReadInputs(problem, bundle);
  const std::int64_t sequences = problem.axis("num_seqs");
  Walk walk(inputs, rows, problem.axis("total_seq_len"), sequences, order);
  constexpr std::int64_t kBlocks = kHeadSize / kRows;
  ParallelFor(sequences * kValueHeads * kBlocks, 0, [&](std::int64_t task) {
    const std::int64_t head = task / kBlocks;
    walk.Run(head / kValueHeads, head % kValueHeads, task % kBlocks * kRows);
  });
  return {std::move(walk.output), std::move(walk.new_state)};
}

}  // namespace assay::gdn_prefill
