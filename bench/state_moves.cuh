// Ways to move the states of a decode step, to find what a machine allows it: 16-byte accesses,
// loops, bulk copies through shared memory, in place and out of place, with and without the hint
// that a line is the first to leave L2.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/ceilings_timing.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/tma.cuh"
#include "cuda/warp_rows.cuh"

namespace assay::state_moves {

using sm90::Keep;

enum class Move { kCopy, kInPlace, kRead, kWrite };

__device__ float4 Changed(float4 x) { return {x.x * 0.5f, x.y * 0.5f, x.z * 0.5f, x.w * 0.5f}; }

// kVectors times 16 bytes a thread, all asked for before the first is written; a warp has 512
// kVectors bytes in one piece.
template <Move kMove, int kVectors, int kWarps, Keep kLoad = Keep::kNormal,
          Keep kStore = Keep::kNormal, bool kPhases = false>
__global__ void __launch_bounds__(32 * kWarps) Plain(const float* from, float* to) {
  const std::size_t warp = std::size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::size_t at = warp * 128 * kVectors + threadIdx.x % 32 * 4;
  float4 x[kVectors] = {};
  if constexpr (kMove != Move::kWrite) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) x[i] = sm90::LoadFloat4<kLoad>(from + at + 128 * i);
  }
  if constexpr (kPhases) __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if constexpr (kMove == Move::kRead) {
      sum += x[i].x;
    } else {
      sm90::StoreFloat4<kStore>(to + at + 128 * i, kMove == Move::kInPlace ? Changed(x[i]) : x[i]);
    }
  }
  if (kMove == Move::kRead && sum == 12345.678f) *to = sum;
}

// As many CTAs as fit, each thread kVectors at a time, next ones asked for before these are
// written.
template <int kVectors, int kCtas, Keep kLoad = Keep::kNormal, Keep kStore = Keep::kNormal>
__global__ void __launch_bounds__(128, kCtas)
    Loop(const float* from, float* to, std::size_t pieces) {
  const std::size_t step = std::size_t{gridDim.x} * 4;
  std::size_t piece = std::size_t{blockIdx.x} * 4 + threadIdx.x / 32;
  const std::size_t lane_at = threadIdx.x % 32 * 4;
  float4 x[kVectors], next[kVectors];
  if (piece >= pieces) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = sm90::LoadFloat4<kLoad>(from + piece * 128 * kVectors + lane_at + 128 * i);
  }
  for (; piece < pieces; piece += step) {
    if (piece + step < pieces) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        next[i] =
            sm90::LoadFloat4<kLoad>(from + (piece + step) * 128 * kVectors + lane_at + 128 * i);
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      sm90::StoreFloat4<kStore>(to + piece * 128 * kVectors + lane_at + 128 * i, x[i]);
      x[i] = next[i];
    }
  }
}

// All reads of the launch before its first write: one CTA of 1024 threads on a multiprocessor, 128
// KB each, a barrier of the grid between. `arrived` only grows.
__global__ void __launch_bounds__(1024)
    TwoPhases(const float* from, float* to, unsigned long long* arrived) {
  const std::size_t at = std::size_t{blockIdx.x} * 32768 + threadIdx.x * 4;
  float4 x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = sm90::LoadFloat4<Keep::kNormal>(from + at + 4096 * i);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += x[i].x;
  if (__syncthreads_or(sum == 12345.678f)) return;
  if (threadIdx.x == 0) {
    const unsigned long long ticket = atomicAdd(arrived, 1ull);
    const unsigned long long all = (ticket / gridDim.x + 1) * gridDim.x;
    while (*static_cast<volatile unsigned long long*>(arrived) < all) {
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) sm90::StoreFloat4<Keep::kNormal>(to + at + 4096 * i, x[i]);
}

__device__ void BulkLoadHint(void* shared, const void* global, std::uint32_t bytes,
                             std::uint64_t* barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(sm90::SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(sm90::SharedAddress(barrier)), "l"(policy)
      : "memory");
}

__device__ void BulkStoreHint(void* global, const void* shared, std::uint32_t bytes,
                              std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
          global),
      "r"(sm90::SharedAddress(shared)), "r"(bytes), "l"(policy)
      : "memory");
}

