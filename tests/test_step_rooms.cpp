// The rooms of the decode step against the engine's own fp64 formulas: two references that share no
// code give the same values for the same inputs.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "engine/reference.h"
#include "ops/kda_decode/spec.h"
#include "ops/kpool_index_decode/spec.h"
#include "ops/mhc/spec.h"
#include "ops/moe_decode/spec.h"
#include "ops/rms_norm/spec.h"
#include "ops/swiglu/spec.h"
#include "replay/room_test.h"

namespace assay {
namespace {

using engine::reference::Vec;

// All rows of the room's reference, one vector per output.
std::vector<ExpectedRows> RoomTruth(const TestCase& test) {
  return test.family->reference(test.problem, test.inputs, AllRows(test), SumOrder::kForward);
}

template <class T>
Vec ToVec(const Tensor& tensor, std::int64_t begin, std::int64_t count) {
  Vec values;
  for (std::int64_t i = begin; i < begin + count; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      values.push_back(tensor.as<float>()[i]);
    } else {
      values.push_back(ToFloat(tensor.as<T>()[i]));
    }
  }
  return values;
}

std::vector<float> Floats(const Tensor& tensor) {
  return {tensor.as<float>(), tensor.as<float>() + tensor.elements()};
}

void ExpectSame(const Vec& engine, const double* room, double tolerance, const std::string& what) {
  for (std::size_t i = 0; i < engine.size(); ++i) {
    ASSERT_NEAR(engine[i], room[i], tolerance * (1 + std::abs(room[i]))) << what << " " << i;
  }
}

Vec Normalised(Vec x, double scale) {
  double squares = 1e-6;
  for (const double value : x) squares += value * value;
  for (double& value : x) value *= scale / std::sqrt(squares);
  return x;
}

// gates: the engine's LogDecay; recurrence: its DeltaStep.
void CompareKda(const std::string& definition, engine::GateKind gate) {
  constexpr std::int64_t kSize = kda_decode::kHeadSize, kState = kda_decode::kStateElements;
  const Family family = kda_decode::MakeFamily();
  TestCase test = MakeTestCase(family, definition, {{"batch_size", 1}}, 3);
  const std::vector<ExpectedRows> truth = RoomTruth(test);
  engine::ModelConfig config;
  config.gate = gate;
  config.gate_lower_bound = kda_decode::LowerBoundOf(test.problem);
  engine::KdaWeights weights;
  weights.a_log = Floats(test.inputs["A_log"]);
  weights.dt_bias = Floats(test.inputs["dt_bias"]);
  for (std::int64_t h = 0; h < test.problem.axis("H"); ++h) {
    const auto row = [&](const char* name) {
      return ToVec<bf16>(test.inputs[name], h * kSize, kSize);
    };
    Vec state = ToVec<float>(test.inputs["state"], h * kState, kState);
    const Vec output = engine::reference::DeltaStep(
        state.data(), Normalised(row("q"), 1 / std::sqrt(128.0)), Normalised(row("k"), 1), row("v"),
        engine::reference::LogDecay(config, weights, h, row("a")),
        engine::reference::Sigmoid(ToFloat(test.inputs["b"].as<bf16>()[h])));
    ExpectSame(output, truth[0].value.data() + h * kSize, 1e-12, "output");
    ExpectSame(state, truth[1].value.data() + h * kState, 1e-12, "state");
  }
}

TEST(StepRooms, KdaDecode) {
  CompareKda("kda_decode_h64_d128", engine::GateKind::kBounded);
  CompareKda("kda_decode_h64_d128_unbounded", engine::GateKind::kUnbounded);
}

std::vector<float> Widened(const Tensor& tensor) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    values.push_back(ToFloat(tensor.as<bf16>()[i]));
  }
  return values;
}

TEST(StepRooms, RmsNorm) {
  const Family family = rms_norm::MakeFamily();
  TestCase test = MakeTestCase(family, "rms_norm_n1536", {{"M", 4}}, 3);
  const std::vector<ExpectedRows> truth = RoomTruth(test);
  for (std::int64_t row = 0; row < 4; ++row) {
    const Vec y = engine::reference::RmsNorm(ToVec<bf16>(test.inputs["x"], row * 1536, 1536),
                                             Widened(test.inputs["weight"]), 1e-5f);
    ExpectSame(y, truth[0].value.data() + row * 1536, 1e-13, "y");
  }
}

TEST(StepRooms, Swiglu) {
  const Family family = swiglu::MakeFamily();
  for (const char* variant : {"default", "wide"}) {
    TestCase test = MakeTestCase(family, "swiglu_n2048", {{"M", 2}}, 3, variant);
    const Vec y = engine::reference::Activate(engine::ModelConfig{},
                                              ToVec<bf16>(test.inputs["gate"], 0, 2 * 2048),
                                              ToVec<bf16>(test.inputs["up"], 0, 2 * 2048));
    ExpectSame(y, RoomTruth(test)[0].value.data(), 1e-13, variant);
  }
}

