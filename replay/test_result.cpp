// Statistics of timing series, headline choice, floors, grades and the JSON form of results.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/ledger.h"
#include "replay/ledger_test_data.h"
#include "replay/measure.h"
#include "replay/protocol.h"

namespace assay {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> Ramp(int count, double first) {
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) samples.push_back(first + i);
  return samples;
}

TEST(Status, NamesRoundTrip) {
  for (int s = 0; s <= static_cast<int>(Status::kInvalidRecord); ++s) {
    const auto status = static_cast<Status>(s);
    EXPECT_EQ(ParseStatus(StatusName(status)), status);
  }
  EXPECT_STREQ(StatusName(Status::kPendingAudit), "pending-audit");
  EXPECT_STREQ(StatusName(Status::kInvalidReference), "invalid_reference");
  EXPECT_EQ(ParseStatus("Passed"), std::nullopt);
}

TEST(Summarize, MedianOfRepeatMediansAndSpread) {
  // Medians 5, 104, 14 (nearest rank): ranking must not be moved by the one slow repeat.
  const auto summaries = Summarize({{"cold_host", 0, "converged", Ramp(9, 1)},
                                    {"cold_host", 1, "converged", Ramp(9, 100)},
                                    {"cold_host", 2, "converged", Ramp(9, 10)}});
  ASSERT_EQ(summaries.size(), 1u);
  const TimingSummary& s = summaries[0];
  EXPECT_EQ(s.mode, "cold_host");
  EXPECT_EQ(s.repeats, 3);
  EXPECT_EQ(s.samples, 27);
  EXPECT_EQ(s.median_ns, 14);
  EXPECT_EQ(s.spread, 104.0 / 5.0);
  EXPECT_EQ(s.min_ns, 1);
  EXPECT_EQ(s.max_ns, 108);
  EXPECT_DOUBLE_EQ(s.mean_ns, (45 + 9 * 104 + 9 * 14) / 27.0);
  EXPECT_FALSE(s.noisy);
  EXPECT_LE(s.ci_low_ns, 14);
  EXPECT_GE(s.ci_high_ns, 14);
}

TEST(Summarize, NearestRankMedianOfAnEvenSeriesIsASample) {
  EXPECT_EQ(Summarize({{"warm_host", 0, "converged", {4, 1, 3, 2}}})[0].median_ns, 2);
}

TEST(Summarize, IntervalOfTheMedianIsFromOrderStatistics) {
  // n = 6: only the whole range covers 95 % (1 - 2 * 2^-6 = 0.969).
  const auto six = Summarize({{"m", 0, "converged", Ramp(6, 1)}})[0];
  EXPECT_EQ(six.ci_low_ns, 1);
  EXPECT_EQ(six.ci_high_ns, 6);
  // n = 30: ranks 10 and 21, the table value of every textbook on sign-test intervals.
  const auto thirty = Summarize({{"m", 0, "converged", Ramp(30, 1)}})[0];
  EXPECT_EQ(thirty.ci_low_ns, 10);
  EXPECT_EQ(thirty.ci_high_ns, 21);
  // n = 3 has none: the whole range stands in.
  const auto three = Summarize({{"m", 0, "time", Ramp(3, 1)}})[0];
  EXPECT_EQ(three.ci_low_ns, 1);
  EXPECT_EQ(three.ci_high_ns, 3);
}

TEST(Summarize, PercentilesOnlyWhereAnIntervalExists) {
  const auto summary = [](int n) { return Summarize({{"m", 0, "count", Ramp(n, 1)}})[0]; };
  EXPECT_FALSE(summary(15).p90_ns || summary(15).p95_ns || summary(15).p99_ns);  // rtp-llm #1231
  EXPECT_FALSE(summary(35).p90_ns);
  EXPECT_EQ(summary(36).p90_ns, 33);  // ceil(0.9 * 36)
  EXPECT_FALSE(summary(71).p95_ns);
  EXPECT_EQ(summary(72).p95_ns, 69);  // ceil(68.4)
  EXPECT_FALSE(summary(367).p99_ns);
  EXPECT_EQ(summary(368).p99_ns, 365);  // ceil(364.32)
}

TEST(Summarize, AnyUnconvergedRepeatIsNoisy) {
  EXPECT_TRUE(
      Summarize({{"m", 0, "converged", Ramp(30, 1)}, {"m", 1, "time", Ramp(30, 1)}})[0].noisy);
  EXPECT_TRUE(Summarize({{"m", 0, "count", Ramp(30, 1)}})[0].noisy);
}

TEST(Summarize, ModesStayApartAndInOrder) {
  const auto summaries = Summarize({{"warm_host", 0, "converged", {1}},
                                    {"cold_host", 0, "converged", {5}},
                                    {"warm_host", 1, "converged", {3}},
                                    {"span", 0, "time", {}}});
  ASSERT_EQ(summaries.size(), 2u);
  EXPECT_EQ(summaries[0].mode, "warm_host");
  EXPECT_EQ(summaries[0].median_ns, 2);
  EXPECT_EQ(summaries[1].mode, "cold_host");
}

