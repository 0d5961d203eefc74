// Tests of the grouped GEMM room: captured definitions, every group size around tile borders, both
// row conventions and scale storages, edge semantics and refusals of the page, mutants, public
// bugs.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>

#include "base/random.h"
#include "ops/grouped_gemm_fp8_fp4/test_small.h"
#include "replay/test_memory.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

using ::testing::HasSubstr;

constexpr const char* kGateUp = "grouped_gemm_fp8_fp4_e384_n4608_k5120_g32";
constexpr const char* kDown = "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32";
constexpr std::uint8_t kOne = 0x38;  // e4m3 1.0
constexpr std::uint8_t kUnit = 127;  // ue8m0 1.0
const Family& TheFamily() {
  static const Family family = MakeFamily();
  return family;
}

std::vector<std::byte> Output(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs["D"]);
}

struct Kernel {
  cpu::Isa isa;
  bool bf16_dots;
};

std::vector<Kernel> Kernels() {
  std::vector<Kernel> kernels;
  for (const Kernel& kernel : {Kernel{cpu::Isa::kBaseline, false}, Kernel{cpu::Isa::kAvx2, false},
                               Kernel{cpu::Isa::kAvx512, false}, Kernel{cpu::Isa::kAvx512, true}}) {
    if (cpu::Supports(kernel.isa) && (!kernel.bf16_dots || cpu::HasAvx512Bf16()))
      kernels.push_back(kernel);
  }
  return kernels;
}

// --- against fp64 ---

TEST(GroupedGemm, CapturedDecodeShapes) {
  for (const char* definition : {kGateUp, kDown}) {
    for (const std::int64_t m : {6, 12, 18}) {
      if (kSanitized && m > 6) break;
      TestCase test = MakeTestCase(TheFamily(), definition, {{"M", m}}, 7);
      const Verdict verdict = RunAndVerify(test);
      EXPECT_TRUE(verdict.passed()) << definition << " " << m << ": " << verdict.reason;
      EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict");
      EXPECT_EQ(verdict.correctness.share_checked, 1);
      ASSERT_EQ(verdict.correctness.findings[0].name, "within_one_ulp");
      EXPECT_GT(verdict.correctness.findings[0].measured, 0.999);
    }
  }
}

// All rows of all columns, at the row count of a captured prefill; few experts bound the memory.
TEST(GroupedGemm, CapturedPrefillRows) {
  if (kSanitized) GTEST_SKIP() << "9 G products in fp64: too slow under sanitizers";
  List rows(384);
  for (const auto& [expert, count] : {std::pair{0, 1}, {7, 129}, {200, 500}, {383, 138}}) {
    rows[static_cast<std::size_t>(expert)] = count;
  }
  TestCase test = MakeTestCase(TheFamily(), kDown, {{"M", 768}}, 3, "", {{"expert_rows", rows}});
  ExpectGrade(test, "strict", "768 rows");
}

// The verdict of a long run looks at few rows, of the experts that matter.
TEST(GroupedGemm, DefaultSampleOfManyRows) {
  Family family = SmallFamily(96, 5120, 2304);
  const Problem problem = MakeProblem(family, "small", {{"M", 24576}});
  Bundle inputs = Bundle::AllocateShared(family.input_layouts(problem));
  const auto routing = GenerateRouting(problem, 3);
  std::copy(routing.begin(), routing.end(), inputs["m_indices"].as<std::int32_t>());
  const std::vector<std::int64_t> rows = family.sample_rows(problem, inputs, 1)[0];
  EXPECT_GE(rows.size(), 150u);
  EXPECT_LE(rows.size(), 3 * 64 + 4u);
  List count(96), sampled(96);
  for (const std::int32_t e : routing) ++count[static_cast<std::size_t>(e)];
  for (const std::int64_t m : rows) {
    ++sampled[static_cast<std::size_t>(routing[static_cast<std::size_t>(m)])];
  }
  const auto most = std::max_element(count.begin(), count.end()) - count.begin();
  const auto fewest = std::min_element(count.begin(), count.end()) - count.begin();
  EXPECT_GE(sampled[static_cast<std::size_t>(most)], 3);
  EXPECT_GE(sampled[static_cast<std::size_t>(fewest)], 1);
  EXPECT_GE(sampled[95], 1);
  EXPECT_EQ(std::count_if(sampled.begin(), sampled.end(), [](auto n) { return n > 0; }), 64);
}

