// JSON text to a document, with what files from elsewhere need beyond the library's own parser:
// the column of an error, no duplicate keys, a depth limit, and members that are skipped unread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace assay {

// A kInput error; `what()` reads "column 17: unexpected end of input" when the column is known.
class JsonError : public Error {
 public:
  JsonError(std::int64_t column, const std::string& detail,
            std::source_location where = std::source_location::current())
      : Error(Fault::kInput,
              column > 0 ? "column " + std::to_string(column) + ": " + detail : detail, where),
        column_(column),
        detail_(detail) {}

  std::int64_t column() const { return column_; }  // from 1, in bytes; 0 = the whole text
  const std::string& detail() const { return detail_; }

 private:
  std::int64_t column_;
  std::string detail_;
};

// Parses one JSON value that fills `text`. Members whose key is in `skipped_keys` (at any depth)
// are checked for syntax and left out. Throws JsonError.
nlohmann::json ParseJson(std::string_view text,
                         std::span<const std::string_view> skipped_keys = {});

// The integer that `value` holds; the library itself would cut fractions and overflow. Throws
// kInput when it is something else or too large for T.
template <class T, class AnyJson>
T ToInteger(const AnyJson& value, const std::string& what) {
  if (value.is_number_unsigned()) {
    const auto number = value.template get<std::uint64_t>();
    if (std::in_range<T>(number)) return static_cast<T>(number);
  } else if (value.is_number_integer()) {
    const auto number = value.template get<std::int64_t>();
    if (std::in_range<T>(number)) return static_cast<T>(number);
  }
  BadInput("'" + what + "' is not an integer of its range");
}

// Of a member, or `fallback` when it is absent.
template <class T, class AnyJson>
T IntegerOr(const AnyJson& object, const char* key, T fallback) {
  const auto member = object.find(key);
  return member == object.end() ? fallback : ToInteger<T>(*member, key);
}

}  // namespace assay
