// One exception type for everything that a user can cause, with the fault kind that `main` maps to
// an exit code. Programmer errors are assertions; "cannot do this shape" is a returned reason.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace assay {

// The values are the exit codes of every assay command (see `assay --help`).
enum class Fault {
  kInput = 2,         // bad file, flag, axis or tensor
  kUnsupported = 3,   // legal, but not built here
  kDevice = 4,        // the machine or a device failed
  kInconclusive = 5,  // measured, but no verdict possible
  kIncomplete = 6,    // evidence is missing or not comparable
  kInternal = 70,     // a bug in assay
};

class Error : public std::runtime_error {
 public:
  Error(Fault fault, const std::string& message,
        std::source_location where = std::source_location::current())
      : std::runtime_error(message), fault_(fault), where_(where) {}

  Fault fault() const { return fault_; }
  const std::source_location& where() const { return where_; }

 private:
  Fault fault_;
  std::source_location where_;
};

// Throws a kInput error. `message` is one sentence naming what, where and the value.
[[noreturn]] inline void BadInput(const std::string& message,
                                  std::source_location where = std::source_location::current()) {
  throw Error(Fault::kInput, message, where);
}

}  // namespace assay