const List kGroupSizes = {0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200};

TEST(GroupedGemm, EveryGroupSize) {
  for (const std::int64_t n : {64, 128, 192}) {
    for (const std::int64_t k : {32, 96, 128, 256, 384, 2304}) {
      if ((kSanitized && n != 128) || (k == 2304 && n != 64)) continue;
      SmallCase made = MakeSmall(WithRows(kGroupSizes, n, k));
      ExpectGrade(made.test, "strict", "N " + std::to_string(n) + " K " + std::to_string(k));
    }
  }
}

TEST(GroupedGemm, EveryInstructionSet) {
  List rows = {0, 1, 2, 3, 4, 5, 6, 7, 13, 61};
  SmallCase made = MakeSmall(WithRows(rows, 128, 1376));  // a block of K and a rest
  TestCase& test = made.test;
  const Expected expected = ComputeExpected(*test.family, test.problem, test.inputs, 1);
  for (const Kernel& kernel : Kernels()) {
    test.outputs.Poison();
    RunCpu(ArgsOf(test), 0, kernel.isa, kernel.bf16_dots);
    const Verdict verdict =
        Verify(*test.family, test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_TRUE(verdict.passed()) << cpu::IsaName(kernel.isa) << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "strict") << cpu::IsaName(kernel.isa);
  }
}

TEST(GroupedGemm, AllVariants) {
  for (const std::string& variant : TheFamily().variants) {
    SmallCase up = MakeSmall({.n = 128, .k = 256, .m = 160, .variant = variant});
    ExpectGrade(up.test, "strict", variant);
    SmallCase down = MakeSmall({.n = 256, .k = 128, .m = 30, .variant = variant});
    ExpectGrade(down.test, "strict", variant + ", down projection");
  }
}

// --- every code and scale byte ---

// One column, one row, one group: sets all bytes of a case.
void SetBytes(TestCase& test, std::uint8_t a, std::uint8_t sfa, std::uint8_t w, std::uint8_t sfw) {
  const std::pair<const char*, std::uint8_t> tensors[] = {
      {"A", a}, {"SFA", sfa}, {"W", w}, {"SFW", sfw}};
  for (const auto& [name, byte] : tensors) {
    std::memset(test.inputs[name].data, byte, test.inputs[name].bytes());
  }
}

// A row of a single 1.0 picks one column of weights, exactly: nibble order, order along K and
// grouping of the scales at once. Every k of a block, every code, on every kernel and both row
// counts.
TEST(GroupedGemm, OneHotRowsPickWeights) {
  for (const std::int64_t rows : {1, 128}) {
    SmallCase made = MakeSmall(WithRows({rows, 0}, 64, 128));
    TestCase& test = made.test;
    for (std::int64_t k0 = 0; k0 < 128; k0 += rows) {
      std::memset(test.inputs["A"].data, 0, test.inputs["A"].bytes());
      std::memset(test.inputs["SFA"].data, kUnit, test.inputs["SFA"].bytes());
      for (std::int64_t m = 0; m < rows; ++m) {
        test.inputs["A"].as<e4m3>()[m * 128 + k0 + m].bits = kOne;
      }
      for (const Kernel& kernel : Kernels()) {
        RunCpu(ArgsOf(test), 1, kernel.isa, kernel.bf16_dots);
        for (std::int64_t m = 0; m < rows; ++m) {
          const std::int64_t k = k0 + m;
          for (std::int64_t n = 0; n < 64; ++n) {
            const auto pair = std::to_integer<unsigned>(test.inputs["W"].data[(n * 128 + k) / 2]);
            const unsigned code = k % 2 == 0 ? pair & 15 : pair >> 4;
            const float scale = ToFloat(test.inputs["SFW"].as<ue8m0>()[n * 4 + k / 32]);
            ASSERT_EQ(ToFloat(test.outputs["D"].as<bf16>()[m * 64 + n]), E2M1ToFloat(code) * scale)
                << "k " << k << " n " << n << " " << cpu::IsaName(kernel.isa);
          }
        }
      }
    }
  }
}

