// Attention replays that others measured, and Nsight Compute tables: foreign evidence shown and
// stored beside our own, with its audit state, and no speed-up where the numbers were not checked.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/result.h"

namespace assay::timeline {

struct ErrorFigures {
  double max_abs = 0, rmse = 0, relative_l2 = 0;
  bool finite = false, allclose = false;
};

struct ForeignReplay {
  std::string configuration, input, directory, backend, role, layer;
  std::int64_t heads = 0, head_dim = 0, q_len = 0, k_len = 0, k_pool = 0;
  std::string status, error, audit;
  std::optional<ErrorFigures> reference, oracle;
  struct Repeat {
    double p50_ms = 0, p95_ms = 0, p99_ms = 0, mean_ms = 0;
    std::int64_t n = 0;
  };
  std::vector<Repeat> repeats;

  // Median of the repeats' medians; 0 when nothing was measured.
  double p50_ms() const;
  // 4 * heads * q_len * k_len * head_dim flops: lengths that were computed, never pool sizes.
  double tflops() const;
  // true or false by both error checks; empty when either was not made (not claimed).
  std::optional<bool> gate() const;
};

// Throws kInput naming the entry and what is wrong with it.
std::vector<ForeignReplay> ParseReplays(std::string_view json, const std::string& path);

struct ReplayRow {  // one input: its backends, fastest first; failures last
  std::string configuration, input, role;
  std::int64_t heads = 0, q_len = 0, k_len = 0;
  std::vector<const ForeignReplay*> backends;
  const ForeignReplay* winner = nullptr;  // fastest whose gate is true and whose audit is verified
};
std::vector<ReplayRow> ReplayMatrix(const std::vector<ForeignReplay>& replays);

// Speed-up of `replay` over `baseline`, only when both gates are true.
std::optional<double> Speedup(const ForeignReplay& replay, const ForeignReplay& baseline);

// One line per shape (heads, q_len, k_len): winner, TFLOP/s, speed-up over `baseline`, failures.
std::string ReplayText(const std::vector<ForeignReplay>& replays, const std::string& baseline,
                       int width, bool colour);

// As ledger entries under the same workload uuids that the suite `worldmodel` has; one run per
// configuration. Timing holds one sample per repeat, its median (flag summary_only:n).
struct ForeignRun {
  RunInfo run;
  std::vector<CaseResult> cases;
};
std::vector<ForeignRun> ReplayRuns(const std::vector<ForeignReplay>& replays,
                                   const std::string& path);

struct NcuMetric {
  std::string section, name, unit;
  double value = 0;
};
struct NcuLaunch {
  std::string id, kernel, grid, block, device;
  std::vector<NcuMetric> metrics;
  const NcuMetric* Find(std::string_view name) const;
};
// Details page (long form) or raw page (wide, units in the second row). Lines in front of the
// header are skipped; "1,234.5" and "1.234,5" are both understood.
std::vector<NcuLaunch> ParseNcuCsv(std::string_view text, const std::string& path);
std::optional<double> NcuNumber(std::string_view text, bool decimal_comma);
// Implausible numbers of a launch, one sentence each (empty = all checks hold).
std::vector<std::string> NcuProblems(const NcuLaunch& launch);
ForeignRun NcuRun(const std::vector<NcuLaunch>& launches, const std::string& path);

}  // namespace assay::timeline
