// wgmma of every width, with operands as TMA lays them out, against exact sums.
#include "base/dtype.h"
#include "base/random.h"
#include "cuda/device_test.cuh"
#include "cuda/fence.cuh"
#include "cuda/setmaxnreg.cuh"
#include "cuda/wgmma.cuh"
#include "cuda/wgmma_values.cuh"

namespace assay::sm90 {
namespace {

constexpr int kM = 64, kK = 64;

// A, B as the 128-byte swizzle wants them: unit u of row r at u ^ (r % 8).
__device__ void LoadSwizzled(std::uint16_t* tile, const std::uint16_t* x, int rows) {
  for (int i = threadIdx.x; i < rows * kK; i += blockDim.x) {
    const int row = i / kK, column = i % kK;
    tile[row * kK + ((column / 8) ^ (row % 8)) * 8 + column % 8] = x[i];
  }
}

// d[64, n] = start + a[64, 64] b[n, 64]^T; `accumulate` false ignores start.
template <int kN>
__global__ void __launch_bounds__(128, 1)
    WgmmaKernel(const std::uint16_t* a, const std::uint16_t* b, float start, bool accumulate,
                float* d) {
  extern __shared__ __align__(1024) std::uint16_t tiles[];
  std::uint16_t* tile_a = tiles;
  std::uint16_t* tile_b = tiles + kM * kK;
  SetMaxNRegInc<232>();
  LoadSwizzled(tile_a, a, kM);
  LoadSwizzled(tile_b, b, kN);
  FenceProxyAsyncShared();
  __syncthreads();
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = start;
  WgmmaFence();
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    Wgmma(sums, WgmmaDescriptor(tile_a) + k * 2, WgmmaDescriptor(tile_b) + k * 2,
          accumulate || k > 0);
  }
  WgmmaCommitGroup();
  WgmmaWaitGroup<0>();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[(row + i / 2 % 2 * 8) * kN + column] = sums[i];
  }
}

std::vector<std::uint16_t> SmallIntegers(std::size_t count, std::uint64_t tensor) {
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = ToBF16(static_cast<float>(Mix64(20261130, tensor, i) % 17) - 8).bits;
  }
  return values;
}

template <int kN>
void CheckWgmma(bool accumulate) {
  const auto a = SmallIntegers(kM * kK, 0), b = SmallIntegers(kN * kK, 1);
  DeviceArray<std::uint16_t> device_a(a), device_b(b);
  DeviceArray<float> d(kM * kN);
  LaunchCluster(WgmmaKernel<kN>, 1, 128, 1, (kM + kN) * kK * 2, device_a.data(), device_b.data(),
                1000.0f, accumulate, d.data());
  const std::vector<float> seen = d.Get();
  const auto value = [](std::uint16_t bits) { return ToFloat(bf16{bits}); };
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float expected = accumulate ? 1000 : 0;  // integers: every order is exact
      for (int k = 0; k < kK; ++k) expected += value(a[m * kK + k]) * value(b[n * kK + k]);
      ASSERT_EQ(seen[m * kN + n], expected) << "n " << kN << " row " << m << " column " << n;
    }
  }
}

// d[64, n] = start + a[64, 64] b[64, n], a in registers, b row-major in chunks of 64 columns.
template <int kN>
__global__ void __launch_bounds__(128, 1)
    WgmmaValuesKernel(const std::uint16_t* a, const std::uint16_t* b, float start, bool accumulate,
                      float* d) {
  extern __shared__ __align__(1024) std::uint16_t tile[];
  for (int i = threadIdx.x; i < kK * kN; i += blockDim.x) {
    const int row = i / kN, column = i % kN, unit = column % 64 / 8;
    tile[column / 64 * kK * 64 + row * 64 + (unit ^ (row % 8)) * 8 + column % 8] = b[i];
  }
  FenceProxyAsyncShared();
  __syncthreads();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  std::uint32_t words[kK / 16][4];
  for (int step = 0; step < kK / 16; ++step) {
    for (int i = 0; i < 4; ++i) {
      const int column = step * 16 + i / 2 * 8 + lane % 4 * 2;
      const std::uint16_t* pair = a + (row + i % 2 * 8) * kK + column;
      words[step][i] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
  }
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = start;
  WgmmaFenceOperand(words);
  WgmmaFenceOperand(sums);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kK / 16; ++step) {
    WgmmaValues(sums, words[step], WgmmaRowMajorDescriptor(tile, kK * 128) + step * 128,
                accumulate || step > 0);
  }
  WgmmaCommitGroup();
  WgmmaWaitGroup<0>();
  WgmmaFenceOperand(sums);
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    d[(row + i / 2 % 2 * 8) * kN + column] = sums[i];
  }
}

template <int kN>
void CheckWgmmaValues(bool accumulate) {
  const auto a = SmallIntegers(kM * kK, 2), b = SmallIntegers(kK * kN, 3);
  DeviceArray<std::uint16_t> device_a(a), device_b(b);
  DeviceArray<float> d(kM * kN);
  LaunchCluster(WgmmaValuesKernel<kN>, 1, 128, 1, kK * kN * 2, device_a.data(), device_b.data(),
                1000.0f, accumulate, d.data());
  const std::vector<float> seen = d.Get();
  const auto value = [](std::uint16_t bits) { return ToFloat(bf16{bits}); };
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      float expected = accumulate ? 1000 : 0;  // integers: every order is exact
      for (int k = 0; k < kK; ++k) expected += value(a[m * kK + k]) * value(b[k * kN + n]);
      ASSERT_EQ(seen[m * kN + n], expected) << "n " << kN << " row " << m << " column " << n;
    }
  }
}

using WgmmaTest = DeviceTest;

TEST_F(WgmmaTest, EveryWidthIsExactOnIntegers) {
  for (const bool accumulate : {false, true}) {
    CheckWgmma<64>(accumulate);
    CheckWgmma<128>(accumulate);
    CheckWgmma<160>(accumulate);
    CheckWgmma<176>(accumulate);
    CheckWgmma<192>(accumulate);
    CheckWgmma<256>(accumulate);
  }
}

TEST_F(WgmmaTest, FirstOperandInRegistersIsExactOnIntegers) {
  for (const bool accumulate : {false, true}) {
    CheckWgmmaValues<64>(accumulate);
    CheckWgmmaValues<128>(accumulate);
  }
}

}  // namespace
}  // namespace assay::sm90
