// Attention on an H200: which kernels exist, which one a call gets, and calls prepared for replay.
// Shared by the attention rooms; the tile plans are in noncausal_dense_attention/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/stream.h"
#include "ops/attention/views.h"

namespace assay::attention {

// A piece of the key sequence, in device memory.
struct Sm90Keys {
  std::int64_t count = 0;
  const bf16* k = nullptr;  // [batch, count, heads, head_dim]
  Strides k_strides;
  const bf16* v = nullptr;  // [batch, count, heads, head_dim]
  Strides v_strides;
};

// Bytes, 0 = this query does not see this key; strides of 0 broadcast.
struct Sm90Mask {
  const std::uint8_t* visible = nullptr;  // [batch, heads, queries, suffix keys]; null = all
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

// Queries [start, end) see all keys below end.
struct ImageBlock {
  std::int32_t start = 0, end = 0;
};

// O = round_bf16(softmax(Q [K_prefix ; K]^T / sqrt(head_dim)) [V_prefix ; V]). Plain data: kernels
// take it as it is.
struct Sm90Tensors {
  std::int64_t batch = 0, queries = 0, heads = 0, head_dim = 0;
  const bf16* q = nullptr;  // [batch, queries, heads, head_dim]
  Strides q_strides;
  Sm90Keys suffix, prefix;
  Sm90Mask mask;      // with an empty prefix only
  bf16* o = nullptr;  // [batch, queries, heads, head_dim], overwritten
  Strides o_strides;
  float* lse = nullptr;  // optional: [batch, heads, queries], natural logarithm of the row's sum of
                         // exponentials of scaled scores; -inf where a row sees no key
};

struct Sm90Call {
  Sm90Tensors tensors;
  // With an empty prefix and no mask: query i sees keys j <= i, and inside a block all below its
  // end. `blocks` are sorted and disjoint.
  bool block_causal = false;
  std::vector<ImageBlock> blocks;
  // Optional device memory of Sm90WorkspaceBytes() for plans with `share`, 1024-byte aligned,
  // zeroed once; calls leave it ready for the next one on the same stream.
  void* workspace = nullptr;
};

inline constexpr int kMaxImageBlocks = 200;  // they travel as kernel arguments

// How a call runs.
struct Sm90Plan {
  std::string_view kernel = "generic";
  int split = 1;       // CTAs of a cluster that share one tile's keys ("split_*"), or CTAs per head
                       // ("resident_*")
  bool share = false;  // "core_*": CTAs divide the query tiles of an incomplete last wave
};

// Names: d HEAD_DIM x query rows of a CTA x keys of a tile; the last is "generic": any stride.
std::vector<std::string_view> Sm90Kernels();
// Empty when `kernel` can run the call, else the reason.
std::string WhyNot(const Sm90Call& call, std::string_view kernel);
// Shares tiles only where the call has a workspace.
Sm90Plan ChooseSm90Plan(const Sm90Call& call);

// Enough for every call on the current device.
std::size_t Sm90WorkspaceBytes();

// Builds tensor maps once; the result only enqueues. Pointers are device memory and have been
// checked by the room. Throws kInput for a plan that cannot run the call, kDevice when the device
// or driver fails.
std::function<void(Stream)> PrepareSm90(const Sm90Call& call, const Sm90Plan& plan);

// The same with the plan that a user gets and, where that plan shares tiles, a workspace of its
// own.
std::function<void(Stream)> PrepareSm90(Sm90Call call);

// Enqueues a call with the plan that a user gets: no allocation, the workspace is the caller's.
void RunSm90(const Sm90Call& call, Stream stream);

}  // namespace assay::attention
