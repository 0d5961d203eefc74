#include "report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace assay {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
  bool valid = true;
};

// The code point at `at`; invalid, overlong and surrogate sequences count as one bad byte.
CodePoint Decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const CodePoint bad{kReplacement, 1, false};
  if (lead < 0xC2 || lead > 0xF4 || at + bytes > text.size()) return bad;
  char32_t value = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xC0u) != 0x80) return bad;
    value = value << 6 | (byte(at + i) & 0x3Fu);
  }
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kSmallest[bytes] || value > 0x10FFFF || surrogate) return bad;
  return {value, bytes, true};
}

struct Range {
  char32_t first, last;
};

template <std::size_t N>
bool In(const std::array<Range, N>& ranges, char32_t value) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const Range& r) { return value >= r.first && value <= r.last; });
}

// Controls, zero-width and direction marks, line separators, byte-order mark, non-characters: what
// can hide or reorder text.
constexpr std::array<Range, 8> kHidden = {{{0x00, 0x1F},
                                           {0x7F, 0x9F},
                                           {0x61C, 0x61C},
                                           {0x200B, 0x200F},
                                           {0x2028, 0x202E},
                                           {0x2060, 0x206F},
                                           {0xFEFF, 0xFEFF},
                                           {0xFFF9, 0xFFFB}}};
constexpr std::array<Range, 9> kCombining = {{{0x300, 0x36F},
                                              {0x483, 0x489},
                                              {0x591, 0x5BD},
                                              {0x610, 0x61A},
                                              {0x64B, 0x65F},
                                              {0x1AB0, 0x1AFF},
                                              {0x1DC0, 0x1DFF},
                                              {0x20D0, 0x20FF},
                                              {0xFE00, 0xFE0F}}};
constexpr std::array<Range, 11> kWide = {{{0x1100, 0x115F},
                                          {0x2E80, 0x303E},
                                          {0x3041, 0x4DBF},
                                          {0x4E00, 0xA4CF},
                                          {0xAC00, 0xD7A3},
                                          {0xF900, 0xFAFF},
                                          {0xFE30, 0xFE6F},
                                          {0xFF00, 0xFF60},
                                          {0xFFE0, 0xFFE6},
                                          {0x1F300, 0x1F9FF},
                                          {0x20000, 0x3FFFD}}};

int WidthOf(char32_t value) {
  if (value < 0x300) return 1;
  return In(kCombining, value) ? 0 : In(kWide, value) ? 2 : 1;
}

// Bytes of the longest prefix of at most `width` cells (with its combining marks).
std::size_t PrefixBytes(std::string_view text, int width) {
  std::size_t at = 0;
  for (int used = 0; at < text.size();) {
    const CodePoint point = Decode(text, at);
    used += WidthOf(point.value);
    if (used > width) break;
    at += point.bytes;
  }
  return at;
}

// The longest suffix of at most `width` cells that does not begin with a combining mark.
std::string_view Suffix(std::string_view text, int width) {
  const int total = DisplayWidth(text);
  std::size_t at = 0;
  for (int skipped = 0; at < text.size();) {
    const CodePoint point = Decode(text, at);
    if (total - skipped <= width && WidthOf(point.value) > 0) break;
    skipped += WidthOf(point.value);
    at += point.bytes;
  }
  return text.substr(at);
}

std::string Scaled(double value, std::string_view unit) {
  const double size = std::abs(value);
  const int decimals = size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = Decode(text, at);
    if (!point.valid) {
      out += "\xEF\xBF\xBD";
    } else if (point.value == '\n') {
      out += "\\n";
    } else if (point.value == '\t') {
      out += "\\t";
    } else if (In(kHidden, point.value)) {
      const auto value = static_cast<std::uint32_t>(point.value);
      out += value < 0x100 ? fmt::format("\\x{:02x}", value) : fmt::format("\\u{:04x}", value);
    } else {
      out += text.substr(at, point.bytes);
    }
    at += point.bytes;
  }
  return out;
}

