// Tests of this room: captured shapes, prefix and segment crossings, edge semantics, metamorphic
// checks against the dense room, refusals, mutants, and the identities of the captured records.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "ops/attention/rows.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "ops/prefix_cached_block_causal/spec.h"
#include "replay/room_test.h"

namespace assay {
namespace {

namespace room = prefix_cached_block_causal;
using room::Args;
using room::Segment;
using ::testing::HasSubstr;
using Triples = std::vector<std::int64_t>;

constexpr std::int64_t kDim = 128;
const Triples kEditSegments = {0, 8, 0, 8, 4104, 1, 4104, 4125, 0};

// Definitions with few heads besides the real ones; the suites replay all 32.
const Family& Prefix() {
  static const Family family = [] {
    Family f = room::MakeFamily();
    f.definitions.push_back({"h2", {{"H", 2}, {"D", kDim}}, {"B", "Np", "Nq"}});
    f.definitions.push_back({"h4", {{"H", 4}, {"D", kDim}}, {"B", "Np", "Nq"}});
    f.definitions.push_back({"h2_prefix0", {{"H", 2}, {"D", kDim}, {"Np", 0}}, {"B", "Nq"}});
    f.definitions.push_back({"h4_prefix0", {{"H", 4}, {"D", kDim}, {"Np", 0}}, {"B", "Nq"}});
    return f;
  }();
  return family;
}

TestCase MakePrefixed(const std::string& definition, std::int64_t b, std::int64_t np,
                      std::int64_t nq, const std::string& variant = "") {
  return MakeTestCase(Prefix(), definition, {{"B", b}, {"Np", np}, {"Nq", nq}}, 20261130, variant);
}

TestCase MakeSegmented(const std::string& definition, std::int64_t b, const Triples& segments,
                       const std::string& variant = "") {
  return MakeTestCase(Prefix(), definition, {{"B", b}, {"Nq", segments[segments.size() - 2]}},
                      20261130, variant, {{"prefix_segments", segments}});
}

Args ArgsOf(TestCase& test) { return room::Bind(test.problem, test.inputs, test.outputs); }

// Output bytes of a run on poisoned outputs.
std::vector<std::byte> Compute(TestCase& test, int threads = 0) {
  test.outputs.Poison();
  room::RunCpu(ArgsOf(test), threads);
  return BytesOf(test.outputs["O"]);
}

bf16* Row(TestCase& test, const char* name, std::int64_t token, std::int64_t head) {
  Bundle& bundle = std::string_view(name) == "O" ? test.outputs : test.inputs;
  return bundle[name].as<bf16>() + (token * test.problem.axis("H") + head) * kDim;
}

// Alternating runs up to about `tokens` tokens: text of 1..40, images of a few lengths.
Triples RandomSegments(std::uint64_t seed, std::int64_t tokens, bool image_first) {
  constexpr std::int64_t kImageLengths[] = {1, 63, 64, 65, 200};
  Triples triples;
  std::int64_t at = 0;
  for (std::uint64_t n = 0; at < tokens; ++n) {
    const std::uint64_t random = Mix64(seed, 0, n);
    const bool image = (n % 2 == 0) == image_first;
    const auto length =
        image ? kImageLengths[random % 5] : static_cast<std::int64_t>(1 + random % 40);
    triples.insert(triples.end(), {at, at + length, image ? 1 : 0});
    at += length;
  }
  return triples;
}

// --- captured shapes ---

TEST(PrefixCachedBlockCausal, CapturedPrefixShapes) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> shapes = {
      {25, 4096}, {32, 4096}, {4125, 4096}, {30, 6144}};
  for (const auto& [np, nq] : shapes) {
    TestCase test = MakePrefixed("h4", 1, np, nq);
    const Verdict verdict = RunAndVerify(test, "cpu", false);
    EXPECT_TRUE(verdict.passed()) << np << "+" << nq << ": " << verdict.reason;
    EXPECT_EQ(verdict.correctness.outputs[0].grade, "captured");
  }
}

TEST(PrefixCachedBlockCausal, CapturedTextRunsInFull) {
  for (std::int64_t nq : {25, 30, 32}) {
    TestCase test = MakeSegmented("prefix_cached_block_causal_h32_d128_prefix0", 1, {0, nq, 0});
    const Verdict verdict = RunAndVerify(test, "cpu", false);
    EXPECT_TRUE(verdict.passed()) << verdict.reason;
    EXPECT_EQ(verdict.correctness.share_checked, 1.0);
  }
}

TEST(PrefixCachedBlockCausal, CapturedEditPrefix) {
  TestCase test = MakeSegmented("h4_prefix0", 1, kEditSegments);
  const Verdict verdict = RunAndVerify(test, "cpu", false);
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
}

TEST(PrefixCachedBlockCausal, EveryGeneratorVariant) {
  for (const std::string& variant : Prefix().variants) {
    TestCase prefixed = MakePrefixed("h2", 2, 37, 200, variant);
    EXPECT_TRUE(RunAndVerify(prefixed).passed()) << variant;
    TestCase segmented = MakeSegmented("h2_prefix0", 2, {0, 9, 0, 9, 140, 1, 140, 200, 0}, variant);
    EXPECT_TRUE(RunAndVerify(segmented).passed()) << variant;
    EXPECT_EQ(segmented.inputs.has("image_ids"), variant == "image_ids");
  }
}

// --- lengths and layouts ---

TEST(PrefixCachedBlockCausal, PrefixAndSuffixLengthsCrossed) {
  for (std::int64_t np : {0, 1, 7, 8, 9, 25, 31, 32, 33, 175, 176, 177, 4125}) {
    for (std::int64_t nq : {1, 63, 64, 128, 129, 200}) {
      TestCase test = MakePrefixed("h2", 1, np, nq);
      const Verdict verdict = RunAndVerify(test, "cpu", np < 1000);
      ASSERT_TRUE(verdict.passed()) << np << "+" << nq << ": " << verdict.reason;
    }
  }
}

TEST(PrefixCachedBlockCausal, RandomLayouts) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    const Triples segments = RandomSegments(seed, 300, seed % 3 == 0);
    TestCase test = MakeSegmented("h2_prefix0", 1, segments);
    const Verdict verdict = RunAndVerify(test);
    ASSERT_TRUE(verdict.passed()) << seed << ": " << verdict.reason;
  }
}

