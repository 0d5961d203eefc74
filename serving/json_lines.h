// Tolerant JSON for result files of other tools: NaN and Infinity literals, numbers or booleans
// written as strings, and a flattening reader for JSONL that never builds a document.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace assay::serving {

// Parses one document. Bare NaN, Infinity and -Infinity become strings of that name. Throws one
// sentence with `name` and the byte position when the text is not JSON or is cut off.
nlohmann::json ParseJson(std::string_view text, const std::string& name);

// Number held by a JSON value: a number, a boolean, or a string such as "4.0", "inf", "true".
// NaN for null, an absent key, or text that is no number.
double NumberOf(const nlohmann::json& value);
double NumberAt(const nlohmann::json& object, const char* key);
// Text of a string, or of a number or boolean as written; empty for null, absent, containers.
std::string TextOf(const nlohmann::json& value);
std::string TextAt(const nlohmann::json& object, const char* key);
// The member, or a null value when absent or when `object` is no object.
const nlohmann::json& Member(const nlohmann::json& object, const char* key);

double NumberOfText(std::string_view text);

// What FlattenJsonLine reports: the path joins object keys with '.'; array elements share the path
// of their array.
class FlatSink {
 public:
  virtual ~FlatSink() = default;
  virtual void Number(std::string_view path, double value) = 0;
  virtual void Integer(std::string_view path, std::int64_t value) = 0;
  virtual void Text(std::string_view path, std::string_view value) = 0;
  virtual void Bool(std::string_view path, bool value) = 0;
};

// Reads one JSON object. Returns an empty string, or why it is not a JSON object.
std::string FlattenJsonLine(std::string_view line, FlatSink& sink);

}  // namespace assay::serving
