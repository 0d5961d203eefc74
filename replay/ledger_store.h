// The seam between the ledger and its two file formats. Internal to replay/.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "replay/ledger.h"

namespace assay {

// Same contracts as the methods of Ledger.
class Ledger::Store {
 public:
  virtual ~Store() = default;

  virtual void BeginRun(const RunInfo& run, const Ceilings& ceilings) = 0;
  virtual void Add(const std::string& run_id, const CaseResult& result) = 0;
  virtual void FinishRun(const std::string& run_id, const std::string& finished) = 0;

  virtual std::vector<RunInfo> Runs() = 0;
  virtual std::vector<CaseResult> Cases(const std::string& run_id) = 0;
  virtual std::vector<CaseRow> Rows(const std::string& run_id) = 0;
  virtual Ceilings CeilingsOf(const std::string& run_id) = 0;
  virtual std::set<CaseKey> Done(const std::string& build) = 0;

  virtual void StoreCeilings(const Ceilings& ceilings) = 0;
  virtual std::optional<Ceilings> FindCeilings(const std::string& device_id) = 0;
};

std::unique_ptr<Ledger::Store> OpenJsonlStore(const std::string& path, Ledger::Mode mode);
// Only where SQLite was built in.
std::unique_ptr<Ledger::Store> OpenSqliteStore(const std::string& path, Ledger::Mode mode);

// As CaseResultToJson, but the series keep only their mode, repeat and stop reason: SQLite holds
// the samples themselves as blobs.
std::string CaseResultToJsonWithoutSamples(const CaseResult& result, const std::string& run_id);

// The readers of ledger.h on a line that is parsed already.
RunInfo RunInfoFrom(const nlohmann::ordered_json& line);
CaseResult CaseResultFrom(const nlohmann::ordered_json& line);
Ceilings CeilingsFrom(const nlohmann::ordered_json& line);

// With "run": the ceilings that a run's floors were computed with.
std::string CeilingsToJsonForRun(const Ceilings& ceilings, const std::string& run_id);

// {"M":4096}: axes as they stand in a column and inside result lines.
std::string AxesToJson(const Axes& axes);
Axes AxesFromJson(std::string_view json);

// The sentence for a ledger from the future.
std::string NewerVersionMessage(const std::string& path, std::int64_t version,
                                std::int64_t known = kLedgerVersion);
// The largest of all outputs as in CaseRow.
std::optional<double> BudgetUsed(const Correctness& correctness);

}  // namespace assay