std::string HtmlEscape(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

int DisplayWidth(std::string_view printable) {
  int width = 0;
  for (std::size_t at = 0; at < printable.size();) {
    const CodePoint point = Decode(printable, at);
    width += WidthOf(point.value);
    at += point.bytes;
  }
  return width;
}

std::string ShortenEnd(std::string_view printable, int width) {
  if (DisplayWidth(printable) <= width) return std::string(printable);
  if (width <= 0) return "";
  return std::string(printable.substr(0, PrefixBytes(printable, width - 1))) + "…";
}

std::string ShortenMiddle(std::string_view printable, int width) {
  if (DisplayWidth(printable) <= width) return std::string(printable);
  if (width <= 0) return "";
  const int head = (width - 1) / 2;  // names differ at the end: it gets the odd cell
  return std::string(printable.substr(0, PrefixBytes(printable, head))) + "…" +
         std::string(Suffix(printable, width - 1 - head));
}

std::vector<std::string> Wrap(std::string_view printable, int width) {
  std::vector<std::string> lines;
  std::string_view rest = printable;
  while (DisplayWidth(rest) > width) {
    std::size_t cut = PrefixBytes(rest, std::max(width, 1));
    if (cut == 0) cut = Decode(rest, 0).bytes;  // one character wider than the line
    if (cut == rest.size()) break;
    const std::string_view fits = rest.substr(0, cut);
    const std::size_t space = rest[cut] == ' ' ? cut : fits.rfind(' ');
    const std::size_t mark = fits.find_last_of("_/,;:");
    if (space != std::string_view::npos && space > 0) {
      lines.emplace_back(rest.substr(0, space));
      rest.remove_prefix(space + 1);
      continue;
    }
    if (mark != std::string_view::npos && mark + 1 < rest.size()) cut = mark + 1;
    lines.emplace_back(rest.substr(0, cut));
    rest.remove_prefix(cut);
  }
  lines.emplace_back(rest);
  return lines;
}

std::string FormatTime(double ns) {
  if (!std::isfinite(ns)) return "-";
  const double size = std::abs(ns);
  if (size < 999.5) return size < 99.95 ? Scaled(ns, "ns") : fmt::format("{:.0f} ns", ns);
  if (size < 999.5e3) return Scaled(ns * 1e-3, "us");
  if (size < 999.5e6) return Scaled(ns * 1e-6, "ms");
  return Scaled(ns * 1e-9, "s");
}

std::string FormatFactor(double factor) {
  if (!std::isfinite(factor)) return "-";
  if (factor != 0 && std::abs(factor) < 0.0995) return fmt::format("{:.2g}", factor);
  const double size = std::abs(factor);
  return fmt::format("{:.{}f}", factor, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

std::string FormatShare(double share) {
  if (!std::isfinite(share)) return "-";
  const double percent = 100 * share;
  if (percent <= 0) return "0 %";
  if (percent >= 100) return "100 %";
  if (percent < 0.1) return "<0.1 %";
  if (percent > 99.9) return ">99.9 %";
  return fmt::format("{:.1f} %", percent);
}

std::string FormatPercent(double fraction) {
  if (!std::isfinite(fraction)) return "-";
  const double percent = 100 * fraction;
  return fmt::format("{:.{}f} %", percent, std::abs(percent) >= 9.95 ? 0 : 1);
}

std::string FormatCount(std::int64_t count) {
  const std::string digits = std::to_string(count);
  const std::size_t sign = count < 0 ? 1 : 0;
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string FormatBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (!std::isfinite(bytes)) return "-";
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : Scaled(bytes, kUnits[unit]);
}

std::string FormatRate(double per_second, std::string_view unit) {
  constexpr std::array<const char*, 6> kPrefixes = {"", "k", "M", "G", "T", "P"};
  if (!std::isfinite(per_second)) return "-";
  std::size_t prefix = 0;
  while (std::abs(per_second) >= 999.5 && prefix + 1 < kPrefixes.size()) {
    per_second /= 1000;
    ++prefix;
  }
  return Scaled(per_second, fmt::format("{}{}", kPrefixes[prefix], unit));
}

std::string FormatValue(double value) { return fmt::format("{:.6g}", value); }

std::pair<std::string, std::string> FormatPair(double first, double second) {
  for (const int digits : {6, 9, 12}) {
    auto pair = std::make_pair(fmt::format("{:.{}g}", first, digits),
                               fmt::format("{:.{}g}", second, digits));
    if (pair.first != pair.second || first == second) return pair;
  }
  return {fmt::format("{:.17g}", first), fmt::format("{:.17g}", second)};
}

}  // namespace assay
