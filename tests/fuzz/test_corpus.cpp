// Replays what the fuzzers start from and every input that once broke something.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "io/file.h"
#include "tests/fuzz/targets.h"

namespace assay {
namespace {

TEST(FuzzCorpus, EveryInputIsReadOrRefused) {
  for (const FuzzTarget& target : FuzzTargets()) {
    int inputs = 0, read = 0;
    const std::string folder = ASSAY_SOURCE_DIR "/tests/fuzz/corpus/" + std::string(target.name);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string input = ReadFile(entry.path());
      ++inputs;
      // Whole, and cut off anywhere: half a file is the most common bad file.
      for (std::size_t size = input.size() + 1; size-- > 0; size -= size / 20) {
        try {
          target.run(std::string_view(input).substr(0, size));
          if (size == input.size()) ++read;
        } catch (const Error&) {
        }
      }
    }
    EXPECT_GE(inputs, 2) << target.name;
    EXPECT_GE(read, 1) << target.name << ": no seed is accepted, so nothing deep is reached";
  }
}

}  // namespace
}  // namespace assay
