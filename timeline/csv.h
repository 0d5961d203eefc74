// RFC 4180 CSV: quoted fields, doubled quotes, line breaks inside quotes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace assay::timeline {

struct CsvTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;

  int Column(std::string_view name) const;                   // -1 when absent
  std::string_view Cell(std::size_t row, int column) const;  // "" when absent
};

// The first row is the header, unless `header_start` is given: then lines before the row whose
// first field is `header_start` are skipped (profilers print text in front of their tables).
CsvTable ParseCsv(std::string_view text, std::string_view header_start = {});

// One field, quoted when it needs to be.
std::string CsvField(std::string_view text);

}  // namespace assay::timeline
