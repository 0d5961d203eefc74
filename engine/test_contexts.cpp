// Long and wide contexts: verify equals decode across 65,536 pools and at 650,000 tokens, and where
// attention takes several chunks.
#include "base/random.h"
#include "engine/test_support.h"

namespace assay::engine {
namespace {

// Extends a request to `length` tokens whose caches hold made-up content.
void FillTo(State& state, int slot, const ModelConfig& config, std::int64_t length) {
  const std::int64_t from = state.length(slot);
  state.SetLength(slot, length);
  for (std::int64_t p = from; p < length; ++p) {
    bf16* latent = state.Latent(0, slot, p);
    for (std::int64_t d = 0; d < config.kv_lora; d += 4) {
      const std::uint64_t bits =
          Mix64(1, static_cast<std::uint64_t>(p), static_cast<std::uint64_t>(d));
      for (int i = 0; i < 4; ++i) {  // sign, exponent 126, random fraction: 0.5 to 1
        latent[d + i].bits = static_cast<std::uint16_t>(0x3F00 | (bits >> (16 * i) & 0x807F));
      }
    }
  }
  for (std::int64_t pool = from / kPoolTokens; pool < length / kPoolTokens; ++pool) {
    const PoolEntry entry = state.Pool(0, slot, pool);
    *entry.scale = 1.0f / 64;
    for (std::int64_t d = 0; d < config.index_dim; ++d) {
      const std::uint64_t bits =
          Mix64(2, static_cast<std::uint64_t>(pool), static_cast<std::uint64_t>(d));
      entry.key[d].bits = static_cast<std::uint8_t>(0x40 | (bits & 0x87) | (bits >> 8 & 0x18));
    }
  }
  for (std::int64_t p = length / kPoolTokens * kPoolTokens; p < length; ++p) {
    bf16* ring = state.Ring(0, slot, p);
    for (std::int64_t d = 0; d < 2 * config.index_dim; ++d) {
      ring[d] = ToBF16(UnitNormal(3, static_cast<std::uint64_t>(p), static_cast<std::uint64_t>(d)));
    }
  }
}

// A verify step of `rows` rows against single rows, from the state of `slot`.
void ExpectVerifyIsDecode(Runner& runner, int slot, int rows) {
  State& state = runner.state();
  const std::int64_t length = state.length(slot);
  const int decoded = state.Fork(slot), verified = state.Fork(slot);
  const std::vector<RowResult> expected = Decode(runner, decoded, 1, rows);
  std::vector<std::int32_t> tokens;
  for (int r = 0; r < rows; ++r) tokens.push_back(TokenAt(1, length + r));
  const StepOutput output =
      runner.Run(ProgramKind::kTrunk, rows, {{verified, rows, length, {}}}, tokens);
  for (int r = 0; r < rows; ++r) {
    EXPECT_EQ(ResultOf(output, r), expected[static_cast<std::size_t>(r)])
        << "length " << length << ", row " << r;
    for (const std::int32_t pool : output.pools(r)) EXPECT_LT(pool, (length + r + 1) / kPoolTokens);
  }
  state.Free(decoded);
  state.Free(verified);
}

TEST(Contexts, SixtyFiveThousandPoolsAndBeyond) {
  const Model& model = TinyModel();
  State state(model.config, {.slots = 4, .rows_per_request = 8, .tokens = 651 << 10});
  const auto executor = MakeCpuExecutor({});
  Runner runner(model, state, *executor);
  const int slot = state.Create();
  Grow(runner, slot, 1, 21);
  // 65,535, 65,536 and 65,537 pools are reached inside these steps.
  for (const std::int64_t length : {262137, 262143, 649997}) {
    FillTo(state, slot, model.config, length);
    ExpectVerifyIsDecode(runner, slot, 8);
  }
}

// All tokens of a context of three chunks are attended: running maximum and sum across chunks.
TEST(Contexts, SeveralChunksOfTokens) {
  ModelConfig config = PresetConfig("tiny");
  config.index_topk = 1024;
  const Model model = MakeSyntheticModel(config, {.seed = 2, .plant = 5.0});
  State state(config, {.slots = 3, .rows_per_request = 4, .tokens = 4096});
  const auto executor = MakeCpuExecutor({});
  Runner runner(model, state, *executor);
  const int slot = state.Create();
  Grow(runner, slot, 1, 21);
  for (const std::int64_t length : {254, 600}) {
    FillTo(state, slot, config, length);
    ExpectVerifyIsDecode(runner, slot, 4);
  }
}

}  // namespace
}  // namespace assay::engine
