// The ledger's face: chooses the store by the path's ending and forwards to it.
#include "replay/ledger.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "replay/ledger_store.h"

namespace assay {

Ledger::Ledger(std::unique_ptr<Store> store) : store_(std::move(store)) {}
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;
Ledger::~Ledger() = default;

Ledger Ledger::Open(const std::string& path, Mode mode) {
  if (path.ends_with(".jsonl")) return Ledger(OpenJsonlStore(path, mode));
#ifdef ASSAY_HAVE_SQLITE
  return Ledger(OpenSqliteStore(path, mode));
#else
  throw Error(Fault::kUnsupported, "ledger " + path +
                                       ": this build has no SQLite, use a path that ends in "
                                       ".jsonl or rebuild with libsqlite3-dev installed");
#endif
}

void Ledger::BeginRun(const RunInfo& run, const Ceilings& ceilings) {
  store_->BeginRun(run, ceilings);
}
void Ledger::Add(const std::string& run_id, const CaseResult& result) {
  store_->Add(run_id, result);
}
void Ledger::FinishRun(const std::string& run_id, const std::string& finished) {
  store_->FinishRun(run_id, finished);
}

std::vector<RunInfo> Ledger::Runs() const { return store_->Runs(); }
std::vector<CaseResult> Ledger::Cases(const std::string& run_id) const {
  return store_->Cases(run_id);
}
std::vector<CaseRow> Ledger::Rows(const std::string& run_id) const { return store_->Rows(run_id); }
Ceilings Ledger::CeilingsOf(const std::string& run_id) const { return store_->CeilingsOf(run_id); }
std::set<CaseKey> Ledger::Done(const std::string& build) const { return store_->Done(build); }

void Ledger::StoreCeilings(const Ceilings& ceilings) { store_->StoreCeilings(ceilings); }
std::optional<Ceilings> Ledger::FindCeilings(const std::string& device_id) const {
  return store_->FindCeilings(device_id);
}

const OutputCheck* WorstOutput(const CaseResult& result) {
  const auto severity = [](const OutputCheck& check) {
    const double budget = std::isnan(check.budget_used) ? HUGE_VAL : check.budget_used;
    return std::make_tuple(!check.problem.empty() || check.mismatches > 0, budget);
  };
  const OutputCheck* worst = nullptr;
  for (const OutputCheck& check : result.correctness.outputs) {
    if (worst == nullptr || severity(check) > severity(*worst)) worst = &check;
  }
  return worst;
}

std::optional<double> BudgetUsed(const Correctness& correctness) {
  std::optional<double> largest;
  for (const OutputCheck& check : correctness.outputs) {
    // A NaN budget means that nothing fits: it must not lose against numbers.
    if (std::isnan(check.budget_used)) return check.budget_used;
    largest = std::max(largest.value_or(0), check.budget_used);
  }
  return largest;
}

CaseRow RowOf(const CaseResult& result) {
  CaseRow row;
  row.uuid = result.uuid;
  row.definition = result.definition;
  row.family = result.family;
  row.backend = result.backend;
  row.model = result.model;
  row.phase = result.phase;
  row.request = result.request;
  row.axes = result.axes;
  row.status = result.status;
  row.sub = result.sub;
  row.reason = result.reason;
  row.grade = result.correctness.grade();
  row.flags = result.flags;
  row.input_source = result.input_source;
  row.share_checked = result.correctness.share_checked;
  row.budget_used = BudgetUsed(result.correctness);
  if (IsFailure(result.status)) {
    if (const OutputCheck* worst = WorstOutput(result)) row.worst = *worst;
    for (const Finding& finding : result.correctness.findings) {
      if (!finding.passed) row.failed_findings.push_back(finding);
    }
  }
  row.timing = Summarize(result.timing);
  row.floor = result.floor;
  row.setup_ms = result.setup_ms;
  row.seconds = result.seconds;
  row.overhead_ms = result.overhead_ms;
  return row;
}

std::vector<CaseRow> RowsOf(const std::vector<CaseResult>& results) {
  std::vector<CaseRow> rows(results.size());
  ParallelRanges(
      static_cast<std::int64_t>(rows.size()), 256, 0, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          rows[i] = RowOf(results[i]);
        }
      });
  return rows;
}

std::string NewerVersionMessage(const std::string& path, std::int64_t version, std::int64_t known) {
  return path + " was written by a newer assay (ledger version " + std::to_string(version) +
         ", this one reads up to " + std::to_string(known) + ")";
}

}  // namespace assay
