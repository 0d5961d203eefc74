// Tests of this room: captured grids, length crossings, border semantics, refusals, determinism,
// kept public bugs, mutants, and the identities of the captured records.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "ops/neighborhood_attention_3d/cpu_kernel.h"
#include "ops/neighborhood_attention_3d/elements.h"
#include "ops/neighborhood_attention_3d/spec.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "replay/room_test.h"
#include "replay/test_memory.h"

namespace assay::neighborhood_attention_3d {
namespace {

using ::testing::HasSubstr;

constexpr const char* kH32 = "neighborhood_attention_3d_h32_d64_kt3_ky7_kx7";
constexpr const char* kH16 = "neighborhood_attention_3d_h16_d64_kt3_ky7_kx7";
constexpr const char* kH8 = "neighborhood_attention_3d_h8_d64_kt3_ky5_kx5";
constexpr const char* kH4 = "neighborhood_attention_3d_h4_d64_kt11_ky11_kx11";

struct Grid {
  std::int64_t t, y, x;
};

// Definitions with few heads and other windows besides the real ones: h<H>_<kt>_<ky>_<kx>.
const Family& TheFamily() {
  static const Family family = [] {
    Family f = MakeFamily();
    const Grid windows[] = {{1, 1, 1}, {3, 5, 5},  {3, 7, 7},  {5, 3, 7},
                            {3, 3, 3}, {1, 9, 13}, {3, 1, 19}, {11, 11, 11}};
    for (std::int64_t heads : {1, 2}) {
      for (const auto& [kt, ky, kx] : windows) {
        f.definitions.push_back(
            {"h" + std::to_string(heads) + "_" + std::to_string(kt) + "_" + std::to_string(ky) +
                 "_" + std::to_string(kx),
             {{"H", heads}, {"D", kHeadDim}, {"kt", kt}, {"ky", ky}, {"kx", kx}},
             {"B", "T", "Y", "X"}});
      }
    }
    return f;
  }();
  return family;
}

TestCase Make(const std::string& definition, std::int64_t b, const Grid& grid,
              const std::string& variant = "", const Attributes& attributes = {}) {
  return MakeTestCase(TheFamily(), definition,
                      {{"B", b}, {"T", grid.t}, {"Y", grid.y}, {"X", grid.x}}, 20261203, variant,
                      attributes);
}

Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

// Output bytes of a run on poisoned outputs.
std::vector<std::byte> Compute(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs["O"]);
}

bf16* Row(TestCase& test, const char* name, const Point& p, std::int64_t head) {
  const Problem& problem = test.problem;
  Bundle& bundle = std::string_view(name) == "O" ? test.outputs : test.inputs;
  const std::int64_t line = (p.b * problem.axis("T") + p.t) * problem.axis("Y") + p.y;
  const std::int64_t point = line * problem.axis("X") + p.x;
  return bundle[name].as<bf16>() + (point * problem.axis("H") + head) * kHeadDim;
}

void Fill(TestCase& test, const char* name, float value) {
  Tensor& tensor = test.inputs[name];
  std::fill_n(tensor.as<bf16>(), tensor.elements(), ToBF16(value));
}

// body(point) for every grid point of every batch element.
template <class Body>
void ForPoints(const TestCase& test, const Body& body) {
  const Problem& problem = test.problem;
  Point p;
  for (p.b = 0; p.b < problem.axis("B"); ++p.b) {
    for (p.t = 0; p.t < problem.axis("T"); ++p.t) {
      for (p.y = 0; p.y < problem.axis("Y"); ++p.y) {
        for (p.x = 0; p.x < problem.axis("X"); ++p.x) body(p);
      }
    }
  }
}

// Is key position `key` in the window of position `query`? Written out from the page's formula.
bool InWindow(std::int64_t query, std::int64_t key, std::int64_t window, std::int64_t length) {
  const std::int64_t start =
      std::min(std::max<std::int64_t>(query - (window - 1) / 2, 0), length - window);
  return key >= start && key < start + window;
}

bool Sees(const TestCase& test, const Point& query, const Point& key) {
  const Problem& p = test.problem;
  return query.b == key.b && InWindow(query.t, key.t, p.axis("kt"), p.axis("T")) &&
         InWindow(query.y, key.y, p.axis("ky"), p.axis("Y")) &&
         InWindow(query.x, key.x, p.axis("kx"), p.axis("X"));
}

std::string Text(const Grid& grid) {
  return std::to_string(grid.t) + "x" + std::to_string(grid.y) + "x" + std::to_string(grid.x);
}

// --- grids ---

TEST(NeighborhoodAttention3d, CapturedGridsOfTheMiddleStages) {
  for (const Grid& grid : {Grid{9, 10, 16}, {18, 10, 16}, {9, 14, 24}}) {
    TestCase test = Make(kH32, 1, grid);
    ExpectGrade(test, "captured", "h32 " + Text(grid), false);
  }
  for (const Grid& grid : {Grid{9, 20, 32}, {18, 20, 32}, {9, 28, 48}}) {
    TestCase test = Make(kH16, 1, grid);
    ExpectGrade(test, "captured", "h16 " + Text(grid), false);
  }
  for (const Grid& grid : {Grid{17, 20, 32}, {35, 20, 32}, {17, 28, 48}, {33, 40, 64}}) {
    TestCase test = Make(kH8, 1, grid);
    ExpectGrade(test, "captured", "h8 " + Text(grid), false);
  }
}

// The frames of the last stage cut down: enough for every border class and an interior.
TEST(NeighborhoodAttention3d, CapturedWindowsOfTheLastStage) {
  for (const Grid& grid : {Grid{13, 20, 32}, {16, 28, 24}}) {
    TestCase test = Make(kH4, 1, grid);
    ExpectGrade(test, "captured", "h4 " + Text(grid), false);
  }
}

TEST(NeighborhoodAttention3d, CapturedBatchesHoldDifferentData) {
  for (const auto& [definition, grid] : {std::pair{kH32, Grid{9, 10, 16}}, {kH8, {17, 20, 32}}}) {
    TestCase test = Make(definition, 2, grid);
    EXPECT_NE(std::memcmp(Row(test, "K", {0, 0, 0, 0}, 0), Row(test, "K", {1, 0, 0, 0}, 0), 128),
              0);
    ExpectGrade(test, "captured", definition);
  }
}

TEST(NeighborhoodAttention3d, EveryGeneratorVariant) {
  for (const std::string& variant : TheFamily().variants) {
    for (const auto& [definition, grid] :
         {std::pair{kH32, Grid{4, 10, 16}}, {kH8, {5, 12, 10}}, {"h2_11_11_11", {11, 12, 13}}}) {
      TestCase test = Make(definition, 1, grid, variant);
      ExpectGrade(test, "captured", std::string(definition) + " " + variant);
    }
  }
}

TEST(NeighborhoodAttention3d, LengthsCrossed) {
  for (const Grid& window : {Grid{3, 5, 5}, {3, 7, 7}, {11, 11, 11}, {1, 1, 1}, {5, 3, 7}}) {
    const auto lengths = [](std::int64_t k) {
      return std::vector<std::int64_t>{k, k + 1, k + 2, 2 * k - 1, 2 * k, 16, 17};
    };
    const auto t = lengths(window.t), y = lengths(window.y), x = lengths(window.x);
    const std::string definition = "h1_" + std::to_string(window.t) + "_" +
                                   std::to_string(window.y) + "_" + std::to_string(window.x);
    for (std::size_t i = 0; i < t.size(); ++i) {
      for (std::size_t j = 0; j < t.size();
           ++j) {  // every pair of axes meets every pair of lengths
        const Grid grid{t[i], y[j], x[(i + 2 * j) % x.size()]};
        TestCase test = Make(definition, 1, grid);
        const Verdict verdict = RunAndVerify(test);
        ASSERT_TRUE(verdict.passed()) << definition << " " << Text(grid) << ": " << verdict.reason;
      }
    }
  }
}

TEST(NeighborhoodAttention3d, EveryInstructionSetAndOddWindows) {
  for (const TileLeaf* leaf : RunnableLeaves()) {
    for (const auto& [definition, grid] : {std::pair{"h2_3_7_7", Grid{4, 17, 31}},
                                           {"h2_3_5_5", {5, 11, 37}},
                                           {"h2_11_11_11", {12, 14, 29}},
                                           {"h1_1_9_13", {2, 13, 40}},
                                           {"h1_3_1_19", {4, 3, 50}},
                                           {"h1_3_3_3", {3, 9, 33}},
                                           {"h1_1_1_1", {2, 3, 35}}}) {
      TestCase test = Make(definition, 2, grid);
      const Args args = ArgsOf(test);
      RunWindows(args, ShiftedWindows(args), *leaf, 0);
      const Verdict verdict = VerifyFully(test);
      EXPECT_TRUE(verdict.passed()) << leaf->name << " " << definition << ": " << verdict.reason;
      EXPECT_EQ(test.outputs.CheckRedZones(), std::nullopt);
    }
  }
}

TEST(NeighborhoodAttention3d, GridsSmallerThanATile) {
  for (const Grid& grid : {Grid{3, 7, 10}, {9, 7, 7}, {3, 8, 7}}) {
    TestCase test = Make(kH32, 1, grid);
    ExpectGrade(test, "captured", Text(grid));
  }
}

TEST(NeighborhoodAttention3d, NothingToDo) {
  TestCase test = Make(kH4, 0, {11, 11, 11});
  EXPECT_TRUE(RunAndVerify(test).passed());
}

// --- borders ---

// Positions of each border class of an axis: first, last of the low border, interior, and so on.
std::vector<std::int64_t> ClassPositions(std::int64_t window, std::int64_t length) {
  const std::int64_t left = (window - 1) / 2;
  std::set<std::int64_t> positions = {0, length / 2, length - 1};
  if (left > 0) positions.insert({left - 1, left, length - left, length - 1 - left});
  return {positions.begin(), positions.end()};
}

TEST(NeighborhoodAttention3d, UnitValueOfOneVoxelReachesExactlyItsWindows) {
  for (const auto& [definition, grid] :
       {std::pair{"h1_3_5_5", Grid{6, 8, 9}}, {"h1_3_7_7", {4, 11, 10}}}) {
    TestCase test = Make(definition, 1, grid);
    const Problem& problem = test.problem;
    for (std::int64_t t : ClassPositions(problem.axis("kt"), grid.t)) {
      for (std::int64_t y : ClassPositions(problem.axis("ky"), grid.y)) {
        for (std::int64_t x : ClassPositions(problem.axis("kx"), grid.x)) {
          const Point voxel{0, t, y, x};
          Fill(test, "V", 0);
          std::fill_n(Row(test, "V", voxel, 0), kHeadDim, ToBF16(1.0f));
          Compute(test);
          ForPoints(test, [&](const Point& p) {
            ASSERT_EQ(ToFloat(Row(test, "O", p, 0)[7]) > 0, Sees(test, p, voxel))
                << Text({p.t, p.y, p.x}) << " and " << Text({t, y, x});
          });
        }
      }
    }
  }
}

TEST(NeighborhoodAttention3d, ConstantValuesComeBack) {
  for (const char* definition : {kH8, kH4}) {
    TestCase test = Make(definition, 1, {12, 13, 17}, "constant_value");
    ExpectGrade(test, "captured", definition);
    const bf16 constant = test.inputs["V"].as<bf16>()[0];
    ForPoints(test, [&](const Point& p) {
      ASSERT_NEAR(ToFloat(Row(test, "O", p, 2)[3]), ToFloat(constant), 0.01);
    });
  }
}

TEST(NeighborhoodAttention3d, ZeroQueryGivesTheMean) {
  TestCase test = Make("h1_3_5_5", 1, {3, 5, 5}, "zero_query");
  Compute(test);
  double mean = 0;
  ForPoints(test, [&](const Point& p) { mean += ToFloat(Row(test, "V", p, 0)[9]) / 75.0; });
  EXPECT_NEAR(ToFloat(Row(test, "O", {0, 2, 0, 4}, 0)[9]), mean, 0.004 * std::abs(mean) + 1e-5);
}

TEST(NeighborhoodAttention3d, WindowOfOneGivesItsValueExactly) {
  TestCase test = Make("h2_1_1_1", 2, {3, 4, 21});
  Compute(test);
  EXPECT_EQ(std::memcmp(test.outputs["O"].data, test.inputs["V"].data, test.inputs["V"].bytes()),
            0);
}

// The whole grid is one window: dense attention of the flattened points, whose scale is 1/8.
TEST(NeighborhoodAttention3d, WindowOfTheWholeGridIsDenseAttention) {
  TestCase test = Make(kH4, 1, {11, 11, 11});
  Compute(test);
  const std::int64_t points = 11 * 11 * 11, heads = 4;
  noncausal_dense_attention::Args dense =
      noncausal_dense_attention::Args::Contiguous(1, points, points, heads, kHeadDim);
  std::vector<bf16> q(static_cast<std::size_t>(points * heads * kHeadDim)), o(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = ToBF16(8 * ToFloat(test.inputs["Q"].as<bf16>()[i]));
  }
  dense.q = q.data();
  dense.k = test.inputs["K"].as<bf16>();
  dense.v = test.inputs["V"].as<bf16>();
  dense.o = o.data();
  noncausal_dense_attention::RunCpu(dense, 0);
  for (std::size_t i = 0; i < o.size(); ++i) {
    const float expected = ToFloat(o[i]);
    ASSERT_NEAR(ToFloat(test.outputs["O"].as<bf16>()[i]), expected,
                0.005 + 0.016 * std::abs(expected));
  }
}

TEST(NeighborhoodAttention3d, ClampedWindowCoversAShortAxis) {
  const Attributes clamp = {{"clamp_window", std::int64_t{1}}};
  for (const Grid& grid : {Grid{2, 7, 9}, {1, 4, 6}, {3, 7, 7}}) {
    TestCase test = Make(kH32, 1, grid, "", clamp);
    ExpectGrade(test, "captured", Text(grid));
  }
}

TEST(NeighborhoodAttention3d, LogitsOfTenThousandMeetTheGrade) {
  TestCase test = Make("h2_3_7_7", 1, {3, 9, 12});
  for (const char* name : {"Q", "K"}) {  // factors of 32: logits around 10^3, some beyond 3 10^3
    Tensor& x = test.inputs[name];
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      x.as<bf16>()[i] = ToBF16(32 * ToFloat(x.as<bf16>()[i]));
    }
  }
  EXPECT_TRUE(RunAndVerify(test).passed());
}

