// What the fuzzers feed and the corpus test replays: one function per kind of foreign input. Each
// may throw assay::Error and nothing else, and must leave when the input is bad.
#pragma once

#include <span>
#include <string_view>

namespace assay {

struct FuzzTarget {
  const char* name;  // its corpus is tests/fuzz/corpus/<name>/
  void (*run)(std::string_view input);
};

std::span<const FuzzTarget> FuzzTargets();

}  // namespace assay
