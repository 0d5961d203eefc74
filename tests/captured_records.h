// Access to the committed suites and, where it lies beside the source tree, to the captured file.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "replay/suite.h"

namespace assay {

inline std::string CapturedFile(const std::string& name) {
  return std::string(ASSAY_SOURCE_DIR "/../shared/data/") + name;
}

// Use inside a test body; the rest of the test is skipped where the file is absent.
#define ASSAY_NEED_CAPTURED(name)                           \
  if (!std::filesystem::exists(CapturedFile(name))) {       \
    GTEST_SKIP() << "needs ../shared/data/" << name << "."; \
  }

// The workloads of a committed suite; a suite with problems fails the test that asks first.
inline const std::vector<Workload>& CommittedSuite(const char* name) {
  static std::map<std::string, std::vector<Workload>> loaded;
  const auto found = loaded.find(name);
  if (found != loaded.end()) return found->second;
  const Suite suite =
      LoadSuite(std::string(ASSAY_SOURCE_DIR "/suites/") + name + ".jsonl", BuiltInRegistry());
  for (const SuiteProblem& problem : suite.problems) {
    ADD_FAILURE() << name << " line " << problem.line << ": " << problem.message;
  }
  return loaded[name] = suite.workloads;
}

// The captured workloads whose definition starts with `prefix`.
inline std::vector<Workload> Captured(const std::string& prefix) {
  std::vector<Workload> selected;
  for (const Workload& workload : CommittedSuite("serving")) {
    if (workload.definition.starts_with(prefix)) selected.push_back(workload);
  }
  return selected;
}

// Attribute access that fails the running test instead of throwing something obscure.
template <class T>
T Get(const Workload& workload, const std::string& name) {
  const auto it = workload.attributes.find(name);
  if (it == workload.attributes.end() || !std::holds_alternative<T>(it->second)) {
    ADD_FAILURE() << workload.uuid << " has no attribute " << name << " of that type";
    return {};
  }
  return std::get<T>(it->second);
}

inline std::int64_t Int(const Workload& workload, const std::string& name) {
  return Get<std::int64_t>(workload, name);
}
inline std::string Text(const Workload& workload, const std::string& name) {
  return Get<std::string>(workload, name);
}
inline std::vector<std::int64_t> Ints(const Workload& workload, const std::string& name) {
  return Get<std::vector<std::int64_t>>(workload, name);
}

}  // namespace assay
