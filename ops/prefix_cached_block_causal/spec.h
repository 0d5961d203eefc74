// prefix_cached_block_causal: attention of an image model with a cached prefix. Two forms:
// (a) queries see the whole prefix and all suffix keys, without any mask;
// (b) no prefix, the sequence is cut into text runs (causal) and image blocks (see all before and
// their own block). Room page: README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "cpu/attention.h"
#include "ops/attention/views.h"
#include "ops/family.h"

namespace assay::prefix_cached_block_causal {

using attention::Strides;

// Tokens [start, end).
struct Segment {
  std::int64_t start = 0, end = 0;
  bool is_image = false;
  friend bool operator==(const Segment&, const Segment&) = default;
};

struct Args {
  std::int64_t b = 0, nq = 0, np = 0, h = 0;
  std::int64_t d = 0;       // 128
  const bf16* q = nullptr;  // [b, nq, h, d]
  Strides q_strides;
  const bf16* k = nullptr;  // [b, nq, h, d]
  Strides k_strides;
  const bf16* v = nullptr;  // [b, nq, h, d]
  Strides v_strides;
  const bf16* k_prefix = nullptr;  // [b, np, h, d], often a slice of a larger cache
  Strides k_prefix_strides;
  const bf16* v_prefix = nullptr;  // [b, np, h, d]
  Strides v_prefix_strides;
  std::vector<Segment> segments;  // form (b): cover [0, nq), np must be 0; empty = form (a)
  bf16* o = nullptr;              // [b, nq, h, d], overwritten
  Strides o_strides;
  float* lse = nullptr;  // RunCuda only, optional: [b, h, nq], ln(sum of exp of the scaled scores)
  // RunCuda only, optional: device memory of WorkspaceBytes(), 1024-byte aligned, zeroed once, not
  // used by two calls at a time. Lets CTAs share tiles where the last wave would be incomplete.
  void* workspace = nullptr;

  // Row-major tensors.
  static Args Contiguous(std::int64_t b, std::int64_t nq, std::int64_t np, std::int64_t h,
                         std::int64_t d);
};

// Throws kInput naming the first segment that does not continue at the end of the one before, is
// empty, or ends beyond `tokens`, and a list that does not end at `tokens`.
void CheckSegments(const std::vector<Segment>& segments, std::int64_t tokens);
// Runs of equal ids: -1 = text, >= 0 = image block. Throws kInput naming the token where an id is
// below -1 or is used by a second run.
std::vector<Segment> SegmentsFromImageIds(const std::int32_t* ids, std::int64_t tokens);
// Query i sees keys j < limits[i]: i + 1 in text, the end of its block in an image.
std::vector<std::int64_t> Limits(const std::vector<Segment>& segments);

// Throws kInput, naming the tensor or the segment, when something is not supported.
void Check(const Args& args);
// Arguments from named tensors Q, K, V, O, with K_prefix and V_prefix in form (a), and from the
// attribute prefix_segments or the tensor image_ids in form (b). Throws kInput.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
// The same without segments: reads no element of any tensor, so that they may be in device memory.
Args BindTensors(const Problem& problem, const Bundle& inputs, Bundle& outputs);

bool IsPrefixForm(const Problem& problem);  // form (a)
// Form (b): of the attribute prefix_segments, else of the tensor image_ids ([Nq], or [B,Nq] with
// equal rows), else one text run. Both present must mean the same limits. Throws kInput.
std::vector<Segment> SegmentsOf(const Problem& problem, const Bundle& inputs);
// The attribute prefix_segments: start, end, is_image of every segment; throws kInput when it is
// not a list of such triples over `tokens` tokens. Empty when absent.
std::vector<Segment> AttributeSegments(const Problem& problem, std::int64_t tokens);

// fp32 inside, one rounding to bf16; bitwise reproducible and independent of `threads`.
void RunCpu(const Args& args, int threads);
// The same as the shared kernel's arguments, unchecked; `limits` must outlive them.
cpu::Attention KernelArguments(const Args& args, const std::vector<std::int64_t>& limits);

// The same on the current CUDA device: device pointers, enqueued on `stream` without allocating or
// synchronising, bitwise reproducible. Throws kInput for more image blocks than a launch carries,
// kDevice when driver or device fails. (cuda.cpp; builds with CUDA only.)
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

}  // namespace assay::prefix_cached_block_causal
