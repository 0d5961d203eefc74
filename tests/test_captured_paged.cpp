// What the pages of the paged operators say about every captured record (section 5 there), and that
// the batches that we rebuild have those sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "ops/paged/pages.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "tests/captured_records.h"

namespace assay {
namespace {

using List = std::vector<std::int64_t>;

constexpr const char* kIndex = "qsa_index_topk_decode_qwen38_h4_d128_topk512_c4";
constexpr const char* kAttention = "qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4";

std::int64_t KvPages(std::int64_t tokens) { return (tokens + 63) / 64; }

std::int64_t Sum(const List& list) {
  return std::accumulate(list.begin(), list.end(), std::int64_t{0});
}

struct Twins {
  const Workload* index = nullptr;
  const Workload* attention = nullptr;
};

// Both records of every (request, step).
std::map<std::pair<std::string, std::int64_t>, Twins> Points() {
  std::map<std::pair<std::string, std::int64_t>, Twins> points;
  for (const Workload& w : CommittedSuite("serving")) {
    if (w.definition == kIndex) points[{w.request, Int(w, "step")}].index = &w;
    if (w.definition == kAttention) points[{w.request, Int(w, "step")}].attention = &w;
  }
  return points;
}

paged::Batch BatchOf(const Workload& workload, std::int64_t (*pages_of)(std::int64_t)) {
  Problem problem;
  static Definition definition;
  problem.definition = &definition;
  problem.axes = workload.axes;
  problem.attributes = workload.attributes;
  return paged::MakeBatch(problem, pages_of);
}

// Pages that sharing saves, as a record's axes tell.
std::int64_t Saved(const Workload& workload, std::int64_t (*pages_of)(std::int64_t)) {
  std::int64_t needed = 0;
  for (std::int64_t length : Ints(workload, "sequence_lengths")) needed += pages_of(length);
  return needed - workload.axes.at("NP");
}

TEST(CapturedQsa, EveryPointHasBothOperators) {
  const auto points = Points();
  EXPECT_EQ(points.size(), 192u);
  std::int64_t rows = 0;
  for (const auto& [point, twins] : points) {
    ASSERT_NE(twins.index, nullptr) << point.first << " step " << point.second;
    ASSERT_NE(twins.attention, nullptr) << point.first << " step " << point.second;
    const List lengths = Ints(*twins.index, "sequence_lengths");
    EXPECT_EQ(Ints(*twins.attention, "sequence_lengths"), lengths);
    for (const Workload* w : {twins.index, twins.attention}) {
      EXPECT_EQ(w->axes.at("B"), static_cast<std::int64_t>(lengths.size()));
    }
    EXPECT_EQ(twins.index->axes.at("P"), 16);
    EXPECT_EQ(twins.attention->axes.at("P"), 64);
    EXPECT_EQ(Ints(*twins.index, "allocated_cache_shape"), (List{83743, 16, 1, 128}));
    EXPECT_EQ(Ints(*twins.attention, "allocated_cache_shape"), (List{83743, 64, 2, 256}));
    rows += static_cast<std::int64_t>(lengths.size());
  }
  EXPECT_EQ(rows, 1288);
}

TEST(CapturedQsa, TableWidthsAreTheLongestRows) {
  for (const auto& [point, twins] : Points()) {
    const List lengths = Ints(*twins.index, "sequence_lengths");
    const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t index = twins.index->axes.at("MP"), kv = twins.attention->axes.at("MP");
    EXPECT_EQ(index, qsa_index_topk_decode::PagesOfTokens(longest));
    EXPECT_EQ(kv, KvPages(longest));
    // The index page of an incomplete first group does not exist yet.
    EXPECT_EQ(kv - index, longest % 64 >= 1 && longest % 64 <= 3 ? 1 : 0);
  }
}

// Who shares: three requests of one session 537 pages each, two of another 102, in the largest
// batch two rows one page. Both operators save the same number of pages.
TEST(CapturedQsa, SharedPages) {
  for (const auto& [point, twins] : Points()) {
    const auto& [request, step] = point;
    const std::int64_t rows = twins.index->axes.at("B");
    std::int64_t saved = 0;
    if (request == "qwen_next_overlap_p50") saved = 537 * (rows - 1);
    if (request == "qwen_next_overlap_p95" && rows == 9) saved = 102;
    if (request == "qwen_next_overlap_p100" && rows >= 11) saved = 1;
    EXPECT_EQ(Saved(*twins.index, qsa_index_topk_decode::PagesOfTokens), saved) << request << step;
    EXPECT_EQ(Saved(*twins.attention, KvPages), saved) << request << step;
    EXPECT_TRUE(rows > 1 || twins.index->axes.at("NP") == twins.index->axes.at("MP"));
  }
}

TEST(CapturedQsa, RebuiltBatchesHaveTheCapturedPages) {
  for (const auto& [point, twins] : Points()) {
    const auto& [request, step] = point;
    const paged::Batch index = BatchOf(*twins.index, qsa_index_topk_decode::PagesOfTokens);
    const paged::Batch kv = BatchOf(*twins.attention, KvPages);
    EXPECT_EQ(index.distinct, twins.index->axes.at("NP"));
    EXPECT_EQ(kv.distinct, twins.attention->axes.at("NP"));
    EXPECT_EQ(index.shared, kv.shared) << request << step << ": the twins share alike";
    EXPECT_EQ(index.leader, kv.leader);
    if (request == "qwen_next_overlap_p50") {
      EXPECT_EQ(kv.shared[0], 0);
      for (std::size_t row = 1; row < kv.shared.size(); ++row) EXPECT_EQ(kv.shared[row], 537);
    }
    EXPECT_EQ(Sum(kv.shared), Saved(*twins.attention, KvPages));
  }
}

// L mod 4 decides about the tail, floor(L / 4) about what is selected.
TEST(CapturedQsa, GroupsAndTails) {
  std::map<std::int64_t, int> tails, sizes, batches;
  for (const auto& [point, twins] : Points()) {
    ++batches[twins.index->axes.at("B")];
    for (std::int64_t length : Ints(*twins.index, "sequence_lengths")) {
      ++tails[length % 4];
      const std::int64_t n = length / 4;
      std::int64_t size = 512;
      for (std::int64_t limit : {1024, 2048, 8192, 32768, 1 << 20}) {
        if (n > size) size = limit;
      }
      ++sizes[size];
      const std::int64_t attended = 4 * std::min<std::int64_t>(512, n) + length % 4;
      EXPECT_LE(attended, 2051);
      EXPECT_TRUE(point.first != "qwen_next_short_request" || n <= 58);
    }
  }
  EXPECT_EQ(tails, (std::map<std::int64_t, int>{{0, 330}, {1, 330}, {2, 317}, {3, 311}}));
  EXPECT_EQ(sizes,
            (std::map<std::int64_t, int>{
                {512, 6}, {1024, 783}, {2048, 411}, {8192, 14}, {32768, 50}, {1 << 20, 24}}));
  const std::map<std::int64_t, int> histogram = {
      {1, 72}, {2, 12}, {3, 10}, {4, 8},  {5, 8},  {6, 8},  {7, 8},  {8, 8},
      {9, 8},  {11, 4}, {12, 4}, {13, 4}, {14, 4}, {15, 4}, {16, 4}, {17, 2},
      {18, 4}, {19, 4}, {20, 4}, {21, 4}, {22, 4}, {23, 4}};
  EXPECT_EQ(batches, histogram);
}

// The captured engine's ids of rows that keep everything are already ascending.
TEST(CapturedQsa, ShortRequestsKeepTheirFile) {
  for (const auto& [point, twins] : Points()) {
    if (point.first != "qwen_next_short_request") continue;
    EXPECT_EQ(Text(*twins.index, "expected_output").substr(0, 16),
              Text(*twins.index, "engine_block_ids"));
  }
}

// Where each request profile was captured: steps 0 to 3, the middle and the end.
TEST(CapturedQsa, LengthsOfTheProfiles) {
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>> profiles = {
      {"short_request", {129, 234}},          {"cold_main", {2945, 4756}},
      {"256k_context_p10", {14849, 15388}},   {"subagent_typical", {64001, 64192}},
      {"256k_context_p50", {88769, 88987}},   {"auxiliary_typical", {116481, 120691}},
      {"256k_context_p90", {204289, 208937}}, {"256k_long_output", {204609, 212555}},
      {"fully_reused", {238721, 238923}},     {"256k_context_p99", {249089, 249224}}};
  std::map<std::string, List> lengths;
  for (const auto& [point, twins] : Points()) {
    if (point.first.find("overlap") != std::string::npos) continue;
    lengths[point.first.substr(std::string("qwen_next_").size())].push_back(
        Ints(*twins.index, "sequence_lengths").at(0));
  }
  EXPECT_EQ(lengths.size(), profiles.size());
  for (const auto& [name, ends] : profiles) {
    ASSERT_EQ(lengths[name].size(), 6u) << name;
    EXPECT_EQ(lengths[name].front(), ends.first) << name;
    EXPECT_EQ(lengths[name].back(), ends.second) << name;
  }
}

}  // namespace
}  // namespace assay