struct BulkOptions {
  int tile, stages;              // bytes, count
  bool blocked;                  // a CTA's tiles lie side by side, else they go round the CTAs
  bool load_first, store_first;  // evict_first hint
};

// One thread a CTA: bulk copies into a ring of tiles and out of it.
__global__ void Bulk(const std::byte* from, std::byte* to, std::int64_t tiles,
                     BulkOptions options) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ std::uint64_t full[16];
  if (threadIdx.x != 0) return;
  const int stages = options.stages;
  for (int s = 0; s < stages; ++s) sm90::MbarrierInit(&full[s], 1);
  sm90::FenceMbarrierInit();
  const std::int64_t each = (tiles + gridDim.x - 1) / gridDim.x;
  const std::int64_t first = options.blocked ? blockIdx.x * each : blockIdx.x;
  const std::int64_t step = options.blocked ? 1 : gridDim.x;
  const std::int64_t end = options.blocked ? min(tiles, first + each) : tiles;
  const std::uint64_t policy = sm90::EvictFirstPolicy();
  const auto tile = static_cast<std::uint32_t>(options.tile);
  const auto load = [&](std::int64_t t, int s) {
    sm90::MbarrierArriveExpectTx(&full[s], tile);
    if (options.load_first) {
      BulkLoadHint(memory + s * options.tile, from + t * options.tile, tile, &full[s], policy);
    } else {
      sm90::BulkLoad(memory + s * options.tile, from + t * options.tile, tile, &full[s]);
    }
  };
  for (int s = 0; s < stages && first + s * step < end; ++s) load(first + s * step, s);
  int stage = 0;
  std::uint32_t parity = 0;
  for (std::int64_t t = first; t < end; t += step) {
    sm90::MbarrierWait(&full[stage], parity);
    if (options.store_first) {
      BulkStoreHint(to + t * options.tile, memory + stage * options.tile, tile, policy);
    } else {
      sm90::BulkStore(to + t * options.tile, memory + stage * options.tile, tile);
    }
    sm90::BulkCommitGroup();
    const std::int64_t refill = t + (stages - 1) * step;  // into the stage stored a step ago
    if (t != first && refill < end) {
      sm90::BulkWaitGroupRead<1>();
      load(refill, (stage + stages - 1) % stages);
    }
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  sm90::BulkWaitGroupRead<0>();
}

// ------------------------------------------------------------------ the list

struct Form {
  std::string name;
  std::function<void(cudaStream_t)> call;
};

// From `from` to `to`, `bytes` of each, a multiple of 512 KB. `in_place` is one more buffer of that
// size, `arrived` a zeroed counter; all live as long as the forms.
struct Buffers {
  const float* from;
  float* to;
  float* in_place;
  unsigned long long* arrived;
  std::size_t bytes;
};

template <Move kMove, int kVectors, int kWarps, Keep kLoad = Keep::kNormal,
          Keep kStore = Keep::kNormal, bool kPhases = false>
Form PlainForm(const std::string& name, Buffers b) {
  const auto blocks = static_cast<unsigned>(b.bytes / (512 * kVectors * kWarps));
  const float* from = kMove == Move::kInPlace ? b.in_place : b.from;
  float* to = kMove == Move::kInPlace ? b.in_place : b.to;
  return {name, [=](cudaStream_t s) {
            Plain<kMove, kVectors, kWarps, kLoad, kStore, kPhases>
                <<<blocks, 32 * kWarps, 0, s>>>(from, to);
          }};
}

template <int kVectors, int kCtas, Keep kLoad = Keep::kNormal, Keep kStore = Keep::kNormal>
Form LoopForm(const std::string& name, Buffers b) {
  const unsigned blocks = kCtas * static_cast<unsigned>(Multiprocessors());
  return {name, [=](cudaStream_t s) {
            Loop<kVectors, kCtas, kLoad, kStore>
                <<<blocks, 128, 0, s>>>(b.from, b.to, b.bytes / (512 * kVectors));
          }};
}

