// Readable short forms of kernel names. The full text stays the identity; a short form is made by
// parsing the C++ name (never by deleting text between angle brackets): return type, parameters
// and namespaces go, template arguments stay unless they are long, and then they are counted.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace assay::timeline {

// A demangled (or plain) kernel name in parts. `ok` is false when the text is no C++ name; then
// `base` is the whole text.
struct NameParts {
  bool ok = false;
  std::string return_type;             // "void" or ""
  std::vector<std::string> scopes;     // enclosing namespaces and classes, without arguments
  std::string base;                    // last component
  std::vector<std::string> arguments;  // its template arguments, as written
  std::string parameters;              // text between the outer parentheses
};
NameParts ParseName(std::string_view name);

// `void at::native::elementwise_kernel<(int)128, (int)2, ...>(int, T3)` ->
// `elementwise_kernel<128, 2, ...>`. Names that are not C++ (Triton, nvjet, Cijk) stay whole. Equal
// only for names that are equal up to what is left out, so short forms may coincide.
std::string ShortName(const std::string& name);

// User rules, one a line: PATTERN => SHORT, where PATTERN is a literal part of the full name. The
// first match wins. `#` starts a comment. Throws kInput naming the line.
class NameRules {
 public:
  static NameRules Parse(std::string_view text, const std::string& path);
  std::string Apply(const std::string& name) const;  // falls back to ShortName

 private:
  std::vector<std::pair<std::string, std::string>> rules_;
};

}  // namespace assay::timeline
