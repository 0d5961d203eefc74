// clang 14 lacks the builtin behind std::source_location, and libstdc++ then leaves the class out.
// Included before everything by the preset `fuzz`, with that compiler only.
#pragma once

#include <version>

#ifndef __cpp_lib_source_location
#include <cstdint>

namespace std {

class source_location {
 public:
  static constexpr source_location current(const char* file = __builtin_FILE(),
                                           std::uint_least32_t line = __builtin_LINE()) {
    source_location here;
    here.file_ = file;
    here.line_ = line;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr std::uint_least32_t line() const { return line_; }

 private:
  const char* file_ = "";
  std::uint_least32_t line_ = 0;
};

}  // namespace std
#endif
