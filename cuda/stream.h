// A CUDA stream in headers that any compiler reads; accelerator.cu asserts that it is cudaStream_t.
#pragma once

struct CUstream_st;

namespace assay {

using Stream = CUstream_st*;

}  // namespace assay