// --- NaN and Inf ---

TEST(NeighborhoodAttention3d, NanVoxelReachesExactlyItsWindows) {
  for (const TileLeaf* leaf : RunnableLeaves()) {
    for (const auto& [tensor, channels] : {std::pair{"K", kHeadDim}, {"V", std::int64_t{1}}}) {
      TestCase test = Make("h2_3_5_5", 2, {5, 9, 21});
      const Point voxel{1, 1, 6, 20};
      Row(test, tensor, voxel, 1)[7] = bf16{0x7FC0};
      const Args args = ArgsOf(test);
      RunWindows(args, ShiftedWindows(args), *leaf, 0);
      EXPECT_TRUE(VerifyFully(test).passed());
      ForPoints(test, [&](const Point& p) {
        for (std::int64_t head = 0; head < 2; ++head) {
          std::int64_t poisoned = 0;
          for (std::int64_t d = 0; d < kHeadDim; ++d) {
            poisoned += std::isnan(ToFloat(Row(test, "O", p, head)[d])) ? 1 : 0;
          }
          const bool expected = head == 1 && Sees(test, p, voxel);
          ASSERT_EQ(poisoned, expected ? channels : 0) << leaf->name << " " << tensor;
        }
      });
    }
  }
}

TEST(NeighborhoodAttention3d, NanQueryReachesOnlyItsRow) {
  TestCase test = Make("h1_3_7_7", 1, {3, 8, 11});
  Row(test, "Q", {0, 1, 4, 5}, 0)[0] = bf16{0x7FC0};
  EXPECT_TRUE(RunAndVerify(test).passed());
  std::int64_t poisoned = 0;
  ForPoints(test, [&](const Point& p) {
    poisoned += std::isnan(ToFloat(Row(test, "O", p, 0)[0])) ? 1 : 0;
  });
  EXPECT_EQ(poisoned, 1);
}