TEST(PrefixCachedBlockCausal, SpecialLayouts) {
  const std::vector<Triples> layouts = {
      {0, 150, 1},                             // all image
      {0, 70, 1, 70, 150, 1},                  // two adjacent blocks
      {0, 20, 0, 20, 50, 0, 50, 90, 0},        // adjacent text runs
      {0, 1, 1, 1, 2, 0, 2, 3, 1, 3, 130, 0},  // runs of one token
      {0, 1024, 1, 1024, 1040, 0},             // image first
  };
  for (const Triples& segments : layouts) {
    TestCase test = MakeSegmented("h2_prefix0", 1, segments);
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << ShapeText(segments) << ": " << verdict.reason;
  }
}

TEST(PrefixCachedBlockCausal, BordersAtEveryOffsetFromATile) {
  for (std::int64_t tile : {64, 128}) {
    for (std::int64_t offset = 0; offset <= 17; ++offset) {
      const std::int64_t first = tile + offset, second = first + 70;
      TestCase test =
          MakeSegmented("h2_prefix0", 1, {0, first, 0, first, second, 1, second, second + 20, 0});
      const Verdict verdict = RunAndVerify(test);
      ASSERT_TRUE(verdict.passed()) << tile << "+" << offset << ": " << verdict.reason;
    }
  }
}

// --- metamorphic checks ---

// The dense operator on concatenated keys.
std::vector<std::byte> DenseOnConcatenation(TestCase& test) {
  const std::int64_t b = test.problem.axis("B"), h = test.problem.axis("H");
  const std::int64_t nq = test.problem.axis("Nq"), np = test.problem.axis("Np");
  const std::int64_t inner = h * kDim;
  std::vector<bf16> k, v;
  for (std::int64_t batch = 0; batch < b; ++batch) {
    if (np > 0) {
      k.insert(k.end(), Row(test, "K_prefix", batch * np, 0),
               Row(test, "K_prefix", batch * np, 0) + np * inner);
      v.insert(v.end(), Row(test, "V_prefix", batch * np, 0),
               Row(test, "V_prefix", batch * np, 0) + np * inner);
    }
    k.insert(k.end(), Row(test, "K", batch * nq, 0), Row(test, "K", batch * nq, 0) + nq * inner);
    v.insert(v.end(), Row(test, "V", batch * nq, 0), Row(test, "V", batch * nq, 0) + nq * inner);
  }
  auto dense = noncausal_dense_attention::Args::Contiguous(b, nq, np + nq, h, kDim);
  dense.q = test.inputs["Q"].as<bf16>();
  dense.k = k.data();
  dense.v = v.data();
  dense.o = test.outputs["O"].as<bf16>();
  test.outputs.Poison();
  noncausal_dense_attention::RunCpu(dense, 0);
  return BytesOf(test.outputs["O"]);
}

