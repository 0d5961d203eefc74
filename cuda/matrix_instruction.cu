// One kernel per instruction: load fragments, issue, store. Operands of all formats are 32 bytes of
// k per step, and their register fragments have the same layout in bytes (PTX manual, "Matrix
// fragments for mma.m16n8k16" and following; a warp of a warpgroup holds rows 16 w .. 16 w + 15
// likewise).
#include <cuda_runtime.h>

#include <array>
#include <string>

#include "cuda/check.h"
#include "cuda/device_memory.cuh"
#include "cuda/matrix_instruction.h"

namespace assay {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct MmaBF16 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct MmaF16 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct MmaTF32 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct MmaE4M3 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct MmaE5M2 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};
struct MmaE4M3E5M2 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

// Warpgroup forms: A in registers, B through a shared-memory descriptor.
struct WgmmaBF16 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
struct WgmmaF16 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
struct WgmmaTF32 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
struct WgmmaE4M3 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
struct WgmmaE5M2 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
struct WgmmaE4M3E5M2 {
  static __device__ void Run(float (&d)[4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

// Where a thread's part of one 16-row fragment lies.
struct Lane {
  int row, word;  // row g and g + 8; 4-byte words t and t + 4 of the 32 bytes
};
__device__ Lane ThisLane() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {lane / 4, lane % 4};
}

__device__ void LoadA(u32 (&a)[4], const u32* rows, int row_words, Lane lane) {
  a[0] = rows[lane.row * row_words + lane.word];
  a[1] = rows[(lane.row + 8) * row_words + lane.word];
  a[2] = rows[lane.row * row_words + lane.word + 4];
  a[3] = rows[(lane.row + 8) * row_words + lane.word + 4];
}

// Accumulator fragment of 16 rows and 8 columns.
__device__ int AccumulatorAt(int i, Lane lane) {
  return (lane.row + i / 2 * 8) * 8 + lane.word * 2 + i % 2;
}

// One warp per chain.
template <class Instruction>
__global__ void __launch_bounds__(32)
    MmaKernel(int steps, const u32* a_all, const u32* b_all, const float* c, float* d) {
  const Lane lane = ThisLane();
  const int row_words = steps * 8;
  const u32* a_rows = a_all + static_cast<std::size_t>(blockIdx.x) * 16 * row_words;
  const u32* b_rows = b_all + static_cast<std::size_t>(blockIdx.x) * 8 * row_words;
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = c[blockIdx.x * 128 + AccumulatorAt(i, lane)];
  for (int step = 0; step < steps; ++step) {
    u32 a[4];
    LoadA(a, a_rows + step * 8, row_words, lane);
    const u32* b_row = b_rows + lane.row * row_words + step * 8;
    const u32 b[2] = {b_row[lane.word], b_row[lane.word + 4]};
    Instruction::Run(sum, a, b);
  }
  for (int i = 0; i < 4; ++i) d[blockIdx.x * 128 + AccumulatorAt(i, lane)] = sum[i];
}

// Two core matrices of 8 rows x 16 bytes, one after the other along k, no swizzle. There is no
// second block of 8 columns, so both strides of the descriptor may say 128 bytes.
__device__ u64 DescriptorOf(const void* tile) {
  const auto address = static_cast<u32>(__cvta_generic_to_shared(tile));
  const u64 stride = 128 >> 4;
  return static_cast<u64>((address & 0x3FFFF) >> 4) | stride << 16 | stride << 32;
}

// One warpgroup per chain.
template <class Instruction>
__global__ void __launch_bounds__(128)
    WgmmaKernel(int steps, const u32* a_all, const u32* b_all, const float* c, float* d) {
  __shared__ alignas(128) u32 tile[2 * 8 * 4];
  const Lane lane = ThisLane();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row_words = steps * 8;
  const u32* a_rows = a_all + (static_cast<std::size_t>(blockIdx.x) * 64 + warp * 16) * row_words;
  const u32* b_rows = b_all + static_cast<std::size_t>(blockIdx.x) * 8 * row_words;
  const std::size_t out = static_cast<std::size_t>(blockIdx.x) * 512 + warp * 128;
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = c[out + AccumulatorAt(i, lane)];
  for (int step = 0; step < steps; ++step) {
    if (threadIdx.x < 64) {
      const int row = static_cast<int>(threadIdx.x) / 8, word = static_cast<int>(threadIdx.x) % 8;
      tile[(word / 4 * 8 + row) * 4 + word % 4] = b_rows[row * row_words + step * 8 + word];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor core reads it next
    __syncthreads();
    u32 a[4];
    LoadA(a, a_rows + step * 8, row_words, lane);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    Instruction::Run(sum, a, DescriptorOf(tile));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (float& x : sum) asm volatile("" : "+f"(x)::"memory");  // not read before the wait
    __syncthreads();                                            // the next step overwrites the tile
  }
  for (int i = 0; i < 4; ++i) d[out + AccumulatorAt(i, lane)] = sum[i];
}

using Kernel = void (*)(int, const u32*, const u32*, const float*, float*);

// In the order of MatrixInstructions().
constexpr std::array<Kernel, 12> kKernels = {
    MmaKernel<MmaBF16>,     MmaKernel<MmaF16>,      MmaKernel<MmaTF32>,
    MmaKernel<MmaE4M3>,     MmaKernel<MmaE5M2>,     MmaKernel<MmaE4M3E5M2>,
    WgmmaKernel<WgmmaBF16>, WgmmaKernel<WgmmaF16>,  WgmmaKernel<WgmmaTF32>,
    WgmmaKernel<WgmmaE4M3>, WgmmaKernel<WgmmaE5M2>, WgmmaKernel<WgmmaE4M3E5M2>,
};

}  // namespace

void RunMatrixInstructions(const MatrixInstruction& instruction, int count, int steps,
                           const std::byte* a, const std::byte* b, const u32* c, u32* d) {
  const auto index = static_cast<std::size_t>(FindMatrixInstruction(instruction.name) -
                                              MatrixInstructions().data());
  const auto chains = static_cast<std::size_t>(count);
  const std::size_t row_words = static_cast<std::size_t>(steps) * MatrixInstruction::kBytes / 4;
  const std::size_t rows = chains * static_cast<std::size_t>(instruction.m());
  const DeviceMemory<u32> device_a(rows * row_words);
  const DeviceMemory<u32> device_b(chains * MatrixInstruction::n * row_words);
  const DeviceMemory<float> device_c(rows * MatrixInstruction::n);
  const DeviceMemory<float> device_d(rows * MatrixInstruction::n);
  device_a.CopyIn(a);
  device_b.CopyIn(b);
  device_c.CopyIn(c);
  kKernels[index]<<<static_cast<unsigned>(count), instruction.warpgroup ? 128 : 32>>>(
      steps, device_a.data(), device_b.data(), device_c.data(), device_d.data());
  CheckCuda(cudaGetLastError(), "launch");
  device_d.CopyOut(d);
}

std::string MatrixInstructionsUnsupported() {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, 0); error != cudaSuccess) {
    return std::string("no GPU: ") + cudaGetErrorString(error);
  }
  if (properties.major == 9) return "";
  return std::string(properties.name) + " is not a Hopper GPU (compute capability 9.0)";
}

}  // namespace assay
