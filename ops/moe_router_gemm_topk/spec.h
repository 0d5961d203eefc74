// moe_router_gemm_topk: which experts a token goes to, and with which weights. Logits of all
// experts by a small matrix product, sqrt-softplus scores, the best k by score plus bias. See
// README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cpu/isa.h"
#include "ops/family.h"

namespace assay::moe_router_gemm_topk {

inline constexpr std::int64_t kMostExperts = 1024;
inline constexpr std::int64_t kMostChosen = 16;
inline constexpr float kDefaultScaling = 1.5f;

// Inputs are never modified. Rows are independent, and a row's result does not depend on m.
struct Args {
  std::int64_t m = 0;
  std::int64_t k = 5120;       // a multiple of 64
  std::int64_t experts = 384;  // a multiple of 4, at most 1024
  std::int64_t chosen = 6;     // at most 16 and at most `experts`
  const bf16* x = nullptr;     // [m, k], 16-byte aligned, row stride ldx >= k, a multiple of 8
  std::int64_t ldx = 0;
  const bf16* w = nullptr;                 // [experts, k], 16-byte aligned
  const float* bias = nullptr;             // [experts]
  const float* bias_vl = nullptr;          // [experts], used for rows of images; may be null
  const std::uint8_t* is_image = nullptr;  // [m]; null = no row is of an image
  std::int64_t valid_rows = -1;            // rows from here on get id -1 and weight 0; negative = m
  float scaling = kDefaultScaling;         // what the weights of a row sum to
  std::int32_t* expert_ids = nullptr;      // [m, chosen], ascending in a row
  float* expert_weights = nullptr;         // [m, chosen], in the order of the ids
  float* logits = nullptr;                 // [m, experts], written when given
};

// Why a call is illegal, one sentence naming the tensor and the value; "" when it is legal.
// Contents are not looked at.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it. A row always
// gets distinct ids in 0..experts-1, also where logits or biases are NaN (which rank last). Throws
// kInput with the text of Refusal.
void RunCpu(const Args& args, int threads);
// With a chosen instruction set, for tests. `bf16_dots`: AVX512-BF16 besides kAvx512.
void RunCpu(const Args& args, int threads, cpu::Isa isa, bool bf16_dots);

// The other convention of outputs: ids in order of decreasing score plus bias, weights that sum
// to 1. Rewrites rows [m, chosen] in place to ours: ascending ids, weights times `scaling`.
void FromEngineConvention(std::int64_t m, std::int64_t chosen, float scaling, std::int32_t* ids,
                          float* weights);

// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
// generate.cpp
std::vector<std::string> Variants();
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
// reference.cpp
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<OutputPolicy> Policies(const Problem& problem);
std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected);
// cpu.cpp
std::vector<Backend> Backends();
// mutants.cpp
std::vector<Mutant> Mutants();

}  // namespace assay::moe_router_gemm_topk
