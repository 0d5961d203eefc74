#include "replay/build_info.h"

#include "commit.inc"  // written by cmake/commit.cmake at every build: #define ASSAY_COMMIT "..."
#include "io/file.h"
#include "io/sha256.h"

namespace assay {

const char* const kBuildCommit = ASSAY_COMMIT;
const char* const kBuildCompiler = ASSAY_COMPILER;
const char* const kVersion = ASSAY_VERSION;

const std::string& BuildHash() {
  static const std::string hash = Sha256Hex(ReadFile("/proc/self/exe")).substr(0, 16);
  return hash;
}

}  // namespace assay
