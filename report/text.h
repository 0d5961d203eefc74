// Text that comes from data, made safe and measurable, and numbers as people read them. Shared by
// the terminal, Markdown and HTML writers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace assay {

// Valid UTF-8 without surprises: control characters and invisible direction marks become visible
// escapes (`\n`, `\x1b`, `\u202e`), bytes that are not UTF-8 become U+FFFD.
std::string Printable(std::string_view text);
// The same for HTML, between tags and in quoted attributes.
std::string HtmlEscape(std::string_view text);

// Terminal cells of printable UTF-8: combining marks take 0, East Asian wide characters and emoji
// 2.
int DisplayWidth(std::string_view printable);

// At most `width` cells, cut between characters, with `…` where something is missing.
std::string ShortenEnd(std::string_view printable, int width);
std::string ShortenMiddle(std::string_view printable, int width);

// Lines of at most `width` cells; breaks at spaces, else behind `_ / , ; :`, else anywhere.
std::vector<std::string> Wrap(std::string_view printable, int width);

// Three significant digits and a unit: "873 ns", "12.4 us", "1.83 ms", "2.00 s".
std::string FormatTime(double ns);
// A ratio with three significant digits: "0.97", "1.83", "12.4", "153"; "-" when not finite.
std::string FormatFactor(double factor);
// A share in percent that never rounds to none or all: "100 %", "<0.1 %", ">99.9 %", "3.1 %".
std::string FormatShare(double share);
// Relative half-width of an interval around its centre: "0.4 %".
std::string FormatPercent(double fraction);
// "1,104".
std::string FormatCount(std::int64_t count);
// "3.20 GiB", "512 B".
std::string FormatBytes(double bytes);
// Units per second with a decimal prefix: FormatRate(4.27e12, "B/s") = "4.27 TB/s".
std::string FormatRate(double per_second, std::string_view unit);
// Two values with the fewest digits (from 6) that tell them apart: {"1.25", "1.2500001"}.
std::pair<std::string, std::string> FormatPair(double first, double second);
std::string FormatValue(double value);  // 6 significant digits, "nan", "inf"

}  // namespace assay
