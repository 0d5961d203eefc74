// The rule of base/tensor_core.h on cases small enough to do by hand, and against a second
// implementation. What a device really answered is replayed in cuda/test_instruction_dump.cpp.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "base/tensor_core.h"
#include "base/tensor_core_oracle.h"

namespace assay {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

const TensorCoreRule kBF16 = RuleOf(*FindMatrixInstruction("wgmma.m64n8k16.bf16.bf16"));

std::uint32_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// A block of bf16 whose first products are given as pairs; the rest is zero.
struct Block {
  std::array<bf16, 16> a{}, b{};
  Block(std::initializer_list<std::pair<float, float>> products) {
    std::size_t k = 0;
    for (const auto& [x, y] : products) {
      a[k] = ToBF16(x);
      b[k++] = ToBF16(y);
    }
  }
  float Plus(float c) const { return TensorCoreBlock(kBF16, a.data(), b.data(), c); }
};

TEST(TensorCore, SmallSumsAreExact) {
  EXPECT_EQ(Block({{2, 3}, {-1, 4}}).Plus(0.5f), 2.5f);
  EXPECT_EQ(Block({{1.5f, 1.5f}}).Plus(-2.25f), 0.0f);
  EXPECT_EQ(Block({}).Plus(7), 7);
}

// 1 + 2^-24 would round to even; 1 + 3 * 2^-25 would round up. Both are cut.
TEST(TensorCore, SumsAreTruncatedTowardZero) {
  EXPECT_EQ(Block({{1, 0x1p-24f}}).Plus(1), 1.0f);
  EXPECT_EQ(Block({{1, 0x1.8p-24f}}).Plus(1), 1.0f);
  EXPECT_EQ(Block({{1, 0x1.8p-24f}, {1, 0x1p-25f}}).Plus(1), 1 + 0x1p-23f);
  EXPECT_EQ(Block({{-1, 0x1.8p-24f}}).Plus(-1), -1.0f);
}

// The grid lies 2^25 below the largest exponent: what is smaller vanishes before the sum.
TEST(TensorCore, TermsBelowTheGridVanish) {
  EXPECT_EQ(Block({{1, 1}, {1, 0x1p-25f}}).Plus(-1), 0x1p-25f);
  EXPECT_EQ(Block({{1, 1}, {1, 0x1p-26f}}).Plus(-1), 0.0f);
  EXPECT_EQ(Block({{1, 1}, {1, 0x1.8p-25f}}).Plus(-1), 0x1p-25f);
  // Sixteen of them together would count: they are cut one by one.
  EXPECT_EQ(Block({{1, 0x1p-26f}, {1, 0x1p-26f}, {1, 0x1p-26f}, {1, 0x1p-26f}}).Plus(1), 1.0f);
}

// 1.5 * 1.5 = 2.25 counts with exponent 0, not 1: a term of 2^-25 survives beside it. As
// accumulator, 2.25 has exponent 1.
TEST(TensorCore, ProductsAreNotRenormalised) {
  EXPECT_EQ(Block({{1.5f, 1.5f}, {-1.5f, 1.5f}, {1, 0x1p-25f}}).Plus(0), 0x1p-25f);
  EXPECT_EQ(Block({{1.5f, 1.5f}, {1, 0x1p-25f}}).Plus(-2.25f), 0.0f);
  // A zero product does not lift the grid, however large its other factor is.
  EXPECT_EQ(Block({{0x1p100f, 0}, {1, 0x1p-20f}}).Plus(0), 0x1p-20f);
}

TEST(TensorCore, SubnormalOperandsCountWithTheSmallestExponent) {
  EXPECT_EQ(Block({{0x1p-130f, 0x1p100f}}).Plus(0), 0x1p-30f);
  // 2^-130 is encoded with exponent -126, so the grid is 2^(-26 - 25).
  EXPECT_EQ(Block({{0x1p-130f, 0x1p100f}, {1, 0x1p-52f}}).Plus(0), 0x1p-30f);
  EXPECT_EQ(Block({{0x1p-130f, 0x1p100f}, {1, 0x1p-51f}}).Plus(0), 0x1p-30f + 0x1p-51f);
}

TEST(TensorCore, SubnormalSumsKeepTheBitsThatFit) {
  EXPECT_EQ(Block({{0x1p-74f, 0x1p-75f}}).Plus(0), 0x1p-149f);
  EXPECT_EQ(Block({{0x1p-75f, 0x1.8p-75f}}).Plus(0), 0.0f);
  EXPECT_EQ(Block({{0x1p-75f, 0x1.8p-75f}}).Plus(0x1p-149f), 0x1p-149f);
}

// Measured: neither zeros nor sums that vanish keep their sign.
TEST(TensorCore, ZeroIsPositive) {
  EXPECT_EQ(Bits(Block({}).Plus(-0.0f)), 0u);
  EXPECT_EQ(Bits(Block({{-1, 0.0f}}).Plus(-0.0f)), 0u);
  EXPECT_EQ(Bits(Block({{-0x1p-80f, 0x1p-80f}}).Plus(0)), 0u);
  EXPECT_EQ(Bits(Block({{1, 1}}).Plus(-1)), 0u);
}

// mma.sync of fp8: two f16 blocks from zero, then one fp32 addition that rounds.
TEST(TensorCore, EightBitMmaSyncRoundsTheAccumulator) {
  const TensorCoreRule rule = RuleOf(*FindMatrixInstruction("mma.m16n8k32.e4m3.e4m3"));
  std::array<e4m3, 32> a{}, b{};
  a[0] = ToE4M3(0x1p-6);
  b[0] = ToE4M3(0x1.8p-6);
  // 1.5 * 2^-12 on top of 2^12: truncation would drop it, rounding takes it as one ulp, 2^-11.
  EXPECT_EQ(TensorCoreBlock(rule, a.data(), b.data(), 0x1p12f), 0x1p12f + 0x1p-11f);
  // The products alone are exact to 24 bits, where wgmma keeps 14.
  a[1] = b[1] = ToE4M3(448);
  EXPECT_EQ(TensorCoreBlock(rule, a.data(), b.data(), 0), 448.0f * 448.0f);
  const TensorCoreRule wgmma = RuleOf(*FindMatrixInstruction("wgmma.m64n8k32.e4m3.e4m3"));
  b[1] = ToE4M3(1);
  EXPECT_EQ(TensorCoreBlock(rule, a.data(), b.data(), 0), 448 + 0x1.8p-12f);
  EXPECT_EQ(TensorCoreBlock(wgmma, a.data(), b.data(), 0), 448);
}

TEST(TensorCore, SpecialValues) {
  EXPECT_EQ(Block({{kInf, 1}}).Plus(3), kInf);
  EXPECT_EQ(Block({{kInf, -1}}).Plus(3), -kInf);
  EXPECT_EQ(Block({{1, 1}}).Plus(-kInf), -kInf);
  EXPECT_EQ(Bits(Block({{kInf, 0}}).Plus(0)), 0x7FFFFFFFu);
  EXPECT_EQ(Bits(Block({{kInf, 1}, {kInf, -1}}).Plus(0)), 0x7FFFFFFFu);
  EXPECT_EQ(Bits(Block({{kInf, 1}}).Plus(-kInf)), 0x7FFFFFFFu);
  EXPECT_EQ(Bits(Block({{NAN, 0}}).Plus(0)), 0x7FFFFFFFu);
  EXPECT_EQ(Bits(Block({}).Plus(-NAN)), 0x7FFFFFFFu);
  EXPECT_EQ(Block({{0x1p127f, 1}, {0x1p127f, 1}}).Plus(0), kInf);
  EXPECT_EQ(Block({{-0x1p127f, 2}}).Plus(0), -kInf);
  // The wide sum comes back from beyond the largest fp32.
  EXPECT_EQ(Block({{0x1p127f, 1}, {0x1p127f, 1}, {-0x1p127f, 1}}).Plus(0), 0x1p127f);
}

TEST(TensorCore, EveryInstructionHasARule) {
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    const TensorCoreRule rule = RuleOf(instruction);
    EXPECT_EQ(instruction.k() % rule.block, 0) << instruction.name;
    EXPECT_EQ(FindMatrixInstruction(instruction.name), &instruction);
  }
  EXPECT_EQ(FindMatrixInstruction("mma.m8n8k4.f64"), nullptr);
}