TEST(StepRooms, Mhc) {
  constexpr std::int64_t kN = 4096;
  const Family family = mhc::MakeFamily();
  TestCase test = MakeTestCase(family, "mhc_mix_n4096_s4", {{"M", 2}}, 3);
  const std::vector<ExpectedRows> truth = RoomTruth(test);
  engine::ModelConfig config;
  config.hidden = kN;
  // The room's constants are fp32 numbers; so are the engine's for this comparison.
  config.rms_eps = mhc::kNormEps;
  config.hc_eps = mhc::kMixEps;
  const engine::HyperWeights weights{Floats(test.inputs["fn"]), Floats(test.inputs["base"]),
                                     Floats(test.inputs["scale"])};
  for (std::int64_t row = 0; row < 2; ++row) {
    const Vec streams = ToVec<bf16>(test.inputs["streams"], row * 4 * kN, 4 * kN);
    const engine::reference::Hyper hyper = engine::reference::HyperOf(config, weights, streams);
    const Vec u = engine::reference::RmsNorm(engine::reference::MixIn(hyper, streams),
                                             Widened(test.inputs["weight"]), config.rms_eps);
    ExpectSame(u, truth[0].value.data() + row * kN, 1e-11, "u");
    ExpectSame({hyper.post, hyper.post + 4}, truth[1].value.data() + row * 4, 1e-12, "post");
    ExpectSame({&hyper.c[0][0], &hyper.c[0][0] + 16}, truth[2].value.data() + row * 16, 1e-12,
               "comb");
  }
}

TEST(StepRooms, KpoolIndexDecode) {
  constexpr std::int64_t kHeads = kpool_index_decode::kHeads;
  constexpr std::int64_t kSize = kpool_index_decode::kHeadSize;
  const Family family = kpool_index_decode::MakeFamily();
  for (const char* variant : {"natural", "ties", "negative_weights"}) {
    TestCase test = MakeTestCase(family, "kpool_index_decode_h32_d128_topk512_c4",
                                 {{"B", 1}, {"V", 2}, {"MP", 16}, {"NP", 20}}, 3, variant,
                                 {{"sequence_lengths", std::vector<std::int64_t>{4000}}});
    const std::vector<ExpectedRows> truth = RoomTruth(test);
    const kpool_index_decode::Args args = kpool_index_decode::BindInputs(test.problem, test.inputs);
    engine::ModelConfig config;
    config.index_heads = kHeads;
    config.index_dim = kSize;
    std::vector<Vec> pools(1000, Vec(kSize));
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      const auto id = static_cast<std::int64_t>(pool);
      const std::uint8_t* key = kpool_index_decode::KeyOf(args, 0, id);
      for (std::size_t d = 0; d < kSize; ++d) {
        pools[pool][d] = ToFloat(e4m3{key[d]}) * kpool_index_decode::ScaleOf(args, 0, id);
      }
    }
    for (std::int64_t row = 0; row < 2; ++row) {
      const Vec scores = engine::reference::PoolScores(
          config, ToVec<e4m3>(test.inputs["q"], row * kHeads * kSize, kHeads * kSize),
          ToVec<float>(test.inputs["weights"], row * kHeads, kHeads), pools,
          kpool_index_decode::VisiblePools(args, row));
      const std::vector<std::int64_t> best = engine::reference::BestIds(scores, 512);
      ExpectSame(Vec(best.begin(), best.end()), truth[0].value.data() + row * 512, 0, variant);
    }
  }
}

// One expert's matrix as the engine has it, over the bundle's memory.
engine::Matrix EngineMatrix(const moe_decode::Matrix& w, std::int64_t expert) {
  const auto view = [](const void* data) {
    return std::shared_ptr<const std::byte>(static_cast<const std::byte*>(data),
                                            [](const std::byte*) {});
  };
  engine::Matrix matrix;
  matrix.n = w.n;
  matrix.k = w.k;
  if (w.format == moe_decode::Format::kFP8) {
    matrix.format = engine::WeightFormat::kFP8;
    matrix.data = view(w.codes + expert * w.n * w.k);
    matrix.scales = view(w.blocks + expert * (w.n / 128) * (w.k / 128));
    return matrix;
  }
  matrix.format = w.format == moe_decode::Format::kMXFP4 ? engine::WeightFormat::kMXFP4
                                                         : engine::WeightFormat::kNVFP4;
  matrix.data = view(w.codes + expert * w.n * w.k / 2);
  matrix.scales = view(w.groups + expert * w.n * (w.k / moe_decode::ScaleGroup(w.format)));
  if (w.global != nullptr) matrix.scale = w.global[expert];
  return matrix;
}

TEST(StepRooms, MoeDecode) {
  using moe_decode::Format;
  for (const Format format : {Format::kFP8, Format::kMXFP4, Format::kNVFP4}) {
    Family family =
        moe_decode::FourBits(format) ? moe_decode::MakeW4Family() : moe_decode::MakeW8Family();
    family.definitions.push_back(moe_decode::DefinitionOf("small", format, 8, 256, 384, 3));
    TestCase test = MakeTestCase(family, "small", {{"M", 2}}, 3, "large");
    const std::vector<ExpectedRows> truth = RoomTruth(test);
    const moe_decode::Args args = moe_decode::BindInputs(test.problem, test.inputs);
    const auto expert = [&](std::int64_t e) {
      return engine::MlpWeights{EngineMatrix(args.gate, e), EngineMatrix(args.up, e),
                                EngineMatrix(args.down, e)};
    };
    engine::ModelConfig config;
    config.swiglu_limit = 10;
    engine::MoeWeights weights;
    for (std::int64_t e = 0; e < args.experts; ++e) weights.experts.push_back(expert(e));
    weights.shared = expert(args.experts);
    for (std::int64_t row = 0; row < args.m; ++row) {
      engine::reference::Routing routing;
      for (std::int64_t j = 0; j < args.top_k; ++j) {
        routing.experts.push_back(args.ids[row * args.top_k + j]);
        routing.weights.push_back(args.weights[row * args.top_k + j]);
      }
      const Vec y = engine::reference::MoeRow(
          config, weights, ToVec<bf16>(test.inputs["x"], row * args.hidden, args.hidden), routing);
      ExpectSame(y, truth[0].value.data() + row * args.hidden, 1e-12,
                 family.name + ", row " + std::to_string(row));
    }
  }
}

}  // namespace
}  // namespace assay
