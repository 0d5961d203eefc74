// Kernels that cheat, break rules or break down, written against the plugin interface: the harness
// must name each of them for what it does.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "include/assay_plugin.h"
#include "replay/result.h"

namespace assay {

struct Hazard {
  AssayBackend kernel;
  // How the case must end. Where several ends are right (an allocation that fails, a process that
  // is killed for it), all are listed.
  std::vector<Status> ends;
  std::string sub;  // "" = any
};

// All of them compute gdn_decode, rightly unless their mistake is in the result.
const std::vector<Hazard>& Hazards();
std::span<const AssayBackend> HazardKernels();

struct HazardOutcome {
  const Hazard* hazard = nullptr;
  CaseResult result;
  bool caught = false;
};

// Runs every hazard once in workers started by `worker_command` (which must serve HazardKernels).
std::vector<HazardOutcome> TryHazards(const std::vector<std::string>& worker_command);

}  // namespace assay
