// The ledger in SQLite. Columns hold what reports and SQL users query; `json` holds the whole
// result but for the samples, which are blobs of little-endian doubles (nanoseconds), one a series.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "io/sqlite.h"
#include "replay/ledger_store.h"

namespace assay {
namespace {

// "ASAY": tells a ledger from other SQLite files.
constexpr std::int64_t kApplicationId = 0x41534159;

// 2 added the columns of kAdded. Older files are read, and get the columns when something is
// appended; cases from before have NULL there, and their rows are made of their JSON and samples.
constexpr std::int64_t kTables = 2;
constexpr const char* kAdded = R"sql(
ALTER TABLE cases ADD COLUMN input_source TEXT;
ALTER TABLE cases ADD COLUMN outputs_checked INTEGER;
ALTER TABLE cases ADD COLUMN budget_used REAL;
ALTER TABLE timings ADD COLUMN ratio_low_ns REAL;
ALTER TABLE timings ADD COLUMN ratio_high_ns REAL;
)sql";

constexpr const char* kSchema = R"sql(
CREATE TABLE runs (
  id TEXT PRIMARY KEY, started TEXT NOT NULL, finished TEXT NOT NULL DEFAULT '',
  build TEXT NOT NULL, json TEXT NOT NULL, ceilings TEXT NOT NULL);
CREATE TABLE cases (
  id INTEGER PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs(id),
  uuid TEXT NOT NULL, definition TEXT NOT NULL, family TEXT NOT NULL, backend TEXT NOT NULL,
  model TEXT NOT NULL, phase TEXT NOT NULL, request TEXT NOT NULL, axes TEXT NOT NULL,
  status TEXT NOT NULL, sub TEXT NOT NULL, reason TEXT NOT NULL, flags TEXT NOT NULL,
  grade TEXT NOT NULL, share_checked REAL,
  mode TEXT, median_ns REAL, ci_low_ns REAL, ci_high_ns REAL,
  flops REAL, bytes REAL, floor_ns REAL, bound TEXT NOT NULL,
  setup_ms REAL, seconds REAL, overhead_ms REAL, json TEXT NOT NULL);
CREATE INDEX cases_by_run ON cases(run_id);
CREATE INDEX cases_by_uuid ON cases(uuid, backend);
CREATE TABLE timings (
  case_id INTEGER NOT NULL REFERENCES cases(id), mode TEXT NOT NULL, repeats INTEGER NOT NULL,
  n INTEGER NOT NULL, median_ns REAL, ci_low_ns REAL, ci_high_ns REAL, spread REAL,
  min_ns REAL, max_ns REAL, mean_ns REAL, p90_ns REAL, p95_ns REAL, p99_ns REAL,
  noisy INTEGER NOT NULL);
CREATE INDEX timings_by_case ON timings(case_id);
CREATE TABLE samples (
  case_id INTEGER NOT NULL REFERENCES cases(id), series INTEGER NOT NULL, mode TEXT NOT NULL,
  repeat INTEGER NOT NULL, stop TEXT NOT NULL, ns BLOB NOT NULL);
CREATE INDEX samples_by_case ON samples(case_id);
CREATE TABLE ceilings (
  id INTEGER PRIMARY KEY, device_id TEXT NOT NULL, measured TEXT NOT NULL, json TEXT NOT NULL);
)sql";

SqliteDatabase::Mode DatabaseMode(const std::string& path, Ledger::Mode mode) {
  std::error_code ignored;  // what cannot be seen is reported when it cannot be opened
  if (std::filesystem::is_directory(path, ignored)) BadInput("ledger " + path + " is a directory");
  if (mode == Ledger::Mode::kAppend) return SqliteDatabase::Mode::kCreate;
  if (access(path.c_str(), F_OK) != 0) BadInput("ledger " + path + " does not exist");
  return SqliteDatabase::Mode::kReadOnly;
}

