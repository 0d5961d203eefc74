// What a case came to: the record that the runner fills, the ledger stores and the report shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/stats.h"
#include "cuda/ceilings.h"
#include "ops/family.h"

namespace assay {

// The statuses of the replay page. A failure is a result, never an abort of the run.
enum class Status {
  kPassed,
  kIncorrect,     // sub: shape, dtype, numerical, bitwise, aliasing, input_modified, out_of_bounds,
                  // unstable
  kFailed,        // sub: build, exception, signal, exit, protocol
  kOom,           // reason holds requested and free bytes
  kTimeout,       // sub: the phase (setup, check, timing)
  kUnsupported,   // reason: why the backend declined
  kSuspicious,    // faster than the machine can be
  kPendingAudit,  // measured, dispatch evidence not yet checked
  kInvalidReference,  // ours, not the backend's fault
  kInvalidRecord,     // likewise
};

const char* StatusName(Status status);  // "passed", "incorrect", ...
std::optional<Status> ParseStatus(std::string_view name);
// A verdict that needs somebody's attention: not passed, not merely unsupported or unaudited.
bool IsFailure(Status status);

// The element that used most of its tolerance.
struct WorstElement {
  std::vector<std::int64_t> index;
  double got = 0, expected = 0;
  double allowed = 0;  // tolerance of the grade that judged it
};

struct OutputCheck {
  std::string output;
  std::string grade;  // first grade met, "" when none
  std::int64_t rows_checked = 0, rows_total = 0;
  std::int64_t mismatches = 0;  // elements outside the loosest grade
  double max_abs = 0, max_rel_l2 = 0;
  double max_rel = 0;      // largest |x - r| / (|r| + 1e-8), the relative error of traces
  double budget_used = 0;  // largest |x - r| / allowed under the judging grade
  WorstElement worst;
  std::string problem;  // "" or one sentence: what is wrong
};

// An output against the one that the engine recorded for the same stored inputs: beside the
// verdict, never part of it.
struct EngineError {
  std::string output;
  double max_abs = 0, max_rel = 0, rel_l2 = 0;  // max_rel as in OutputCheck
  std::int64_t differing = 0, elements = 0;     // differing: not equal, however little
};

struct Correctness {
  std::vector<OutputCheck> outputs;
  std::vector<Finding> findings;
  int content_sets = 0;
  double share_checked = 0;  // checked rows / all rows, over all outputs

  // The loosest grade over the outputs; "" before verification or when an output met none.
  std::string grade() const;
};

// One timing loop in one worker process. No sample is ever dropped.
struct TimingSeries {
  std::string mode;  // "cold_host", "warm_host"
  int repeat = 0;
  std::string stop;  // "converged", "time", "count"
  std::vector<double> samples_ns;
};

// Statistics of one mode over its repeats (replay page, section 4); ranking uses `median_ns`.
// Quantiles are nearest-rank, over the samples of all repeats.
struct TimingSummary {
  std::string mode;
  int repeats = 0;
  std::int64_t samples = 0;
  double median_ns = 0;                  // median of the repeats' medians
  double ci_low_ns = 0, ci_high_ns = 0;  // 95 % order-statistic interval of the pooled median; the
                                         // whole range when fewer than 6 samples give none
  // Where the median lies, to 97.5 %, for ratios of two backends: the order-statistic interval of
  // all samples, widened to the medians of the single repeats, since processes differ by more than
  // samples within one do. Empty with too few samples.
  std::optional<Interval> ratio_side;
  double spread = 1;  // max / min of the repeats' medians
  double min_ns = 0, max_ns = 0, mean_ns = 0;
  std::optional<double> p90_ns, p95_ns, p99_ns;  // only where a two-sided interval exists
  bool noisy = false;                            // some repeat did not stop by convergence
};

struct Floor {
  double flops = 0, bytes = 0;
  double ns = 0;      // 0 = no ceilings known
  std::string bound;  // "memory", "compute", "launch"
};

// Appends what the list does not hold yet: flags, notes.
void AddOnce(std::vector<std::string>& list, const std::string& item);

// What the driver's management library said around a timing loop on a device.
struct ClockSample {
  int repeat = 0;
  double sm_mhz = 0, max_sm_mhz = 0, memory_mhz = 0, power_w = 0, temperature_c = 0;
  std::uint64_t throttle_reasons = 0;  // ThrottleReason bits of cuda/clocks.h
};

struct CaseResult {
  std::string uuid, definition, family, backend;
  std::string device = "cpu";         // what the backend computes on: "cpu", "cuda"
  std::string model, phase, request;  // provenance, for filters and reports
  Axes axes;
  Status status = Status::kPassed;
  std::string sub, reason;
  std::vector<std::string> flags;  // "noisy", "empty", "ties:3", "clocks_unknown"
  std::vector<std::string> notes;  // of the backend: a library's version, the algorithm chosen
  std::string input_source;        // "generated" or "blob"
  std::vector<std::pair<std::string, std::string>> input_hashes;  // tensor, SHA-256
  Correctness correctness;
  std::vector<EngineError> engine;  // empty where no engine output is stored
  std::vector<TimingSeries> timing;
  std::vector<ClockSample> clocks = {};  // devices only: before, between and after the series
  Floor floor;
  double setup_ms = 0, seconds = 0;
  double overhead_ms =
      0;  // case wall time outside generation, reference, verdict, kernel calls and timing loops
  std::int64_t peak_bytes = 0;
  std::string started;  // ISO 8601, UTC

  bool timed() const { return !timing.empty(); }
};

// One summary per mode, in order of first appearance; a mode without a single sample has none.
std::vector<TimingSummary> Summarize(const std::vector<TimingSeries>& timing);
// The summary that headlines a report: cold before rotating before warm. Null when not timed.
const TimingSummary* Headline(const std::vector<TimingSummary>& summaries);

// What a run was: the environment of all its cases.
struct RunInfo {
  std::string id;  // unique, sortable by start time
  std::string started, command, commit, build;
  std::string finished;                 // "" = still running, or killed
  std::string host, device, device_id;  // device_id: identity that ceilings are stored under
  std::string compiler, os;
  int threads = 0;
  std::uint64_t seed = 0;
  std::string accelerator = {}, accelerator_id = {};  // "NVIDIA H200, driver ..." and its UUID
};

// Measured limits of one machine, in units per second.
struct Ceilings {
  std::string device_id, device, measured;  // measured: ISO 8601
  double copy_bytes = 0, read_bytes = 0, write_bytes = 0;
  double bf16_flops = 0, f32_flops = 0;
  double launch_ns = 0;
  std::vector<Ceiling> more = {};  // devices: all that was measured, by name
};

// The ceilings of a run's machine: its CPU and, where one is used, its GPU.
struct MachineCeilings {
  Ceilings host, gpu;
};

// The least time the machine needs: max(bytes / copy rate, flops / bf16 rate, launch latency), with
// the name of the term that won. Rates that were not measured (0) are left out; ns = 0 when no
// term is known.
Floor FloorOf(const Cost& cost, const Ceilings& ceilings);

}  // namespace assay
