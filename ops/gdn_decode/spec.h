// gdn_decode: one token of gated delta-rule attention with a k-last state. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cpu/isa.h"
#include "cuda/stream.h"
#include "ops/family.h"

namespace assay::gdn_decode {

// Constants of the captured definition (Qwen3-Next at tensor parallel 4).
inline constexpr std::int64_t kKeyHeads = 4;
inline constexpr std::int64_t kValueHeads = 8;  // value head h reads key head h / 2
inline constexpr std::int64_t kHeadSize = 128;
inline constexpr std::int64_t kStateElements = kHeadSize * kHeadSize;  // of one head
inline constexpr float kDefaultScale = 0.08838834764831845f;           // 1 / sqrt(128)

// Inputs are never modified, except `state` by a call in place. Rows of different n and h are
// independent.
struct Args {
  std::int64_t batch = 0;
  const bf16* q = nullptr;         // [batch, 1, 4, 128], L2-normalised by the caller
  const bf16* k = nullptr;         // [batch, 1, 4, 128], likewise
  const bf16* v = nullptr;         // [batch, 1, 8, 128]
  const float* state = nullptr;    // [slots, 8, 128 (V), 128 (K)]; null = zeros
  const float* a_log = nullptr;    // [8]
  const bf16* a = nullptr;         // [batch, 1, 8]
  const float* dt_bias = nullptr;  // [8]
  const bf16* b = nullptr;         // [batch, 1, 8]
  float scale = 0;                 // 0 = 1 / sqrt(128)
  bf16* output = nullptr;          // [batch, 1, 8, 128]
  float* new_state = nullptr;      // as `state`; may be the same memory, never a partial overlap

  // A pool of states: row n uses slot slot[n]; negative = padding row, its output is 0 and no state
  // is touched. Null = row n uses slot n, and slots is batch.
  const std::int64_t* slot = nullptr;  // [batch]
  std::int64_t slots = 0;              // read only with `slot`

  const float* scale_at = nullptr;  // device calls: where the scale is, instead of `scale`
};

// Why a call is illegal (alignment, overlap, slots), one sentence; "" when it is legal. The
// contents of floating-point tensors are not looked at.
std::string Refusal(const Args& args);
// The same without the contents of `slot`, which a device call cannot read.
std::string PointerRefusal(const Args& args);

// Why slot[0..batch) cannot name states of a pool: every one is below `slots` and used by one row
// at most (negative ones are padding); "" when they can.
std::string SlotProblem(const std::int64_t* slot, std::int64_t batch, std::int64_t slots);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it. Throws kInput
// with the text of Refusal.
void RunCpu(const Args& args, int threads);
void RunCpu(const Args& args, int threads, cpu::Isa isa);

// The same on the current CUDA device: device pointers, enqueued on `stream`, no allocation. A slot
// outside the pool counts as padding. Throws kInput with the text of PointerRefusal, kDevice when
// the launch fails. (sm90.cu; builds with CUDA only.)
void RunCuda(const Args& args, Stream stream);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
// The same of bundles in device memory: the scale stays there.
Args BindOnDevice(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();
// cuda.cpp, with CUDA only
Backend CudaBackend();

}  // namespace assay::gdn_decode