TEST(NeighborhoodAttention3d, InfiniteKeysAndValues) {
  for (const char* tensor : {"K", "V"}) {
    TestCase test = Make("h1_3_5_5", 1, {4, 7, 19});
    Row(test, tensor, {0, 2, 3, 9}, 0)[4] = bf16{0xFF80};  // -Inf
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << tensor << ": " << verdict.reason;
  }
}

// --- memory: kept public bugs ---

// Copies between contiguous memory and rows of 64 with other strides.
void Scatter(const Args& from, const bf16* source, const Strides& source_strides,
             const Strides& strides, bf16* to) {
  const auto offset = [](const Strides& s, std::int64_t b, std::int64_t t, std::int64_t y,
                         std::int64_t x, std::int64_t h) {
    return b * s.batch + t * s.t + y * s.y + x * s.x + h * s.head;
  };
  for (std::int64_t i = 0; i < from.b * from.t * from.y * from.x * from.h; ++i) {
    const std::int64_t h = i % from.h, x = i / from.h % from.x, y = i / (from.h * from.x) % from.y;
    const std::int64_t t = i / (from.h * from.x * from.y) % from.t;
    const std::int64_t b = i / (from.h * from.x * from.y * from.t);
    std::copy_n(source + offset(source_strides, b, t, y, x, h), kHeadDim,
                to + offset(strides, b, t, y, x, h));
  }
}

