#include <cuda_runtime.h>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/tensor_map.cuh"

namespace assay::sm90 {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                             cudaEnableDefault, &found),
            "cudaGetDriverEntryPointByVersion of cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    throw Error(Fault::kDevice,
                "the driver has no cuTensorMapEncodeTiled (CUDA 12.0 or newer wanted)");
  }
  return reinterpret_cast<EncodeTiled>(function);
}

[[noreturn]] void Refuse(const TensorMapSpec& spec, const std::string& what) {
  BadInput("tensor map of " + spec.name + ": " + what);
}

void CheckSpec(const TensorMapSpec& spec) {
  const std::size_t rank = spec.extents.size();
  if (rank < 1 || rank > 5 || spec.box.size() != rank || spec.strides_bytes.size() + 1 != rank) {
    Refuse(spec, std::to_string(rank) + " extents, " + std::to_string(spec.box.size()) +
                     " box sizes, " + std::to_string(spec.strides_bytes.size()) +
                     " strides do not make 1 to 5 dimensions");
  }
  if (reinterpret_cast<std::uintptr_t>(spec.base) % 16 != 0) {
    Refuse(spec, "the base address is not a multiple of 16 bytes");
  }
  for (const std::int64_t extent : spec.extents) {
    if (extent < 1 || extent > (1LL << 32)) {
      Refuse(spec, "extent " + std::to_string(extent) + " is not in 1..2^32");
    }
  }
  for (const std::int64_t stride : spec.strides_bytes) {
    if (stride < 16 || stride % 16 != 0 || stride >= (1LL << 40)) {
      Refuse(spec,
             "stride of " + std::to_string(stride) + " bytes is not a multiple of 16 below 2^40");
    }
  }
  for (const std::int32_t size : spec.box) {
    if (size < 1 || size > 256)
      Refuse(spec, "box size " + std::to_string(size) + " is not in 1..256");
  }
  if (spec.swizzle == CU_TENSOR_MAP_SWIZZLE_128B && spec.box[0] * spec.element_bytes > 128) {
    Refuse(spec, "a box row of " + std::to_string(spec.box[0] * spec.element_bytes) +
                     " bytes passes the 128-byte swizzle");
  }
}

}  // namespace

CUtensorMap EncodeTensorMap(const TensorMapSpec& spec) {
  CheckSpec(spec);
  static const EncodeTiled encode = FindEncodeTiled();
  const std::size_t rank = spec.extents.size();
  cuuint64_t extents[5] = {}, strides[5] = {};
  cuuint32_t box[5] = {}, steps[5] = {1, 1, 1, 1, 1};
  for (std::size_t d = 0; d < rank; ++d) {
    extents[d] = static_cast<cuuint64_t>(spec.extents[d]);
    box[d] = static_cast<cuuint32_t>(spec.box[d]);
    if (d > 0) strides[d - 1] = static_cast<cuuint64_t>(spec.strides_bytes[d - 1]);
  }
  CUtensorMap map = {};
  const CUresult result =
      encode(&map, spec.type, static_cast<cuuint32_t>(rank), const_cast<void*>(spec.base), extents,
             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, spec.swizzle, spec.l2_promotion,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(Fault::kDevice, "cuTensorMapEncodeTiled of " + spec.name +
                                    " failed with CUresult " +
                                    std::to_string(static_cast<int>(result)));
  }
  return map;
}

TensorMapSpec MatrixMap(std::string name, const void* base, std::int64_t rows, std::int64_t columns,
                        std::int64_t stride, std::int32_t box_rows, std::int32_t box_columns) {
  TensorMapSpec spec;
  spec.name = std::move(name);
  spec.base = base;
  spec.extents = {columns, rows};
  spec.strides_bytes = {stride * spec.element_bytes};
  spec.box = {box_columns, box_rows};
  return spec;
}

}  // namespace assay::sm90
