// The case that a worker has open: what the requests `slot`, `run` and `time` do with it, on the
// host or on a device.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cuda/accelerator.h"
#include "ops/registry.h"
#include "replay/channel.h"
#include "replay/measure.h"
#include "replay/protocol.h"

namespace assay {

// A failure of the case, thrown by a handler and turned into a reply.
struct CaseFailure {
  Reply reply;
};

[[noreturn]] void FailCase(Status status, const std::string& sub, const std::string& reason);

// The two bundles of a `slot` request; takes the descriptors.
Slot MapBundles(const nlohmann::json& request, std::vector<FileDescriptor>& fds);
// The limits of a `time` request.
TimingLimits LimitsOf(const nlohmann::json& request);

class OpenCase {
 public:
  virtual ~OpenCase() = default;
  // Maps one content set; with "run": computes it once.
  virtual Reply MapSlot(const nlohmann::json& request, std::vector<FileDescriptor>& fds) = 0;
  // Computes a mapped slot once, caches emptied. Its inputs may have new content.
  virtual Reply RunSlot(const nlohmann::json& request) = 0;
  virtual Reply Time(const nlohmann::json& request) = 0;
  // Times calls by the device's own records, beside the timing loops.
  virtual Reply Span(const nlohmann::json& request);
};

// What `open` asked for.
struct CaseToOpen {
  const Backend* backend = nullptr;
  Problem problem;
  int threads = 0;
};

// Finds definition and backend; throws CaseFailure (unsupported) when this worker has none.
CaseToOpen FindCase(const Registry& registry, const nlohmann::json& request);

// `limit_memory`: for plugins, which may allocate three times their tensors and a gigabyte.
std::unique_ptr<OpenCase> OpenHostCase(CaseToOpen wanted, bool limit_memory);

std::unique_ptr<OpenCase> OpenDeviceCase(CaseToOpen wanted, Accelerator& gpu);

}  // namespace assay