// Codes of any value, with runs of small ones so that exponents meet.
std::vector<std::byte> RandomCodes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> codes(bytes);
  for (std::size_t i = 0; i < bytes; ++i) codes[i] = std::byte(Mix64(seed, 0, i) & 255);
  return codes;
}

TEST(TensorCore, TwoImplementationsAgree) {
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    const TensorCoreRule rule = RuleOf(instruction);
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      const auto a = RandomCodes(64, 2 * seed), b = RandomCodes(64, 2 * seed + 1);
      const float c = seed % 3 == 0
                          ? std::bit_cast<float>(static_cast<std::uint32_t>(Mix64(seed, 1, 0)))
                          : UnitNormal(seed, 2, 0);
      ASSERT_EQ(Bits(TensorCoreBlock(rule, a.data(), b.data(), c)),
                Bits(OracleBlock(rule, a.data(), b.data(), c)))
          << instruction.name << ", seed " << seed;
    }
  }
}

// The vector loops for bf16 against block after block, with exponents from narrow to any.
TEST(TensorCore, ChainsEqualTheirBlocks) {
  constexpr std::int64_t kLength = 1000;  // no multiple of 16: the tail is filled with zeros
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<bf16> a(kLength + 16), b(kLength + 16);
    for (std::int64_t i = 0; i < kLength; ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      const int reach = static_cast<int>(seed % 40) + 1;
      const auto random = [&](std::uint64_t tensor) {
        if (seed % 7 == 0) return bf16{static_cast<std::uint16_t>(Mix64(seed, tensor, at))};
        const int exponent = static_cast<int>(Mix64(seed, tensor + 2, at) % (2 * reach)) - reach;
        return ToBF16(std::ldexp(UnitNormal(seed, tensor, at), exponent));
      };
      a[i] = random(0);
      b[i] = random(1);
    }
    float chained = UnitNormal(seed, 9, 0);
    const float whole = TensorCoreDot(kBF16, a.data(), b.data(), kLength, chained);
    for (std::int64_t at = 0; at < kLength; at += 16) {
      chained = TensorCoreBlock(kBF16, a.data() + at, b.data() + at, chained);
    }
    ASSERT_EQ(Bits(whole), Bits(chained)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace assay