TEST(PrefixCachedBlockCausal, EqualsDenseAttentionOnConcatenatedKeysBitwise) {
  for (std::int64_t np : {0, 1, 25, 128, 300}) {
    TestCase test = MakePrefixed("h2", 2, np, 150);
    const auto dense = DenseOnConcatenation(test);
    EXPECT_EQ(Compute(test), dense) << np;
  }
}

TEST(PrefixCachedBlockCausal, OneImageBlockEqualsDenseAttentionBitwise) {
  TestCase test = MakeSegmented("h2_prefix0", 2, {0, 200, 1});
  const auto dense = DenseOnConcatenation(test);
  EXPECT_EQ(Compute(test), dense);
}

TEST(PrefixCachedBlockCausal, ImageBlocksOfOneTokenEqualCausalText) {
  Triples ones;
  for (std::int64_t i = 0; i < 70; ++i) ones.insert(ones.end(), {i, i + 1, 1});
  TestCase text = MakeSegmented("h2_prefix0", 1, {0, 70, 0});
  TestCase image = MakeSegmented("h2_prefix0", 1, ones);
  EXPECT_EQ(Compute(text), Compute(image));
}

// As an engine without a block-causal kernel does it: one call per segment.
TEST(PrefixCachedBlockCausal, EqualsOneCallPerSegment) {
  TestCase test = MakeSegmented("h2_prefix0", 1, {0, 9, 0, 9, 140, 1, 140, 170, 0});
  const auto whole = Compute(test);
  test.outputs.Poison();
  const Args args = ArgsOf(test);
  const std::vector<std::int64_t> all_limits = room::Limits(args.segments);
  for (const Segment& segment : args.segments) {
    const std::vector<std::int64_t> limits(all_limits.begin() + segment.start,
                                           all_limits.begin() + segment.end);
    cpu::Attention call = room::KernelArguments(args, limits);
    call.queries = segment.end - segment.start;
    call.q += segment.start * args.q_strides.token;
    call.o += segment.start * args.o_strides.token;
    call.keys[1].count = segment.end;
    cpu::Run(call, 0);
  }
  EXPECT_EQ(whole, BytesOf(test.outputs["O"]));
}

TEST(PrefixCachedBlockCausal, ImageIdsMeanTheSameAsSegments) {
  const Triples segments = {0, 9, 0, 9, 140, 1, 140, 200, 1, 200, 203, 0};
  TestCase stated = MakeSegmented("h2_prefix0", 1, segments);
  TestCase ids = MakeSegmented("h2_prefix0", 1, segments, "image_ids");
  EXPECT_EQ(Compute(stated), Compute(ids));
  ids.problem.attributes.clear();  // the tensor alone
  EXPECT_EQ(Compute(stated), Compute(ids));
  stated.problem.attributes.clear();  // neither: one text run
  TestCase text = MakeSegmented("h2_prefix0", 1, {0, 203, 0});
  EXPECT_EQ(Compute(stated), Compute(text));
}

// --- edge semantics ---

TEST(PrefixCachedBlockCausal, NoQueries) {
  TestCase prefixed = MakePrefixed("h2", 1, 10, 0);
  EXPECT_TRUE(RunAndVerify(prefixed).passed());
  TestCase segmented = MakeTestCase(Prefix(), "h2_prefix0", {{"B", 2}, {"Nq", 0}}, 1);
  EXPECT_TRUE(RunAndVerify(segmented).passed());
}

