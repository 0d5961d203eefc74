// The kernel for what TMA cannot address: any stride, any 2-byte aligned base, any size. Plain
// loads, mma.sync in the same order of k as sm90.cu, hence the same bits. Correct first; not tuned.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/epilogue.cuh"
#include "ops/dense_gemm_bf16_nt/sm90.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

constexpr int kTile = 64, kTileK = 32;  // of M and N; of K
constexpr int kThreads = 128;           // 2 x 2 warps of 32 x 32
constexpr int kRow = kTileK + 8;        // padded against bank conflicts

// Copies rows first..first+63, columns k..k+31 of x [rows, columns] to shared memory, zeros
// outside.
__device__ void LoadTile(std::uint16_t (&tile)[kTile][kRow], const std::uint16_t* x,
                         std::int64_t rows, std::int64_t columns, std::int64_t stride,
                         std::int64_t first, std::int64_t k) {
  for (int i = threadIdx.x; i < kTile * kTileK; i += kThreads) {
    const std::int64_t row = first + i / kTileK, column = k + i % kTileK;
    const bool inside = row < rows && column < columns;
    tile[i / kTileK][i % kTileK] = inside ? x[row * stride + column] : std::uint16_t{0};
  }
}

__device__ std::uint32_t Pair(const std::uint16_t& first) {
  return *reinterpret_cast<const std::uint32_t*>(&first);
}

// mma.sync m16n8k16: D[16, 8] += A[16, 16] B[8, 16]^T.
__device__ void Mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__global__ void __launch_bounds__(kThreads) GenericGemmKernel(const Args args) {
  __shared__ __align__(16) std::uint16_t a[kTile][kRow], b[kTile][kRow];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
  const int group = lane / 4, pair = lane % 4 * 2;
  const auto* source_a = reinterpret_cast<const std::uint16_t*>(args.a);
  const auto* source_b = reinterpret_cast<const std::uint16_t*>(args.b);
  auto* c = reinterpret_cast<__nv_bfloat16*>(args.c);
  const std::int64_t tiles_n = (args.n + kTile - 1) / kTile;
  const std::int64_t tiles = (args.m + kTile - 1) / kTile * tiles_n;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t row0 = tile / tiles_n * kTile, column0 = tile % tiles_n * kTile;
    float sums[2][4][4] = {};  // 16-row blocks, 8-column blocks
    for (std::int64_t k = 0; k < args.k; k += kTileK) {
      __syncthreads();
      LoadTile(a, source_a, args.m, args.k, args.lda, row0, k);
      LoadTile(b, source_b, args.n, args.k, args.ldb, column0, k);
      __syncthreads();
      for (int step = 0; step < kTileK; step += 16) {
        std::uint32_t operand_a[2][4], operand_b[4][2];
        for (int i = 0; i < 2; ++i) {
          const int row = warp_row + i * 16 + group, column = step + pair;
          operand_a[i][0] = Pair(a[row][column]);
          operand_a[i][1] = Pair(a[row + 8][column]);
          operand_a[i][2] = Pair(a[row][column + 8]);
          operand_a[i][3] = Pair(a[row + 8][column + 8]);
        }
        for (int j = 0; j < 4; ++j) {
          const int row = warp_column + j * 8 + group;
          operand_b[j][0] = Pair(b[row][step + pair]);
          operand_b[j][1] = Pair(b[row][step + pair + 8]);
        }
        for (int i = 0; i < 2; ++i) {
          for (int j = 0; j < 4; ++j) Mma(sums[i][j], operand_a[i], operand_b[j]);
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 4; ++j) {
        for (int element = 0; element < 4; ++element) {
          const std::int64_t row = row0 + warp_row + i * 16 + group + element / 2 * 8;
          const std::int64_t column = column0 + warp_column + j * 8 + pair + element % 2;
          if (row < args.m && column < args.n) {
            c[row * args.ldc + column] = __float2bfloat16_rn(sums[i][j][element]);
          }
        }
      }
    }
  }
}

}  // namespace

void LaunchGeneric(const Args& args, Stream stream) {
  const std::int64_t tiles = ((args.m + kTile - 1) / kTile) * ((args.n + kTile - 1) / kTile);
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, 1056));  // 8 an SM
  GenericGemmKernel<<<blocks, kThreads, 0, stream>>>(args);
  CheckCuda(cudaGetLastError(), "launch of GenericGemmKernel");
}

}  // namespace assay::dense_gemm_bf16_nt
