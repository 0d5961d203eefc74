#include "io/axis_expression.h"

#include <cctype>
#include <charconv>

namespace assay {
namespace {

using Value = std::optional<std::int64_t>;  // empty = cannot be said; true is 1

// A recursive-descent parser that computes while it reads. Once a value is empty all that depend on
// it are, so that syntax it does not know ends the evaluation instead of guessing.
class Evaluator {
 public:
  Evaluator(std::string_view text, const std::map<std::string, std::int64_t, std::less<>>& axes)
      : rest_(text), axes_(axes) {}

  Value Run() {
    const Value value = Or();
    SkipBlanks();
    return rest_.empty() ? value : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 100;

  void SkipBlanks() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }

  bool Take(std::string_view token) {
    SkipBlanks();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }

  static bool IsWordPart(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  std::string_view PeekWord() {
    SkipBlanks();
    std::size_t end = 0;
    while (end < rest_.size() && IsWordPart(rest_[end])) ++end;
    return rest_.substr(0, end);
  }

  bool TakeWord(std::string_view word) { return PeekWord() == word && Take(word); }

  Value Or() {
    Value value = And();
    while (TakeWord("or")) {
      const Value right = And();
      value = value && right ? Value((*value != 0 || *right != 0) ? 1 : 0) : std::nullopt;
    }
    return value;
  }

  Value And() {
    Value value = Not();
    while (TakeWord("and")) {
      const Value right = Not();
      value = value && right ? Value((*value != 0 && *right != 0) ? 1 : 0) : std::nullopt;
    }
    return value;
  }

  Value Not() {
    bool negate = false;
    while (TakeWord("not")) negate = !negate;
    const Value value = Comparison();
    return value && negate ? Value(*value == 0 ? 1 : 0) : value;
  }

  // a < b < c means a < b and b < c.
  Value Comparison() {
    Value left = Sum();
    bool any = false, holds = true;
    for (;;) {
      using Compare = bool (*)(std::int64_t, std::int64_t);
      Compare compare = nullptr;
      if (Take("=="))
        compare = [](std::int64_t a, std::int64_t b) { return a == b; };
      else if (Take("!="))
        compare = [](std::int64_t a, std::int64_t b) { return a != b; };
      else if (Take("<="))
        compare = [](std::int64_t a, std::int64_t b) { return a <= b; };
      else if (Take(">="))
        compare = [](std::int64_t a, std::int64_t b) { return a >= b; };
      else if (Take("<"))
        compare = [](std::int64_t a, std::int64_t b) { return a < b; };
      else if (Take(">"))
        compare = [](std::int64_t a, std::int64_t b) { return a > b; };
      if (compare == nullptr) return any ? Value(holds ? 1 : 0) : left;
      const Value right = Sum();
      if (!left || !right) return std::nullopt;
      holds = holds && compare(*left, *right);
      any = true;
      left = right;
    }
  }

  Value Sum() {
    Value value = Product();
    for (;;) {
      const bool plus = Take("+");
      if (!plus && !Take("-")) return value;
      const Value right = Product();
      std::int64_t result = 0;
      if (!value || !right) return std::nullopt;
      if (plus ? __builtin_add_overflow(*value, *right, &result)
               : __builtin_sub_overflow(*value, *right, &result)) {
        return std::nullopt;
      }
      value = result;
    }
  }

  Value Product() {
    Value value = Factor();
    for (;;) {
      if (Take("**")) return std::nullopt;
      const bool times = Take("*"), quotient = !times && Take("//");
      if (!times && !quotient && !Take("%")) return value;
      const Value right = Factor();
      if (!value || !right) return std::nullopt;
      if (times) {
        std::int64_t result = 0;
        if (__builtin_mul_overflow(*value, *right, &result)) return std::nullopt;
        value = result;
      } else {
        value = FloorDivide(*value, *right, quotient);
        if (!value) return std::nullopt;
      }
    }
  }

  // Python rounds towards minus infinity, and % has the sign of the divisor.
  static Value FloorDivide(std::int64_t a, std::int64_t b, bool quotient) {
    if (b == 0 || b == -1) return b == 0 || a == INT64_MIN ? Value() : Value(quotient ? -a : 0);
    std::int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
      --q;
      r += b;
    }
    return quotient ? q : r;
  }

  Value Factor() {
    bool negate = false;
    while (Take("-")) negate = !negate;
    const Value value = Atom();
    if (!value || *value == INT64_MIN) return std::nullopt;
    return negate ? -*value : *value;
  }

  Value Atom() {
    if (Take("(")) {
      if (++depth_ > kDeepest) return std::nullopt;
      const Value value = Or();
      --depth_;
      return Take(")") ? value : std::nullopt;
    }
    const std::string_view word = PeekWord();
    if (word.empty()) return std::nullopt;
    Take(word);
    // A call, a subscript or an attribute looks at something that is no axis.
    if (!rest_.empty() && (rest_[0] == '(' || rest_[0] == '[' || rest_[0] == '.')) {
      return std::nullopt;
    }
    if (std::isdigit(static_cast<unsigned char>(word[0]))) {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
      const bool whole = error == std::errc{} && end == word.data() + word.size();
      return whole ? Value(number) : std::nullopt;
    }
    const auto axis = axes_.find(word);
    return axis != axes_.end() ? Value(axis->second) : std::nullopt;
  }

  std::string_view rest_;
  const std::map<std::string, std::int64_t, std::less<>>& axes_;
  int depth_ = 0;
};

}  // namespace

std::optional<bool> HoldsForAxes(std::string_view expression,
                                 const std::map<std::string, std::int64_t, std::less<>>& axes) {
  const Value value = Evaluator(expression, axes).Run();
  if (!value) return std::nullopt;
  return *value != 0;
}

}  // namespace assay