TEST(Headline, ColdBeforeRotateBeforeWarm) {
  const auto headline = [](std::vector<std::string> modes) {
    std::vector<TimingSummary> summaries;
    for (const std::string& mode : modes) summaries.emplace_back().mode = mode;
    const TimingSummary* chosen = Headline(summaries);
    return chosen == nullptr ? "none" : chosen->mode;
  };
  EXPECT_EQ(headline({"warm_host", "cold_host"}), "cold_host");
  EXPECT_EQ(headline({"cold_span", "cold_event", "warm_event"}), "cold_event");
  EXPECT_EQ(headline({"warm_graph", "rotate_graph"}), "rotate_graph");
  EXPECT_EQ(headline({"host", "warm_graph"}), "warm_graph");
  EXPECT_EQ(headline({"host"}), "host");
  EXPECT_EQ(headline({}), "none");
}

TEST(FloorOf, NamesTheBindingTerm) {
  Ceilings h200;
  h200.copy_bytes = 4.27e12;
  h200.bf16_flops = 790e12;
  h200.launch_ns = 2000;
  const Floor memory = FloorOf({1e9, 4.27e9, 0}, h200);
  EXPECT_EQ(memory.bound, "memory");
  EXPECT_DOUBLE_EQ(memory.ns, 1e6);
  const Floor compute = FloorOf({79e12, 1e6, 0}, h200);
  EXPECT_EQ(compute.bound, "compute");
  EXPECT_DOUBLE_EQ(compute.ns, 1e8);
  EXPECT_EQ(compute.flops, 79e12);
  EXPECT_EQ(compute.bytes, 1e6);
  const Floor launch = FloorOf({1e6, 1e6, 0}, h200);
  EXPECT_EQ(launch.bound, "launch");
  EXPECT_DOUBLE_EQ(launch.ns, 2000);
}

TEST(FloorOf, UnknownCeilingsGiveNoFloor) {
  const Floor floor = FloorOf({1e12, 1e9, 0}, Ceilings{});
  EXPECT_EQ(floor.ns, 0);
  EXPECT_EQ(floor.bound, "");
  Ceilings copy_only;
  copy_only.copy_bytes = 1e9;
  EXPECT_EQ(FloorOf({1e15, 1e9, 0}, copy_only).bound, "memory");
}

TEST(Correctness, GradeIsTheLoosestOfTheOutputs) {
  const auto grade = [](std::vector<std::string> grades) {
    Correctness correctness;
    for (const std::string& name : grades) correctness.outputs.emplace_back().grade = name;
    return correctness.grade();
  };
  EXPECT_EQ(grade({}), "");
  EXPECT_EQ(grade({"captured", "strict"}), "captured");
  EXPECT_EQ(grade({"strict", "gdn_state"}), "gdn_state");
  EXPECT_EQ(grade({"exact", "flash", "captured"}), "flash");
  EXPECT_EQ(grade({"strict", "fp32"}), "strict");  // output and state of gdn_prefill
  EXPECT_EQ(grade({"captured", ""}), "");
}

TEST(ResultJson, RoundTripKeepsEverything) {
  const CaseResult result = FullCase(7);
  const std::string json = CaseResultToJson(result, "run-1");
  EXPECT_EQ(json.find('\n'), std::string::npos);
  ExpectSameCase(CaseResultFromJson(json), result);
  EXPECT_EQ(CaseResultToJson(CaseResultFromJson(json), "run-1"), json);
}

TEST(ResultJson, HasTheKeysThatScriptsRead) {
  const auto json = nlohmann::json::parse(CaseResultToJson(FullCase(0), "run-1"));
  EXPECT_EQ(json["type"], "case");
  EXPECT_EQ(json["schema"], kLedgerVersion);
  EXPECT_EQ(json["run"], "run-1");
  EXPECT_EQ(json["backend"]["name"], "cpu");
  EXPECT_EQ(json["axes"]["M"], 4096);
  EXPECT_EQ(json["correctness"]["grade"], "captured");
  EXPECT_EQ(json["timing"][0]["mode"], "cold_host");
  EXPECT_EQ(json["timing"][0]["n"], 100);
  EXPECT_EQ(json["samples"][0]["ns"].size(), 50u);
  EXPECT_EQ(json["floor"]["bound"], "memory");
}

TEST(ResultJson, NonFiniteNumbersAreStrings) {
  CaseResult result = FullCase(0);
  OutputCheck& check = result.correctness.outputs[0];
  check.worst.got = std::nan("");
  check.budget_used = kInf;
  check.worst.expected = -kInf;
  const std::string json = CaseResultToJson(result, "r");
  EXPECT_THAT(json, testing::HasSubstr(R"("got":"NaN")"));
  EXPECT_THAT(json, testing::HasSubstr(R"("budget_used":"Infinity")"));
  const OutputCheck back = CaseResultFromJson(json).correctness.outputs[0];
  EXPECT_TRUE(std::isnan(back.worst.got));
  EXPECT_EQ(back.budget_used, kInf);
  EXPECT_EQ(back.worst.expected, -kInf);
}