// NATTEN issue 335 and its later changelog: stride overflow on large inputs.
TEST(NeighborhoodAttention3d, OffsetsBeyond32Bits) {
  constexpr std::int64_t kFar = (1LL << 31) + 64;  // elements between time slices
  const Reserved q(3 * 2 * kFar), k(3 * 2 * kFar), v(3 * 2 * kFar), o(3 * 2 * kFar);
  if (!q.ok() || !k.ok() || !v.ok() || !o.ok()) GTEST_SKIP() << "no address space for 52 GB";
  TestCase test = Make("h2_3_5_5", 1, {3, 6, 9});
  const auto near = Compute(test);
  Args args = ArgsOf(test);
  const Strides contiguous = args.q_strides;
  Strides far = contiguous;
  far.t = kFar;
  Scatter(args, args.q, contiguous, far, q.as<bf16>());
  Scatter(args, args.k, contiguous, far, k.as<bf16>());
  Scatter(args, args.v, contiguous, far, v.as<bf16>());
  args.q = q.as<bf16>();
  args.k = k.as<bf16>();
  args.v = v.as<bf16>();
  args.o = o.as<bf16>();
  args.q_strides = args.k_strides = args.v_strides = args.o_strides = far;
  RunCpu(args, 0);
  test.outputs.Poison();
  Scatter(args, o.as<bf16>(), far, contiguous, test.outputs["O"].as<bf16>());
  EXPECT_EQ(near, BytesOf(test.outputs["O"]));
}

