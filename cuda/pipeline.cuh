// A ring of shared-memory stages between one loading thread and warpgroups that compute.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.cuh"

namespace assay::sm90 {

// Position in the ring. `parity` is that of the phase which a consumer waits for on `full`; a
// producer waits for parity ^ 1 on `empty`, so that its first round passes at once.
template <int kStages>
struct PipelineState {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // The same as `steps` times Advance().
  __device__ void Advance(int steps) {
    const int position = stage + steps;
    parity ^= static_cast<std::uint32_t>(position / kStages) & 1u;
    stage = position % kStages;
  }
};

// The barriers of the ring, in shared memory.
template <int kStages>
struct PipelineBarriers {
  std::uint64_t full[kStages];   // the producer's arrival plus the bytes of the stage
  std::uint64_t empty[kStages];  // one arrival per consumer, of every CTA that the stage feeds

  // By one thread; then FenceMbarrierInit and a barrier of the CTA or cluster.
  __device__ void Init(std::uint32_t consumers) {
    for (int stage = 0; stage < kStages; ++stage) {
      MbarrierInit(&full[stage], 1);
      MbarrierInit(&empty[stage], consumers);
    }
  }
};

}  // namespace assay::sm90
