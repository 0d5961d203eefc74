// Pull reader for trace JSON.
#include "timeline/json_cursor.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace assay::timeline {

std::optional<std::int64_t> MilliUnits(std::string_view number) {
  std::size_t at = 0;
  const bool negative = !number.empty() && number[0] == '-';
  at += negative;
  std::int64_t whole = 0, milli = 0;
  const std::size_t first = at;
  for (; at < number.size() && number[at] >= '0' && number[at] <= '9'; ++at) {
    if (whole > (INT64_MAX - 9) / 10) return std::nullopt;
    whole = whole * 10 + (number[at] - '0');
  }
  if (at == first) return std::nullopt;
  int digits = 0, next = 0;
  bool more = false;  // something non-zero beyond the fourth decimal
  if (at < number.size() && number[at] == '.') {
    for (++at; at < number.size() && number[at] >= '0' && number[at] <= '9'; ++at, ++digits) {
      if (digits < 3) milli = milli * 10 + (number[at] - '0');
      if (digits == 3) next = number[at] - '0';
      if (digits > 3 && number[at] != '0') more = true;
    }
  }
  for (; digits < 3; ++digits) milli *= 10;
  if (at < number.size()) {  // an exponent: rare, and only a double can hold what it means
    double value = 0;
    const auto [end, problem] =
        std::from_chars(number.data(), number.data() + number.size(), value);
    if (problem != std::errc() || end != number.data() + number.size()) return std::nullopt;
    value *= 1000.0;
    if (!(std::fabs(value) < 9.2e18)) return std::nullopt;
    return static_cast<std::int64_t>(std::nearbyint(value));
  }
  if (whole > INT64_MAX / 1000 - 1) return std::nullopt;
  std::int64_t result = whole * 1000 + milli;
  if (next > 5 || (next == 5 && (more || (result & 1)))) ++result;
  return negative ? -result : result;
}

std::optional<std::int64_t> Integer(std::string_view number) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (problem == std::errc() && end == number.data() + number.size()) return value;
  double real = 0;
  const auto [real_end, real_problem] =
      std::from_chars(number.data(), number.data() + number.size(), real);
  if (real_problem != std::errc() || real_end != number.data() + number.size() ||
      !(std::fabs(real) < 9.2e18)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(real);
}

void JsonCursor::SkipSpace() {
  while (p_ < end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
}

bool JsonCursor::Take(char c) {
  SkipSpace();
  if (p_ >= end_ || *p_ != c) return false;
  ++p_;
  return true;
}

bool JsonCursor::Peek(char c) {
  SkipSpace();
  return p_ < end_ && *p_ == c;
}

bool JsonCursor::AtEnd() {
  SkipSpace();
  return p_ >= end_;
}

bool JsonCursor::String(std::string_view& content, bool& escaped) {
  if (!Take('"')) return false;
  const char* const first = p_;
  escaped = false;
  while (p_ < end_) {
    const auto left = static_cast<std::size_t>(end_ - p_);
    const char* quote = static_cast<const char*>(std::memchr(p_, '"', left));
    if (!quote) {
      p_ = end_;
      return false;
    }
    const char* back =
        static_cast<const char*>(std::memchr(p_, '\\', static_cast<std::size_t>(quote - p_)));
    if (!back) {
      content = {first, static_cast<std::size_t>(quote - first)};
      p_ = quote + 1;
      return true;
    }
    escaped = true;
    p_ = back + 2;
  }
  p_ = end_;
  return false;
}

bool JsonCursor::String(std::string& content) {
  std::string_view raw;
  bool escaped = false;
  if (!String(raw, escaped)) return false;
  content = escaped ? Unescape(raw) : std::string(raw);
  return true;
}

bool JsonCursor::Scalar(std::string_view& content) {
  bool escaped = false;
  if (Peek('"')) return String(content, escaped);
  const char* const first = p_;
  while (p_ < end_ && (std::strchr("+-.", *p_) || (*p_ >= '0' && *p_ <= '9') ||
                       (*p_ >= 'a' && *p_ <= 'z') || (*p_ >= 'A' && *p_ <= 'Z'))) {
    if (*p_ == '\0') return false;
    ++p_;
  }
  content = {first, static_cast<std::size_t>(p_ - first)};
  return p_ > first;
}

bool JsonCursor::Skip() {
  // Without recursion: a hostile file may nest a million brackets. Their kinds need not match
  // for skipping, only their number.
  int depth = 0;
  do {
    SkipSpace();
    if (p_ >= end_) return false;
    const char c = *p_;
    if (c == '{' || c == '[') {
      ++depth;
      ++p_;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return false;
      --depth;
      ++p_;
    } else if (c == ',' || c == ':') {
      if (depth == 0) return false;
      ++p_;
    } else {
      std::string_view ignored;
      if (!Scalar(ignored)) return false;
    }
  } while (depth > 0);
  return true;
}

namespace {

void AppendUtf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

bool Hex4(std::string_view text, std::size_t at, std::uint32_t& value) {
  if (at + 4 > text.size()) return false;
  const auto [end, problem] = std::from_chars(text.data() + at, text.data() + at + 4, value, 16);
  return problem == std::errc() && end == text.data() + at + 4;
}

}  // namespace

std::string Unescape(std::string_view content) {
  std::string out;
  out.reserve(content.size());
  for (std::size_t at = 0; at < content.size(); ++at) {
    if (content[at] != '\\' || at + 1 >= content.size()) {
      out += content[at];
      continue;
    }
    const char c = content[++at];
    std::uint32_t code = 0, low = 0;
    if (c == 'u' && Hex4(content, at + 1, code)) {
      at += 4;
      if (code >= 0xD800 && code < 0xDC00 && at + 2 < content.size() && content[at + 1] == '\\' &&
          content[at + 2] == 'u' && Hex4(content, at + 3, low) && low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
      }
      AppendUtf8(out, code);
    } else if (const char* found = std::strchr("bfnrt", c); found && c != '\0') {
      out += "\b\f\n\r\t"[found - "bfnrt"];
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace assay::timeline
