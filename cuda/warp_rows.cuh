// Rows of fp32 that groups of lanes hold in registers: 16-byte accesses with a choice of cache
// behaviour, and sums over a group.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace assay::sm90 {

// Where a stream of data should stay.
enum class Keep {
  kNormal,
  kNot,  // read or written once: bypasses L1, first to leave L2
};

__device__ inline std::uint64_t EvictFirstPolicy() {
  std::uint64_t policy = 0;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Volatile and not through the read-only path: the same thread may write the address later.
template <Keep kKeep>
__device__ inline float4 LoadFloat4(const float* address) {
  float4 x;
  if constexpr (kKeep == Keep::kNot) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(address), "l"(EvictFirstPolicy()));
  } else {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(address));
  }
  return x;
}

template <Keep kKeep>
__device__ inline void StoreFloat4(float* address, float4 x) {
  if constexpr (kKeep == Keep::kNot) {
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;"
                 :
                 : "l"(address), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "l"(EvictFirstPolicy())
                 : "memory");
  } else {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
  }
}

// Four bf16 of memory, widened.
__device__ inline float4 WidenBF16x4(uint2 bits) {
  return {__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xFFFF0000u),
          __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xFFFF0000u)};
}

// x . y + sum, in the order of the elements.
__device__ inline float Dot(float4 x, float4 y, float sum) {
  return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

// factor x + u y, element by element.
__device__ inline float4 DecayAndAdd(float factor, float4 x, float u, float4 y) {
  return {fmaf(u, y.x, factor * x.x), fmaf(u, y.y, factor * x.y), fmaf(u, y.z, factor * x.z),
          fmaf(u, y.w, factor * x.w)};
}

// Sums over each group of kLanes neighbouring lanes (a power of two), kCount values at a time;
// every lane gets them. All lanes of the warp must come here.
template <int kLanes, int kCount>
__device__ inline void SumOverGroup(float (&x)[kCount]) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] += __shfl_xor_sync(0xFFFFFFFFu, x[i], distance);
  }
}

// Sums over each group of kLanes neighbouring lanes, with the kCount values spread over the lanes:
// lane l of a group gets value l kCount / kLanes, or values l kCount / kLanes .. in x[0] .. when
// there are more values than lanes. kCount - 1 shuffles for kCount = kLanes instead of
// kCount log2(kLanes). All lanes of the warp must come here.
template <int kLanes, int kCount>
__device__ inline void SumTransposed(float (&x)[kCount]) {
  int count = kCount;
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    if (count == 1) {
      x[0] += __shfl_xor_sync(0xFFFFFFFFu, x[0], distance);
      continue;
    }
    count /= 2;
    const bool upper = (threadIdx.x & distance) != 0;
#pragma unroll
    for (int m = 0; m < kCount / 2; ++m) {
      if (m >= count) break;
      const float keep = upper ? x[m + count] : x[m], send = upper ? x[m] : x[m + count];
      x[m] = keep + __shfl_xor_sync(0xFFFFFFFFu, send, distance);
    }
  }
}

}  // namespace assay::sm90