// Every e4m3 code against every e2m1 code: rows hold the first (twice 64 positive and negative
// codes), columns the second, at k = 0.
TEST(GroupedGemm, EveryPairOfCodes) {
  SmallCase made = MakeSmall(WithRows({254, 0}, 64, 32));
  TestCase& test = made.test;
  SetBytes(test, 0, kUnit, 0, kUnit);
  std::vector<e4m3> codes;
  for (unsigned code = 0; code < 256; ++code) {
    if ((code & 0x7F) != 0x7F) codes.push_back({static_cast<std::uint8_t>(code)});
  }
  for (std::size_t m = 0; m < codes.size(); ++m) test.inputs["A"].as<e4m3>()[m * 32] = codes[m];
  for (std::int64_t n = 0; n < 64; ++n) test.inputs["W"].data[n * 16] = std::byte(n % 16);
  for (const Kernel& kernel : Kernels()) {
    RunCpu(ArgsOf(test), 0, kernel.isa, kernel.bf16_dots);
    for (std::size_t m = 0; m < codes.size(); ++m) {
      for (unsigned n = 0; n < 64; ++n) {
        ASSERT_EQ(ToFloat(test.outputs["D"].as<bf16>()[m * 64 + n]),
                  ToFloat(codes[m]) * E2M1ToFloat(n % 16))
            << "codes " << int{codes[m].bits} << " and " << n % 16;
      }
    }
  }
}

// Every scale byte on both sides, against ordinary ones and the most extreme others; bytes outside
// 10..246 or 2..252 take the wide path.
TEST(GroupedGemm, EveryScaleByte) {
  SmallCase made = MakeSmall(WithRows({255, 0}, 256, 64));
  TestCase& test = made.test;
  SetBytes(test, kOne, 0, 0x22, 0);  // 1.0 everywhere
  for (std::int64_t m = 0; m < 255; ++m) {
    std::memset(test.inputs["SFA"].data + m * 2, static_cast<int>(m), 2);
  }
  for (std::int64_t n = 0; n < 256; ++n) {
    std::memset(test.inputs["SFW"].data + n * 2, static_cast<int>(std::min<std::int64_t>(n, 254)),
                2);
  }
  ExpectGrade(test, "strict", "all scale bytes");
  // The ordinary ones in tasks of their own.
  for (const std::uint8_t a : {10, 127, 134, 135, 246}) {
    for (const std::uint8_t w : {2, 110, 127, 128, 129, 252}) {
      SetBytes(test, 0x35, a, 0x5A, w);
      ExpectGrade(test, "strict", "scale bytes " + std::to_string(a) + " and " + std::to_string(w));
    }
  }
}

// --- both conventions of rows and both storages of scales ---

TEST(GroupedGemm, ConventionsAndStoragesAgree) {
  const auto output = [](const std::string& variant) {
    SmallCase made = MakeSmall({.experts = 12, .n = 128, .k = 384, .m = 77, .variant = variant});
    return Output(made.test);
  };
  const auto expected = output("tokens");
  for (const char* variant : {"offsets", "offsets_i64", "packed_scales", "padded_scales"}) {
    EXPECT_EQ(output(variant), expected) << variant;
  }
}

TEST(GroupedGemm, IndicesAndOffsetsTogether) {
  SmallCase made = MakeSmall(WithRows({2, 0, 5}));
  const auto expected = Output(made.test);
  Args args = ArgsOf(made.test);
  const std::int32_t offsets[] = {0, 2, 2, 7};
  args.offsets32 = offsets;
  made.test.outputs.Poison();
  RunCpu(args, 0);
  EXPECT_EQ(BytesOf(made.test.outputs["D"]), expected);
  const std::int32_t others[] = {0, 3, 3, 7};
  args.offsets32 = others;
  EXPECT_THAT(ErrorOf([&] { RunCpu(args, 0); }),
              HasSubstr("m_indices[2] = 2, but expert_offsets give the row to expert 0"));
}

