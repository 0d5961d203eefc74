// Work of known length on a GPU, by which `assay selftest timing` checks the timing method.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/accelerator.h"

namespace assay {

// Every function enqueues on the stream and may be captured in a graph.
class TimingProbes {
 public:
  virtual ~TimingProbes() = default;

  virtual void Empty(Stream stream) = 0;
  // One block that spins for `ns` by the SM's clock.
  virtual void Spin(Stream stream, double ns) = 0;
  // How long the spins since the last call took by the device's own nanosecond clock, read inside
  // the kernel: one per Spin, in order.
  virtual std::vector<double> SpinTimes() = 0;
  // A spin of `ns` on each of two streams, forked from the given one and joined again.
  virtual void ParallelSpins(Stream stream, double ns) = 0;
  // The same without the join.
  virtual void UnjoinedSpin(Stream stream, double ns) = 0;
  // A spin on a stream that has nothing to do with the given one.
  virtual void SpinElsewhere(double ns) = 0;
  virtual void Copy(Stream stream, std::size_t bytes) = 0;  // device to device
  virtual void Read(Stream stream, std::size_t bytes) = 0;  // sums a buffer of the probes
  // Reads a buffer with the access policy "persisting" for all of it.
  virtual void PinnedRead(Stream stream, std::size_t bytes) = 0;
};

// Probes on the device of `gpu`, with buffers for Copy and Read of at most `largest` bytes; null in
// builds without CUDA.
std::unique_ptr<TimingProbes> MakeTimingProbes(Accelerator& gpu, std::size_t largest);

}  // namespace assay
