// What this binary was built from.
#pragma once

#include <string>

namespace assay {

extern const char* const kBuildCommit;    // git commit, "-dirty" appended when the tree was changed
extern const char* const kBuildCompiler;  // "GNU 12.2.0 Release"
extern const char* const kVersion;        // "0.1.0"

// SHA-256 prefix of the running executable: two binaries with the same hash give the same results,
// so `--resume` may skip what this one has already done.
const std::string& BuildHash();

}  // namespace assay