// Rows in any order give the rows of the sorted run.
TEST(GroupedGemm, ShuffledRows) {
  SmallCase sorted = MakeSmall(WithRows({3, 0, 40, 1, 9, 66}, 128, 256));
  const std::int64_t m = sorted.test.problem.axis("M");
  const auto expected = Output(sorted.test);
  const Args from = ArgsOf(sorted.test);
  SmallCase shuffled = MakeSmall(WithRows({3, 0, 40, 1, 9, 66}, 128, 256));
  List order(static_cast<std::size_t>(m));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [](auto a, auto b) {
    return Mix64(1, 1, static_cast<std::uint64_t>(a)) < Mix64(1, 1, static_cast<std::uint64_t>(b));
  });
  Bundle& to = shuffled.test.inputs;
  for (std::int64_t row = 0; row < m; ++row) {
    const std::int64_t source = order[static_cast<std::size_t>(row)];
    std::copy_n(from.a + source * 256, 256, to["A"].as<e4m3>() + row * 256);
    std::copy_n(from.sfa + source * 8, 8, to["SFA"].as<ue8m0>() + row * 8);
    to["m_indices"].as<std::int32_t>()[row] = from.m_indices[source];
  }
  const auto got = Output(shuffled.test);
  for (std::int64_t row = 0; row < m; ++row) {
    const auto source = static_cast<std::ptrdiff_t>(order[static_cast<std::size_t>(row)] * 256);
    EXPECT_TRUE(std::equal(got.begin() + row * 256, got.begin() + (row + 1) * 256,
                           expected.begin() + source))
        << "row " << row;
  }
}

TEST(GroupedGemm, PaddingRowsAreZeroed) {
  for (const char* variant : {"tokens", "shuffled", "packed_scales", "padding_rows"}) {
    SmallCase made = MakeSmall({.n = 128,
                                .k = 256,
                                .m = 101,
                                .variant = variant,
                                .attributes = {{"padding_rows", std::string("zero")}}});
    ExpectGrade(made.test, "strict", variant);
    const std::int32_t* expert = made.test.inputs["m_indices"].as<std::int32_t>();
    EXPECT_GE(std::count(expert, expert + 101, -1), 19);
    for (std::int64_t m = 0; m < 101; ++m) {
      for (std::int64_t n = 0; expert[m] < 0 && n < 128; ++n) {
        EXPECT_EQ(made.test.outputs["D"].as<bf16>()[m * 128 + n].bits, 0) << m;
      }
    }
  }
}

TEST(GroupedGemm, OnlyPaddingRows) {
  Small small = WithRows({0, 0});
  small.m = 5;
  small.attributes["padding_rows"] = std::string("zero");
  SmallCase made = MakeSmall(small);
  ExpectGrade(made.test, "strict", "only padding");
}

// --- what is not read ---

TEST(GroupedGemm, PoisonInIdleExpertsHasNoEffect) {
  SmallCase plain = MakeSmall({.experts = 64, .m = 24});
  SmallCase poisoned = MakeSmall({.experts = 64, .m = 24, .variant = "poison"});
  const auto scales = BytesOf(poisoned.test.inputs["SFW"]);
  EXPECT_EQ(std::count(scales.begin(), scales.end(), std::byte{255}), kPoisonedExperts * 64 * 8);
  EXPECT_EQ(Output(plain.test), Output(poisoned.test));
  ExpectGrade(poisoned.test, "strict", "poison");
}

