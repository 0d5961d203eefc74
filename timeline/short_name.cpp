// A small parser for C++ names as demanglers print them: brackets nest, `operator<` and
// `operator()` do not open anything, `(anonymous namespace)` is a scope.
#include "timeline/short_name.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace assay::timeline {
namespace {

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$'; }

// Length of an operator's name at text[at] ("operator<<", "operator()", "operator->"), else 0.
std::size_t OperatorLength(std::string_view text, std::size_t at) {
  constexpr std::string_view kWord = "operator";
  if (text.compare(at, kWord.size(), kWord) != 0) return 0;
  if (at > 0 && IsWord(text[at - 1])) return 0;
  std::size_t end = at + kWord.size();
  while (end < text.size() && text[end] == ' ') ++end;
  if (text.compare(end, 2, "()") == 0 || text.compare(end, 2, "[]") == 0) return end + 2 - at;
  const std::size_t symbols = end;
  while (end < text.size() &&
         std::string_view("<>=!+-*/%&|^~").find(text[end]) != std::string_view::npos) {
    // `operator<<...>`: the second < opens arguments when a > would be missing; two at most.
    if (end - symbols == 2) break;
    ++end;
  }
  return end > symbols ? end - at : 0;
}

constexpr std::string_view kAnonymous[] = {"(anonymous namespace)", "<unnamed>", "{anonymous}",
                                           "(anonymous class)"};
std::size_t AnonymousLength(std::string_view text, std::size_t at) {
  for (const std::string_view form : kAnonymous) {
    if (text.compare(at, form.size(), form) == 0) return form.size();
  }
  return 0;
}

// The position behind the bracket group that opens at text[at]; npos when it never closes.
std::size_t SkipGroup(std::string_view text, std::size_t at) {
  std::string closers;
  while (at < text.size()) {
    if (const std::size_t skip = OperatorLength(text, at)) {
      at += skip;
      continue;
    }
    if (const std::size_t skip = AnonymousLength(text, at); skip && !closers.empty()) {
      at += skip;
      continue;
    }
    const char c = text[at];
    if (c == '<') closers += '>';
    if (c == '(') closers += ')';
    if (c == '[') closers += ']';
    if (c == '{') closers += '}';
    const bool arrow = c == '>' && at > 0 && text[at - 1] == '-';
    if ((c == '>' && !arrow) || c == ')' || c == ']' || c == '}') {
      if (closers.empty() || closers.back() != c) return std::string_view::npos;
      closers.pop_back();
      if (closers.empty()) return at + 1;
    }
    ++at;
  }
  return std::string_view::npos;
}

std::string Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

// Splits "a, b<c, d>" at its top-level commas.
std::vector<std::string> SplitArguments(std::string_view text) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (const std::size_t skip = OperatorLength(text, at)) {
      at += skip;
    } else if (std::string_view("<([{").find(text[at]) != std::string_view::npos) {
      const std::size_t end = SkipGroup(text, at);
      if (end == std::string_view::npos) break;
      at = end;
    } else if (text[at] == ',') {
      parts.push_back(Trimmed(text.substr(from, at - from)));
      from = ++at;
    } else {
      ++at;
    }
  }
  const std::string last = Trimmed(text.substr(from));
  if (!last.empty()) parts.push_back(last);
  return parts;
}

}  // namespace

