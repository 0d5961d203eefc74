// `assay run --sanitize`: workers under NVIDIA's compute-sanitizer.
#pragma once

#include <string>
#include <vector>

namespace assay::cli {

// One tool over all workers of a run. The findings go to files of a temporary folder.
class Sanitizer {
 public:
  // `tool`: memcheck, racecheck, synccheck, initcheck; "" = none. Throws kUnsupported when
  // compute-sanitizer is neither on the PATH nor in the toolkit's folder.
  explicit Sanitizer(const std::string& tool);
  Sanitizer(const Sanitizer&) = delete;
  Sanitizer& operator=(const Sanitizer&) = delete;
  ~Sanitizer();

  // `worker` under the tool.
  std::vector<std::string> Command(const std::vector<std::string>& worker) const;

  // What the workers that have ended were found guilty of.
  struct Verdict {
    bool clean = false;  // at least one worker, none with a finding
    std::string text;
  };
  Verdict Read() const;

 private:
  std::string tool_, program_, folder_;
};

}  // namespace assay::cli
