// Which kernel a call gets. The rules and where they come from: README.md of
// noncausal_dense_attention.
#include <algorithm>
#include <array>

#include "ops/attention/sm90.h"

namespace assay::attention {
namespace {

enum class Kind { kCore, kResident, kSplit, kGeneric };

struct Row {
  std::string_view name;
  Kind kind;
  int head_dim, rows, keys;
  bool block_causal, mask;  // instances beyond the one where all keys are visible
};

constexpr std::array kKernels = {
    Row{"core_d128x128x128", Kind::kCore, 128, 128, 128, false, false},
    Row{"core_d128x128x160", Kind::kCore, 128, 128, 160, true, false},
    Row{"core_d64x128x160", Kind::kCore, 64, 128, 160, false, false},
    Row{"core_d64x192x128", Kind::kCore, 64, 192, 128, false, false},
    Row{"resident_d64x64x64", Kind::kResident, 64, 64, 64, false, false},
    Row{"resident_d64x64x128", Kind::kResident, 64, 64, 128, false, false},
    Row{"resident_d128x64x64", Kind::kResident, 128, 64, 64, true, false},
    Row{"split_d64x64x64", Kind::kSplit, 64, 64, 64, false, false},
    Row{"split_d64x64x64_g2", Kind::kSplit, 64, 64, 64, false, false},
    Row{"split_d64x64x64_g4", Kind::kSplit, 64, 64, 64, false, false},
    Row{"split_d64x64x128_g2", Kind::kSplit, 64, 64, 128, false, false},
    Row{"split_d64x64x128", Kind::kSplit, 64, 64, 128, false, true},
    Row{"split_d128x64x64", Kind::kSplit, 128, 64, 64, true, true},
    Row{"generic", Kind::kGeneric, 0, 0, 0, true, true},
};

constexpr std::int64_t kMultiprocessors = 132;
constexpr std::int64_t kMaxTokens = 0x7FFF0000;  // coordinates are 32 bits

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Operand {
  std::string_view name;
  const bf16* data;
  std::int64_t tokens;
  Strides strides;
};

// Empty when TMA can address the tensor.
std::string WhyNotTma(const Operand& x) {
  if (x.tokens == 0) return {};
  const std::string name(x.name);
  if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0) {
    return name + " is not at a multiple of 16 bytes";
  }
  if (x.tokens > kMaxTokens) return name + " has " + std::to_string(x.tokens) + " tokens";
  if (x.tokens > 1 && x.strides.token == 0) return name + " has token stride 0";
  for (const std::int64_t stride : {x.strides.batch, x.strides.token, x.strides.head}) {
    if (stride >= std::int64_t{1} << 39) {
      return name + " has a stride of " + std::to_string(stride) + " elements";
    }
  }
  return {};
}

std::string WhyNotTma(const Sm90Tensors& x) {
  const Operand operands[] = {{"Q", x.q, x.queries, x.q_strides},
                              {"K", x.suffix.k, x.suffix.count, x.suffix.k_strides},
                              {"V", x.suffix.v, x.suffix.count, x.suffix.v_strides},
                              {"K_prefix", x.prefix.k, x.prefix.count, x.prefix.k_strides},
                              {"V_prefix", x.prefix.v, x.prefix.count, x.prefix.v_strides},
                              {"O", x.o, 1, x.o_strides}};
  for (const Operand& operand : operands) {
    if (std::string reason = WhyNotTma(operand); !reason.empty()) return reason;
  }
  return {};
}

// CTAs of a cluster: as many as fill the multiprocessors once and as there are key tiles. Launching
// clusters and merging costs 1.5 to 3 us, so a second CTA beside the first does not pay.
int ClusterFor(std::int64_t tiles, std::int64_t key_tiles) {
  int split = 1;
  while (split < 4 && tiles * split * 2 <= kMultiprocessors && split * 2 <= key_tiles) split *= 2;
  return split;
}

// CTAs of one head, as far as there are tiles: 8 were best or within 6 % of it at 32, 64 and 128
// heads; fewer heads need more to fill every multiprocessor twice.
int PartsFor(std::int64_t heads, std::int64_t query_tiles) {
  const std::int64_t parts = std::max<std::int64_t>(8, 2 * kMultiprocessors / heads);
  return static_cast<int>(std::clamp<std::int64_t>(parts, 1, query_tiles));
}

Sm90Plan PlanD64(const Sm90Call& call) {
  const Sm90Tensors& x = call.tensors;
  const std::int64_t heads = x.batch * x.heads, tiles = CeilDiv(x.queries, 64);
  const std::int64_t keys = x.suffix.count + x.prefix.count;
  const bool masked = x.mask.visible != nullptr;
  if (!masked && x.prefix.count == 0 && keys <= 128) {
    return {keys <= 64 ? "resident_d64x64x64" : "resident_d64x64x128", PartsFor(heads, tiles)};
  }
  if (!masked && tiles * heads >= 6 * kMultiprocessors) return {"core_d64x192x128", 1};
  // One tile of 128 queries for (nearly) each multiprocessor: worth it where keys are long.
  const std::int64_t wide = CeilDiv(x.queries, 128) * heads;
  if (!masked && keys >= 2048 && wide <= kMultiprocessors && wide * 4 >= kMultiprocessors * 3) {
    return {"core_d64x128x160", 1};
  }
  // Two warpgroups a CTA pay where CTAs are few and a second query tile reads the same keys from
  // L2.
  const bool two = !masked && tiles > 1 && tiles * heads <= kMultiprocessors;
  return {two ? "split_d64x64x128_g2" : "split_d64x64x128",
          ClusterFor(tiles * heads, CeilDiv(keys, two ? 256 : 128))};
}

// Dividing the last wave's tiles among all CTAs saves the share of them that would idle, and costs
// about as much as 4 key tiles.
bool SharingPays(std::int64_t tiles, std::int64_t key_tiles) {
  const std::int64_t rest = tiles % kMultiprocessors;
  if (rest == 0 || tiles < kMultiprocessors) return false;
  return key_tiles * (kMultiprocessors - rest) > 4 * kMultiprocessors;
}

Sm90Plan PlanD128(const Sm90Call& call) {
  const Sm90Tensors& x = call.tensors;
  const std::int64_t heads = x.batch * x.heads, tiles = CeilDiv(x.queries, 64);
  const std::int64_t keys = x.suffix.count + x.prefix.count;
  if (x.mask.visible != nullptr) {
    return {"split_d128x64x64", ClusterFor(tiles * heads, CeilDiv(keys, 64))};
  }
  if (x.prefix.count == 0 && keys <= 64) {
    return {"resident_d128x64x64", PartsFor(heads, tiles)};
  }
  if (tiles * heads <= kMultiprocessors) {
    return {"split_d128x64x64", ClusterFor(tiles * heads, CeilDiv(keys, 64))};
  }
  if (call.block_causal) return {"core_d128x128x160", 1};
  const bool few = keys <= 1024;  // two query tiles in shared memory pay where tiles are short
  const std::int64_t key_tiles = CeilDiv(keys, few ? 128 : 160);
  return {few ? "core_d128x128x128" : "core_d128x128x160", 1,
          call.workspace != nullptr && SharingPays(CeilDiv(x.queries, 128) * heads, key_tiles)};
}

}  // namespace

