// A table of text, aligned in a terminal or written as Markdown from the same data. Used by every
// verb that prints rows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace assay {

enum class Align { kLeft, kRight };

// What a cell does when its column is narrower than its text. kMiddle keeps both ends of a name;
// where two different names of the column would then look alike, the column wraps instead.
enum class Overflow { kEnd, kMiddle, kWrap };

// The meaning of a cell; colours are chosen when printing, and only when asked for.
enum class Tone { kPlain, kGood, kBad, kWarn, kDim, kStrong };

struct Column {
  std::string title = "";
  Align align = Align::kLeft;
  Overflow overflow = Overflow::kEnd;
  int min_width = 4;  // cells; the column never shrinks below it
  int max_width = 0;  // cells; 0 = as wide as its longest text
  int shrink = 0;     // when the table is too wide, higher values give way first; 0 = never
};

struct Cell {
  std::string text;
  Tone tone = Tone::kPlain;

  Cell() = default;
  Cell(std::string cell_text, Tone cell_tone = Tone::kPlain)  // NOLINT: {"a", "b"} is a row
      : text(std::move(cell_text)), tone(cell_tone) {}
  Cell(const char* cell_text) : text(cell_text) {}  // NOLINT
};

struct TextStyle {
  int width = 100;      // cells; no line is longer unless the columns' min_width demand it
  bool colour = false;  // ANSI escapes
  int indent = 0;       // cells before every line
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Missing cells at the end are empty; surplus cells are a programming error (kInternal).
  void Add(std::vector<Cell> cells);
  // A line of its own across all columns, e.g. the definition that the next rows belong to.
  void AddHeading(std::string text);

  bool empty() const { return rows_.empty(); }
  // Title line, rule, rows; every line ends with a newline and has no trailing blanks.
  std::string Text(const TextStyle& style = {}) const;
  // GitHub-flavoured; headings become bold rows.
  std::string Markdown() const;

 private:
  struct Row {
    std::vector<Cell> cells;
    bool heading = false;
  };

  std::vector<int> Widths(int available) const;
  std::vector<Overflow> OverflowAt(const std::vector<int>& widths) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// `text` between the ANSI escapes of `tone`, or `text` itself.
std::string Coloured(std::string_view text, Tone tone, bool colour);

// For a Markdown cell or sentence: no character of `text` acts as markup or HTML.
std::string MarkdownEscape(std::string_view text);

}  // namespace assay
