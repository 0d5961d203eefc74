// One libFuzzer program per target; CMake names it by FUZZ_TARGET.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "tests/fuzz/targets.h"

namespace {

const assay::FuzzTarget& Target() {
  for (const assay::FuzzTarget& target : assay::FuzzTargets()) {
    if (std::strcmp(target.name, FUZZ_TARGET) == 0) return target;
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const assay::FuzzTarget& target = Target();
  try {
    target.run({reinterpret_cast<const char*>(data), size});
  } catch (const assay::Error&) {
  }
  return 0;
}