std::vector<std::string_view> Sm90Kernels() {
  std::vector<std::string_view> names;
  for (const Row& row : kKernels) names.push_back(row.name);
  return names;
}

std::string WhyNot(const Sm90Call& call, std::string_view kernel) {
  const Sm90Tensors& x = call.tensors;
  if (call.blocks.size() > kMaxImageBlocks) {
    return std::to_string(call.blocks.size()) + " image blocks, supported are " +
           std::to_string(kMaxImageBlocks);
  }
  const auto* row = std::find_if(kKernels.begin(), kKernels.end(),
                                 [&](const Row& entry) { return entry.name == kernel; });
  if (row == kKernels.end()) return "there is no such kernel";
  if (call.block_causal && !row->block_causal) return "it has no image blocks";
  if (x.mask.visible != nullptr && !row->mask) return "it has no mask";
  if (row->kind == Kind::kGeneric) return {};
  if (x.head_dim != row->head_dim) return "head dimension " + std::to_string(x.head_dim);
  if (x.suffix.count == 0) return "there are no keys";
  if (row->kind == Kind::kResident && x.prefix.count + x.suffix.count > row->keys) {
    return "more than " + std::to_string(row->keys) + " keys";
  }
  if (row->kind == Kind::kResident && x.prefix.count > 0) return "there is a prefix";
  if (x.batch * x.heads * CeilDiv(x.queries, 64) > 0x7FFFFFFF / 8) return "too many tiles";
  return WhyNotTma(x);
}

Sm90Plan ChooseSm90Plan(const Sm90Call& call) {
  const Sm90Plan plan = call.tensors.head_dim == 64 ? PlanD64(call) : PlanD128(call);
  return WhyNot(call, plan.kernel).empty() ? plan : Sm90Plan{};
}

}  // namespace assay::attention
