// TMA loads and stores of 2 to 5 dimensions, clipping, multicast, plain bulk copies, tensor maps.
#include <gmock/gmock.h>

#include <numeric>

#include "base/error.h"
#include "cuda/cluster.cuh"
#include "cuda/device_test.cuh"
#include "cuda/fence.cuh"
#include "cuda/mbarrier.cuh"
#include "cuda/tensor_map.cuh"
#include "cuda/tma.cuh"

namespace assay::sm90 {
namespace {

using testing::HasSubstr;

constexpr int kBoxElements = 1024;  // room for the boxes of these tests
constexpr int kBoxColumns = 8;      // 2-byte elements: the 16 bytes that a box row needs at least

template <int kRank>
struct Corner {
  std::int32_t at[kRank];
};

// Loads one box, copies its shared-memory image to `image`, then stores it at the same place.
template <int kRank>
__global__ void BoxKernel(const __grid_constant__ CUtensorMap from,
                          const __grid_constant__ CUtensorMap to, Corner<kRank> corner,
                          int elements, std::uint16_t* image, bool store) {
  __shared__ __align__(1024) std::uint16_t box[kBoxElements];
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    PrefetchTensorMap(&from);
    MbarrierInit(&barrier, 1);
    FenceMbarrierInit();
    MbarrierArriveExpectTx(&barrier, elements * 2);
    TmaLoad(box, &from, corner.at, &barrier);
  }
  __syncthreads();
  MbarrierWait(&barrier, 0);
  for (int i = threadIdx.x; i < elements; i += blockDim.x) image[i] = box[i];
  FenceProxyAsyncShared();
  __syncthreads();
  if (store && threadIdx.x == 0) {
    TmaStore(&to, corner.at, box);
    BulkCommitGroup();
    BulkWaitGroup<0>();
  }
}

std::vector<std::uint16_t> Counting(std::size_t count) {
  std::vector<std::uint16_t> values(count);
  std::iota(values.begin(), values.end(), std::uint16_t{1});
  return values;
}

TensorMapSpec Spec(const void* base, const std::vector<std::int64_t>& extents,
                   const std::vector<std::int32_t>& box) {
  TensorMapSpec spec;
  spec.name = "x";
  spec.base = base;
  spec.extents = extents;
  std::int64_t stride = 2;
  for (std::size_t d = 0; d + 1 < extents.size(); ++d) {
    stride *= extents[d];
    spec.strides_bytes.push_back(stride);
  }
  spec.box = box;
  spec.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  return spec;
}

// A box that hangs over the end of every dimension: zeros arrive for what lies outside, and a store
// leaves everything but the inside alone.
template <int kRank>
void CheckBox(const std::vector<std::int64_t>& extents, const std::vector<std::int32_t>& box,
              const Corner<kRank>& corner, bool store = true) {
  std::size_t count = 1, box_count = 1;
  for (const std::int64_t extent : extents) count *= static_cast<std::size_t>(extent);
  for (const std::int32_t size : box) box_count *= static_cast<std::size_t>(size);
  const std::vector<std::uint16_t> source = Counting(count);
  DeviceArray<std::uint16_t> from(source), to(count), image(box_count);
  BoxKernel<kRank><<<1, 128>>>(EncodeTensorMap(Spec(from.data(), extents, box)),
                               EncodeTensorMap(Spec(to.data(), extents, box)), corner,
                               static_cast<int>(box_count), image.data(), store);
  CheckCuda(cudaGetLastError(), "launch of BoxKernel");
  std::vector<std::uint16_t> expected_image(box_count), expected_store(count);
  for (std::size_t i = 0; i < box_count; ++i) {
    std::size_t rest = i, offset = 0, stride = 1;
    bool inside = true;
    for (int d = 0; d < kRank; ++d) {
      const auto size = static_cast<std::size_t>(box[d]);
      const std::int64_t at = corner.at[d] + static_cast<std::int64_t>(rest % size);
      rest /= size;
      inside = inside && at >= 0 && at < extents[d];
      if (inside) offset += static_cast<std::size_t>(at) * stride;
      stride *= static_cast<std::size_t>(extents[d]);
    }
    if (!inside) continue;
    expected_image[i] = source[offset];
    expected_store[offset] = source[offset];
  }
  EXPECT_EQ(image.Get(), expected_image) << kRank << " dimensions";
  if (store) EXPECT_EQ(to.Get(), expected_store) << kRank << " dimensions";
}

using Tma = DeviceTest;

TEST_F(Tma, BoxInside) { CheckBox<2>({24, 10}, {kBoxColumns, 4}, {{8, 3}}); }
TEST_F(Tma, BoxPastTheEnd) { CheckBox<2>({24, 10}, {16, 8}, {{16, 7}}); }
TEST_F(Tma, LoadBeforeTheStart) { CheckBox<2>({24, 10}, {16, 8}, {{-8, -2}}, false); }
TEST_F(Tma, BoxOfThreeDimensions) { CheckBox<3>({16, 5, 6}, {kBoxColumns, 3, 4}, {{8, 3, 4}}); }
TEST_F(Tma, BoxOfFourDimensions) {
  CheckBox<4>({16, 3, 4, 5}, {kBoxColumns, 2, 3, 2}, {{8, 2, 2, 4}});
}
TEST_F(Tma, BoxOfFiveDimensions) {
  CheckBox<5>({16, 3, 2, 3, 4}, {kBoxColumns, 2, 2, 2, 2}, {{8, 1, 1, 2, 3}});
}

// 21 of 24 columns exist. Loads put zeros for the missing ones; a store writes the whole unit of 16
// bytes that holds the last one, zeros included.
TEST_F(Tma, InnermostExtentThatIsNotAMultipleOfSixteenBytes) {
  const std::vector<std::uint16_t> source = Counting(24 * 8);
  DeviceArray<std::uint16_t> from(source), to(std::vector<std::uint16_t>(24 * 8, 0x5555)),
      image(16 * 8);
  const auto map = [](const void* base) {
    TensorMapSpec spec = Spec(base, {24, 8}, {16, 8});
    spec.extents[0] = 21;
    return EncodeTensorMap(spec);
  };
  BoxKernel<2><<<1, 128>>>(map(from.data()), map(to.data()), Corner<2>{{16, 0}}, 16 * 8,
                           image.data(), true);
  CheckCuda(cudaGetLastError(), "launch of BoxKernel");
  const std::vector<std::uint16_t> loaded = image.Get(), stored = to.Get();
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t column = 0; column < 16; ++column) {
      const bool inside = column < 5;
      EXPECT_EQ(loaded[row * 16 + column], inside ? source[row * 24 + 16 + column] : 0);
      if (column < 8) {
        EXPECT_EQ(stored[row * 24 + 16 + column], inside ? source[row * 24 + 16 + column] : 0);
      }
    }
  }
}

