#include "report/table.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "report/text.h"

namespace assay {
namespace {

constexpr int kGap = 2;  // cells between columns

std::string Padded(const std::string& text, int width, Align align) {
  const int missing = std::max(0, width - DisplayWidth(text));
  const std::string blanks(static_cast<std::size_t>(missing), ' ');
  return align == Align::kRight ? blanks + text : text + blanks;
}

void TrimRight(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

std::vector<std::string> Fit(const std::string& text, int width, Overflow overflow) {
  if (DisplayWidth(text) <= width) return {text};
  if (overflow == Overflow::kEnd) return {ShortenEnd(text, width)};
  if (overflow == Overflow::kMiddle) return {ShortenMiddle(text, width)};
  // Continuation lines stand a little deeper than the text they continue.
  const std::size_t lead = std::min(text.find_first_not_of(' '), text.size());
  const int deeper = static_cast<int>(lead) + 2;
  if (lead == 0 || width < 2 * deeper) return Wrap(text, width);
  std::vector<std::string> lines = Wrap(text.substr(lead), width - deeper);
  for (std::string& line : lines) line.insert(0, static_cast<std::size_t>(deeper), ' ');
  lines.front().erase(0, 2);
  return lines;
}

}  // namespace

void Table::Add(std::vector<Cell> cells) {
  if (cells.size() > columns_.size()) {
    throw Error(Fault::kInternal, "a table row has more cells than the table has columns");
  }
  cells.resize(columns_.size());
  for (Cell& cell : cells) cell.text = Printable(cell.text);
  rows_.push_back({std::move(cells), false});
}

void Table::AddHeading(std::string text) {
  rows_.push_back({{Cell(Printable(text), Tone::kStrong)}, true});
}

// Natural widths, then the columns with the highest `shrink` give way until the line fits.
std::vector<int> Table::Widths(int available) const {
  std::vector<int> widths;
  int total = kGap * (static_cast<int>(columns_.size()) - 1);
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    int width = DisplayWidth(columns_[c].title);
    for (const Row& row : rows_) {
      if (!row.heading) width = std::max(width, DisplayWidth(row.cells[c].text));
    }
    if (columns_[c].max_width > 0) width = std::min(width, columns_[c].max_width);
    widths.push_back(width);
    total += width;
  }
  while (total > available) {
    int victim = -1;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (columns_[c].shrink == 0 || widths[c] <= columns_[c].min_width) continue;
      const auto best = static_cast<std::size_t>(std::max(victim, 0));
      const bool first = victim < 0 || columns_[c].shrink > columns_[best].shrink ||
                         (columns_[c].shrink == columns_[best].shrink && widths[c] > widths[best]);
      if (first) victim = static_cast<int>(c);
    }
    if (victim < 0) break;
    --widths[static_cast<std::size_t>(victim)];
    --total;
  }
  return widths;
}

std::vector<Overflow> Table::OverflowAt(const std::vector<int>& widths) const {
  std::vector<Overflow> overflow;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    overflow.push_back(columns_[c].overflow);
    if (columns_[c].overflow != Overflow::kMiddle) continue;
    std::map<std::string, std::string> original;
    for (const Row& row : rows_) {
      if (row.heading) continue;
      const std::string& text = row.cells[c].text;
      const auto [it, fresh] = original.emplace(ShortenMiddle(text, widths[c]), text);
      if (!fresh && it->second != text) overflow[c] = Overflow::kWrap;
    }
  }
  return overflow;
}

std::string Table::Text(const TextStyle& style) const {
  const std::string indent(static_cast<std::size_t>(style.indent), ' ');
  const int available = style.width - style.indent;
  const std::vector<int> widths = Widths(available);
  const std::vector<Overflow> overflow = OverflowAt(widths);
  std::string out;
  const auto emit = [&](const std::vector<Cell>& cells) {
    std::vector<std::vector<std::string>> parts;
    std::size_t lines = 1;
    for (std::size_t c = 0; c < cells.size(); ++c) {
      parts.push_back(Fit(cells[c].text, widths[c], overflow[c]));
      lines = std::max(lines, parts.back().size());
    }
    for (std::size_t line_number = 0; line_number < lines; ++line_number) {
      std::string line = indent;
      for (std::size_t c = 0; c < cells.size(); ++c) {
        const bool last = c + 1 == cells.size();
        std::string text = line_number < parts[c].size() ? parts[c][line_number] : "";
        text = Padded(text, widths[c], columns_[c].align);
        if (last) TrimRight(text);
        line += text.find_first_not_of(' ') == std::string::npos
                    ? text
                    : Coloured(text, cells[c].tone, style.colour);
        if (!last) line += std::string(kGap, ' ');
      }
      TrimRight(line);
      out += line + "\n";
    }
  };
  std::vector<Cell> titles;
  int total = kGap * (static_cast<int>(columns_.size()) - 1);
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    titles.emplace_back(columns_[c].title, Tone::kDim);
    total += widths[c];
  }
  emit(titles);
  std::string rule;
  for (int i = 0; i < total; ++i) rule += "─";
  out += indent + Coloured(rule, Tone::kDim, style.colour) + "\n";
  for (const Row& row : rows_) {
    if (!row.heading) {
      emit(row.cells);
      continue;
    }
    for (const std::string& line : Wrap(row.cells[0].text, available)) {
      out += indent + Coloured(line, row.cells[0].tone, style.colour) + "\n";
    }
  }
  return out;
}

std::string Table::Markdown() const {
  std::string out = "|";
  for (const Column& column : columns_) {
    out += ' ';
    out += MarkdownEscape(column.title);
    out += " |";
  }
  out += "\n|";
  for (const Column& column : columns_) out += column.align == Align::kRight ? "---:|" : "---|";
  out += "\n";
  for (const Row& row : rows_) {
    out += "|";
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const bool bold = row.heading && c == 0;
      out += bold ? " **" : " ";
      if (c < row.cells.size()) out += MarkdownEscape(row.cells[c].text);
      out += bold ? "** |" : " |";
    }
    out += "\n";
  }
  return out;
}

std::string Coloured(std::string_view text, Tone tone, bool colour) {
  if (!colour || tone == Tone::kPlain) return std::string(text);
  const char* code = tone == Tone::kGood   ? "32"
                     : tone == Tone::kBad  ? "31"
                     : tone == Tone::kWarn ? "33"
                     : tone == Tone::kDim  ? "2"
                                           : "1";
  return std::string("\x1b[") + code + "m" + std::string(text) + "\x1b[0m";
}

std::string MarkdownEscape(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      if (std::string_view("\\`*[]|~#").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace assay