// NATTEN issue 141 and the LTX-2 documentation: heads-first and permuted layouts were silently
// wrong there.
TEST(NeighborhoodAttention3d, HeadsFirstAndPermutedLayouts) {
  TestCase test = Make("h2_3_7_7", 2, {4, 9, 13});
  const auto wanted = Compute(test);
  Args args = ArgsOf(test);
  const Strides contiguous = args.q_strides;
  const std::int64_t plane = args.y * args.x * kHeadDim;
  // [b, h, t, y, x, 64] for Q and O; [x, y, t, b, h, 64 + 8] for K and V.
  const Strides heads_first = {args.h * args.t * plane, plane, args.x * kHeadDim, kHeadDim,
                               args.t * plane,          1};
  const std::int64_t row = kHeadDim + 8;
  const Strides reversed = {args.h * row,
                            args.b * args.h * row,
                            args.t * args.b * args.h * row,
                            args.y * args.t * args.b * args.h * row,
                            row,
                            1};
  const std::size_t elements = static_cast<std::size_t>(test.inputs["Q"].elements());
  std::vector<bf16> q(elements), o(elements), k(elements / kHeadDim * (kHeadDim + 8), bf16{0x7FC0}),
      v(k);
  Scatter(args, args.q, contiguous, heads_first, q.data());
  Scatter(args, args.k, contiguous, reversed, k.data());
  Scatter(args, args.v, contiguous, reversed, v.data());
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.o = o.data();
  args.q_strides = args.o_strides = heads_first;
  args.k_strides = args.v_strides = reversed;
  RunCpu(args, 0);
  test.outputs.Poison();
  Scatter(args, o.data(), heads_first, contiguous, test.outputs["O"].as<bf16>());
  EXPECT_EQ(wanted, BytesOf(test.outputs["O"]));
}

std::int64_t PeakKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6));
  }
  return 0;
}

// attention-gym issues 32 and 187: an N x N mask for 93,600 tokens ran out of memory. Two threads'
// buffers must stay below one percent of the inputs.
TEST(NeighborhoodAttention3d, CapturedGridNeedsNoMemoryBesideItsTensors) {
  TestCase test = Make(kH8, 1, {33, 56, 96});
  test.outputs.Poison();
  std::ofstream("/proc/self/clear_refs") << 5 << std::flush;  // resets the peak
  const std::int64_t before = PeakKilobytes();
  RunCpu(ArgsOf(test), 2);
  EXPECT_LT(PeakKilobytes() - before, static_cast<std::int64_t>(test.inputs.bytes()) / 1024 / 100);
}