std::string FlagsToJson(const std::vector<std::string>& flags) {
  return nlohmann::json(flags).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> FlagsFromJson(const std::string& text) {
  if (text == "[]") return {};
  return nlohmann::json::parse(text).get<std::vector<std::string>>();
}

std::optional<double> OptionalReal(const SqliteStatement& row, int column) {
  if (row.IsNull(column)) return std::nullopt;
  return row.Real(column);
}

// Columns 0..15 in the order of kTimingColumns.
constexpr const char* kTimingColumns =
    "timings.mode, repeats, n, timings.median_ns, timings.ci_low_ns, timings.ci_high_ns, spread, "
    "min_ns, max_ns, mean_ns, p90_ns, p95_ns, p99_ns, noisy, "
    "ratio_low_ns, ratio_high_ns";

TimingSummary SummaryFrom(const SqliteStatement& row) {
  TimingSummary summary;
  summary.mode = row.Text(0);
  summary.repeats = static_cast<int>(row.Integer(1));
  summary.samples = row.Integer(2);
  summary.median_ns = row.Real(3);
  summary.ci_low_ns = row.Real(4);
  summary.ci_high_ns = row.Real(5);
  summary.spread = row.Real(6);
  summary.min_ns = row.Real(7);
  summary.max_ns = row.Real(8);
  summary.mean_ns = row.Real(9);
  summary.p90_ns = OptionalReal(row, 10);
  summary.p95_ns = OptionalReal(row, 11);
  summary.p99_ns = OptionalReal(row, 12);
  summary.noisy = row.Integer(13) != 0;
  if (!row.IsNull(14)) summary.ratio_side = Interval{row.Real(14), row.Real(15)};
  return summary;
}

constexpr const char* kRowColumns =
    "id, uuid, definition, family, backend, model, phase, request, axes, status, sub, reason, "
    "grade, flags, share_checked, flops, bytes, floor_ns, bound, setup_ms, seconds, overhead_ms, "
    "input_source, outputs_checked, budget_used";

constexpr int kInputSource = 22;  // its number in kRowColumns; NULL = a case without kAdded

CaseRow RowFrom(const SqliteStatement& row) {
  CaseRow result;
  int column = 1;
  result.uuid = row.Text(column++);
  result.definition = row.Text(column++);
  result.family = row.Text(column++);
  result.backend = row.Text(column++);
  result.model = row.Text(column++);
  result.phase = row.Text(column++);
  result.request = row.Text(column++);
  result.axes = AxesFromJson(row.Text(column++));
  const std::string status = row.Text(column++);
  if (!ParseStatus(status)) BadInput("the ledger holds the unknown status '" + status + "'");
  result.status = *ParseStatus(status);
  result.sub = row.Text(column++);
  result.reason = row.Text(column++);
  result.grade = row.Text(column++);
  result.flags = FlagsFromJson(row.Text(column++));
  result.share_checked = row.Real(column++);
  result.floor.flops = row.Real(column++);
  result.floor.bytes = row.Real(column++);
  result.floor.ns = row.Real(column++);
  result.floor.bound = row.Text(column++);
  result.setup_ms = row.Real(column++);
  result.seconds = row.Real(column++);
  result.overhead_ms = row.Real(column++);
  result.input_source = row.Text(column++);
  if (row.Integer(column++) > 0) {
    result.budget_used = OptionalReal(row, column).value_or(std::nan(""));  // NULL: was NaN
  }
  return result;
}

class SqliteStore : public Ledger::Store {
 public:
  SqliteStore(const std::string& path, Ledger::Mode mode)
      : database_(path, DatabaseMode(path, mode)) {
    const std::int64_t tables = CheckIdentity();
    const bool fresh = tables == 0;
    has_added_ = tables >= kTables;
    if (mode == Ledger::Mode::kReadOnly) {
      if (fresh) BadInput(path + " is not an assay ledger: it is an empty database");
      return;
    }
    database_.EnableWal();
    database_.Execute("PRAGMA foreign_keys=ON");
    if (!has_added_) CreateTables();
    has_added_ = true;
  }

  void BeginRun(const RunInfo& run, const Ceilings& ceilings) override {
    SqliteStatement(database_,
                    "INSERT INTO runs(id, started, build, json, ceilings) VALUES(?,?,?,?,?)")
        .Bind(run.id, run.started, run.build, RunInfoToJson(run), CeilingsToJson(ceilings))
        .Run();
  }

  void Add(const std::string& run_id, const CaseResult& result) override {
    SqliteTransaction transaction(database_);
    InsertCase(run_id, result);
    const std::int64_t case_id = database_.LastInsertId();
    InsertTimings(case_id, result);
    InsertSamples(case_id, result);
    transaction.Commit();
  }

  void FinishRun(const std::string& run_id, const std::string& finished) override {
    SqliteStatement(database_, "UPDATE runs SET finished = ? WHERE id = ?")
        .Bind(finished, run_id)
        .Run();
  }

  std::vector<RunInfo> Runs() override {
    std::vector<RunInfo> runs;
    SqliteStatement rows(database_, "SELECT json, finished FROM runs ORDER BY rowid");
    while (rows.Step()) {
      RunInfo& run = runs.emplace_back(RunInfoFromJson(rows.Text(0)));
      run.finished = rows.Text(1);
    }
    return runs;
  }

  std::vector<CaseResult> Cases(const std::string& run_id) override {
    std::vector<std::int64_t> ids;
    std::vector<std::string> texts;
    SqliteStatement rows(database_, "SELECT id, json FROM cases WHERE run_id = ? ORDER BY id");
    rows.Bind(run_id);
    while (rows.Step()) {
      ids.push_back(rows.Integer(0));
      texts.push_back(rows.Text(1));
    }
    std::vector<CaseResult> cases(ids.size());
    ParallelRanges(
        static_cast<std::int64_t>(ids.size()), 256, 0, [&](std::int64_t begin, std::int64_t end) {
          for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            cases[i] = CaseResultFromJson(texts[i]);
          }
        });
    SqliteStatement samples(database_, "SELECT series, ns FROM samples WHERE case_id = ?");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      samples.Bind(ids[i]);
      while (samples.Step()) {
        const auto series = static_cast<std::size_t>(samples.Integer(0));
        std::vector<TimingSeries>& timing = cases[i].timing;
        if (series < timing.size()) timing[series].samples_ns = samples.Doubles(1);
      }
    }
    return cases;
  }

  std::vector<CaseRow> Rows(const std::string& run_id) override {
    if (!has_added_) return RowsOf(Cases(run_id));
    std::vector<CaseRow> result;
    std::vector<std::int64_t> ids;
    SqliteStatement rows(database_, std::string("SELECT ") + kRowColumns +
                                        " FROM cases WHERE run_id = ? ORDER BY id");
    rows.Bind(run_id);
    while (rows.Step()) {
      if (rows.IsNull(kInputSource)) return RowsOf(Cases(run_id));
      ids.push_back(rows.Integer(0));
      result.push_back(RowFrom(rows));
    }
    // All timings in one pass, in the order of the cases.
    SqliteStatement timings(database_,
                            std::string("SELECT ") + kTimingColumns +
                                ", case_id FROM timings JOIN cases ON cases.id = case_id "
                                "WHERE run_id = ? ORDER BY case_id, timings.rowid");
    timings.Bind(run_id);
    std::size_t at = 0;
    while (timings.Step()) {
      while (at < ids.size() && ids[at] < timings.Integer(16)) ++at;
      if (at < ids.size() && ids[at] == timings.Integer(16)) {
        result[at].timing.push_back(SummaryFrom(timings));
      }
    }
    ExplainFailures(ids, result);
    return result;
  }

  Ceilings CeilingsOf(const std::string& run_id) override {
    SqliteStatement row(database_, "SELECT ceilings FROM runs WHERE id = ?");
    row.Bind(run_id);
    return row.Step() ? CeilingsFromJson(row.Text(0)) : Ceilings{};
  }

  std::set<CaseKey> Done(const std::string& build) override {
    std::set<CaseKey> done;
    SqliteStatement rows(database_,
                         "SELECT DISTINCT uuid, backend FROM cases JOIN runs ON runs.id = run_id "
                         "WHERE build = ?");
    rows.Bind(build);
    while (rows.Step()) done.emplace(rows.Text(0), rows.Text(1), build);
    return done;
  }

  void StoreCeilings(const Ceilings& ceilings) override {
    SqliteStatement(database_, "INSERT INTO ceilings(device_id, measured, json) VALUES(?,?,?)")
        .Bind(ceilings.device_id, ceilings.measured, CeilingsToJson(ceilings))
        .Run();
  }

  std::optional<Ceilings> FindCeilings(const std::string& device_id) override {
    SqliteStatement row(database_,
                        "SELECT json FROM ceilings WHERE device_id = ? "
                        "ORDER BY measured DESC, id DESC LIMIT 1");
    row.Bind(device_id);
    if (!row.Step()) return std::nullopt;
    return CeilingsFromJson(row.Text(0));
  }

 private:
  // What went wrong is in the JSON of a case only; most cases have nothing to explain.
  void ExplainFailures(const std::vector<std::int64_t>& ids, std::vector<CaseRow>& rows) {
    SqliteStatement text(database_, "SELECT json FROM cases WHERE id = ?");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!IsFailure(rows[i].status)) continue;
      text.Bind(ids[i]);
      if (!text.Step()) continue;
      CaseRow whole = RowOf(CaseResultFromJson(text.Text(0)));
      rows[i].worst = std::move(whole.worst);
      rows[i].failed_findings = std::move(whole.failed_findings);
    }
  }

  // The version of the file's tables, 0 when it is still empty; throws unless it is ours and known.
  std::int64_t CheckIdentity() {
    // One statement sees one state of the file: another process may be creating the tables.
    SqliteStatement identity(database_,
                             "SELECT (SELECT application_id FROM pragma_application_id), "
                             "(SELECT user_version FROM pragma_user_version), "
                             "(SELECT count(*) FROM sqlite_master)");
    if (!identity.Step()) throw Error(Fault::kInternal, database_.path() + ": no identity");
    const std::int64_t application = identity.Integer(0);
    const std::int64_t version = identity.Integer(1);
    const std::int64_t objects = identity.Integer(2);
    if (application == 0 && version == 0 && objects == 0) return 0;
    if (application != kApplicationId) {
      BadInput(database_.path() + " is not an assay ledger, but some other SQLite database");
    }
    if (version > kTables) {
      BadInput("ledger " + NewerVersionMessage(database_.path(), version, kTables));
    }
    return version;
  }

  // Creates the tables of an empty file, or adds what an older one lacks.
  void CreateTables() {
    SqliteTransaction transaction(database_);
    // Another process may have been faster.
    const std::int64_t tables = CheckIdentity();
    if (tables == kTables) return;
    if (tables == 0) database_.Execute(kSchema);
    database_.Execute(kAdded);
    database_.Execute("PRAGMA application_id = " + std::to_string(kApplicationId));
    database_.Execute("PRAGMA user_version = " + std::to_string(kTables));
    transaction.Commit();
  }

  void InsertCase(const std::string& run_id, const CaseResult& result) {
    const std::vector<TimingSummary> summaries = Summarize(result.timing);
    const TimingSummary* headline = Headline(summaries);
    using OptionalNs = std::optional<double>;
    SqliteStatement insert(
        database_,
        "INSERT INTO cases(run_id, uuid, definition, family, backend, model, phase, request, axes, "
        "status, sub, reason, flags, grade, share_checked, mode, median_ns, ci_low_ns, ci_high_ns, "
        "flops, bytes, floor_ns, bound, setup_ms, seconds, overhead_ms, json, "
        "input_source, outputs_checked, budget_used) "
        "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    insert.Bind(run_id, result.uuid, result.definition, result.family, result.backend, result.model,
                result.phase, result.request, AxesToJson(result.axes), StatusName(result.status),
                result.sub, result.reason, FlagsToJson(result.flags), result.correctness.grade(),
                result.correctness.share_checked, headline ? headline->mode : "",
                headline ? OptionalNs(headline->median_ns) : std::nullopt,
                headline ? OptionalNs(headline->ci_low_ns) : std::nullopt,
                headline ? OptionalNs(headline->ci_high_ns) : std::nullopt, result.floor.flops,
                result.floor.bytes, result.floor.ns, result.floor.bound, result.setup_ms,
                result.seconds, result.overhead_ms, CaseResultToJsonWithoutSamples(result, run_id),
                result.input_source, static_cast<std::int64_t>(result.correctness.outputs.size()),
                BudgetUsed(result.correctness));
    insert.Run();
  }

  void InsertTimings(std::int64_t case_id, const CaseResult& result) {
    SqliteStatement insert(database_,
                           "INSERT INTO timings VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)");
    using OptionalNs = std::optional<double>;
    for (const TimingSummary& summary : Summarize(result.timing)) {
      const std::optional<Interval>& side = summary.ratio_side;
      insert.Bind(case_id, summary.mode, summary.repeats, summary.samples, summary.median_ns,
                  summary.ci_low_ns, summary.ci_high_ns, summary.spread, summary.min_ns,
                  summary.max_ns, summary.mean_ns, summary.p90_ns, summary.p95_ns, summary.p99_ns,
                  summary.noisy ? 1 : 0, side ? OptionalNs(side->low) : std::nullopt,
                  side ? OptionalNs(side->high) : std::nullopt);
      insert.Run();
    }
  }

  void InsertSamples(std::int64_t case_id, const CaseResult& result) {
    SqliteStatement insert(database_, "INSERT INTO samples VALUES(?,?,?,?,?,?)");
    std::int64_t position = 0;
    for (const TimingSeries& series : result.timing) {
      insert.Bind(case_id, position++, series.mode, series.repeat, series.stop,
                  std::span<const double>(series.samples_ns));
      insert.Run();
    }
  }

  SqliteDatabase database_;
  bool has_added_ = false;  // the columns of kAdded
};

}  // namespace

std::unique_ptr<Ledger::Store> OpenSqliteStore(const std::string& path, Ledger::Mode mode) {
  return std::make_unique<SqliteStore>(path, mode);
}

}  // namespace assay
