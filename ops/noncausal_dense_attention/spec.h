// noncausal_dense_attention: O = softmax(Q K^T / sqrt(D)) V, every query sees every key unless a
// visibility mask says otherwise. Room page: README.md.
#pragma once

#include <cstdint>

#include "base/tensor.h"
#include "cpu/attention.h"
#include "ops/attention/views.h"
#include "ops/family.h"

namespace assay::noncausal_dense_attention {

using attention::Strides;

// Byte strides of a visibility mask seen as [b, h, nq, nk]; 0 broadcasts.
struct MaskStrides {
  std::int64_t batch = 0, head = 0, query = 0, key = 1;
};

struct Args {
  std::int64_t b = 0, nq = 0, nk = 0, h = 0;
  std::int64_t d = 0;       // 64 or 128
  const bf16* q = nullptr;  // [b, nq, h, d]
  Strides q_strides;
  const bf16* k = nullptr;  // [b, nk, h, d]; rows beyond nk of a longer buffer are never read
  Strides k_strides;
  const bf16* v = nullptr;  // [b, nk, h, d]
  Strides v_strides;
  const std::uint8_t* mask = nullptr;  // [b, h, nq, nk] by strides, nonzero = visible; null = all
  MaskStrides mask_strides;
  bf16* o = nullptr;  // [b, nq, h, d], overwritten
  Strides o_strides;
  float* lse = nullptr;  // RunCuda only, optional: [b, h, nq], ln(sum of exp of the scaled scores),
                         // -inf where a query sees no key
  // RunCuda only, optional: device memory of WorkspaceBytes(), 1024-byte aligned, zeroed once, not
  // used by two calls at a time. Lets CTAs share tiles where the last wave would be incomplete.
  void* workspace = nullptr;

  // Row-major tensors, no mask.
  static Args Contiguous(std::int64_t b, std::int64_t nq, std::int64_t nk, std::int64_t h,
                         std::int64_t d);
};

// Throws kInput, naming the tensor, when d, a stride or an overlap of O with an input is not
// supported.
void Check(const Args& args);

// Arguments from named tensors: Q, K, V, an optional bool mask of shape [B,Nk], [B,1,Nq,Nk] or
// [B,H,Nq,Nk], and O. Throws kInput naming a tensor whose dtype or shape does not fit.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

// The mask tensor as bytes with strides; throws kInput as Bind does. Null pointer = no mask.
std::pair<const std::uint8_t*, MaskStrides> BindMask(const Problem& problem, const Bundle& inputs);

// Rows of the K and V buffers: Nk, or the attribute k_buffer where given.
std::int64_t KeyBufferRows(const Problem& problem);

// fp32 inside, one rounding to bf16; bitwise reproducible and independent of `threads`.
void RunCpu(const Args& args, int threads);
// The same as the shared kernel's arguments, unchecked.
cpu::Attention KernelArguments(const Args& args);

// The same on the current CUDA device: device pointers, enqueued on `stream` without allocating or
// synchronising, bitwise reproducible. Throws kDevice when driver or device fails. (cuda.cpp;
// builds with CUDA only.)
void RunCuda(const Args& args, Stream stream);
// Bytes of Args::workspace on the current device.
std::size_t WorkspaceBytes();

// The parts of the family; MakeFamily joins them.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Mutant> Mutants();
Backend CpuBackend();
Backend CudaBackend();  // with CUDA only

Family MakeFamily();

}  // namespace assay::noncausal_dense_attention