TEST(ResultJson, BrokenTextOfACrashedWorkerIsKept) {
  CaseResult result = FullCase(0);
  result.reason = "last words: \xff\xfe\n\"quoted\"";
  const CaseResult back = CaseResultFromJson(CaseResultToJson(result, "r"));
  EXPECT_THAT(back.reason, testing::StartsWith("last words: "));
  EXPECT_THAT(back.reason, testing::EndsWith("\n\"quoted\""));
}

TEST(ResultJson, RunsAndCeilingsRoundTrip) {
  RunInfo run = TestRun("run-9");
  run.seed = 0xFFFFFFFFFFFFFFFFu;
  run.finished = "2026-11-30T12:00:00Z";
  const std::string json = RunInfoToJson(run);
  const RunInfo back = RunInfoFromJson(json);
  EXPECT_EQ(back.seed, run.seed);
  EXPECT_EQ(back.finished, run.finished);
  EXPECT_EQ(RunInfoToJson(back), json);
  const std::string ceilings = CeilingsToJson(TestCeilings("cpu-x", "2026-11-30T11:00:00Z"));
  EXPECT_EQ(CeilingsToJson(CeilingsFromJson(ceilings)), ceilings);
}

void ExpectRefused(const std::string& json, const std::string& part) {
  try {
    CaseResultFromJson(json);
    ADD_FAILURE() << "accepted: " << json;
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
}

TEST(ResultJson, RefusesWhatIsNoCase) {
  ExpectRefused("{", "not JSON");
  ExpectRefused("[]", "expected a JSON object with \"type\":\"case\"");
  ExpectRefused(R"({"type":"run","id":"x"})", "\"type\":\"case\"");
  ExpectRefused(R"({"type":"case","schema":99})", "newer assay (ledger version 99");
  ExpectRefused(R"({"type":"case","backend":{"name":"cpu"},"status":"great"})", "status 'great'");
  ExpectRefused(R"({"type":"case","status":"passed"})", "malformed");
  ExpectRefused(R"({"type":"case","backend":{"name":"cpu"},"status":"passed","seconds":"soon"})",
                "\"soon\" where a number belongs");
}

// Samples spread evenly over +-`share` of 1 us.
std::vector<double> Noisy(int n, double share) {
  std::vector<double> samples;
  for (int i = 0; i < n; ++i) samples.push_back(1000 * (1 + share * ((i * 37 % 101) / 50.0 - 1)));
  return samples;
}

TEST(StopRule, QuietSeriesEndSoonNoisyOnesByCountOrTime) {
  const auto now = std::chrono::steady_clock::now();
  const TimingLimits limits{.budget_s = 1000};
  const auto after = [&](int n, double share) {
    return StopRule(limits, now).Decide(Noisy(n, share));
  };
  EXPECT_EQ(after(29, 0), "");
  EXPECT_EQ(after(30, 0), "converged");
  EXPECT_EQ(after(30, 0.2), "");  // its interval is 7 % wide, 0.5 % is asked for
  EXPECT_EQ(after(1999, 0.004), "converged");
  EXPECT_EQ(after(2000, 0.5), "count");
  const TimingLimits brief{.budget_s = 1};
  EXPECT_EQ(StopRule(brief, now - std::chrono::seconds(2)).Decide(Noisy(5, 0.2)), "time");
  EXPECT_EQ(StopRule(brief, now).Decide(Noisy(5, 0.2)), "");
}

TEST(ReplyJson, ClocksOfAWorkerComeBack) {
  Reply reply;
  reply.clocks.resize(2);
  ClockReading& known = reply.clocks[0];
  known.known = true;
  known.sm_mhz = 1410, known.max_sm_mhz = 1980, known.memory_mhz = 2619;
  known.power_w = 699.5, known.temperature_c = 74, known.throttle_reasons = 0x24;
  reply.clocks[1].why_unknown = "there is no driver";
  const Reply got = ReplyFromJson(ReplyToJson(reply));
  ASSERT_EQ(got.clocks.size(), 2u);
  EXPECT_TRUE(got.clocks[0].known);
  EXPECT_EQ(got.clocks[0].sm_mhz, 1410);
  EXPECT_EQ(got.clocks[0].max_sm_mhz, 1980);
  EXPECT_EQ(got.clocks[0].memory_mhz, 2619);
  EXPECT_EQ(got.clocks[0].power_w, 699.5);
  EXPECT_EQ(got.clocks[0].temperature_c, 74);
  EXPECT_EQ(got.clocks[0].throttle_reasons, 0x24u);
  EXPECT_FALSE(got.clocks[1].known);
  EXPECT_EQ(got.clocks[1].why_unknown, "there is no driver");
}

}  // namespace
}  // namespace assay
