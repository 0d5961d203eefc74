#include "io/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace assay {
namespace {

using nlohmann::json;

// Captured records nest 5 deep. The limit keeps recursive writers of the document off the stack's
// end when a file is hostile.
constexpr std::size_t kDeepest = 100;
// A parser message quotes the text it stumbled over, which may be a megabyte of binary.
constexpr std::size_t kLongestMessage = 160;

// "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error ..." -> "syntax
// error ...", printable and short.
std::string PlainMessage(std::string_view message) {
  if (const auto bracket = message.find("] "); bracket != std::string_view::npos) {
    message.remove_prefix(bracket + 2);
  }
  if (message.substr(0, 11) == "parse error") {
    if (const auto colon = message.find(": "); colon != std::string_view::npos) {
      message.remove_prefix(colon + 2);
    }
  }
  std::string plain(message.substr(0, kLongestMessage));
  for (char& c : plain) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (message.size() > kLongestMessage) plain += "...";
  return plain;
}

// Builds the document from parser events.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(std::span<const std::string_view> skipped_keys) : skipped_(skipped_keys) {}

  json& root() { return root_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(json::value_t::object); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(json::value_t::array); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (ignored_depth_ > 0) return true;
    ignore_next_ = std::binary_search(skipped_.begin(), skipped_.end(), std::string_view(name));
    if (ignore_next_) return true;
    const auto [member, added] = open_.back()->get_ref<json::object_t&>().emplace(name, nullptr);
    if (!added) throw JsonError(0, "key '" + name.substr(0, 60) + "' appears twice in one object");
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    throw JsonError(static_cast<std::int64_t>(position), PlainMessage(error.what()));
  }

 private:
  // Nothing is allocated for ignored values: they are most of a captured record.
  template <class Value>
  bool Add(Value&& value) {
    if (ignored_depth_ > 0) return true;
    if (!std::exchange(ignore_next_, false)) Place(json(std::forward<Value>(value)));
    return true;
  }

  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& items = open_.back()->get_ref<json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool Open(json::value_t kind) {
    if (depth_++ >= kDeepest) {
      throw JsonError(0, "nested deeper than " + std::to_string(kDeepest) + " levels");
    }
    if (ignored_depth_ > 0 || ignore_next_) {
      ignore_next_ = false;
      ++ignored_depth_;
    } else {
      // A later sibling may move an array's items, but only after this container was closed.
      open_.push_back(Place(json(kind)));
    }
    return true;
  }

  bool Close() {
    --depth_;
    if (ignored_depth_ > 0) {
      --ignored_depth_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  std::span<const std::string_view> skipped_;
  json root_;
  std::vector<json*> open_;  // containers from the root to the one being filled
  json* member_ = nullptr;   // where the value of the last key goes
  bool ignore_next_ = false;
  int ignored_depth_ = 0;
  std::size_t depth_ = 0;
};

}  // namespace

json ParseJson(std::string_view text, std::span<const std::string_view> skipped_keys) {
  Builder builder(skipped_keys);
  json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.root());
}

}  // namespace assay
