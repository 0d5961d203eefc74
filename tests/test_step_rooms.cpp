// The rooms of the decode step against the engine's own fp64 formulas: two references that share no
// code give the same values for the same inputs.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/reference.h"
#include "ops/kda_decode/spec.h"
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

}  // namespace
}  // namespace assay
