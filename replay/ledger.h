// The file that holds every verdict and every timing sample. SQLite in WAL mode, or append-only
// JSONL when the path ends in .jsonl (the form that machines without SQLite write and `results/`
// holds). A process killed at any moment loses at most the case in flight.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "replay/result.h"

namespace assay {

inline constexpr int kLedgerVersion = 1;

// What `--resume` compares: a case with the same uuid, backend and build is not run again.
using CaseKey = std::tuple<std::string, std::string, std::string>;

// What tables and filters need of a case: everything but the samples and, of cases that passed, the
// checks of single outputs.
struct CaseRow {
  std::string uuid, definition, family, backend, model, phase, request;
  Axes axes;
  Status status = Status::kPassed;
  std::string sub, reason, grade, input_source;
  std::vector<std::string> flags;
  double share_checked = 0;
  // The largest of all outputs, where NaN is more than any number; empty = nothing was checked.
  std::optional<double> budget_used;
  // Failures only: the output that explains the verdict (see WorstOutput), and the failed checks.
  std::optional<OutputCheck> worst;
  std::vector<Finding> failed_findings;
  std::vector<TimingSummary> timing;  // as Summarize gives it; empty = not timed
  Floor floor;
  double setup_ms = 0, seconds = 0, overhead_ms = 0;
};
CaseRow RowOf(const CaseResult& result);
std::vector<CaseRow> RowsOf(const std::vector<CaseResult>& results);  // on all cores
// The output with a problem or mismatches and the largest budget; null when nothing was checked.
const OutputCheck* WorstOutput(const CaseResult& result);

class Ledger {
 public:
  enum class Mode { kReadOnly, kAppend };

  // Throws kInput: missing (read-only), unwritable, not a ledger, or written by a newer version;
  // kUnsupported: not a .jsonl path, and SQLite was not built in. kAppend creates the file. Several
  // processes may append to one ledger at the same time.
  static Ledger Open(const std::string& path, Mode mode);
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;
  ~Ledger();

  void BeginRun(const RunInfo& run, const Ceilings& ceilings);
  // One transaction; throws kDevice when the disk is full, and the ledger stays readable. Once it
  // returns, the case survives the death of this process.
  void Add(const std::string& run_id, const CaseResult& result);
  void FinishRun(const std::string& run_id, const std::string& finished);

  // In the order in which they began here, whatever the clock said.
  std::vector<RunInfo> Runs() const;
  // In the order in which the cases ended. Rows() is the fast one: 10,000 cases in < 0.2 s.
  std::vector<CaseResult> Cases(const std::string& run_id) const;
  std::vector<CaseRow> Rows(const std::string& run_id) const;
  Ceilings CeilingsOf(const std::string& run_id) const;
  std::set<CaseKey> Done(const std::string& build) const;

  void StoreCeilings(const Ceilings& ceilings);
  std::optional<Ceilings> FindCeilings(const std::string& device_id) const;  // newest

  class Store;  // SQLite or JSONL

 private:
  explicit Ledger(std::unique_ptr<Store> store);
  std::unique_ptr<Store> store_;
};

// Stable JSON of results: one object per line in .jsonl ledgers and in `--json` output, "type" and
// "schema" first, further keys in a fixed order. NaN and infinities are the strings "NaN",
// "Infinity" and "-Infinity". Reading throws kInput when the text is not such an object; unknown
// keys are ignored, missing ones keep their defaults.
std::string CaseResultToJson(const CaseResult& result, const std::string& run_id);
CaseResult CaseResultFromJson(std::string_view json);  // "samples" win over "timing" statistics
std::string RunInfoToJson(const RunInfo& run);
RunInfo RunInfoFromJson(std::string_view json);
std::string CeilingsToJson(const Ceilings& ceilings);
Ceilings CeilingsFromJson(std::string_view json);

}  // namespace assay