TEST(PrefixCachedBlockCausal, LimitsOfZeroGiveZeroRows) {  // kept: flash-attention 1778
  TestCase test = MakeSegmented("h2_prefix0", 1, {0, 300, 0});
  std::vector<std::int64_t> limits(300, 0);
  for (std::size_t i = 200; i < 300; ++i) limits[i] = static_cast<std::int64_t>(i) - 199;
  const Args args = ArgsOf(test);
  cpu::Run(room::KernelArguments(args, limits), 0);
  for (std::int64_t i = 0; i < 200; ++i) {
    for (int d = 0; d < kDim; ++d) ASSERT_EQ(Row(test, "O", i, 1)[d].bits, 0) << i;
  }
  EXPECT_TRUE(std::equal(Row(test, "V", 0, 0), Row(test, "V", 1, 0), Row(test, "O", 200, 0)));
  for (std::int64_t i = 200; i < 300; ++i) {
    ASSERT_TRUE(std::isfinite(ToFloat(Row(test, "O", i, 0)[0])));
  }
}

TEST(PrefixCachedBlockCausal, NanInPrefixKeyReachesAllRowsOfItsHead) {
  TestCase test = MakePrefixed("h2", 1, 30, 70);
  Row(test, "K_prefix", 29, 1)[0] = bf16{0x7FC0};
  EXPECT_TRUE(RunAndVerify(test).passed());
  EXPECT_TRUE(std::isnan(ToFloat(Row(test, "O", 0, 1)[5])));
  EXPECT_TRUE(std::isfinite(ToFloat(Row(test, "O", 0, 0)[5])));
}

TEST(PrefixCachedBlockCausal, NanReachesExactlyTheRowsThatSeeIt) {
  for (const char* name : {"K", "V"}) {
    TestCase test = MakeSegmented("h2_prefix0", 1, {0, 40, 0, 40, 100, 1, 100, 150, 0});
    Row(test, name, 45, 0)[3] = bf16{0x7FC0};
    Row(test, name, 120, 1)[3] = bf16{0x7FC0};
    const Verdict verdict = RunAndVerify(test);
    EXPECT_TRUE(verdict.passed()) << name << verdict.reason;
    for (std::int64_t i = 0; i < 150; ++i) {
      ASSERT_EQ(std::isnan(ToFloat(Row(test, "O", i, 0)[3])), i >= 40) << name << i;
      ASSERT_EQ(std::isnan(ToFloat(Row(test, "O", i, 1)[3])), i >= 120) << name << i;
    }
  }
}

TEST(PrefixCachedBlockCausal, PrefixSliceOfACacheFullOfNan) {
  TestCase test = MakePrefixed("h2", 1, 25, 100);
  const auto wanted = Compute(test);
  // A cache of 3 heads and 64 rows; ours are heads 1..2 of rows 17..41.
  std::vector<bf16> k(64 * 3 * kDim, bf16{0x7FFF}), v(k);
  const std::int64_t offset = (17 * 3 + 1) * kDim;
  for (std::int64_t t = 0; t < 25; ++t) {
    std::copy_n(Row(test, "K_prefix", t, 0), 2 * kDim,
                &k[static_cast<std::size_t>(offset + t * 3 * kDim)]);
    std::copy_n(Row(test, "V_prefix", t, 0), 2 * kDim,
                &v[static_cast<std::size_t>(offset + t * 3 * kDim)]);
  }
  Args args = ArgsOf(test);
  args.k_prefix = k.data() + offset;
  args.v_prefix = v.data() + offset;
  args.k_prefix_strides = args.v_prefix_strides = {64 * 3 * kDim, 3 * kDim, kDim, 1};
  test.outputs.Poison();
  room::RunCpu(args, 0);
  EXPECT_EQ(wanted, BytesOf(test.outputs["O"]));
}

TEST(PrefixCachedBlockCausal, TenRunsAndAnyThreadCountAgreeBitwise) {
  TestCase prefixed = MakePrefixed("h2", 1, 33, 700);
  TestCase segmented = MakeSegmented("h2_prefix0", 1, RandomSegments(3, 700, true));
  for (TestCase* test : {&prefixed, &segmented}) {
    const auto first = Compute(*test);
    for (int run = 0; run < 9; ++run) ASSERT_EQ(first, Compute(*test));
    for (int threads : {1, 2, 3, 8}) ASSERT_EQ(first, Compute(*test, threads)) << threads;
  }
}

// --- verdicts ---

