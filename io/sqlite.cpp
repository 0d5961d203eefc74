#include "io/sqlite.h"

#include <sqlite3.h>
#include <unistd.h>

#include <bit>
#include <cctype>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little, "blobs of doubles are little-endian");

// How long a writer waits for another process that holds the lock.
constexpr int kBusyTimeoutMs = 10'000;

Fault FaultOf(int code) {
  switch (code & 0xFF) {  // the primary code of an extended one
    case SQLITE_CANTOPEN:
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return Fault::kInput;
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_NOMEM:
      return Fault::kDevice;
    default:
      return Fault::kInternal;
  }
}

// file:/a%20b?immutable=1: a file that nobody changes, readable where no lock file can be created.
std::string ImmutableUri(const std::string& path) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string uri = "file:";
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || c == '/' || c == '.' || c == '-' || c == '_';
    if (plain) {
      uri += c;
    } else {
      uri += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return uri + "?immutable=1";
}

}  // namespace

SqliteDatabase::SqliteDatabase(std::string path, Mode mode) : path_(std::move(path)) {
  if (mode == Mode::kReadOnly) {
    OpenReadOnly();
    return;
  }
  Open(path_, SQLITE_OPEN_READWRITE | (mode == Mode::kCreate ? SQLITE_OPEN_CREATE : 0));
  // SQLite falls back to reading when it may not write.
  if (sqlite3_db_readonly(handle_, "main") == 1) {
    sqlite3_close(handle_);
    BadInput("cannot write to " + path_ + ": permission denied");
  }
}

void SqliteDatabase::Open(const std::string& name, int flags) {
  const int code = sqlite3_open_v2(name.c_str(), &handle_, flags, nullptr);
  if (code != SQLITE_OK) {
    const std::string reason = handle_ != nullptr ? sqlite3_errmsg(handle_) : sqlite3_errstr(code);
    sqlite3_close(std::exchange(handle_, nullptr));
    throw Error(FaultOf(code), "cannot open " + path_ + ": " + reason);
  }
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
}

void SqliteDatabase::OpenReadOnly() {
  Open(path_, SQLITE_OPEN_READONLY);
  // The first read finds out whether the lock file of a WAL database can be created. In a read-only
  // folder it cannot; without a log there is then nothing that could change under us.
  const int code = sqlite3_exec(handle_, "PRAGMA schema_version", nullptr, nullptr, nullptr);
  const bool no_lock = (code & 0xFF) == SQLITE_CANTOPEN || (code & 0xFF) == SQLITE_READONLY;
  if (no_lock && access((path_ + "-wal").c_str(), F_OK) != 0) {
    sqlite3_close(std::exchange(handle_, nullptr));
    Open(ImmutableUri(path_), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI);
  }
}

void SqliteDatabase::EnableWal() {
  // The switch needs the file for itself, and SQLite does not wait for that by its time-out.
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(kBusyTimeoutMs);
  for (;;) {
    const int code = sqlite3_exec(handle_, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
                                  nullptr, nullptr, nullptr);
    if ((code & 0xFF) != SQLITE_BUSY || Clock::now() >= deadline) return Check(code);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

SqliteDatabase::~SqliteDatabase() { sqlite3_close(handle_); }

void SqliteDatabase::Check(int code) {
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
  throw Error(FaultOf(code), path_ + ": " + sqlite3_errmsg(handle_));
}

void SqliteDatabase::Execute(const std::string& sql) {
  Check(sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr));
}

std::int64_t SqliteDatabase::LastInsertId() const { return sqlite3_last_insert_rowid(handle_); }

SqliteStatement::SqliteStatement(SqliteDatabase& database, std::string_view sql)
    : database_(database) {
  Check(sqlite3_prepare_v2(database.handle_, sql.data(), static_cast<int>(sql.size()), &handle_,
                           nullptr));
}

SqliteStatement::SqliteStatement(SqliteStatement&& other) noexcept
    : database_(other.database_), handle_(std::exchange(other.handle_, nullptr)) {}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(handle_); }

void SqliteStatement::Check(int code) { database_.Check(code); }

void SqliteStatement::BindOne(int position, std::int64_t value) {
  Check(sqlite3_bind_int64(handle_, position, value));
}

void SqliteStatement::BindOne(int position, double value) {
  Check(sqlite3_bind_double(handle_, position, value));
}

void SqliteStatement::BindOne(int position, std::string_view value) {
  // A null pointer would bind NULL, and an empty view may hold one.
  const char* text = value.empty() ? "" : value.data();
  Check(sqlite3_bind_text64(handle_, position, text, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}

void SqliteStatement::BindOne(int position, std::span<const double> values) {
  const void* bytes = values.empty() ? static_cast<const void*>("") : values.data();
  Check(sqlite3_bind_blob64(handle_, position, bytes, values.size_bytes(), SQLITE_TRANSIENT));
}

void SqliteStatement::BindOne(int position, const std::optional<double>& value) {
  Check(value ? sqlite3_bind_double(handle_, position, *value)
              : sqlite3_bind_null(handle_, position));
}

bool SqliteStatement::Step() {
  const int code = sqlite3_step(handle_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) {
    // Reset only after the message was taken: it belongs to the failed step.
    try {
      Check(code);
    } catch (...) {
      sqlite3_reset(handle_);
      throw;
    }
  }
  sqlite3_reset(handle_);
  return false;
}

void SqliteStatement::Run() {
  while (Step()) {
  }
}

void SqliteStatement::Reset() { sqlite3_reset(handle_); }

bool SqliteStatement::IsNull(int column) const {
  return sqlite3_column_type(handle_, column) == SQLITE_NULL;
}

std::int64_t SqliteStatement::Integer(int column) const {
  return sqlite3_column_int64(handle_, column);
}

double SqliteStatement::Real(int column) const { return sqlite3_column_double(handle_, column); }

std::string SqliteStatement::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
  if (text == nullptr) return "";
  return {text, static_cast<std::size_t>(sqlite3_column_bytes(handle_, column))};
}

std::vector<double> SqliteStatement::Doubles(int column) const {
  const void* bytes = sqlite3_column_blob(handle_, column);
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(handle_, column));
  std::vector<double> values(size / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes, values.size() * sizeof(double));
  return values;
}

SqliteTransaction::SqliteTransaction(SqliteDatabase& database) : database_(database) {
  database_.Execute("BEGIN IMMEDIATE");
}

SqliteTransaction::~SqliteTransaction() {
  if (!open_) return;
  try {
    database_.Execute("ROLLBACK");
  } catch (const Error&) {
    // SQLite has rolled back by itself, as it does when the disk is full.
  }
}

void SqliteTransaction::Commit() {
  database_.Execute("COMMIT");
  open_ = false;
}

}  // namespace assay
