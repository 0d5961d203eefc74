// An SQLite export opened read-only: which tables and columns it has, and row scans that take the
// fast page reader where they can and SQLite where they must.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/sqlite_pages.h"

struct sqlite3;

namespace assay::timeline {

class SqliteExport {
 public:
  // Throws kInput: not SQLite (a `.nsys-rep` gets the command that exports it), zeroed header,
  // truncated, unreadable schema.
  explicit SqliteExport(const std::string& path);
  ~SqliteExport();

  const std::string& path() const { return path_; }
  // The table called `name`, or its highest suffixed version `name_V<k>`; "" when absent.
  std::string Resolve(const std::string& name) const;
  bool Has(const std::string& table) const { return tables_.count(table) > 0; }
  bool HasColumn(const std::string& table, std::string_view column) const;
  // An upper bound for reserving memory, from the largest row id.
  std::int64_t RowsAtMost(const std::string& table) const;
  std::int64_t Count(const std::string& table) const;
  std::vector<std::string> Tables() const;

  // Rows of `table` with the cells of `columns` in that order; a column that the table lacks is
  // always null.
  void Scan(const std::string& table, const std::vector<std::string>& columns,
            const std::function<void(const Cell*)>& row);
  // Two text columns as a map (META_DATA tables).
  std::map<std::string, std::string> Pairs(const std::string& table);

  void set_use_pages(bool use) { use_pages_ = use; }  // tests compare both ways

 private:
  struct Table {
    std::uint32_t root = 0;
    bool plain = true;  // an ordinary row id table without generated or defaulted columns
    std::vector<std::string> columns;
    int rowid_column = -1;
  };
  void ReadSchema();
  void ReadColumns(const std::string& name, Table& table);
  void ScanSql(const std::string& table, const std::vector<std::string>& columns,
               const std::function<void(const Cell*)>& row);
  [[noreturn]] void Fail(const std::string& doing) const;

  std::string path_;
  sqlite3* db_ = nullptr;
  std::unique_ptr<PageFile> pages_;
  std::map<std::string, Table> tables_;
  bool use_pages_ = true;
};

}  // namespace assay::timeline
