// Runs compared, and the fastest backend chosen: every rule with a case on either side of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "report/best.h"
#include "report/run_diff.h"
#include "report/test_fixture.h"

namespace assay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CaseRow Row(const std::string& uuid, const std::string& backend, double median_ns,
            Axes axes = {{"M", 1}}) {
  return RowOf(FakeCase(uuid, "gemm_n1", std::move(axes), backend, median_ns, 1000));
}

CaseRow Failed(const std::string& uuid, const std::string& backend) {
  CaseRow row = Row(uuid, backend, 1000);
  row.status = Status::kIncorrect;
  row.timing.clear();
  return row;
}

TEST(RatioInterval, IdenticalRunsGiveOneAndSwappingInverts) {
  const TimingSummary a = Row("u", "cpu", 1e6).timing[0], b = Row("v", "cpu", 2e6).timing[0];
  const Interval same = RatioInterval(a, a), up = RatioInterval(a, b), down = RatioInterval(b, a);
  EXPECT_LT(same.low, 1);
  EXPECT_GT(same.high, 1);
  EXPECT_LT(up.low, 2);
  EXPECT_GT(up.high, 1.98);
  EXPECT_NEAR(up.low * down.high, 1, 1e-12);
  EXPECT_NEAR(up.high * down.low, 1, 1e-12);
}

TEST(CompareRuns, SortsCasesIntoWhatChanged) {
  const std::vector<CaseRow> before = {Row("same", "cpu", 1e6), Row("slow", "cpu", 1e6),
                                       Row("fast", "cpu", 1e6), Row("breaks", "cpu", 1e6),
                                       Failed("mends", "cpu"),  Row("gone", "cpu", 1e6)};
  const std::vector<CaseRow> after = {Row("same", "cpu", 1.005e6), Row("slow", "cpu", 1.5e6),
                                      Row("fast", "cpu", 0.5e6),   Failed("breaks", "cpu"),
                                      Row("mends", "cpu", 1e6),    Row("new", "cpu", 1e6)};
  RunInfo one, two;
  one.threads = 2;
  two.threads = 16;
  const RunDiff diff = CompareRuns(one, before, two, after, 0.02);
  EXPECT_THAT(diff.environment, ElementsAre("threads: 2 -> 16"));
  EXPECT_EQ(diff.cases.size(), 5u);
  const auto only = [](const std::vector<const CaseDiff*>& list) {
    return list.size() == 1 ? list[0]->after->uuid : std::to_string(list.size());
  };
  EXPECT_EQ(only(diff.slower), "slow");
  EXPECT_EQ(only(diff.faster), "fast");
  EXPECT_EQ(only(diff.new_failures), "breaks");
  EXPECT_EQ(only(diff.mended), "mends");
  ASSERT_EQ(diff.only_before.size(), 1u);
  EXPECT_EQ(diff.only_before[0]->uuid, "gone");
  ASSERT_EQ(diff.only_after.size(), 1u);
  EXPECT_EQ(diff.only_after[0]->uuid, "new");
  ASSERT_EQ(diff.groups.size(), 1u);
  EXPECT_EQ(diff.groups[0].cases, 3);
  EXPECT_NEAR(diff.groups[0].median, 1.005, 0.02);
}

TEST(CompareRuns, MarginAndIntervalMustBothAgree) {
  const std::vector<CaseRow> before = {Row("u", "cpu", 1e6)};
  const std::vector<CaseRow> after = {Row("u", "cpu", 1.1e6)};
  EXPECT_EQ(CompareRuns({}, before, {}, after, 0.02).slower.size(), 1u);
  EXPECT_EQ(CompareRuns({}, before, {}, after, 0.2).slower.size(), 0u);
  std::vector<CaseRow> wide = after;
  wide[0].timing[0].ci_low_ns = 0.5e6;  // noise that could be the whole change
  EXPECT_EQ(CompareRuns({}, before, {}, wide, 0.02).slower.size(), 0u);
}

TEST(BestBackends, FastestVerifiedPerShape) {
  const std::vector<CaseRow> rows = {Row("a", "cpu", 2e6),
                                     Row("a", "mine", 1e6),
                                     Row("b", "cpu", 2e6),
                                     Row("b", "mine", 1.2e6),
                                     Row("c", "cpu", 9e6, {{"M", 7}}),
                                     Failed("c", "mine")};
  const std::vector<Best> best = BestBackends(rows);
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].backend, "mine");
  EXPECT_EQ(best[0].cases, 2);
  EXPECT_EQ(best[0].second, "cpu");
  EXPECT_NEAR(best[0].second_ratio, 2 / 1.1, 0.05);
  EXPECT_EQ(best[1].backend, "cpu");
  EXPECT_EQ(best[1].second, "");
}

// A backend that failed on one workload of a shape is not chosen for the shape.
TEST(BestBackends, ACandidateMustPassEveryWorkloadOfTheShape) {
  const std::vector<CaseRow> rows = {Row("a", "cpu", 2e6), Row("a", "mine", 1e6),
                                     Row("b", "cpu", 2e6), Failed("b", "mine")};
  const std::vector<Best> best = BestBackends(rows);
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0].backend, "cpu");
}

TEST(BestBackends, CppTableIsSortedForItsSearch) {
  RunInfo run;
  run.id = "r1";
  const std::vector<CaseRow> rows = {Row("a", "cpu", 2e6, {{"M", 9}}),
                                     Row("b", "cpu", 3e6, {{"M", 10}})};
  const std::string text = BestToCpp(BestBackends(rows), run);
  EXPECT_LT(text.find("\"M=10\""), text.find("\"M=9\""));  // by text
  EXPECT_THAT(text, HasSubstr("// Run r1"));
}

}  // namespace
}  // namespace assay
