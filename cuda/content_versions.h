// New content for every call on a device: its memory changes in place from version to version, by
// the rules of base/low_bits.h, in work that a CUDA graph may hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/low_bits.h"
#include "cuda/stream.h"

namespace assay {

// Versions that the runner knows: the content as it was made, and the one whose outputs it judges
// after timing. A backend cannot tell it from the versions around it. Those of timed calls count up
// from the first and reach neither; a count that leads to either passes neither.
inline constexpr std::uint64_t kOriginalVersion = 0, kFirstTimedVersion = 1;
inline constexpr std::uint64_t kJudgedVersion = std::uint64_t{1} << 32;

// A stretch of one tensor, on the host or on a device.
struct ContentPart {
  static constexpr std::size_t kMostBytes = 16 << 10;

  std::byte* data = nullptr;     // aligned to kLowBitLine
  std::uint32_t bytes = 0;       // at most kMostBytes
  std::uint32_t tensor = 0;      // its number among the inputs
  std::uint64_t first_line = 0;  // of the tensor, in units of kLowBitLine
  LowBitLanes lanes;
};

// The parts that a change to `version` redraws: `first`, `first + step`, ... of `count`. All parts
// for a version that the runner knows; for others a comb of some 256 (4 MiB), whose place the
// version decides: as new as a whole redraw, without its power and time.
struct PartSteps {
  std::uint64_t first = 0, step = 1;
};
constexpr PartSteps StepsOf(std::uint64_t version, std::uint64_t count) {
  constexpr std::uint64_t kMostParts = 256;
  if (version == kOriginalVersion || version == kJudgedVersion) return {};
  const std::uint64_t step = count < kMostParts ? 1 : (count + kMostParts - 1) / kMostParts;
  return {Mix64(version, kAuxiliaryTensor, 0) % step, step};
}

// The versions of one content set, counted up on the device: a recorded change makes new content at
// every replay.
class ContentVersions {
 public:
  virtual ~ContentVersions() = default;
  // Enqueues the change to the next version; the one after that is one higher.
  virtual void EnqueueNext(Stream stream) = 0;
  // The next change will lead to `version`. Waits.
  virtual void SetNext(std::uint64_t version) = 0;
  // The memory was written anew: it holds kOriginalVersion, kFirstTimedVersion comes next. Waits.
  virtual void Reset() = 0;
};

// In builds with CUDA: `parts` lie in device memory, waiting calls wait for `stream`.
std::unique_ptr<ContentVersions> MakeContentVersions(const std::vector<ContentPart>& parts,
                                                     int multiprocessors, Stream stream);

}  // namespace assay
