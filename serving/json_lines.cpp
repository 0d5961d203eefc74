#include "serving/json_lines.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace assay::serving {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool HasSpecialNumber(std::string_view text) {
  return text.find("NaN") != std::string_view::npos ||
         text.find("Infinity") != std::string_view::npos;
}

// Quotes NaN, Infinity and -Infinity outside strings.
std::string QuoteSpecialNumbers(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 64);
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out.push_back(c);
      if (c == '\\' && i + 1 < text.size()) out.push_back(text[++i]);
      if (c == '"') in_string = false;
      continue;
    }
    std::string_view special;
    for (std::string_view candidate : {"NaN", "Infinity", "-Infinity"}) {
      if (text.substr(i).starts_with(candidate)) special = candidate;
    }
    if (!special.empty()) {
      out.append("\"").append(special).append("\"");
      i += special.size() - 1;
      continue;
    }
    in_string = c == '"';
    out.push_back(c);
  }
  return out;
}

// Number lists carry nothing that a flat record needs and cost most of the parsing: a list that
// holds only digits, signs, points, exponents, commas and blanks is cut out.
std::string_view WithoutNumberLists(std::string_view line, std::string& scratch) {
  std::size_t copied = 0;
  bool cut = false;
  for (std::size_t open = line.find('['); open != std::string_view::npos;
       open = line.find('[', open + 1)) {
    const std::size_t close = line.find_first_not_of("0123456789+-.eE, ", open + 1);
    if (close == std::string_view::npos || line[close] != ']' || close - open < 32) continue;
    if (!cut) scratch.clear();
    cut = true;
    scratch.append(line.substr(copied, open + 1 - copied));
    copied = close;
    open = close;
  }
  if (!cut) return line;
  scratch.append(line.substr(copied));
  return scratch;
}

// Follows nlohmann's SAX events and forwards scalars with their path.
class Flattener : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Flattener(FlatSink& sink) : sink_(sink) {}

  bool null() override { return true; }
  bool boolean(bool value) override {
    if (levels_.empty()) return Reject();
    sink_.Bool(path_, value);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    if (levels_.empty()) return Reject();
    sink_.Integer(path_, value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    return number_integer(static_cast<number_integer_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (levels_.empty()) return Reject();
    sink_.Number(path_, value);
    return true;
  }
  bool string(string_t& value) override {
    if (levels_.empty()) return Reject();
    sink_.Text(path_, value);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    levels_.push_back(path_.size());
    return true;
  }
  bool key(string_t& key) override {
    path_.resize(levels_.back());
    if (!path_.empty()) path_.push_back('.');
    path_.append(key);
    return true;
  }
  bool end_object() override {
    path_.resize(levels_.back());
    levels_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override { return levels_.empty() ? Reject() : true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    problem_ = "not valid JSON at byte " + std::to_string(position);
    return false;
  }
  const std::string& problem() const { return problem_; }

 private:
  bool Reject() {
    problem_ = "not a JSON object";
    return false;
  }
  FlatSink& sink_;
  std::string path_, problem_;
  std::vector<std::size_t> levels_;
};

}  // namespace

nlohmann::json ParseJson(std::string_view text, const std::string& name) {
  std::string quoted;
  if (HasSpecialNumber(text)) {
    quoted = QuoteSpecialNumbers(text);
    text = quoted;
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    const bool cut = error.byte >= text.size();
    BadInput(name +
             (cut ? " is cut off: the JSON text ends inside a value at byte "
                  : " is not valid JSON at byte ") +
             std::to_string(error.byte));
  } catch (const nlohmann::json::exception& error) {
    BadInput(name + " holds a number outside the range of a double");
  }
}

double NumberOfText(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text == "true" || text == "True") return 1;
  if (text == "false" || text == "False") return 0;
  double value = kNaN;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return kNaN;
  return value;  // from_chars reads inf, infinity and nan as well
}

double NumberOf(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_string()) return NumberOfText(value.get_ref<const std::string&>());
  return kNaN;
}

const nlohmann::json& Member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

double NumberAt(const nlohmann::json& object, const char* key) {
  return NumberOf(Member(object, key));
}

std::string TextOf(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() || value.is_boolean()) return value.dump();
  return "";
}

std::string TextAt(const nlohmann::json& object, const char* key) {
  return TextOf(Member(object, key));
}

std::string FlattenJsonLine(std::string_view line, FlatSink& sink) {
  thread_local std::string cut, quoted;
  line = WithoutNumberLists(line, cut);
  if (HasSpecialNumber(line)) {
    quoted = QuoteSpecialNumbers(line);
    line = quoted;
  }
  Flattener flattener(sink);
  if (nlohmann::json::sax_parse(line.begin(), line.end(), &flattener)) return "";
  return flattener.problem().empty() ? "not valid JSON" : flattener.problem();
}

}  // namespace assay::serving