// Weights of idle experts stay holes through generation, validation, reference, kernel and verdict.
TEST(GroupedGemm, IdleExpertsAreNotTouched) {
  const Problem problem = MakeProblem(TheFamily(), kDown, {{"M", 6}});
  TestCase test{&TheFamily(), problem, Bundle::AllocateShared(TheFamily().input_layouts(problem)),
                Bundle::AllocateShared(OutputLayouts(TheFamily(), problem))};
  TheFamily().generate(problem, 9, test.inputs);
  TheFamily().validate_inputs(problem, test.inputs);
  EXPECT_TRUE(RunAndVerify(test, "cpu", false).passed());
  for (const char* name : {"W", "SFW"}) {
    std::size_t touched = 0;
    for (const auto& [first, last] : test.inputs.TouchedParts(test.inputs[name])) {
      touched += last - first;
    }
    const std::size_t expected = test.inputs[name].bytes() / 384 * 6;
    EXPECT_GE(touched, expected) << name;
    EXPECT_LE(touched, expected + 6 * 8192) << name;  // pages are shared at both ends
  }
  EXPECT_GE(TheFamily().resident_bytes(problem), std::size_t{6} * 5120 * 2304 * 17 / 32);
  EXPECT_LE(TheFamily().resident_bytes(problem), std::size_t{45} << 20);
}

// The last expert, the last row, any K tile that does not divide K.
TEST(GroupedGemm, NothingBehindTheTensorsIsRead) {
  for (const char* variant : {"tokens", "packed_scales"}) {
    SmallCase made = MakeSmall({.experts = 5, .n = 192, .k = 2944, .m = 44, .variant = variant});
    const auto expected = Output(made.test);
    const Bundle& in = made.test.inputs;
    const Guarded a(in["A"]), sfa(in["SFA"]), w(in["W"]), sfw(in["SFW"]), rows(in["m_indices"]),
        d(made.test.outputs["D"]);
    Args args = ArgsOf(made.test);
    args.a = a.as<e4m3>();
    if (args.sfa != nullptr) {
      args.sfa = sfa.as<ue8m0>();
      args.sfw = sfw.as<ue8m0>();
    } else {
      args.sfa_packed = sfa.as<std::int32_t>();
      args.sfw_packed = sfw.as<std::int32_t>();
    }
    args.w = w.as<std::uint8_t>();
    args.m_indices = rows.as<std::int32_t>();
    args.d = d.as<bf16>();
    for (const Kernel& kernel : Kernels()) RunCpu(args, 0, kernel.isa, kernel.bf16_dots);
    RunCpu(args, 0);
    EXPECT_EQ(std::memcmp(d.as<bf16>(), expected.data(), expected.size()), 0) << variant;
  }
}

// Strides longer than the rows: padding of A is NaN, of D a canary.
TEST(GroupedGemm, LongRowStrides) {
  SmallCase made = MakeSmall(WithRows({3, 20, 0, 7}, 64, 2304));
  const auto expected = Output(made.test);
  const Args plain = ArgsOf(made.test);
  const std::int64_t m = plain.m, lda = 2304 + 32, ldd = 64 + 3;
  std::vector<std::uint8_t> a(static_cast<std::size_t>(m * lda) + 16, 0x7F);
  const std::size_t shift = 16 - reinterpret_cast<std::uintptr_t>(a.data()) % 16;
  std::vector<bf16> d(static_cast<std::size_t>(m * ldd), bf16{0x1234});
  for (std::int64_t row = 0; row < m; ++row) {
    std::memcpy(a.data() + shift + row * lda, plain.a + row * 2304, 2304);
  }
  Args args = plain;
  args.a = reinterpret_cast<const e4m3*>(a.data() + shift);
  args.lda = lda;
  args.d = d.data();
  args.ldd = ldd;
  RunCpu(args, 0);
  for (std::int64_t row = 0; row < m; ++row) {
    EXPECT_EQ(std::memcmp(d.data() + row * ldd, expected.data() + row * 128, 128), 0) << row;
    for (std::int64_t i = 64; i < ldd; ++i) {
      EXPECT_EQ(d[static_cast<std::size_t>(row * ldd + i)].bits, 0x1234) << row;
    }
  }
}

// --- edge semantics ---

TEST(GroupedGemm, NoRows) {
  for (const char* variant : {"tokens", "offsets", "packed_scales"}) {
    SmallCase made = MakeSmall({.m = 0, .variant = variant});
    ExpectGrade(made.test, "strict", variant);
  }
}