// 64 columns of bf16: unit u of 16 bytes of row r lies at unit u ^ (r % 8).
TEST_F(Tma, Swizzle128PermutesUnitsOfARow) {
  const std::vector<std::uint16_t> source = Counting(64 * 16);
  DeviceArray<std::uint16_t> from(source), to(64 * 16), image(64 * 16);
  BoxKernel<2>
      <<<1, 128, 64 * 16 * 2>>>(EncodeTensorMap(MatrixMap("x", from.data(), 16, 64, 64, 16, 64)),
                                EncodeTensorMap(MatrixMap("y", to.data(), 16, 64, 64, 16, 64)),
                                Corner<2>{{0, 0}}, 64 * 16, image.data(), true);
  CheckCuda(cudaGetLastError(), "launch of BoxKernel");
  const std::vector<std::uint16_t> loaded = image.Get();
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 64; ++column) {
      const std::size_t unit = (column / 8) ^ (row % 8);
      EXPECT_EQ(loaded[row * 64 + unit * 8 + column % 8], source[row * 64 + column]);
    }
  }
  EXPECT_EQ(to.Get(), source);
}

// Each CTA of a cluster of four loads its quarter of 32 rows for all.
__global__ void MulticastKernel(const __grid_constant__ CUtensorMap from, std::uint16_t* images) {
  __shared__ __align__(1024) std::uint16_t box[32 * 64];
  __shared__ std::uint64_t barrier;
  const std::uint32_t rank = ClusterCtaRank();
  if (threadIdx.x == 0) {
    MbarrierInit(&barrier, 1);
    FenceMbarrierInit();
  }
  ClusterSync();
  if (threadIdx.x == 0) {
    MbarrierArriveExpectTx(&barrier, sizeof(box));
    TmaLoadMulticast(box + rank * 8 * 64, &from, {0, static_cast<std::int32_t>(rank) * 8}, &barrier,
                     0b1111);
  }
  MbarrierWait(&barrier, 0);
  for (int i = threadIdx.x; i < 32 * 64; i += blockDim.x) images[rank * 32 * 64 + i] = box[i];
  ClusterSync();
}

