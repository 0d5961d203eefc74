// Tensor maps: how TMA sees a tensor in global memory. Encoded by the driver, which is found at run
// time, so that programs start without one.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <vector>

namespace assay::sm90 {

struct TensorMapSpec {
  std::string name;  // of the tensor, for messages
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  int element_bytes = 2;
  const void* base = nullptr;               // 16-byte aligned
  std::vector<std::int64_t> extents;        // elements, innermost first, 1 to 5 dimensions
  std::vector<std::int64_t> strides_bytes;  // of dimensions 1 and up: multiples of 16, below 2^40
  std::vector<std::int32_t> box;            // elements, each 1..256
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

// Throws kInput naming tensor, value and rule where the hardware's limits are broken, kDevice where
// the driver is absent, too old or refuses.
CUtensorMap EncodeTensorMap(const TensorMapSpec& spec);

// A row-major matrix [rows, columns] of 2-byte elements with a row stride in elements.
TensorMapSpec MatrixMap(std::string name, const void* base, std::int64_t rows, std::int64_t columns,
                        std::int64_t stride, std::int32_t box_rows, std::int32_t box_columns);

}  // namespace assay::sm90
