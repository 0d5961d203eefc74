// mixed_mla_decode: one decode token per row attends to tokens of an 8-bit latent cache (the
// window) and of a 4-bit one (picked compressed tokens) in one softmax with a sink. Room page:
// README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpu/latent_attention.h"
#include "ops/family.h"
#include "ops/mla/codec.h"
#include "ops/mla/inputs.h"

namespace assay::mixed_mla_decode {

using mla::kDim;
using mla::kHeads;

inline constexpr std::int64_t kWindow = 128;       // columns of indices
inline constexpr std::int64_t kExtra = 512;        // columns of extra_indices
inline constexpr std::int64_t kPageTokens8 = 256;  // tokens of a page of cache8
inline constexpr std::int64_t kPageTokens4 = 128;  // and of cache4
inline constexpr std::int64_t kPageBytes8 = kPageTokens8 * mla::kV41.token_bytes();
inline constexpr std::int64_t kPageBytes4 = kPageTokens4 * mla::kV41Fp4.token_bytes();

// Pages of one cache in the planar layout of ops/mla/codec.h.
struct Cache {
  const std::uint8_t* bytes = nullptr;  // [pages, page_stride], aligned to 16
  std::int64_t pages = 0;
  std::int64_t page_stride = 0;  // bytes, a multiple of 16; trailing padding is legal
};

// Tokens of one cache that each row attends to: indices[b, j] = page * page tokens + offset for
// j < length[b]; negative = none. Every occurrence counts.
struct TokenLists {
  const std::int32_t* indices = nullptr;  // [b, width]
  const std::int32_t* length = nullptr;   // [b], in 0..width; null = width
};

struct Args {
  std::int64_t b = 0;
  const bf16* q = nullptr;           // [b, 64, 512]
  Cache cache8;                      // V41, pages of 256 tokens
  Cache cache4;                      // V41_FP4, pages of 128 tokens
  TokenLists window;                 // of cache8, width 128
  TokenLists extra;                  // of cache4, width 512
  const float* attn_sink = nullptr;  // [64], natural logarithms; null = none
  float sm_scale = 0;                // 0 = 1 / sqrt(512)
  bf16* out = nullptr;               // [b, 64, 512], overwritten; 0 where both lists are empty
  float* lse = nullptr;  // [b, 64], without the sink, +inf where empty; null = not wanted
};

// Why a call is illegal (strides, alignment, overlap, lengths, tokens outside the caches), one
// sentence; "" when legal. Reads lists and lengths, no cache.
std::string Refusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results do not depend on it. Throws kInput
// with the text of Refusal.
void RunCpu(const Args& args, int threads);
void RunCpu(const Args& args, int threads, const cpu::LatentLeaf& leaf);

// Pointers of a named bundle: q, cache8, cache4, indices, topk_length?, extra_indices,
// extra_topk_length?, attn_sink?, sm_scale? and out. Throws kInput naming the tensor that does not
// fit.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
// The same without `out`.
Args BindInputs(const Problem& problem, const Bundle& inputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<Backend> Backends();
std::vector<Mutant> Mutants();

}  // namespace assay::mixed_mla_decode
