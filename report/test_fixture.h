// Synthetic results for the report tests: shapes and magnitudes of real runs, values from the
// counter-based source, so that goldens are the same on every machine. Test code only.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "report/report.h"

namespace assay {

// `count` samples around `median_ns` with a little right-skewed noise.
inline std::vector<double> FakeSamples(double median_ns, int count, std::uint64_t seed,
                                       double noise = 0.01) {
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) {
    const double u = Uniform(seed, 0, static_cast<std::uint64_t>(i));
    samples.push_back(std::round(10 * median_ns * (1 - noise + 2 * noise * u * u * 1.5)) / 10);
  }
  return samples;
}

// FNV-1a: unlike std::hash the same everywhere.
inline std::uint64_t Fingerprint(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

inline CaseResult FakeCase(const std::string& uuid, const std::string& definition, Axes axes,
                           const std::string& backend, double median_ns, double floor_ns,
                           int samples = 40) {
  CaseResult result;
  result.uuid = uuid;
  result.definition = definition;
  result.family = definition.substr(0, definition.find("_n"));
  result.backend = backend;
  result.model = "Qwen/Qwen-Image-2.1-Turbo";
  result.phase = "prefill";
  result.axes = std::move(axes);
  result.input_source = "generated";
  result.input_hashes = {{"a", std::string(64, 'a')}, {"b", std::string(64, 'b')}};
  OutputCheck check;
  check.output = "out";
  check.grade = "captured";
  check.rows_checked = 512;
  check.rows_total = 4096;
  check.max_abs = 0.00390625;
  check.max_rel_l2 = 0.0017;
  check.budget_used = 0.31;
  check.worst = {{17, 3}, 1.2421875, 1.2398, 0.0248};
  result.correctness.outputs.push_back(check);
  result.correctness.content_sets = 3;
  result.correctness.share_checked = 0.125;
  for (int repeat = 0; repeat < 3 && samples > 0; ++repeat) {
    const auto seed = Fingerprint(uuid + backend) + static_cast<std::uint64_t>(repeat);
    result.timing.push_back(
        {"cold_host", repeat, "converged", FakeSamples(median_ns, samples, seed)});
  }
  result.floor = {2 * floor_ns * 700, floor_ns * 20, floor_ns, "compute"};
  result.setup_ms = 1.5;
  result.seconds = 0.8;
  result.overhead_ms = 1.2;
  result.peak_bytes = std::int64_t{96} << 20;
  result.started = "2026-11-30T11:40:20Z";
  return result;
}

inline CaseResult FakeFailure(CaseResult result) {
  result.status = Status::kIncorrect;
  result.sub = "numerical";
  result.timing.clear();
  OutputCheck& check = result.correctness.outputs.front();
  check.grade = "";
  check.mismatches = 1024;
  check.budget_used = 14.5;
  check.worst = {{0, 17, 131}, -3.40625, 1.2398104, 0.0248};
  check.problem = "out[0, 17, 131] = -3.40625, expected 1.23981 +- 0.0248 (1024 elements are off)";
  result.reason = check.problem;
  return result;
}

inline RunReport FakeEnvironment() {
  RunReport report;
  report.run = {.id = "20261130T114020Z-6f2a",
                .started = "2026-11-30T11:40:20Z",
                .command = "assay run --suite smoke --backend all",
                .commit = "e1394413a0c1",
                .build = "Release",
                .finished = "2026-11-30T11:41:02Z",
                .host = "bench-1",
                .device = "AMD EPYC 9654, 2 cores",
                .device_id = "cpu-6f2a",
                .compiler = "GNU 12.2.0",
                .os = "Debian GNU/Linux 12",
                .threads = 2,
                .seed = 1,
                .accelerator = "",
                .accelerator_id = ""};
  report.ceilings = {.device_id = "cpu-6f2a",
                     .device = "AMD EPYC 9654, 2 cores",
                     .measured = "2026-11-30T11:39:00Z",
                     .copy_bytes = 21.3e9,
                     .read_bytes = 24.1e9,
                     .write_bytes = 13.9e9,
                     .bf16_flops = 718e9,
                     .f32_flops = 322e9,
                     .launch_ns = 900,
                     .more = {}};
  return report;
}

// A run as it comes: two definitions on two backends, a failure, a crash, an oom, unsupported ones.
inline RunReport FakeRun() {
  RunReport report = FakeEnvironment();
  const std::string gemm = "dense_gemm_bf16_nt_n4096_k4096",
                    prefill = "gdn_prefill_qk4_v8_d128_k_last";
  auto& cases = report.cases;
  for (const std::int64_t m : {1, 16, 256, 4096}) {
    const std::string uuid = "6b0f" + std::to_string(1000 + m) + "-0000-4000-8000-000000000000";
    const double floor_ns = 2e4 + 47e3 * static_cast<double>(m);
    cases.push_back(FakeCase(uuid, gemm, {{"M", m}}, "cpu", 1.4 * floor_ns, floor_ns));
    cases.push_back(FakeCase(uuid, gemm, {{"M", m}}, "onednn", 1.1 * floor_ns, floor_ns));
  }
  cases[5] = FakeFailure(cases[5]);
  for (const std::int64_t length : {6, 8192}) {
    const std::string uuid =
        "77aa" + std::to_string(1000 + length) + "-0000-4000-8000-000000000000";
    const Axes axes = {{"total_seq_len", length}, {"num_seqs", 1}, {"len_cu_seqlens", 2}};
    const double floor_ns = 900 + 700 * static_cast<double>(length);
    cases.push_back(FakeCase(uuid, prefill, axes, "cpu", 12 * floor_ns, floor_ns));
    cases.push_back(FakeCase(uuid, prefill, axes, "plugin:mine", 12 * floor_ns, floor_ns));
  }
  cases[8].flags = {"noisy"};
  cases[9].status = Status::kFailed;
  cases[9].sub = "signal";
  cases[9].reason = "the worker died of signal 11 (SIGSEGV) while it checked content set 0";
  cases[9].timing.clear();
  cases[9].correctness = {};
  cases[11].status = Status::kOom;
  cases[11].reason = "needs 107055218688 bytes, 16642998272 are free";
  cases[11].timing.clear();
  cases[11].correctness = {};
  CaseResult unsupported =
      FakeCase("90000000-0000-4000-8000-000000000000", "sparse_mla_prefill_h64_d512_k128",
               {{"M", 128}, {"Nkv", 128}}, "cpu", 0, 0, 0);
  unsupported.status = Status::kUnsupported;
  unsupported.reason = "family sparse_mla_prefill is not built";
  unsupported.correctness = {};
  unsupported.floor = {};
  cases.push_back(unsupported);
  return report;
}

// `count` cases of four definitions on two backends, two outputs and two timing modes each; every
// hundredth failed.
inline RunReport FakeLargeRun(int count) {
  const char* definitions[] = {
      "dense_gemm_bf16_nt_n12288_k4096", "noncausal_dense_attention_h32_d128",
      "mixed_mla_decode_deepseek41_h64_d512_k8128_k4512", "gdn_prefill_qk4_v8_d128_k_last"};
  RunReport report = FakeEnvironment();
  for (int i = 0; i < count; ++i) {
    const int workload = i / 2;
    const std::string digits = std::to_string(100000000000 + workload);
    const double floor_ns = 1e4 * (1 + workload % 977);
    CaseResult result =
        FakeCase("6b0f1256-52e0-4000-8000-" + digits, definitions[workload % 4],
                 {{"M", workload}, {"Nkv", workload % 7}}, i % 2 == 0 ? "cpu" : "onednn",
                 floor_ns * (1.05 + 0.05 * (i * 37 % 100)), floor_ns, 30);
    result.correctness.outputs.push_back(result.correctness.outputs.front());
    result.correctness.outputs.back().output = "new_state";
    for (int repeat = 0; repeat < 3; ++repeat) {
      result.timing.push_back(result.timing[static_cast<std::size_t>(repeat)]);
      result.timing.back().mode = "warm_host";
    }
    report.cases.push_back(i % 100 == 99 ? FakeFailure(std::move(result)) : std::move(result));
  }
  return report;
}

}  // namespace assay
