// Weights and fp64 reference against the golden values of an independent implementation, to 1e-6.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/philox.h"
#include "engine/reference.h"
#include "engine/synthetic.h"

namespace assay::engine {
namespace {

using reference::Vec;

const Model& Tiny() {
  static const Model model = MakeSyntheticModel(PresetConfig("tiny"), {.seed = 1, .plant = 5.0});
  return model;
}

double Norm(const Vec& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

void ExpectNear(const Vec& seen, std::initializer_list<double> wanted) {
  ASSERT_GE(seen.size(), wanted.size());
  std::size_t i = 0;
  for (const double value : wanted) EXPECT_NEAR(seen[i++], value, 1e-6);
}

Vec Part(const Vec& x, std::size_t begin) {
  return {x.begin() + static_cast<std::ptrdiff_t>(begin), x.end()};
}

TEST(Model, PhiloxOfZeros) {
  EXPECT_EQ(Philox(0, {0, 0, 0, 0}),
            (PhiloxWords{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
}

TEST(Model, ParameterCountsOfThePublishedSizes) {
  const auto expect = [](const char* name, double trunk, double active, double mtp) {
    const ParameterCount count = CountParameters(PresetConfig(name));
    EXPECT_NEAR(static_cast<double>(count.trunk), trunk, 0.005 * trunk) << name;
    EXPECT_NEAR(static_cast<double>(count.active), active, 0.005 * active) << name;
    EXPECT_NEAR(static_cast<double>(count.mtp), mtp, 0.005 * mtp) << name;
  };
  expect("glm-5.3-flash", 313.33e9, 16.74e9, 7.43e9);
  expect("S16", 98.45e9, 6.21e9, 7.43e9);
  expect("small", 2.626e9, 0.621e9, 0.2256e9);
}

TEST(Model, SyntheticWeightsHaveTheGoldenBits) {
  const Model& m = Tiny();
  EXPECT_EQ(TensorChecksum(m.embed), 0xc0960000u);
  EXPECT_EQ(TensorChecksum(m.head), 0x8c4c0000u);
  EXPECT_EQ(TensorChecksum(m.layers[0].attention_mix.fn), 0xe17f0000u);
  EXPECT_EQ(TensorChecksum(m.layers[0].attention_mix.base), 0xbeaddfc4u);
  EXPECT_EQ(TensorChecksum(m.layers[0].kda.q), 0x58af0000u);
  EXPECT_EQ(TensorChecksum(m.layers[0].kda.dt_bias), 0xe000f36bu);
  EXPECT_EQ(TensorChecksum(m.layers[3].dsa.kv_b), 0x7fcc0000u);
  EXPECT_EQ(TensorChecksum(m.layers[3].moe.experts[11].down), 0x48020000u);
  EXPECT_EQ(TensorChecksum(m.mtp.project), 0x30d80000u);
}

TEST(Model, QuantisedSyntheticWeightsKeepTheirSpread) {
  for (const WeightFormat format : {WeightFormat::kFP8, WeightFormat::kMXFP4}) {
    const Model m = MakeSyntheticModel(PresetConfig("tiny"), {.seed = 1, .format = format});
    const Matrix& w = m.layers[1].moe.experts[5].up;
    ASSERT_EQ(w.format, format);
    double squares = 0;
    for (std::int64_t i = 0; i < w.n * w.k; ++i)
      squares += std::pow(WeightValue(w, i / w.k, i % w.k), 2);
    const double ratio =
        std::sqrt(squares / static_cast<double>(w.n * w.k)) / (4 / std::sqrt(128.0));
    EXPECT_GT(ratio, 0.9) << WeightFormatName(format);
    EXPECT_LT(ratio, 1.5) << WeightFormatName(format);  // mxfp4: scales of 1/2, 1, 1 and 2
  }
}

TEST(Model, RefusesSizesItCannotRun) {
  ModelConfig config = PresetConfig("tiny");
  config.kv_lora = 60;
  EXPECT_THROW(ValidateConfig(config), Error);
  config = PresetConfig("tiny");
  config.experts_per_token = 13;
  EXPECT_THROW(ValidateConfig(config), Error);
  EXPECT_THROW(PresetConfig("medium"), Error);
}

// The golden run: a prompt of 37, then the MTP rows of it, five drafts, and greedy decoding.
TEST(Reference, GoldenValuesOfTiny) {
  const Model& m = Tiny();
  const std::vector<std::int32_t> prompt = SyntheticPrompt(m.config, 1, 37);
  EXPECT_EQ(prompt[0], 185);
  EXPECT_EQ(prompt[36], 21);
  reference::State state = reference::EmptyState(m.config);
  std::vector<reference::Row> rows;
  for (const std::int32_t token : prompt) rows.push_back(TrunkRow(m, token, state));

  ExpectNear(rows[0].stream_rms, {1.29367245, 1.66501665, 1.90038535, 2.44230004, 2.79939331});
  ExpectNear(rows[3].logits, {1.62926653, 0.16221610, 2.12814986, 1.55715168});
  EXPECT_NEAR(Norm(rows[16].logits), 27.87986715, 1e-6);
  ExpectNear(rows[36].stream_rms, {1.23033320, 1.78272750, 2.01144691, 2.37178807, 2.55146262});
  ExpectNear(rows[36].logits, {2.93154464, -0.06768020, -1.24255415, 0.24898082});
  EXPECT_EQ(reference::ArgMax(rows[36].logits), 230);

  ExpectNear(
      {Norm(state.kda[0].s), Norm(state.kda[1].s), Norm(state.kda[2].s), Norm(state.kda[3].s)},
      {9.19339994, 9.54059626, 8.89757993, 9.48990000});
  ExpectNear(Part(state.kda[0].window, 2 * 3 * 64), {0.82643221, 1.15740857, -0.21826154});
  ExpectNear(Part(state.dsa[0].latents, 36 * 64), {-0.88174857, 1.45870211, 0.45621484});
  ExpectNear(state.dsa[0].pools[8], {1.37371209, 0.34796958, -0.46894416});
  EXPECT_EQ(rows[36].pools[0].pools, (std::vector<std::int64_t>{1, 5, 7, 8}));

  reference::MtpRow draft;
  for (std::int64_t p = 0; p < 37; ++p) {
    const auto next = static_cast<std::size_t>(p) + 1;
    draft = MtpStep(m, p, next < 37 ? prompt[next] : 230, rows[next - 1].hidden, state.dsa[1]);
  }
  EXPECT_NEAR(draft.logits[182], 11.51454230, 1e-6);
  EXPECT_EQ(draft.pools.pools, (std::vector<std::int64_t>{3, 5, 6, 8}));
  const std::vector<std::int64_t> seeded = draft.pools.pools;
  std::vector<std::int64_t> drafts{reference::ArgMax(draft.logits)};
  for (std::int64_t p = 37; p < 41; ++p) {  // chained rows reuse the selection
    draft = MtpStep(m, p, static_cast<std::int32_t>(drafts.back()), draft.hidden, state.dsa[1],
                    &seeded, 36);
    drafts.push_back(reference::ArgMax(draft.logits));
  }
  EXPECT_EQ(drafts, (std::vector<std::int64_t>{182, 134, 86, 38, 247}));

  std::vector<std::int64_t> greedy{230};
  while (greedy.size() < 13) {
    greedy.push_back(
        reference::ArgMax(TrunkRow(m, static_cast<std::int32_t>(greedy.back()), state).logits));
  }
  EXPECT_EQ(greedy, (std::vector<std::int64_t>{230, 182, 134, 86, 38, 189, 141, 93, 45, 254, 206,
                                               158, 110}));
}

TEST(Reference, WholeSequenceAgreesWithSteps) {
  const Model& m = Tiny();
  const std::vector<std::int32_t> prompt = SyntheticPrompt(m.config, 7, 30);
  const reference::Sequence sequence = reference::WholeSequence(m, prompt);
  reference::State state = reference::EmptyState(m.config);
  for (std::size_t t = 0; t < prompt.size(); ++t) {
    const reference::Row row = TrunkRow(m, prompt[t], state);
    for (std::size_t i = 0; i < row.logits.size(); ++i) {
      ASSERT_NEAR(row.logits[i], sequence.logits[t][i], 1e-9) << "position " << t;
    }
  }
  EXPECT_EQ(state.length, sequence.state.length);
}

}  // namespace
}  // namespace assay::engine
