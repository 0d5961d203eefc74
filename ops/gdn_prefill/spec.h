// gdn_prefill: gated delta-rule attention over packed sequences with a k-last state. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cpu/isa.h"
#include "ops/family.h"

namespace assay::gdn_prefill {

// Constants of the captured definition (Qwen3-Next at tensor parallel 4).
inline constexpr std::int64_t kKeyHeads = 4;
inline constexpr std::int64_t kValueHeads = 8;  // value head h reads key head h / 2
inline constexpr std::int64_t kHeadSize = 128;
inline constexpr std::int64_t kStateElements = kHeadSize * kHeadSize;  // of one head
inline constexpr float kDefaultScale = 0.08838834764831845f;           // 1 / sqrt(128)

// Inputs are never modified, except `state` by a call in place. Rows of different sequences and
// heads are independent.
struct Args {
  std::int64_t tokens = 0, sequences = 0;
  const bf16* q = nullptr;                   // [tokens, 4, 128], L2-normalised by the caller
  const bf16* k = nullptr;                   // [tokens, 4, 128], likewise
  const bf16* v = nullptr;                   // [tokens, 8, 128]
  const float* state = nullptr;              // [sequences, 8, 128 (V), 128 (K)]; null = zeros
  const float* a_log = nullptr;              // [8]
  const bf16* a = nullptr;                   // [tokens, 8]
  const float* dt_bias = nullptr;            // [8]
  const bf16* b = nullptr;                   // [tokens, 8]
  const std::int64_t* cu_seqlens = nullptr;  // [sequences + 1]
  float scale = 0;                           // 0 = 1 / sqrt(128)
  bf16* output = nullptr;                    // [tokens, 8, 128]
  float* new_state = nullptr;  // as `state`; may be the same memory, never a partial overlap

  // What an empty sequence leaves: its initial state, or zeros as the contest's reference does.
  bool zero_empty_states = false;

  const float* scale_at = nullptr;  // device calls: where the scale is, instead of `scale`
};

// Why a call is illegal (cu_seqlens, alignment, overlap), one sentence; "" when it is legal. The
// contents of floating-point tensors are not looked at.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it, nor on what
// else is packed into the batch. Throws kInput with the text of Refusal.
void RunCpu(const Args& args, int threads);
void RunCpu(const Args& args, int threads, cpu::Isa isa);

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

// The attribute `empty_state` = "zero" of a workload asks for zero_empty_states.
bool ZeroEmptyStates(const Problem& problem);
// "" or what is wrong with cu_seqlens, naming the position and the values.
std::string CuSeqlensProblem(const std::int64_t* cu_seqlens, std::int64_t sequences,
                             std::int64_t tokens);

}  // namespace assay::gdn_prefill
