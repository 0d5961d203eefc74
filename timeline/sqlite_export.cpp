// Schema questions and slow scans through SQLite's own API.
#include "timeline/sqlite_export.h"

#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace assay::timeline {
namespace {

struct Statement {
  sqlite3_stmt* handle = nullptr;
  ~Statement() { sqlite3_finalize(handle); }
};

std::string Quoted(const std::string& name) {
  std::string out = "\"";
  for (const char c : name) {
    out += c;
    if (c == '"') out += c;
  }
  return out + "\"";
}

// The first bytes decide what to tell somebody who gave the wrong file.
void CheckMagic(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) BadInput("cannot open " + path + ": " + std::strerror(errno));
  char head[16] = {};
  const std::size_t got = std::fread(head, 1, sizeof head, file);
  std::fclose(file);
  const bool report = path.size() > 9 && path.substr(path.size() - 9) == ".nsys-rep";
  if (report) {
    BadInput(path + " is a profiler report; export it first: nsys export --type sqlite --output " +
             path.substr(0, path.size() - 9) + ".sqlite " + path);
  }
  if (got == 0) BadInput(path + " is empty");
  if (got == sizeof head && std::all_of(head, head + 16, [](char c) { return c == 0; })) {
    BadInput(path +
             " begins with zeros instead of SQLite's header: the export was interrupted, "
             "run nsys export again");
  }
  if (got < sizeof head || std::memcmp(head, "SQLite format 3", 16) != 0) {
    BadInput(path + " is not an SQLite database");
  }
}

// file: URI with what SQLite's URI parser treats specially escaped.
std::string Uri(const std::string& path) {
  std::string uri = "file:";
  for (const char c : path) {
    if (c == '%' || c == '?' || c == '#') {
      char hex[4];
      std::snprintf(hex, sizeof hex, "%%%02X", static_cast<unsigned char>(c));
      uri += hex;
    } else {
      uri += c;
    }
  }
  struct stat wal {};
  // immutable ignores a write-ahead log, so only where there is none.
  const bool has_wal = stat((path + "-wal").c_str(), &wal) == 0 && wal.st_size > 0;
  return uri + (has_wal ? "?mode=ro" : "?mode=ro&immutable=1");
}

}  // namespace

SqliteExport::SqliteExport(const std::string& path) : path_(path) {
  CheckMagic(path);
  pages_ = std::make_unique<PageFile>(path);
  if (sqlite3_open_v2(Uri(path).c_str(), &db_, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr) !=
      SQLITE_OK) {
    const std::string why = db_ ? sqlite3_errmsg(db_) : "out of memory";
    sqlite3_close(db_);
    BadInput("cannot open " + path + ": " + why);
  }
  try {
    ReadSchema();
  } catch (...) {
    sqlite3_close(db_);
    throw;
  }
}

SqliteExport::~SqliteExport() { sqlite3_close(db_); }

void SqliteExport::Fail(const std::string& doing) const {
  BadInput(path_ + " is damaged: " + sqlite3_errmsg(db_) + " while " + doing +
           " (was the export interrupted?)");
}

void SqliteExport::ReadSchema() {
  Statement list;
  if (sqlite3_prepare_v2(db_, "SELECT name, rootpage, sql FROM sqlite_master WHERE type='table'",
                         -1, &list.handle, nullptr) != SQLITE_OK) {
    Fail("reading the list of tables");
  }
  int rc = 0;
  while ((rc = sqlite3_step(list.handle)) == SQLITE_ROW) {
    const auto* name = reinterpret_cast<const char*>(sqlite3_column_text(list.handle, 0));
    const auto* sql = reinterpret_cast<const char*>(sqlite3_column_text(list.handle, 2));
    if (!name) continue;
    Table table;
    table.root = static_cast<std::uint32_t>(sqlite3_column_int64(list.handle, 1));
    std::string text = sql ? sql : "";
    for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    table.plain = table.root != 0 && text.find("WITHOUT ROWID") == text.npos &&
                  text.find("GENERATED ALWAYS") == text.npos && text.find("VIRTUAL") == text.npos;
    tables_[name] = std::move(table);
  }
  if (rc != SQLITE_DONE) Fail("reading the list of tables");
  for (auto& [name, table] : tables_) ReadColumns(name, table);
}

void SqliteExport::ReadColumns(const std::string& name, Table& table) {
  Statement info;
  const std::string sql = "PRAGMA table_info(" + Quoted(name) + ")";
  if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &info.handle, nullptr) != SQLITE_OK) {
    Fail("reading the columns of " + name);
  }
  while (sqlite3_step(info.handle) == SQLITE_ROW) {
    const auto text = [&](int k) {
      const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(info.handle, k));
      return std::string(value ? value : "");
    };
    std::string type = text(2);
    for (char& c : type) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (sqlite3_column_int(info.handle, 5) > 0 && type == "INTEGER") {
      table.rowid_column = static_cast<int>(table.columns.size());
    }
    // A default applies to rows that are older than the column; only SQLite knows it then.
    if (sqlite3_column_type(info.handle, 4) != SQLITE_NULL) table.plain = false;
    table.columns.push_back(text(1));
  }
}