NameParts ParseName(std::string_view name) {
  NameParts whole;
  whole.base = std::string(name);
  NameParts parts;
  std::string current;
  bool component_has_arguments = false;
  const auto close_component = [&] {
    parts.scopes.push_back(current);
    parts.arguments.clear();
    component_has_arguments = false;
    current.clear();
  };
  for (std::size_t at = 0; at < name.size();) {
    if (const std::size_t skip = OperatorLength(name, at)) {
      current.append(name, at, skip);
      at += skip;
    } else if (const std::size_t hidden = AnonymousLength(name, at)) {
      current.append(name, at, hidden);
      at += hidden;
    } else if (name.compare(at, 2, "::") == 0) {
      close_component();
      at += 2;
    } else if (name[at] == ' ' && parts.return_type.empty() && parts.scopes.empty() &&
               !component_has_arguments) {
      // Template functions carry a return type, in front of the first space outside brackets.
      parts.return_type = current;
      current.clear();
      ++at;
    } else if (name[at] == '<') {
      const std::size_t end = SkipGroup(name, at);
      if (end == name.npos) return whole;
      parts.arguments = SplitArguments(name.substr(at + 1, end - at - 2));
      component_has_arguments = true;
      at = end;
    } else if (name[at] == '(') {
      if (!current.empty() && current.back() == ' ') return whole;  // "Memcpy DtoD (Device ...)"
      const std::size_t end = SkipGroup(name, at);
      if (end == name.npos) return whole;
      const std::string_view rest = name.substr(end);
      if (rest.empty() || rest.substr(0, 6) == " const" || rest.substr(0, 2) == " [") {
        if (rest.substr(0, 8) == " const::") {  // a lambda inside a member function
          close_component();
          at = end + 8;
          continue;
        }
        parts.parameters = std::string(name.substr(at + 1, end - at - 2));
        break;
      }
      if (rest.substr(0, 2) == "::") {
        close_component();
        at = end + 2;
        continue;
      }
      return whole;
    } else if (name[at] == '[' || name[at] == '{') {
      const std::size_t end = SkipGroup(name, at);
      if (end == name.npos) return whole;
      current.append(name, at, end - at);
      at = end;
    } else {
      current += name[at++];
    }
  }
  // "graph 5" is no function: one with a return type has arguments or parameters.
  if (!parts.return_type.empty() && parts.arguments.empty() && parts.parameters.empty() &&
      name.find('(') == name.npos) {
    return whole;
  }
  parts.base = Trimmed(current);
  parts.ok = !parts.base.empty() && parts.base.find(' ') == parts.base.npos;
  return parts.ok ? parts : whole;
}

namespace {

// `(int)128` -> `128`, `(bool)1` -> `true`; types lose their namespaces and keep their arguments'
// number only.
std::string ShortArgument(const std::string& argument) {
  if (!argument.empty() && argument[0] == '(') {
    const std::size_t end = SkipGroup(argument, 0);
    if (end != std::string::npos && end < argument.size()) {
      const std::string value = argument.substr(end);
      if (argument.compare(0, end, "(bool)") == 0) return value == "0" ? "false" : "true";
      return value;
    }
  }
  const NameParts parts = ParseName(argument);
  if (!parts.ok) return argument.size() <= 24 ? argument : "...";
  std::string text = parts.base;
  if (!parts.arguments.empty()) {
    std::string inner;
    for (const std::string& part : parts.arguments) {
      inner += (inner.empty() ? "" : ", ") + ShortArgument(part);
    }
    text += '<';
    text += inner.size() <= 24 ? inner : "...";
    text += '>';
  }
  return text;
}

}  // namespace

std::string ShortName(const std::string& name) {
  const NameParts parts = ParseName(name);
  if (!parts.ok) return name;
  std::string text = parts.base;
  // A lambda or call operator says nothing without its function.
  if ((text[0] == '[' || text[0] == '{' || text.rfind("operator", 0) == 0) &&
      !parts.scopes.empty()) {
    text = parts.scopes.back() + "::" + text;
  }
  if (parts.arguments.empty()) return text;
  constexpr std::size_t kMostArgumentText = 60;
  std::string list;
  for (const std::string& argument : parts.arguments) {
    const std::string next = (list.empty() ? "" : ", ") + ShortArgument(argument);
    if (list.size() + next.size() > kMostArgumentText) {
      list += list.empty() ? "..." : ", ...";
      break;
    }
    list += next;
  }
  return text + "<" + list + ">";
}

NameRules NameRules::Parse(std::string_view text, const std::string& path) {
  NameRules rules;
  int number = 0;
  while (!text.empty()) {
    const std::size_t newline = text.find('\n');
    std::string line = Trimmed(text.substr(0, newline));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    text = newline == text.npos ? std::string_view() : text.substr(newline + 1);
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::size_t arrow = line.find("=>");
    const std::string pattern = arrow == line.npos ? "" : Trimmed(line.substr(0, arrow));
    const std::string name = arrow == line.npos ? "" : Trimmed(line.substr(arrow + 2));
    if (pattern.empty() || name.empty()) {
      BadInput(path + " line " + std::to_string(number) + ": '" + line +
               "' is not PATTERN => SHORT NAME");
    }
    rules.rules_.emplace_back(pattern, name);
  }
  return rules;
}

std::string NameRules::Apply(const std::string& name) const {
  for (const auto& [pattern, short_name] : rules_) {
    if (name.find(pattern) != name.npos) return short_name;
  }
  return ShortName(name);
}

}  // namespace assay::timeline
