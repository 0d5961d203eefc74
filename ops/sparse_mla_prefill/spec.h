// sparse_mla_prefill: every query row attends to its own list of latent workspace rows, which are
// keys and values at once, with an attention sink. Room page: README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/latent_attention.h"
#include "ops/family.h"
#include "ops/mla/codec.h"
#include "ops/mla/inputs.h"

namespace assay::sparse_mla_prefill {

using mla::kDim;
using mla::kHeads;

// Rows of different m are independent. A column j of a row's list counts when j < topk_length[m]
// and 0 <= indices[m, j] < nkv; every occurrence of a row counts.
struct Args {
  std::int64_t m = 0, nkv = 0;
  std::int64_t width = 0;                     // a multiple of 64
  const bf16* q = nullptr;                    // [m, 64, 512]
  const bf16* kv = nullptr;                   // [nkv, 512]
  std::int64_t kv_stride = kDim;              // elements, a multiple of 8
  const std::int32_t* indices = nullptr;      // [m, width]
  const std::int32_t* topk_length = nullptr;  // [m], in 0..width; null = width
  const float* attn_sink = nullptr;           // [64], natural logarithms; null = none
  float sm_scale = 0;                         // 0 = 1 / sqrt(512)
  bf16* out = nullptr;                        // [m, 64, 512], overwritten; 0 where a list is empty
  float* max_logits = nullptr;                // [m, 64], -inf where empty; null = not wanted
  float* lse = nullptr;  // [m, 64], without the sink, +inf where empty; likewise
};

// Why a call is illegal (width, strides, alignment, overlap, lengths), one sentence; "" when legal.
// Reads topk_length, no other tensor.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it. Throws kInput
// with the text of Refusal.
void RunCpu(const Args& args, int threads);
void RunCpu(const Args& args, int threads, const cpu::LatentLeaf& leaf);

// Pointers of a named bundle: q, kv, indices, topk_length?, attn_sink?, sm_scale? and out.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::sparse_mla_prefill