// --- reproducibility ---

TEST(NeighborhoodAttention3d, TenRunsAndAnyThreadCountAgreeBitwise) {
  for (const auto& [definition, grid] :
       {std::pair{"h2_3_7_7", Grid{9, 20, 48}}, {"h2_11_11_11", {13, 16, 24}}}) {
    TestCase test = Make(definition, 1, grid);
    const auto first = Compute(test);
    for (int run = 0; run < 9; ++run) ASSERT_EQ(first, Compute(test));
    for (int threads : {1, 2, 3, 8}) ASSERT_EQ(first, Compute(test, threads)) << threads;
  }
}

TEST(NeighborhoodAttention3d, BatchesAndHeadsAreIndependent) {
  TestCase two = Make("h2_3_5_5", 2, {4, 8, 12});
  Compute(two);
  TestCase one = Make("h2_3_5_5", 1, {4, 8, 12});
  for (const char* name : {"Q", "K", "V"}) {
    std::memcpy(one.inputs[name].data, Row(two, name, {1, 0, 0, 0}, 0), one.inputs[name].bytes());
  }
  Compute(one);
  EXPECT_EQ(
      std::memcmp(one.outputs["O"].data, Row(two, "O", {1, 0, 0, 0}, 0), one.outputs["O"].bytes()),
      0);
}

// --- the generator ---

TEST(NeighborhoodAttention3d, EveryElementOnDemand) {
  for (const std::string& variant : TheFamily().variants) {
    TestCase test = Make(kH4, 2, {11, 12, 13}, variant);
    const ElementSource source(test.problem, 20261203);
    for (const Point& p : {Point{0, 0, 0, 0}, {1, 10, 11, 12}, {1, 3, 7, 5}, source.Voxel(1)}) {
      for (std::int64_t head = 0; head < 4; ++head) {
        bf16 row[kHeadDim];
        source.QueryRow(p, head, row);
        EXPECT_EQ(std::memcmp(row, Row(test, "Q", p, head), sizeof row), 0) << variant;
        source.KeyRow(p, head, row);
        EXPECT_EQ(std::memcmp(row, Row(test, "K", p, head), sizeof row), 0) << variant;
        source.ValueRow(p, head, row);
        EXPECT_EQ(std::memcmp(row, Row(test, "V", p, head), sizeof row), 0) << variant;
      }
    }
  }
}

// Logits have a standard deviation of about 1 (heads 1, 5, ...: lowered by 16), values that of
// their stage; one value in 5000 is an outlier.
TEST(NeighborhoodAttention3d, StatisticsOfGeneratedInputs) {
  for (const auto& [definition, grid, sigma] : {std::tuple{kH16, Grid{3, 20, 32}, 0.2},
                                                {kH8, {3, 20, 32}, 0.2},
                                                {kH8, {3, 40, 64}, 0.8},
                                                {kH32, {3, 10, 16}, 0.8},
                                                {kH4, {11, 20, 32}, 2.0}}) {
    TestCase test = Make(definition, 1, grid);
    double square = 0, logit = 0, logit_square = 0, lowered = 0;
    std::int64_t points = 0;
    ForPoints(test, [&](const Point& p) {
      ++points;
      const Point other{0, p.t, p.y, (p.x + 1) % grid.x};
      for (std::int64_t head : {0, 1}) {
        double dot = 0;
        for (std::int64_t d = 0; d < kHeadDim; ++d) {
          dot += ToFloat(Row(test, "Q", p, head)[d]) * ToFloat(Row(test, "K", other, head)[d]);
        }
        if (head == 1) {
          lowered += dot;
        } else {
          logit += dot;
          logit_square += dot * dot;
        }
      }
      const double v = ToFloat(Row(test, "V", p, 0)[3]);
      square += std::abs(v) < 4 * sigma ? v * v : 0;
    });
    const auto n = static_cast<double>(points);
    EXPECT_NEAR(logit / n, 0, 0.15);
    EXPECT_NEAR(std::sqrt(logit_square / n), 1.1, 0.25);
    EXPECT_NEAR(lowered / n, -16, 0.3);
    EXPECT_NEAR(std::sqrt(square / n), sigma, 0.1 * sigma) << definition;
  }
}

// --- verdicts ---