std::string SqliteExport::Resolve(const std::string& name) const {
  std::string best = Has(name) ? name : "";
  int best_version = -1;
  for (const auto& [table, info] : tables_) {
    if (table.size() <= name.size() + 2 || table.compare(0, name.size(), name) != 0) continue;
    const std::string suffix = table.substr(name.size());
    if (suffix.compare(0, 2, "_V") != 0 || suffix.size() > 6 ||
        !std::all_of(suffix.begin() + 2, suffix.end(),
                     [](char c) { return c >= '0' && c <= '9'; })) {
      continue;
    }
    const int version = std::stoi(suffix.substr(2));
    if (version > best_version) {
      best_version = version;
      best = table;
    }
  }
  return best;
}

bool SqliteExport::HasColumn(const std::string& table, std::string_view column) const {
  const auto found = tables_.find(table);
  return found != tables_.end() &&
         std::find(found->second.columns.begin(), found->second.columns.end(), column) !=
             found->second.columns.end();
}

std::vector<std::string> SqliteExport::Tables() const {
  std::vector<std::string> names;
  for (const auto& [name, table] : tables_) names.push_back(name);
  return names;
}

std::int64_t SqliteExport::RowsAtMost(const std::string& table) const {
  Statement max;
  const std::string sql = "SELECT max(rowid) FROM " + Quoted(table);
  std::int64_t rows = 0;
  if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &max.handle, nullptr) == SQLITE_OK &&
      sqlite3_step(max.handle) == SQLITE_ROW) {
    rows = sqlite3_column_int64(max.handle, 0);
  }
  // A row takes at least 12 bytes, whatever a damaged file says.
  return std::clamp<std::int64_t>(rows, 0, pages_->size_bytes() / 12);
}

std::int64_t SqliteExport::Count(const std::string& table) const {
  Statement count;
  const std::string sql = "SELECT count(*) FROM " + Quoted(table);
  if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &count.handle, nullptr) != SQLITE_OK ||
      sqlite3_step(count.handle) != SQLITE_ROW) {
    Fail("counting the rows of " + table);
  }
  return sqlite3_column_int64(count.handle, 0);
}

void SqliteExport::Scan(const std::string& table, const std::vector<std::string>& columns,
                        const std::function<void(const Cell*)>& row) {
  const auto found = tables_.find(table);
  if (found == tables_.end()) return;
  const Table& info = found->second;
  if (!use_pages_ || !info.plain || !pages_->readable()) return ScanSql(table, columns, row);
  ColumnPlan plan;
  plan.slots = static_cast<int>(columns.size());
  for (int slot = 0; slot < plan.slots; ++slot) {
    const auto at = std::find(info.columns.begin(), info.columns.end(), columns[slot]);
    if (at == info.columns.end()) continue;
    const auto column = static_cast<std::size_t>(at - info.columns.begin());
    if (static_cast<int>(column) == info.rowid_column) {
      plan.rowid_slot = slot;
      continue;
    }
    if (plan.slot_of_column.size() <= column) plan.slot_of_column.resize(column + 1, -1);
    plan.slot_of_column[column] = slot;
  }
  pages_->Scan(table, info.root, plan, row);
}

void SqliteExport::ScanSql(const std::string& table, const std::vector<std::string>& columns,
                           const std::function<void(const Cell*)>& row) {
  std::string sql = "SELECT ";
  for (std::size_t k = 0; k < columns.size(); ++k) {
    sql += k ? ", " : "";
    sql += HasColumn(table, columns[k]) ? Quoted(columns[k]) : "NULL";
  }
  sql += " FROM " + Quoted(table);
  Statement rows;
  if (sqlite3_prepare_v2(db_, sql.c_str(), -1, &rows.handle, nullptr) != SQLITE_OK) {
    Fail("reading " + table);
  }
  std::vector<Cell> cells(columns.size());
  int rc = 0;
  while ((rc = sqlite3_step(rows.handle)) == SQLITE_ROW) {
    for (std::size_t k = 0; k < columns.size(); ++k) {
      const int c = static_cast<int>(k);
      Cell& cell = cells[k];
      switch (sqlite3_column_type(rows.handle, c)) {
        case SQLITE_INTEGER:
          cell = {Cell::kInteger, sqlite3_column_int64(rows.handle, c), 0, {}};
          break;
        case SQLITE_FLOAT:
          cell = {Cell::kReal, 0, sqlite3_column_double(rows.handle, c), {}};
          break;
        case SQLITE_NULL:
          cell = {};
          break;
        default: {
          const void* data = sqlite3_column_blob(rows.handle, c);
          cell = {Cell::kText,
                  0,
                  0,
                  {static_cast<const char*>(data),
                   static_cast<std::size_t>(sqlite3_column_bytes(rows.handle, c))}};
        }
      }
    }
    row(cells.data());
  }
  if (rc != SQLITE_DONE) Fail("reading " + table);
}

std::map<std::string, std::string> SqliteExport::Pairs(const std::string& table) {
  std::map<std::string, std::string> pairs;
  Scan(table, {"name", "value"}, [&](const Cell* cell) {
    const std::string value = cell[1].type == Cell::kInteger ? std::to_string(cell[1].integer)
                                                             : std::string(cell[1].text);
    pairs.emplace(std::string(cell[0].text), value);
  });
  return pairs;
}

}  // namespace assay::timeline