TEST(PrefixCachedBlockCausal, MutantsAreRejected) {
  TestCase prefixed = MakePrefixed("h2", 1, 25, 4096);
  ExpectMutantsKilled(prefixed);
  TestCase multiple_of_8 = MakePrefixed("h4", 1, 32, 1024);
  ExpectMutantsKilled(multiple_of_8);
  TestCase text = MakeSegmented("prefix_cached_block_causal_h32_d128_prefix0", 1, {0, 25, 0});
  ExpectMutantsKilled(text);
  TestCase edit = MakeSegmented("h2_prefix0", 1, kEditSegments);
  ExpectMutantsKilled(edit);
}

TEST(PrefixCachedBlockCausal, CostOfTheTable) {
  const Problem prefixed = MakeProblem(Prefix(), "prefix_cached_block_causal_h32_d128",
                                       {{"B", 1}, {"Np", 25}, {"Nq", 4096}});
  const Cost dense = Prefix().cost(prefixed, Bundle());
  EXPECT_NEAR(dense.flops / 1e9, 276.6, 0.05);
  EXPECT_NEAR(dense.bytes / 1e6, 135, 0.5);
  const Problem edit = MakeProblem(Prefix(), "prefix_cached_block_causal_h32_d128_prefix0",
                                   {{"B", 1}, {"Nq", 4125}}, {{"prefix_segments", kEditSegments}});
  const Cost causal = Prefix().cost(edit, Bundle());
  EXPECT_EQ(causal.exponentials, 32.0 * 16'896'435);
  EXPECT_EQ(causal.flops, 4.0 * 128 * 32 * 16'896'435);
}

// --- refusals ---

TEST(PrefixCachedBlockCausal, RefusesSegmentsNamingThem) {
  const auto refusal = [](const Triples& segments, std::int64_t nq) {
    return ErrorOf([&] {
      MakeTestCase(Prefix(), "h2_prefix0", {{"B", 1}, {"Nq", nq}}, 1, "",
                   {{"prefix_segments", segments}});
    });
  };
  EXPECT_THAT(refusal({5, 10, 0, 0, 5, 1}, 10), HasSubstr("segment 0 [5,10) does not start at 0"));
  EXPECT_THAT(refusal({0, 6, 0, 5, 10, 1}, 10), HasSubstr("segment 1 [5,10) does not start at 6"));
  EXPECT_THAT(refusal({0, 5, 0, 6, 10, 1}, 10), HasSubstr("segment 1 [6,10) does not start at 5"));
  EXPECT_THAT(refusal({0, 5, 0, 5, 5, 1, 5, 10, 0}, 10), HasSubstr("segment 1 [5,5) is empty"));
  EXPECT_THAT(refusal({0, 5, 0, 5, 11, 1}, 10), HasSubstr("segment 1 [5,11) ends beyond 10"));
  EXPECT_THAT(refusal({0, 5, 0, 5, 9, 1}, 10),
              HasSubstr("cover 9 of 10 tokens (the last is segment 1)"));
  EXPECT_THAT(refusal({0, 10, 2}, 10), HasSubstr("segment 0 has is_image = 2"));
  EXPECT_THAT(refusal({0, 10}, 10), HasSubstr("not a list of [start, end, is_image]"));
  EXPECT_THAT(ErrorOf([] {
                MakeTestCase(Prefix(), "h2", {{"B", 1}, {"Np", 30}, {"Nq", 5}}, 1, "",
                             {{"prefix_segments", Triples{0, 25, 0}}});
              }),
              HasSubstr("cover 25 of 30"));
}

TEST(PrefixCachedBlockCausal, RefusesImageIds) {
  const auto refusal = [](const std::vector<std::int32_t>& ids) {
    return ErrorOf(
        [&] { room::SegmentsFromImageIds(ids.data(), static_cast<std::int64_t>(ids.size())); });
  };
  EXPECT_THAT(refusal({-1, 0, 0, -1, 0}), HasSubstr("image_ids[4] = 0 belongs to a block"));
  EXPECT_THAT(refusal({-1, -2}), HasSubstr("image_ids[1] = -2"));
  const TestCase test = MakeSegmented("h2_prefix0", 2, {0, 4, 0, 4, 8, 1});
  const auto with_ids = [&](DType dtype, const Shape& shape, const std::vector<std::int32_t>& ids) {
    std::vector<TensorLayout> layouts = test.inputs.layouts();
    layouts.push_back({"image_ids", dtype, shape});
    Bundle inputs = Bundle::Allocate(layouts);
    if (!ids.empty()) std::memcpy(inputs["image_ids"].data, ids.data(), ids.size() * 4);
    return ErrorOf([&] { Prefix().validate_inputs(test.problem, inputs); });
  };
  const std::vector<std::int32_t> good = {-1, -1, -1, -1, 0, 0, 0, 0};
  EXPECT_EQ(with_ids(DType::kI32, {8}, good), "no error");
  EXPECT_THAT(with_ids(DType::kI32, {8}, {-1, -1, -1, 0, 0, 0, 0, 0}),
              HasSubstr("disagree at token 3"));
  EXPECT_THAT(with_ids(DType::kI32, {2, 8}, good), HasSubstr("batch 1 differs from batch 0"));
  EXPECT_THAT(with_ids(DType::kF32, {8}, {}), HasSubstr("image_ids is float32"));
  EXPECT_THAT(with_ids(DType::kI32, {7}, {}), HasSubstr("image_ids has shape [7]"));
}