TEST(NeighborhoodAttention3d, MutantsAreRejected) {
  TestCase h32 = Make(kH32, 2, {9, 10, 16});  // B = 2: windows may wrap across the batch
  ExpectMutantsKilled(h32);
  TestCase h8 = Make(kH8, 1, {17, 20, 32});
  ExpectMutantsKilled(h8);
  TestCase h4 = Make(kH4, 2, {13, 16, 24});
  ExpectMutantsKilled(h4);
}

// The default sample of a grid that is too large for a full comparison.
TEST(NeighborhoodAttention3d, MutantsAreRejectedBySampledRows) {
  TestCase test = Make(kH8, 1, {17, 28, 48});
  const RowLists rows = TheFamily().sample_rows(test.problem, test.inputs, 1);
  EXPECT_LT(rows[0].size(), 12000u);
  ExpectMutantsKilled(test);
}

TEST(NeighborhoodAttention3d, SampleCoversEveryBorderClassOfEveryHead) {
  const Problem problem =
      MakeProblem(TheFamily(), kH4, {{"B", 2}, {"T", 49}, {"Y", 80}, {"X", 128}});
  const RowLists rows = TheFamily().sample_rows(problem, Bundle(), 1);
  std::set<std::vector<std::int64_t>> classes;
  const auto border = [](std::int64_t q, std::int64_t length) {
    return static_cast<std::int64_t>(q < 5 ? 0 : q < length - 5 ? 1 : 2);
  };
  for (std::int64_t row : rows[0]) {
    const std::int64_t x = row / 4 % 128, y = row / 512 % 80, t = row / 40960 % 49;
    classes.insert({row / 2007040, row % 4, border(t, 49), border(y, 80), border(x, 128)});
  }
  EXPECT_EQ(classes.size(), 2u * 4 * 27);
}

TEST(NeighborhoodAttention3d, CostOfTheTable) {
  const Problem problem =
      MakeProblem(TheFamily(), kH4, {{"B", 4}, {"T", 121}, {"Y", 80}, {"X", 128}});
  const Cost cost = TheFamily().cost(problem, Bundle());
  EXPECT_NEAR(cost.flops / 1e9, 6755, 1);
  EXPECT_NEAR(cost.bytes / 1e6, 10150, 5);
  EXPECT_EQ(cost.exponentials, cost.flops / 256);
}

// --- refusals ---

TEST(NeighborhoodAttention3d, RefusesAxesShorterThanTheWindow) {
  EXPECT_THAT(ErrorOf([] {
                Make(kH32, 1, {2, 7, 7});
              }),
              HasSubstr("axis T: length 2 smaller than window 3"));
  EXPECT_THAT(ErrorOf([] {
                Make(kH32, 1, {3, 6, 7});
              }),
              HasSubstr("axis Y: length 6 smaller than window 7"));
  EXPECT_THAT(ErrorOf([] {
                Make(kH4, 1, {11, 11, 10});
              }),
              HasSubstr("axis X: length 10 smaller than window 11"));
  EXPECT_THAT(ErrorOf([] {
                Make(kH4, 1, {11, 11, 0}, "", {{"clamp_window", std::int64_t{1}}});
              }),
              HasSubstr("axis X: length 0"));
  EXPECT_THAT(ErrorOf([] {
                Make(kH4, 1, {11, 11, 11}, "", {{"clamp_window", std::string("yes")}});
              }),
              HasSubstr("clamp_window must be 0 or 1"));
}

TEST(NeighborhoodAttention3d, RefusesWhatTheTypedCallCannotDo) {
  TestCase test = Make("h2_3_5_5", 1, {3, 6, 7});
  const auto refusal = [&](auto change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.ky = 4; }), HasSubstr("axis Y: window 4 is even"));
  EXPECT_THAT(refusal([](Args& a) { a.kx = 0; }), HasSubstr("axis X: window 0 is not positive"));
  EXPECT_THAT(refusal([](Args& a) { a.kt = 5; }),
              HasSubstr("axis T: length 3 smaller than window 5"));
  EXPECT_THAT(refusal([](Args& a) { a.d = 128; }), HasSubstr("is 128, supported is 64"));
  EXPECT_THAT(refusal([](Args& a) { a.q_strides.channel = 2; }),
              HasSubstr("Q has channel stride 2"));
  EXPECT_THAT(refusal([](Args& a) { a.k_strides.x = 132; }), HasSubstr("K has X stride 132"));
  EXPECT_THAT(refusal([](Args& a) { a.v_strides.t = -64; }), HasSubstr("V has T stride -64"));
  EXPECT_THAT(refusal([](Args& a) { a.o_strides.y = 64; }), HasSubstr("share memory"));
  EXPECT_THAT(refusal([](Args& a) { a.v = nullptr; }), HasSubstr("V is null"));
  EXPECT_THAT(refusal([](Args& a) { a.o = const_cast<bf16*>(a.k) + 64; }),
              HasSubstr("O overlaps input K"));
}

