// Results with every field filled, for the tests of the ledger. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "replay/ledger.h"

namespace assay {

inline RunInfo TestRun(const std::string& id, const std::string& build = "build-a") {
  RunInfo run;
  run.id = id;
  run.started = "2026-11-30T11:00:00Z";
  run.command = "assay run --suite smoke";
  run.commit = "0123abcd";
  run.build = build;
  run.host = "host";
  run.device = "Some CPU";
  run.device_id = "cpu-x";
  run.compiler = "g++ 12";
  run.os = "Debian 12";
  run.threads = 2;
  run.seed = 42;
  return run;
}

inline Ceilings TestCeilings(const std::string& device_id, const std::string& measured) {
  return {device_id, "Some CPU", measured, 2.5e10, 3e10, 2e10, 7e11, 2e11, 120.5, {}};
}

// Case number `index`; its samples depend on the number, so that a mix-up shows.
inline CaseResult FullCase(int index) {
  CaseResult result;
  result.uuid = "uuid-" + std::to_string(index);
  result.definition = "dense_gemm_bf16_nt_n4096_k4096";
  result.family = "dense_gemm_bf16_nt";
  result.backend = "cpu";
  result.model = "model";
  result.phase = "prefill";
  result.request = "request-3";
  result.axes = {{"M", 4096}, {"K", 1LL << 40}};
  result.status = Status::kPassed;
  result.sub = "sub";
  result.reason = "a reason with \"quotes\" and \n a newline";
  result.flags = {"noisy", "ties:3"};
  result.notes = {"cuBLASLt 13.1.0", "candidate 3 of 8"};
  result.input_source = "generated";
  result.input_hashes = {{"b", "ff"}, {"a", "00"}};
  result.correctness.content_sets = 3;
  result.correctness.share_checked = 0.1;
  OutputCheck& check = result.correctness.outputs.emplace_back();
  check.output = "c";
  check.grade = "captured";
  check.rows_checked = 64;
  check.rows_total = 4096;
  check.max_abs = 1.0 / 3;
  check.max_rel_l2 = 2e-3;
  check.budget_used = 0.7;
  check.worst = {{5, 7}, 1.25, 1.2500001, 0.025};
  result.correctness.findings.push_back({"freivalds", true, 1e-5, 1e-3, "row 3"});
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const char* mode : {"cold_host", "warm_host"}) {
      TimingSeries series{mode, repeat, repeat == 0 ? "converged" : "time", {}};
      for (int i = 0; i < 50; ++i) series.samples_ns.push_back(1000.1 * (index + 1) + i / 3.0);
      result.timing.push_back(std::move(series));
    }
  }
  result.floor = {1e12, 2e9, 12345.5, "memory"};
  result.clocks = {{0, 1980, 1995, 2619, 340.5, 41, 0x4}, {1, 1410, 1995, 2619, 699, 74.5, 0x24}};
  result.setup_ms = 1.5;
  result.seconds = 2.5;
  result.overhead_ms = 0.75;
  result.peak_bytes = 1LL << 33;
  result.started = "2026-11-30T11:00:01Z";
  return result;
}

inline void ExpectSameSeries(const CaseResult& got, const CaseResult& expected) {
  ASSERT_EQ(got.timing.size(), expected.timing.size());
  for (std::size_t s = 0; s < expected.timing.size(); ++s) {
    EXPECT_EQ(got.timing[s].mode, expected.timing[s].mode);
    EXPECT_EQ(got.timing[s].repeat, expected.timing[s].repeat);
    EXPECT_EQ(got.timing[s].stop, expected.timing[s].stop);
    EXPECT_EQ(got.timing[s].samples_ns, expected.timing[s].samples_ns);  // bit for bit
  }
}

inline void ExpectSameCase(const CaseResult& got, const CaseResult& expected) {
  EXPECT_EQ(got.input_hashes, expected.input_hashes);
  EXPECT_EQ(got.axes, expected.axes);
  ExpectSameSeries(got, expected);
  // The JSON form shows every field; the two compared above have a test of their own.
  EXPECT_EQ(CaseResultToJson(got, ""), CaseResultToJson(expected, ""));
}

}  // namespace assay