TEST(PrefixCachedBlockCausal, RefusesTensorsAndStrides) {
  TestCase test = MakePrefixed("h2", 1, 8, 8);
  const auto refusal = [&](auto change) {
    Args args = ArgsOf(test);
    change(args);
    return ErrorOf([&] { room::RunCpu(args, 0); });
  };
  EXPECT_THAT(refusal([](Args& a) { a.d = 64; }), HasSubstr("64, supported is 128"));
  EXPECT_THAT(refusal([](Args& a) { a.k_prefix_strides.token = 4; }),
              HasSubstr("K_prefix has token stride 4"));
  EXPECT_THAT(refusal([](Args& a) { a.v_prefix = nullptr; }), HasSubstr("V_prefix is null"));
  EXPECT_THAT(refusal([](Args& a) { a.o = const_cast<bf16*>(a.v_prefix); }),
              HasSubstr("O overlaps input V_prefix"));
  EXPECT_THAT(refusal([](Args& a) {
                a.segments = {{0, 8, false}};
              }),
              HasSubstr("segments are given together with a prefix of 8 keys"));

  const TensorLayout other_batch{"K_prefix", DType::kBF16, {2, 8, 2, 128}};
  EXPECT_THAT(ErrorOfLayout(Prefix(), test.problem, other_batch),
              HasSubstr("K_prefix has shape [2,8,2,128], expected [1,8,2,128]"));
  EXPECT_THAT(ErrorOfLayout(Prefix(), test.problem, {"mask", DType::kBool, {1, 8}}),
              HasSubstr("a mask is not an input"));
}

// --- identities of the captured data ---

TEST(PrefixCachedBlockCausal, CapturedAxesFollowFromTheRequest) {
  std::ifstream file(std::string(ASSAY_SOURCE_DIR) + "/../shared/data/serving_workloads.jsonl");
  if (!file) GTEST_SKIP() << "../shared/data/serving_workloads.jsonl is not here";
  int with_prefix = 0, without = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.find("prefix_cached_block_causal") == std::string::npos) continue;
    const auto record = nlohmann::json::parse(line);
    const auto& axes = record["axes"];
    const bool prefix0 = record["definition"].get<std::string>().ends_with("prefix0");
    ++(prefix0 ? without : with_prefix);
    const std::int64_t np = prefix0 ? 0 : axes["Np"].get<std::int64_t>();
    const std::int64_t nq = axes["Nq"];
    std::vector<Segment> segments;
    for (const auto& s : record["prefix_segments"]) segments.push_back({s[0], s[1], s[2]});
    EXPECT_NO_THROW(room::CheckSegments(segments, prefix0 ? nq : np));
    const std::string size = record["request"]["size"];
    const std::int64_t width = std::stoll(size),
                       height = std::stoll(size.substr(size.find('x') + 1));
    if (prefix0) {
      EXPECT_EQ(record["step"], 0);
    } else {
      EXPECT_EQ(nq, width / 16 * (height / 16));
    }
    EXPECT_EQ(record["interface_curation"]["previous_replay"]["axes"]["Nall"], np + nq);
    EXPECT_EQ(axes["B"], 1);
    const double error = record["validation"]["max_absolute_errors"][0];
    EXPECT_TRUE(error == 0.015625 || error == 0.03125);
  }
  EXPECT_EQ(with_prefix, 28);
  EXPECT_EQ(without, 12);
}

}  // namespace
}  // namespace assay