TEST(GroupedGemm, ZerosOfEitherSign) {
  SmallCase made = MakeSmall(WithRows({1, 8}));
  for (const std::uint8_t scale : {0, 1, 127, 254}) {
    for (const std::uint8_t a : {0x00, 0x80}) {  // A all zero, whatever its scales
      SetBytes(made.test, a, scale, 0x77, 120);
      for (const std::byte byte : Output(made.test)) {
        EXPECT_EQ(byte & std::byte{0x7F}, std::byte{0}) << "scale " << int{scale};
      }
    }
  }
  SetBytes(made.test, 0x7E, 120, 0x88, 120);  // -0 codes everywhere
  for (const std::byte byte : Output(made.test)) EXPECT_EQ(byte & std::byte{0x7F}, std::byte{0});
}

// Out of contract, but contained: the NaN's row, the NaN scale's column, nothing else.
TEST(GroupedGemm, NaNStaysInItsRowOrColumn) {
  for (const std::int64_t rows : {4, 30}) {
    SmallCase made = MakeSmall(WithRows({rows, 2}));
    TestCase& test = made.test;
    const auto nans = [&](const Kernel& kernel) {
      test.outputs.Poison();
      RunCpu(ArgsOf(test), 0, kernel.isa, kernel.bf16_dots);
      std::set<std::pair<std::int64_t, std::int64_t>> at;
      for (std::int64_t m = 0; m < rows + 2; ++m) {
        for (std::int64_t n = 0; n < 64; ++n) {
          if (std::isnan(ToFloat(test.outputs["D"].as<bf16>()[m * 64 + n]))) at.insert({m, n});
        }
      }
      return at;
    };
    std::set<std::pair<std::int64_t, std::int64_t>> row, column;
    for (std::int64_t n = 0; n < 64; ++n) row.insert({2, n});
    for (std::int64_t m = 0; m < rows; ++m) column.insert({m, 17});
    std::byte& a = test.inputs["A"].data[2 * 256 + 99];
    std::byte& sfa = test.inputs["SFA"].data[2 * 8 + 7];
    std::byte& sfw = test.inputs["SFW"].data[17 * 8 + 3];
    for (const Kernel& kernel : Kernels()) {
      EXPECT_TRUE(nans(kernel).empty());
      for (const auto& [byte, value, where] : {std::tuple{&a, 0x7F, &row},
                                               {&a, 0xFF, &row},
                                               {&sfa, 0xFF, &row},
                                               {&sfw, 0xFF, &column}}) {
        const std::byte kept = *byte;
        *byte = std::byte(value);
        EXPECT_EQ(nans(kernel), *where) << cpu::IsaName(kernel.isa);
        *byte = kept;
      }
    }
  }
}

TEST(GroupedGemm, LargeResultsBecomeInfinite) {
  SmallCase made = MakeSmall(WithRows({2, 7}));
  SetBytes(made.test, 0x7E, 246, 0x77, 129);  // 256 * 448 * 6 * 2^121
  ExpectGrade(made.test, "strict", "overflow");
  EXPECT_EQ(made.test.outputs["D"].as<bf16>()[0].bits, 0x7F80);
  SetBytes(made.test, 0xFE, 200, 0x77, 157);  // -2688 * 256 * 2^103: finite
  ExpectGrade(made.test, "strict", "near the limit");
  EXPECT_TRUE(std::isfinite(ToFloat(made.test.outputs["D"].as<bf16>()[0])));
}

// Each expert holds its own constant: D tells which one was used.
TEST(GroupedGemm, ExpertsAreIsolated) {
  const List rows = {128, 130, 65, 0, 1, 3, 8, 16};
  SmallCase made = MakeSmall(WithRows(rows));
  SetBytes(made.test, kOne, kUnit, 0, kUnit);
  for (int e = 0; e < 8; ++e) {
    std::memset(made.test.inputs["W"].data + e * 64 * 128, e * 0x11, 64 * 128);
  }
  Output(made.test);
  const bf16* d = made.test.outputs["D"].as<bf16>();
  for (unsigned e = 0; e < 8; ++e) {
    for (std::int64_t i = 0; i < rows[e] * 64; ++i, ++d) {
      ASSERT_EQ(ToFloat(*d), 256 * E2M1ToFloat(e)) << "expert " << e << " element " << i;
    }
  }
}

