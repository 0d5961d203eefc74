// The ledger's face: chooses the store by the path's ending and forwards to it.
#include "replay/ledger.h"

#include "base/error.h"
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
  row.share_checked = result.correctness.share_checked;
  row.timing = Summarize(result.timing);
  row.floor = result.floor;
  row.setup_ms = result.setup_ms;
  row.seconds = result.seconds;
  row.overhead_ms = result.overhead_ms;
  return row;
}

std::string NewerVersionMessage(const std::string& path, std::int64_t version) {
  return path + " was written by a newer assay (ledger version " + std::to_string(version) +
         ", this one reads up to " + std::to_string(kLedgerVersion) + ")";
}

}  // namespace assay
