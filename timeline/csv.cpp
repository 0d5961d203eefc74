// CSV parsing and quoting.
#include "timeline/csv.h"

#include <algorithm>

namespace assay::timeline {
namespace {

// Reads one record from `at` on; false at the end of the text.
bool Record(std::string_view text, std::size_t& at, std::vector<std::string>& fields) {
  fields.clear();
  if (at >= text.size()) return false;
  std::string field;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        field += '"';
        ++at;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.push_back(std::move(field));
      field.clear();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r') {
      field += c;
    }
  }
  fields.push_back(std::move(field));
  return true;
}

}  // namespace

int CsvTable::Column(std::string_view name) const {
  const auto found = std::find(header.begin(), header.end(), name);
  return found == header.end() ? -1 : static_cast<int>(found - header.begin());
}

std::string_view CsvTable::Cell(std::size_t row, int column) const {
  if (row >= rows.size() || column < 0) return {};
  const auto c = static_cast<std::size_t>(column);
  return c < rows[row].size() ? std::string_view(rows[row][c]) : std::string_view();
}

CsvTable ParseCsv(std::string_view text, std::string_view header_start) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);
  CsvTable table;
  std::size_t at = 0;
  std::vector<std::string> fields;
  while (Record(text, at, fields)) {
    if (table.header.empty()) {
      if (!header_start.empty() && (fields.empty() || fields.front() != header_start)) continue;
      table.header = fields;
    } else if (fields.size() > 1 || !fields.front().empty()) {
      table.rows.push_back(fields);
    }
  }
  return table;
}

std::string CsvField(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == text.npos) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    out += c;
    if (c == '"') out += c;
  }
  return out + "\"";
}

}  // namespace assay::timeline