inline Form BulkForm(Buffers b, int kilobytes, int stages, int ctas, bool blocked = false,
                     bool load_first = false, bool store_first = false) {
  const BulkOptions options{kilobytes * 1024, stages, blocked, load_first, store_first};
  const std::size_t shared = static_cast<std::size_t>(options.tile) * stages;
  CheckCuda(cudaFuncSetAttribute(Bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, 226 * 1024),
            "cudaFuncSetAttribute");
  const auto tiles = static_cast<std::int64_t>(b.bytes) / options.tile;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(tiles, ctas * Multiprocessors()));
  const std::string name = "bulk " + std::to_string(kilobytes) + "K x" + std::to_string(stages) +
                           ", " + std::to_string(ctas) + " CTAs" + (blocked ? ", blocks" : "") +
                           (load_first ? ", ld first" : "") + (store_first ? ", st first" : "");
  return {name, [=](cudaStream_t s) {
            Bulk<<<blocks, 32, shared, s>>>(reinterpret_cast<const std::byte*>(b.from),
                                            reinterpret_cast<std::byte*>(b.to), tiles, options);
          }};
}

inline std::vector<Form> AllForms(Buffers b) {
  constexpr Keep kNot = Keep::kNot, kNormal = Keep::kNormal;
  std::vector<Form> forms = {
      PlainForm<Move::kRead, 8, 4>("read only", b),
      PlainForm<Move::kWrite, 8, 4>("write only", b),
      PlainForm<Move::kInPlace, 8, 4>("in place, 8 x 16 B", b),
      PlainForm<Move::kInPlace, 4, 8>("in place, 4 x 16 B", b),
      PlainForm<Move::kCopy, 8, 4>("copy, 8 x 16 B", b),
      PlainForm<Move::kCopy, 8, 8>("copy, 8 x 16 B, 8 warps", b),
      PlainForm<Move::kCopy, 4, 8>("copy, 4 x 16 B, 8 warps", b),
      PlainForm<Move::kCopy, 2, 8>("copy, 2 x 16 B, 8 warps", b),
      PlainForm<Move::kCopy, 16, 4>("copy, 16 x 16 B", b),
      PlainForm<Move::kCopy, 8, 4, kNot, kNormal>("copy, 8 x 16 B, ld first", b),
      PlainForm<Move::kCopy, 8, 4, kNormal, kNot>("copy, 8 x 16 B, st first", b),
      PlainForm<Move::kCopy, 8, 4, kNot, kNot>("copy, 8 x 16 B, both first", b),
      PlainForm<Move::kCopy, 8, 16, kNormal, kNormal, true>("copy, 16 warps read, then write", b),
      LoopForm<8, 1>("loop, 8 x 16 B, 1 CTA", b),
      LoopForm<8, 2>("loop, 8 x 16 B, 2 CTAs", b),
      LoopForm<8, 4>("loop, 8 x 16 B, 4 CTAs", b),
      LoopForm<4, 8>("loop, 4 x 16 B, 8 CTAs", b),
      LoopForm<8, 4, kNot, kNormal>("loop, 8 x 16 B, 4 CTAs, ld first", b),
      BulkForm(b, 4, 4, 1),
      BulkForm(b, 4, 4, 2),
      BulkForm(b, 4, 4, 4),
      BulkForm(b, 4, 12, 4),
      BulkForm(b, 2, 16, 4),
      BulkForm(b, 16, 2, 4),
      BulkForm(b, 16, 3, 2),
      BulkForm(b, 16, 4, 1),
      BulkForm(b, 16, 12, 1),
      BulkForm(b, 4, 12, 4, true),
      BulkForm(b, 4, 12, 4, false, true),
      BulkForm(b, 4, 12, 4, false, false, true),
      BulkForm(b, 4, 12, 4, false, true, true),
      {"cudaMemcpy", [b](cudaStream_t s) {
         CheckCuda(cudaMemcpyAsync(b.to, b.from, b.bytes, cudaMemcpyDeviceToDevice, s), "copy");
       }}};
  const std::size_t ctas = b.bytes / (128 << 10);
  if (ctas <= static_cast<std::size_t>(Multiprocessors())) {
    forms.push_back({"copy, all reads first", [b, ctas](cudaStream_t s) {
                       TwoPhases<<<static_cast<unsigned>(ctas), 1024, 0, s>>>(b.from, b.to,
                                                                              b.arrived);
                     }});
  }
  return forms;
}

}  // namespace assay::state_moves
