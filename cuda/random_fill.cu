#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <string>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/random_fill.h"

namespace assay {
namespace {

// Mix64 and UnitNormal of base/random.h, which device code cannot call.
__device__ float DeviceUnitNormal(std::uint64_t u, std::uint64_t index) {
  std::uint64_t h = u + (index + 1) * 0x9E3779B97F4A7C15ull;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  h ^= h >> 31;
  const auto sum =
      static_cast<int>((h & 0xFFFF) + ((h >> 16) & 0xFFFF) + ((h >> 32) & 0xFFFF) + (h >> 48));
  constexpr float kScale = 1.7320508075688772f / 65536.0f;
  return __fmul_rn(static_cast<float>(sum - 131070), kScale);
}

__device__ void Store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }
__device__ void Store(__nv_fp8_storage_t* to, float x) {
  *to = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

template <class T>
__global__ void FillKernel(T* data, std::int64_t elements, std::uint64_t u) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements;
       i += step) {
    Store(data + i, DeviceUnitNormal(u, static_cast<std::uint64_t>(i)));
  }
}

}  // namespace

void FillUnitNormal(DType dtype, std::byte* data, std::int64_t elements, std::uint64_t key,
                    std::uint64_t tensor, Stream stream) {
  const std::uint64_t mixed = tensor * 0x9E3779B97F4A7C15ull;
  const std::uint64_t u = key ^ (mixed << 32 | mixed >> 32);
  constexpr unsigned kBlocks = 1024, kThreads = 256;
  if (dtype == DType::kBF16) {
    FillKernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(data), elements,
                                                 u);
  } else if (dtype == DType::kE4M3) {
    FillKernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<__nv_fp8_storage_t*>(data),
                                                 elements, u);
  } else {
    throw Error(Fault::kInternal, "FillUnitNormal of " + std::string(DTypeName(dtype)));
  }
  CheckCuda(cudaGetLastError(), "launch of FillUnitNormal");
}

}  // namespace assay