TEST(NeighborhoodAttention3d, RefusesTensorsThatDoNotFit) {
  const TestCase test = Make("h2_3_5_5", 1, {3, 6, 7});
  const auto refusal = [&](const TensorLayout& layout) {
    return ErrorOfLayout(TheFamily(), test.problem, layout);
  };
  EXPECT_THAT(refusal({"Q", DType::kF16, {1, 3, 6, 7, 2, 64}}),
              HasSubstr("'Q' is float16[1,3,6,7,2,64], expected bfloat16[1,3,6,7,2,64]"));
  EXPECT_THAT(refusal({"K", DType::kBF16, {1, 3, 6, 7, 2, 128}}),
              HasSubstr("'K' is bfloat16[1,3,6,7,2,128]"));
  EXPECT_THAT(refusal({"V", DType::kBF16, {1, 2, 3, 6, 7, 64}}),
              HasSubstr("expected bfloat16[1,3,6,7,2,64]"));
}

// --- identities of the captured data ---

TEST(NeighborhoodAttention3d, CapturedGridsFollowFromTheRequest) {
  std::ifstream file(std::string(ASSAY_SOURCE_DIR) + "/../shared/data/serving_workloads.jsonl");
  if (!file) GTEST_SKIP() << "../shared/data/serving_workloads.jsonl is not here";
  std::map<std::string, int> records;
  std::set<std::string> outputs;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"neighborhood_attention_3d") == std::string::npos) continue;
    const auto record = nlohmann::json::parse(line);
    const std::string definition = record["definition"];
    ++records[definition];
    outputs.insert(record["expected_output"]["path"].get<std::string>());
    const auto& request = record["request"];
    const auto& axes = record["axes"];
    const std::string size = request["size"];
    const std::int64_t frames = request["num_frames"], width = std::stoll(size),
                       height = std::stoll(size.substr(size.find('x') + 1));
    const std::int64_t latent = (frames - 1) / 8 + 1, t1 = latent + 2;
    // The upsamplings (1,2,2), (2,1,1), (2,2,2), (2,2,2); a doubling in time drops a frame.
    const std::int64_t t3 = 2 * t1 - 1, t4 = 2 * t3 - 1, t5 = 2 * t4 - 1 - 16;
    std::vector<Grid> grids;
    if (definition == kH32) grids = {{t1, height / 32, width / 32}};
    if (definition == kH16) grids = {{t1, height / 16, width / 16}};
    if (definition == kH8) grids = {{t3, height / 16, width / 16}, {t4, height / 8, width / 8}};
    if (definition == kH4) grids = {{t5, height / 4, width / 4}};
    bool found = false;
    for (const Grid& grid : grids) {
      found |= axes["T"] == grid.t && axes["Y"] == grid.y && axes["X"] == grid.x;
    }
    EXPECT_TRUE(found) << definition << " " << axes.dump();
    if (definition == kH4) {
      EXPECT_EQ(axes["T"], frames);
    }
    std::ostringstream variant;
    variant << "grid_" << axes["T"] << "x" << axes["Y"] << "x" << axes["X"];
    EXPECT_EQ(record["variant"], variant.str());
    EXPECT_EQ(axes["B"], request["num_outputs_per_prompt"]);
    EXPECT_EQ(axes["B"], record["requested_outputs"]);
    EXPECT_EQ(axes["B"], record["actual_attention_batch"]);
    EXPECT_EQ(record["step"], 0);
    const Definition& d = *TheFamily().FindDefinition(definition);
    std::ostringstream module;
    module << "diffusion_decoder.attention_h" << d.constants.at("H") << "_" << d.constants.at("kt")
           << "x" << d.constants.at("ky") << "x" << d.constants.at("kx");
    EXPECT_EQ(record["module_path"], module.str());
  }
  EXPECT_EQ(records, (std::map<std::string, int>{{kH32, 9}, {kH16, 9}, {kH8, 18}, {kH4, 9}}));
  EXPECT_EQ(outputs.size(), 45u);
}

}  // namespace
}  // namespace assay::neighborhood_attention_3d
