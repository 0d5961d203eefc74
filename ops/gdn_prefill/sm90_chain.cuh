// What the chain kernels share: their work, the ring of stages, the launch. A chain walks the
// chunks of a (sequence, value head) in order for some rows of V.
#pragma once

#include <cuda_runtime.h>

#include "cuda/check.h"
#include "cuda/griddepcontrol.cuh"
#include "cuda/launch.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tma.cuh"
#include "ops/gdn_prefill/sm90_chunk.cuh"

namespace assay::gdn_prefill {

inline constexpr int kWarpRows = 16;  // of V in an m16 tile, and in a box of the map of v

// What a CTA works on.
struct Work {
  std::int64_t sequence, begin, end;  // tokens
  int head, first_row;                // of V
};

template <int kRowsOfCta>
__device__ inline Work FindWork(const Args& args, const Workspace& workspace) {
  constexpr int kSlices = kHeadSize / kRowsOfCta;
  Work work;
  work.first_row = blockIdx.x % kSlices * kRowsOfCta;
  work.head = blockIdx.x / kSlices % kValueHeads;
  work.sequence = blockIdx.x / (kSlices * kValueHeads);
  if (workspace.order != nullptr) work.sequence = workspace.order[work.sequence];
  work.begin = args.sequences == 1 ? 0 : args.cu_seqlens[work.sequence];
  work.end = args.sequences == 1 ? args.tokens : args.cu_seqlens[work.sequence + 1];
  return work;
}

__device__ inline int ChunksOf(const Work& work) {
  return static_cast<int>((work.end - work.begin + kChunk - 1) / kChunk);
}

__device__ inline int TokensOf(const Work& work, int chunk) {
  return static_cast<int>(
      min(work.end - work.begin - std::int64_t{chunk} * kChunk, std::int64_t{kChunk}));
}

// The tiles of a chunk for kBoxes * 16 rows of V. 1024-byte aligned.
template <int kBoxes>
struct Stage {
  KeyTile key;
  HeadTile head;
  std::uint16_t v[kBoxes][kChunk][kWarpRows];  // bf16; rows behind the sequence hold anything
};

// One thread, once the first kernel has ended: feeds the stages.
template <int kBoxes, int kStages>
__device__ inline void LoadChunks(const Workspace& workspace, const CUtensorMap* v_map,
                                  const Work& work, Stage<kBoxes> (&stages)[kStages],
                                  sm90::PipelineBarriers<kStages>& barriers,
                                  sm90::PipelineState<kStages>& state) {
  for (int chunk = 0; chunk < ChunksOf(work); ++chunk) {
    Stage<kBoxes>& stage = stages[state.stage];
    std::uint64_t* full = &barriers.full[state.stage];
    sm90::MbarrierWait(&barriers.empty[state.stage], state.parity ^ 1);
    sm90::MbarrierArriveExpectTx(full, sizeof(stage));
    const std::int64_t slot = FirstSlot(work.begin, work.sequence) + chunk;
    sm90::BulkLoad(&stage.key, workspace.keys + slot * kKeyHeads + work.head / 2, sizeof(KeyTile),
                   full);
    sm90::BulkLoad(&stage.head, workspace.heads + slot * kValueHeads + work.head, sizeof(HeadTile),
                   full);
    const auto token = static_cast<std::int32_t>(work.begin + std::int64_t{chunk} * kChunk);
    for (int box = 0; box < kBoxes; ++box) {
      sm90::TmaLoad(stage.v[box], v_map, {work.first_row + kWarpRows * box, work.head, token},
                    full);
    }
    state.Advance();
  }
}

// Each thread that has read a stage. (One lane for its warp would do after __syncwarp, and costs
// the same, but racecheck does not follow the other lanes' reads to it.)
template <int kStages>
__device__ inline void Release(sm90::PipelineBarriers<kStages>& barriers, int stage) {
  sm90::MbarrierArrive(&barriers.empty[stage]);
}

// Once per kernel.
template <class Kernel>
inline void AllowChain(Kernel kernel, std::size_t shared_bytes) {
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            "cudaFuncSetAttribute of a chain's shared memory");
  // The same split of L1 for all kernels: an SM changes it only when it is idle.
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "cudaFuncSetAttribute of a chain's L1 split");
}

// As a programmatic dependent of the kernel before it on the stream.
template <class... Parameters, class... Arguments>
inline void LaunchDependent(void (*kernel)(Parameters...), std::int64_t ctas, int threads,
                            std::size_t shared_bytes, Stream stream,
                            const Arguments&... arguments) {
  LaunchKernelWithShared(kernel, "launch of a chain", ctas, threads, shared_bytes, true, stream,
                         arguments...);
}

}  // namespace assay::gdn_prefill