TEST(GroupedGemm, RunsAreBitwiseEqual) {
  SmallCase made = MakeSmall({.experts = 20, .n = 192, .k = 1312, .m = 180});
  const auto inputs = BytesOf(made.test.inputs["W"]);
  const auto expected = Output(made.test, 1);
  for (int launch = 0; launch < 20; ++launch) {
    EXPECT_EQ(Output(made.test, launch % 7 + 1), expected) << launch;
  }
  EXPECT_EQ(BytesOf(made.test.inputs["W"]), inputs);
}

// A row's bits do not depend on how many others its expert has.
TEST(GroupedGemm, RowsDoNotDependOnTheirTile) {
  SmallCase many = MakeSmall(WithRows({77, 0}, 128, 1344));
  const auto all = Output(many.test);
  for (const std::int64_t rows : {1, 2, 5, 6, 7, 13}) {
    Args args = ArgsOf(many.test);
    std::vector<bf16> d(static_cast<std::size_t>(rows * 128));
    args.m = rows;
    args.a += 40 * args.lda;
    args.sfa += 40 * args.sfa_stride;
    args.d = d.data();
    RunCpu(args, 0);
    EXPECT_EQ(std::memcmp(d.data(), all.data() + 40 * 256, d.size() * 2), 0) << rows << " rows";
  }
}

// --- public bugs ---

// Experts 364 .. 383 of the gate+up weights lie beyond 2^32 bytes.
TEST(GroupedGemm, WeightsAbove4GiB) {
  if (kSanitized) GTEST_SKIP() << "250 MB of weights: too slow under sanitizers";
  List rows(384);
  std::fill(rows.begin() + 364, rows.end(), 1);
  TestCase test = MakeTestCase(TheFamily(), kGateUp, {{"M", 20}}, 11, "", {{"expert_rows", rows}});
  ExpectGrade(test, "strict", "high experts");
}

TEST(GroupedGemm, GroupBoundariesInsideTiles) {
  for (const List& rows : {List{128, 130, 65}, List{8, 16, 32}, List{0, 0, 1}, List{1, 200, 0}}) {
    SmallCase made = MakeSmall(WithRows(rows, 128, 384));
    ExpectGrade(made.test, "strict", "rows " + ShapeText(rows));
  }
}

TEST(GroupedGemm, OneRowOfALargeExpert) {
  if (kSanitized) GTEST_SKIP() << "38 M products: too slow under sanitizers";
  SmallCase made = MakeSmall(WithRows({1}, 24576, 1536));
  ExpectGrade(made.test, "strict", "N 24576, K 1536");
}

// --- mutants ---

TEST(GroupedGemm, MutantsAreRejected) {
  for (const char* definition : {kGateUp, kDown}) {
    TestCase test = MakeTestCase(TheFamily(), definition, {{"M", 6}}, 2);
    ExpectMutantsKilled(test);
  }
  TestCase group_32 = MakeTestCase(TheFamily(), kDown, {{"M", 12}}, 2, "group_32");
  ExpectMutantsKilled(group_32);
  SmallCase padding = MakeSmall({.n = 128, .k = 512, .m = 48, .variant = "padding_rows"});
  ExpectMutantsKilled(padding.test);
}

// --- cost and generator ---

TEST(GroupedGemm, CostMatchesThePage) {
  TestCase up = MakeTestCase(TheFamily(), kGateUp, {{"M", 6}}, 7);
  TestCase down = MakeTestCase(TheFamily(), kDown, {{"M", 6}}, 7);
  EXPECT_NEAR(TheFamily().cost(up.problem, up.inputs).bytes, 75.3e6, 0.05e6);
  EXPECT_NEAR(TheFamily().cost(down.problem, down.inputs).bytes, 37.7e6, 0.05e6);
  EXPECT_EQ(TheFamily().cost(up.problem, up.inputs).flops, 2.0 * 6 * 4608 * 5120);
}

