// A thin owner of SQLite handles: open, run, bind by position, step, read columns. Errors become
// assay::Error with the path of the file; which fault they carry is documented at Open.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace assay {

class SqliteDatabase;

// A prepared statement. Bound text and blobs are copied.
class SqliteStatement {
 public:
  SqliteStatement(SqliteDatabase& database, std::string_view sql);
  SqliteStatement(SqliteStatement&& other) noexcept;
  SqliteStatement& operator=(SqliteStatement&&) = delete;
  ~SqliteStatement();

  // Binds all parameters in order, after a reset; each is an integer, a double or text.
  template <class... Values>
  SqliteStatement& Bind(const Values&... values) {
    Reset();
    int position = 0;
    (BindOne(++position, values), ...);
    return *this;
  }
  // Binds one parameter, counted from 1.
  void BindOne(int position, std::int64_t value);
  void BindOne(int position, int value) { BindOne(position, static_cast<std::int64_t>(value)); }
  void BindOne(int position, double value);  // NaN is stored as NULL
  void BindOne(int position, std::string_view value);
  void BindOne(int position, const std::string& value) {
    BindOne(position, std::string_view(value));
  }
  void BindOne(int position, const char* value) { BindOne(position, std::string_view(value)); }
  void BindOne(int position, const std::optional<double>& value);  // NULL when empty
  // Doubles as a blob of little-endian IEEE 754 numbers, 8 bytes each.
  void BindOne(int position, std::span<const double> values);

  // Goes to the next row; false when there is none (the statement is then reset).
  bool Step();
  // Runs to the end, ignoring rows.
  void Run();
  void Reset();

  // Columns of the current row, counted from 0.
  bool IsNull(int column) const;
  std::int64_t Integer(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;
  std::vector<double> Doubles(int column) const;

 private:
  void Check(int code);

  SqliteDatabase& database_;
  sqlite3_stmt* handle_ = nullptr;
};

class SqliteDatabase {
 public:
  enum class Mode { kReadOnly, kReadWrite, kCreate };

  // Waits up to 10 s for other processes. Throws kInput when the file is missing, unreadable, not
  // writable as `mode` asks, not a database or damaged; later calls throw kDevice when the disk is
  // full, fails or stays locked.
  SqliteDatabase(std::string path, Mode mode);
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;
  ~SqliteDatabase();

  const std::string& path() const { return path_; }
  // Runs statements without parameters.
  void Execute(const std::string& sql);
  std::int64_t LastInsertId() const;

  // Turns on write-ahead logging, which readers and a writer may share, and which survives the
  // death of any of them; kept in the file. A power cut loses at most the last transactions.
  void EnableWal();

 private:
  friend class SqliteStatement;
  void Open(const std::string& name, int flags);
  void OpenReadOnly();
  // Throws the error of `code` unless it is success.
  void Check(int code);
  std::string path_;
  sqlite3* handle_ = nullptr;
};

// BEGIN IMMEDIATE ... COMMIT; rolled back when destroyed before Commit().
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDatabase& database);
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;
  ~SqliteTransaction();
  void Commit();

 private:
  SqliteDatabase& database_;
  bool open_ = true;
};

}  // namespace assay