TEST_F(Tma, MulticastFillsEveryCtaOfTheCluster) {
  const std::vector<std::uint16_t> source = Counting(32 * 64);
  DeviceArray<std::uint16_t> from(source), images(4 * 32 * 64);
  TensorMapSpec spec = MatrixMap("x", from.data(), 32, 64, 64, 8, 64);
  spec.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  LaunchCluster(MulticastKernel, 4, 128, 4, 0, EncodeTensorMap(spec), images.data());
  const std::vector<std::uint16_t> seen = images.Get();
  for (std::size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], source[i % source.size()]) << i;
}

__global__ void BulkKernel(const std::uint16_t* from, std::uint16_t* to, int elements) {
  __shared__ __align__(128) std::uint16_t bytes[4096];
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    MbarrierInit(&barrier, 1);
    FenceMbarrierInit();
    MbarrierArriveExpectTx(&barrier, elements * 2);
    BulkLoad(bytes, from, elements * 2, &barrier);
    MbarrierWait(&barrier, 0);
    BulkStore(to, bytes, elements * 2);
    BulkCommitGroup();
    BulkWaitGroup<0>();
  }
}

TEST_F(Tma, BulkCopiesPlainBytes) {
  const std::vector<std::uint16_t> source = Counting(4096);
  DeviceArray<std::uint16_t> from(source), to(4096);
  BulkKernel<<<1, 32>>>(from.data(), to.data(), 4096);
  CheckCuda(cudaGetLastError(), "launch of BulkKernel");
  EXPECT_EQ(to.Get(), source);
}

// TMA faults on maps that are not 64-byte aligned: the type must keep a map behind an 8-byte member
// from landing at offset 8 of the kernel's parameters.
struct MapBehindAnInteger {
  std::int64_t first;
  CUtensorMap map;
};
static_assert(alignof(CUtensorMap) % 64 == 0 && offsetof(MapBehindAnInteger, map) % 64 == 0);

__global__ void BehindKernel(const __grid_constant__ MapBehindAnInteger params, std::uint16_t* to) {
  __shared__ __align__(1024) std::uint16_t box[8 * 8];
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    MbarrierInit(&barrier, 1);
    FenceMbarrierInit();
    MbarrierArriveExpectTx(&barrier, sizeof(box));
    TmaLoad(box, &params.map, {0, 0}, &barrier);
  }
  __syncthreads();
  MbarrierWait(&barrier, 0);
  to[threadIdx.x] = box[threadIdx.x] + static_cast<std::uint16_t>(params.first);
}

TEST_F(Tma, MapBehindAnOddMemberOfTheParameters) {
  DeviceArray<std::uint16_t> from(Counting(64)), to(64);
  BehindKernel<<<1, 64>>>({7, EncodeTensorMap(Spec(from.data(), {8, 8}, {8, 8}))}, to.data());
  CheckCuda(cudaGetLastError(), "launch of BehindKernel");
  const std::vector<std::uint16_t> seen = to.Get();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(seen[i], i + 1 + 7);
}

std::string Refusal(const TensorMapSpec& spec) {
  try {
    EncodeTensorMap(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "accepted";
}

// The limits are checked before the driver is asked: no GPU needed.
TEST(TensorMap, RefusalsNameTensorAndValue) {
  alignas(16) static std::uint16_t memory[64];
  const TensorMapSpec good = Spec(memory, {8, 8}, {8, 8});
  TensorMapSpec bad = good;
  bad.base = memory + 1;
  EXPECT_THAT(Refusal(bad), HasSubstr("x: the base address is not a multiple of 16"));
  bad = good;
  bad.strides_bytes[0] = 18;
  EXPECT_THAT(Refusal(bad), HasSubstr("stride of 18 bytes"));
  bad.strides_bytes[0] = std::int64_t{1} << 40;
  EXPECT_THAT(Refusal(bad), HasSubstr("stride of 1099511627776 bytes"));
  bad = good;
  bad.box[1] = 257;
  EXPECT_THAT(Refusal(bad), HasSubstr("box size 257"));
  bad = good;
  bad.extents[1] = 0;
  EXPECT_THAT(Refusal(bad), HasSubstr("extent 0"));
  bad = good;
  bad.box = {8};
  EXPECT_THAT(Refusal(bad), HasSubstr("2 extents, 1 box sizes"));
  bad = good;
  bad.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  bad.box[0] = 72;
  EXPECT_THAT(Refusal(bad), HasSubstr("144 bytes"));
}

}  // namespace
}  // namespace assay::sm90