TEST(GroupedGemmInputs, RoutingIsAsDocumented) {
  const Problem problem = MakeProblem(TheFamily(), kGateUp, {{"M", 24576}});
  const auto experts = GenerateRouting(problem, 21);
  EXPECT_TRUE(std::is_sorted(experts.begin(), experts.end()));
  List count(384);
  for (const std::int32_t e : experts) ++count[static_cast<std::size_t>(e)];
  EXPECT_GT(count[383], 0);
  const auto [fewest, most] = std::minmax_element(count.begin(), count.end());
  EXPECT_GT(*most, 6 * *fewest);  // Zipf(0.6) over 384: 35 : 1 between the ends
  EXPECT_LE(*most, 4096);         // six distinct experts a token
  // Few tokens leave most experts idle.
  const auto few = GenerateRouting(MakeProblem(TheFamily(), kGateUp, {{"M", 18}}), 21);
  EXPECT_EQ(few.back(), 383);
  const std::set<std::int32_t> distinct(few.begin(), few.end());
  EXPECT_GE(distinct.size(), 6u);
  const auto rows_of = [&](const char* variant, std::int64_t m) {
    List rows(384);
    for (const std::int32_t e :
         GenerateRouting(MakeProblem(TheFamily(), kGateUp, {{"M", m}}, {}, variant), 21)) {
      ++rows[static_cast<std::size_t>(e)];
    }
    return rows;
  };
  EXPECT_EQ(rows_of("one_each", 384), List(384, 1));
  EXPECT_GE(rows_of("one_129", 768)[192], 129);
  const List same = rows_of("same_experts", 600);
  EXPECT_EQ(std::count(same.begin(), same.end(), 100), 6);
}

// RMS(D) >= 0.5, or the absolute tolerance would be blind; scales as the encoders choose them.
TEST(GroupedGemmInputs, MagnitudesAreAsDocumented) {
  for (const char* definition : {kGateUp, kDown}) {
    TestCase test = MakeTestCase(TheFamily(), definition, {{"M", 6}}, 4);
    Output(test);
    const bf16* d = test.outputs["D"].as<bf16>();
    double squares = 0;
    const std::int64_t elements = test.outputs["D"].elements();
    for (std::int64_t i = 0; i < elements; ++i) squares += std::pow(ToFloat(d[i]), 2);
    const double rms = std::sqrt(squares / static_cast<double>(elements));
    EXPECT_GE(rms, 0.5) << definition;
    EXPECT_LE(rms, 4) << definition;
    const Args args = ArgsOf(test);
    const std::int64_t together = std::string(definition) == kDown ? 128 : 32;
    for (std::int64_t m = 0; m < 6; ++m) {
      for (std::int64_t k = 0; k < args.k; k += together) {
        int largest = 0;
        for (std::int64_t i = k; i < k + together; ++i) {
          largest = std::max(largest, args.a[m * args.k + i].bits & 0x7F);
          EXPECT_EQ(args.sfa[m * args.k / 32 + i / 32].bits, args.sfa[(m * args.k + k) / 32].bits);
        }
        ASSERT_GE(largest, 0x76);  // above 224: the next smaller scale would not do
        ASSERT_LE(largest, 0x7E);
      }
    }
  }
}

// Frozen bits: they must never change, or seeds stop meaning the same content.
TEST(GroupedGemmInputs, SameBitsOnEveryMachine) {
  const auto made = [](std::int64_t k) {
    return MakeSmall({.experts = 9, .n = 256, .k = k, .m = 40}, 0x0123456789ABCDEF);
  };
  EXPECT_EQ(HashOf(made(512).test.inputs, HashOf(made(128).test.inputs)), 9578330732322219126u);
}

}  // namespace
}  // namespace assay::grouped_gemm_fp8_fp4
