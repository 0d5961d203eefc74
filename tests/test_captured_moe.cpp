// Identities of the mixture-of-experts records: the pages of moe_router_gemm_topk and
// grouped_gemm_fp8_fp4, section 5.
#include <gtest/gtest.h>

#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "tests/captured_records.h"

namespace assay {
namespace {

using List = std::vector<std::int64_t>;
using Step = std::tuple<std::string, std::int64_t, std::string>;  // request, step, phase

constexpr const char* kRouter = "moe_router_gemm_topk";
constexpr const char* kGrouped = "grouped_gemm_fp8_fp4";
constexpr std::int64_t kPicks = 6;

Step StepOf(const Workload& w) { return {w.request, Int(w, "step"), w.phase}; }

// Values of one axis by (request, step, phase); duplicates stay.
std::multimap<Step, std::int64_t> AxisBySteps(const std::string& family, const std::string& phase,
                                              const std::string& axis) {
  std::multimap<Step, std::int64_t> values;
  for (const Workload& w : Captured(family)) {
    if (w.phase == phase) values.emplace(StepOf(w), w.axes.at(axis));
  }
  return values;
}

bool Holds(const std::multimap<Step, std::int64_t>& values, const Step& step, std::int64_t value) {
  const auto [begin, end] = values.equal_range(step);
  return std::any_of(begin, end, [&](const auto& entry) { return entry.second == value; });
}

// "prefill_128" or "decode_1_cached_False": the number in the middle.
std::int64_t TokensOfVariant(const Workload& w) {
  const std::string variant = Text(w, "variant");
  EXPECT_TRUE(variant.starts_with(w.phase + "_")) << variant;
  std::int64_t tokens = -1;
  std::from_chars(variant.data() + w.phase.size() + 1, variant.data() + variant.size(), tokens);
  return tokens;
}

std::map<std::int64_t, int> CountRows(const std::vector<Workload>& workloads,
                                      const std::string& phase) {
  std::map<std::int64_t, int> counts;
  for (const Workload& w : workloads) {
    if (w.phase == phase) ++counts[w.axes.at("M")];
  }
  return counts;
}

TEST(CapturedRouter, RowCounts) {
  const std::vector<Workload> records = Captured(kRouter);
  EXPECT_EQ(records.size(), 50u);
  EXPECT_EQ(CountRows(records, "decode"), (std::map<std::int64_t, int>{{1, 34}, {2, 4}, {3, 4}}));
  EXPECT_EQ(
      CountRows(records, "prefill"),
      (std::map<std::int64_t, int>{
          {128, 1}, {448, 1}, {1984, 1}, {2432, 1}, {2944, 1}, {3456, 1}, {4032, 1}, {4096, 1}}));
}

TEST(CapturedRouter, Identities) {
  const auto mla = AxisBySteps("mixed_mla_decode", "decode", "B");
  std::set<std::int64_t> sparse_rows;
  for (const Workload& w : Captured("sparse_mla_prefill")) sparse_rows.insert(w.axes.at("M"));
  for (const Workload& w : Captured(kRouter)) {
    const std::int64_t m = w.axes.at("M");
    EXPECT_EQ(m, TokensOfVariant(w)) << w.uuid;
    EXPECT_EQ(Int(w, "layer_id"), 0);
    EXPECT_FALSE(Text(w, "expected_expert_ids").empty());
    EXPECT_FALSE(Text(w, "expected_expert_weights").empty());
    ASSERT_EQ(w.validation.max_absolute_errors.size(), 2u) << w.uuid;
    EXPECT_EQ(w.validation.max_absolute_errors[0], 0) << w.uuid;
    EXPECT_LE(w.validation.max_absolute_errors[1], 3.6e-6) << w.uuid;
    for (const char* grouped :
         {"grouped_gemm_fp8_fp4_e384_n4608", "grouped_gemm_fp8_fp4_e384_n5120"}) {
      EXPECT_TRUE(Holds(AxisBySteps(grouped, w.phase, "M"), StepOf(w), kPicks * m)) << w.uuid;
    }
    if (w.phase == "decode") {
      EXPECT_EQ(m, static_cast<std::int64_t>(Ints(w, "sequence_lengths").size())) << w.uuid;
      EXPECT_TRUE(Holds(mla, StepOf(w), m)) << w.uuid;
    } else {
      EXPECT_TRUE(sparse_rows.contains(m)) << w.uuid;
    }
  }
}

TEST(CapturedGroupedGemm, RowCounts) {
  for (const char* definition :
       {"grouped_gemm_fp8_fp4_e384_n4608_k5120_g32", "grouped_gemm_fp8_fp4_e384_n5120_k2304_g32"}) {
    const std::vector<Workload> records = Captured(definition);
    EXPECT_EQ(records.size(), 52u);
    EXPECT_EQ(CountRows(records, "decode"),
              (std::map<std::int64_t, int>{{6, 34}, {12, 4}, {18, 4}}));
    EXPECT_EQ(CountRows(records, "prefill"), (std::map<std::int64_t, int>{{768, 1},
                                                                          {2688, 1},
                                                                          {11904, 1},
                                                                          {14592, 1},
                                                                          {17664, 1},
                                                                          {20736, 1},
                                                                          {24192, 1},
                                                                          {24576, 3}}));
  }
}

TEST(CapturedGroupedGemm, Identities) {
  const auto mla = AxisBySteps("mixed_mla_decode", "decode", "B");
  const auto sparse = AxisBySteps("sparse_mla_prefill", "prefill", "M");
  std::multiset<std::tuple<Step, std::int64_t>> up, down;
  for (const Workload& w : Captured(kGrouped)) {
    const std::int64_t m = w.axes.at("M");
    EXPECT_EQ(m % kPicks, 0) << w.uuid;
    EXPECT_EQ(m / kPicks, TokensOfVariant(w)) << w.uuid;
    EXPECT_EQ(w.validation.max_absolute_errors.size(), 1u) << w.uuid;
    const bool is_up = w.definition.find("n4608") != std::string::npos;
    (is_up ? up : down).insert({StepOf(w), m});
    const auto& tokens = w.phase == "decode" ? mla : sparse;
    EXPECT_TRUE(Holds(tokens, StepOf(w), m / kPicks)) << w.uuid;
  }
  EXPECT_EQ(up, down);  // every record has a twin of the other definition
}

}  // namespace
}  // namespace assay
