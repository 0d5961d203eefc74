// Task bodies of the residual streams: mHC sites, the end of the trunk, the MTP layer's residual.
#include <algorithm>
#include <vector>

#include "base/simd.h"
#include "engine/scalar_math.h"
#include "engine/step.h"

namespace assay::engine {
namespace {

using exact::Add;
using exact::Div;
using exact::Exp;
using exact::Fma;
using exact::Mul;
using exact::Sub;

// Output y of the previous site, columns [n0, n1): routed experts by ascending id, shared expert
// last, one rounding; or simply what one producer wrote.
void GatherOutput(const Step& step, int row, bool experts, std::int64_t n0, std::int64_t n1,
                  float* y) {
  const bf16* output = step.workspace->row<bf16>(Buf::kOutput, row);
  for (std::int64_t i = n0; i < n1; ++i) y[i - n0] = ToFloat(output[i]);
  if (!experts) return;
  std::vector<float> sums(static_cast<std::size_t>(n1 - n0), 0.0f);
  const std::int64_t k = step.config().experts_per_token;
  const std::int32_t* slots = Routes(step).slots + row * k;
  const float* weights = step.workspace->row<float>(Buf::kRouteWeights, row);
  for (std::int64_t e = 0; e < k; ++e) {
    const bf16* expert =
        step.workspace->row<bf16>(Buf::kExpertOut, slots[e] * step.program->rows() + row);
    for (std::int64_t i = n0; i < n1; ++i) {
      float& sum = sums[static_cast<std::size_t>(i - n0)];
      sum = Fma(weights[e], ToFloat(expert[i]), sum);
    }
  }
  for (std::int64_t i = 0; i < n1 - n0; ++i) {
    y[i] = ToFloat(ToBF16(Add(sums[static_cast<std::size_t>(i)], y[i])));
  }
}

// R'_j = post_j y + sum_k C_kj R_k, in that order, on one slice.
ASSAY_VECTOR_CLONES void UpdateStreams(const Step& step, const Task& task, bf16* streams) {
  const std::int64_t hidden = step.config().hidden;
  const std::int64_t previous = task.part == 1   ? task.layer
                                : task.part == 2 ? task.layer
                                                 : task.layer - 1;
  const bool experts = task.part != 1 && !step.config().dense(previous);
  float y[kMixSlice];
  GatherOutput(step, task.row, experts, task.n0, task.n1, y);
  const float* post = step.workspace->row<float>(Buf::kHyper, task.row);
  const float* c = post + kStreamCount;  // [source][destination]
  for (std::int64_t i = task.n0; i < task.n1; ++i) {
    float old[kStreamCount];
    for (int k = 0; k < kStreamCount; ++k) old[k] = ToFloat(streams[k * hidden + i]);
    for (int j = 0; j < kStreamCount; ++j) {
      float sum = Mul(post[j], y[i - task.n0]);
      for (int k = 0; k < kStreamCount; ++k) sum = Fma(c[k * kStreamCount + j], old[k], sum);
      streams[j * hidden + i] = ToBF16(sum);
    }
  }
}

// 24 partial mixes and the partial sum of squares of one slice of all four streams: element e of
// the slice is column e % 64 of stream e / 64.
ASSAY_VECTOR_CLONES void PartialMixes(const Step& step, const Task& task, const bf16* streams) {
  const std::int64_t hidden = step.config().hidden;
  const LayerWeights& w = step.layer(task);
  const HyperWeights& hyper = task.part == 0 ? w.attention_mix : w.ffn_mix;
  float slice[kStreamCount * kMixSlice];
  for (std::int64_t e = 0; e < kStreamCount * kMixSlice; ++e) {
    slice[e] = ToFloat(streams[e / kMixSlice * hidden + task.n0 + e % kMixSlice]);
  }
  const auto value = [&](std::int64_t e) { return slice[e]; };
  float* partials =
      step.workspace->row<float>(Buf::kPartials, task.row) + task.index * (kMixes + 1);
  for (int o = 0; o < kMixes; ++o) {
    float lanes[exact::kTreeLanes] = {};  // as DotTree over the slice, with rows of F contiguous
    for (std::int64_t e = 0; e < kStreamCount * kMixSlice; e += exact::kTreeLanes) {
      const float* fn =
          hyper.fn.data() + (o * kStreamCount + e / kMixSlice) * hidden + task.n0 + e % kMixSlice;
      for (int lane = 0; lane < exact::kTreeLanes; ++lane) {
        lanes[lane] = Fma(slice[e + lane], fn[lane], lanes[lane]);
      }
    }
    partials[o] = exact::SumLanes(lanes);
  }
  partials[kMixes] = exact::DotTree(kStreamCount * kMixSlice, value, value);
}

// Makes C doubly stochastic: softmax of the rows, then columns and rows in turn.
void Sinkhorn(const ModelConfig& config, float (&c)[kStreamCount][kStreamCount]) {
  const auto eps = static_cast<float>(config.hc_eps);
  for (auto& row : c) {
    float top = row[0], sum = 0;
    for (const float value : row) top = exact::Max(top, value);
    for (float& value : row) sum = Add(sum, value = Exp(Sub(value, top)));
    for (float& value : row) value = Add(Div(value, sum), eps);
  }
  for (int round = 0; round < config.sinkhorn_rounds; ++round) {
    if (round > 0) {
      for (auto& row : c) {
        const float sum = Add(Add(Add(Add(row[0], row[1]), row[2]), row[3]), eps);
        for (float& value : row) value = Div(value, sum);
      }
    }
    for (int k = 0; k < kStreamCount; ++k) {
      const float sum = Add(Add(Add(Add(c[0][k], c[1][k]), c[2][k]), c[3][k]), eps);
      for (auto& row : c) row[k] = Div(row[k], sum);
    }
  }
}

}  // namespace

void Mix(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const std::int64_t hidden = step.config().hidden;
  bf16* streams = step.workspace->row<bf16>(Buf::kStreams, task.row);
  if (task.layer == 0 && task.part == 0) {
    const bf16* embed = step.model->embed.row(step.tokens[static_cast<std::size_t>(task.row)]);
    for (int j = 0; j < kStreamCount; ++j) {
      std::copy(embed + task.n0, embed + task.n1, streams + j * hidden + task.n0);
    }
  } else {
    UpdateStreams(step, task, streams);
  }
  if (task.part != 2) PartialMixes(step, task, streams);
}

ASSAY_VECTOR_CLONES void MixIn(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const ModelConfig& config = step.config();
  const LayerWeights& w = step.layer(task);
  const HyperWeights& hyper = task.part == 0 ? w.attention_mix : w.ffn_mix;
  const float* partials = step.workspace->row<float>(Buf::kPartials, task.row);
  float m[kMixes + 1] = {};
  for (std::int64_t slice = 0; slice < step.program->slices(); ++slice) {
    for (int o = 0; o <= kMixes; ++o) m[o] = Add(m[o], partials[slice * (kMixes + 1) + o]);
  }
  const float mean = Div(m[kMixes], static_cast<float>(kStreamCount * config.hidden));
  const float r = exact::InverseSqrt(Add(mean, static_cast<float>(config.rms_eps)));
  float pre[kStreamCount], c[kStreamCount][kStreamCount];
  float* out = step.workspace->row<float>(Buf::kHyper, task.row);
  const auto mixed = [&](int o, int scale) {
    return Fma(Mul(m[o], r), hyper.scale[static_cast<std::size_t>(scale)],
               hyper.base[static_cast<std::size_t>(o)]);
  };
  for (int j = 0; j < kStreamCount; ++j) {
    pre[j] = Add(exact::Sigmoid(mixed(j, 0)), static_cast<float>(config.hc_eps));
    out[j] = Mul(2.0f, exact::Sigmoid(mixed(4 + j, 1)));
    for (int k = 0; k < kStreamCount; ++k) c[j][k] = mixed(8 + 4 * j + k, 2);
  }
  Sinkhorn(config, c);
  std::copy(&c[0][0], &c[0][0] + kStreamCount * kStreamCount, out + kStreamCount);

  const bf16* streams = step.workspace->row<bf16>(Buf::kStreams, task.row);
  std::vector<bf16> x(static_cast<std::size_t>(config.hidden));
  for (std::int64_t i = 0; i < config.hidden; ++i) {
    float sum = Mul(pre[0], ToFloat(streams[i]));
    for (int j = 1; j < kStreamCount; ++j)
      sum = Fma(pre[j], ToFloat(streams[j * config.hidden + i]), sum);
    x[static_cast<std::size_t>(i)] = ToBF16(sum);
  }
  RmsNormRow(x.data(), (task.part == 0 ? w.input_norm : w.ffn_norm).data(), config.hidden,
             config.rms_eps, step.workspace->row<bf16>(Buf::kInput, task.row));
}

// h = mean of the streams, f = rms(h).
void End(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const std::int64_t hidden = step.config().hidden;
  const bf16* streams = step.workspace->row<bf16>(Buf::kStreams, task.row);
  std::vector<bf16> h(static_cast<std::size_t>(hidden));
  for (std::int64_t i = 0; i < hidden; ++i) {
    float sum = ToFloat(streams[i]);
    for (int j = 1; j < kStreamCount; ++j) sum = Add(sum, ToFloat(streams[j * hidden + i]));
    h[static_cast<std::size_t>(i)] = ToBF16(Mul(sum, 1.0f / kStreamCount));
  }
  RmsNormRow(h.data(), step.model->norm.data(), hidden, step.config().rms_eps,
             step.workspace->row<bf16>(Buf::kHidden, task.row));
}

void MtpEmbed(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const ModelConfig& config = step.config();
  bf16* both = step.workspace->row<bf16>(Buf::kMtpInput, task.row);
  if (step.position(task.row) == 0) {
    std::fill(both, both + config.hidden, bf16{});
  } else {
    RmsNormRow(step.model->embed.row(step.tokens[static_cast<std::size_t>(task.row)]),
               step.model->mtp.embed_norm.data(), config.hidden, config.rms_eps, both);
  }
  RmsNormRow(step.hidden.data() + task.row * config.hidden, step.model->mtp.hidden_norm.data(),
             config.hidden, config.rms_eps, both + config.hidden);
}

void MtpProject(const Step& step, const Task& task) {
  const std::int64_t hidden = step.config().hidden;
  step.ForLiveRuns([&](int row, int count) {
    LinearToBF16(step, step.model->mtp.project, task.n0, task.n1,
                 step.workspace->row<bf16>(Buf::kMtpInput, row), 2 * hidden, count,
                 step.workspace->row<bf16>(Buf::kStreams, row) + task.n0, hidden);
  });
}

void MtpResidual(const Step& step, const Task& task) {
  if (!step.live(task.row)) return;
  const ModelConfig& config = step.config();
  bf16* x = step.workspace->row<bf16>(Buf::kStreams, task.row);
  if (task.part > 0) {
    std::vector<float> y(static_cast<std::size_t>(config.hidden));
    GatherOutput(step, task.row, task.part == 2, 0, config.hidden, y.data());
    for (std::int64_t i = 0; i < config.hidden; ++i) {
      x[i] = ToBF16(Add(ToFloat(x[i]), y[static_cast<std::size_t>(i)]));
    }
  }
  const LayerWeights& w = step.layer(task);
  const std::vector<float>& norm = task.part == 0   ? w.input_norm
                                   : task.part == 1 ? w.ffn_norm
                                                    : step.model->mtp.final_norm;
  RmsNormRow(x, norm.data(), config.hidden, config.rms_eps,
             step.workspace->row<bf16>(task.part == 2 ? Buf::kHidden : Buf::kInput, task.row));
}

}  // namespace assay::engine
