// A forgiving pull reader for the JSON of trace files. The general library is not used here for
// three reasons: times must be parsed from their text (1712195495505582.988 us does not fit a
// double), broken files must be resynchronised at the next event instead of refused, and 50 MB
// must take well under a second. Everything else in this project reads JSON with the library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace assay::timeline {

// Text of a JSON number, in units of 1/1000, rounded half to even to the integer: microseconds as
// text to ns. Nothing when it is not a number or does not fit.
std::optional<std::int64_t> MilliUnits(std::string_view number);
std::optional<std::int64_t> Integer(std::string_view number);

class JsonCursor {
 public:
  explicit JsonCursor(std::string_view text) : p_(text.data()), end_(p_ + text.size()) {}

  // Each returns false, leaving the cursor where the trouble is, when the text is not that.
  bool Take(char c);  // skips white space first
  bool Peek(char c);
  bool AtEnd();
  // A string's content without quotes; `escaped` says whether Unescape is needed.
  bool String(std::string_view& content, bool& escaped);
  bool String(std::string& content);
  // A number, string, true, false or null as its text (strings without quotes).
  bool Scalar(std::string_view& content);
  bool Skip();  // any value

  const char* at() const { return p_; }
  void MoveTo(const char* p) { p_ = p; }
  const char* end() const { return end_; }

 private:
  void SkipSpace();
  const char* p_;
  const char* end_;
};

std::string Unescape(std::string_view content);

// Calls `member(key)` with the cursor at each value of the object here; `member` must consume it
// and return false to stop. False when the text is not an object or `member` stopped.
template <class Member>
bool ForEachMember(JsonCursor& json, Member member) {
  if (!json.Take('{')) return false;
  if (json.Take('}')) return true;
  do {
    std::string_view key;
    bool escaped = false;
    if (!json.String(key, escaped) || !json.Take(':') || !member(key)) return false;
  } while (json.Take(','));
  return json.Take('}');
}

template <class Element>
bool ForEachElement(JsonCursor& json, Element element) {
  if (!json.Take('[')) return false;
  if (json.Take(']')) return true;
  do {
    if (!element()) return false;
  } while (json.Take(','));
  return json.Take(']');
}

}  // namespace assay::timeline
