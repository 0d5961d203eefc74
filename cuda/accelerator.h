// One GPU as workers see it: memory, recorded work with its time, caches, clocks. No CUDA types, so
// that the timing rules are tested on a fake. Only worker processes open one; the runner never
// does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cuda/activities.h"
#include "cuda/content_versions.h"
#include "cuda/stream.h"

namespace assay {

struct AcceleratorInfo {
  std::string name;    // "NVIDIA H200"
  std::string uuid;    // "GPU-8f6c..."
  std::string pci;     // "0000:5e:00.0"
  std::string driver;  // "580.159.04 (CUDA 13.0)": its version, and the CUDA that it speaks
  int capability = 0;  // 90 = sm_90
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0, l2_bytes = 0;
};

// A CUDA call failed. After many such errors the context is lost, so a worker ends after any of
// them.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message) : Error(Fault::kDevice, message) {}
};

class OutOfDeviceMemory : public Error {
 public:
  explicit OutOfDeviceMemory(const std::string& message) : Error(Fault::kDevice, message) {}
};

// How the L2 cache is emptied: by reading twice its size (what is left is clean), or by writing it
// (what is left must be written back while the next kernel runs).
enum class FlushKind { kRead, kWrite };

// Work that was captured once as a CUDA graph.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual double Replay() = 0;  // waits; nanoseconds between two events around the replay
};

class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual const AcceleratorInfo& info() const = 0;

  // Throws OutOfDeviceMemory with the requested and the free bytes.
  virtual std::byte* Allocate(std::size_t bytes) = 0;
  virtual void Free(std::byte* memory) noexcept = 0;
  virtual void Upload(std::byte* to, const std::byte* from, std::size_t bytes) = 0;    // waits
  virtual void Download(std::byte* to, const std::byte* from, std::size_t bytes) = 0;  // waits
  virtual void Fill(std::byte* to, int byte, std::size_t bytes) = 0;                   // waits
  // Depends on every byte and its place. `bytes` is a multiple of 8.
  virtual std::uint64_t Checksum(const std::byte* data, std::size_t bytes) = 0;

  virtual Stream stream() = 0;
  virtual void Synchronize() = 0;  // throws DeviceError when any work since the last call failed
  virtual void EnqueueFlush(Stream stream, FlushKind kind) = 0;
  // Versions of what lies in `parts` of device memory; must not outlive the accelerator.
  virtual std::unique_ptr<ContentVersions> MakeVersions(const std::vector<ContentPart>& parts) = 0;
  // Lines that a kernel pinned in L2 survive a flush; this unpins them.
  virtual void ResetPersistingLines() = 0;
  // Did somebody set L2 capacity aside for pinned lines since the last call? Takes it back.
  virtual bool TakePersistingLimit() = 0;
  // Null with a reason where there is nothing to trace with.
  virtual std::unique_ptr<ActivityRecorder> RecordActivities(std::string& why_not) = 0;
  // Captures what `work` enqueues. Throws kUnsupported when it cannot be captured (it synchronises
  // or allocates), leaves work on a stream that does not join the given one, or enqueues nothing.
  virtual std::unique_ptr<Recording> Record(const std::function<void(Stream)>& work) = 0;
};

// The device of a process that is number `rank` of those on this machine: in turn among the devices
// that it sees, of which a launcher may show each process only one. Null with a reason when there
// is no driver, no device, a driver too old for the toolkit, an architecture without code in this
// build, or no CUDA in this build.
std::unique_ptr<Accelerator> OpenAccelerator(int rank, std::string& why_not);

}  // namespace assay
