// Drives the inner loops of latent_leaf.h: buffers, sinks, empty lists, the logarithms.
#include "cpu/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <numbers>

#include "base/parallel.h"
#include "cpu/isa.h"

namespace assay::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The buffers of one thread, kept between calls: fresh pages would cost as much as a short list.
class Scratch {
 public:
  // 64-byte aligned, uninitialised, at least `floats` long; invalidates what it gave before.
  float* Reserve(std::int64_t floats) {
    if (floats > size_) {
      data_.reset();
      data_.reset(static_cast<float*>(
          ::operator new (static_cast<std::size_t>(floats) * sizeof(float), std::align_val_t{64})));
      size_ = floats;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(float* data) const { ::operator delete (data, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
  std::int64_t size_ = 0;
};

// Gives every buffer of `task` its place; `factor` and the two rows per head come first.
float* PlaceBuffers(LatentTask& task) {
  thread_local Scratch scratch;
  const std::int64_t heads = task.heads, padded = task.count + kLatentPadding;
  const std::int64_t pack = kLatentDim * kLatentGroup, tile = kLatentPadding * kLatentDim;
  float* at = scratch.Reserve(3 * heads + pack + tile + heads * padded + padded * kLatentGroup);
  const auto take = [&](std::int64_t floats) {
    float* taken = at;
    at += floats;
    return taken;
  };
  float* factor = take(heads);
  task.factor = factor;
  task.largest = take(heads);
  task.sum = take(heads);
  task.packed_q = take(pack);
  task.row_tile = take(tile);
  task.weights = take(heads * padded);
  task.panel = take(padded * kLatentGroup);
  return factor;
}

void AttendNothing(const LatentQuery& query) {
  std::fill_n(query.out, query.heads * kLatentDim, bf16{});
  if (query.max_logits != nullptr) std::fill_n(query.max_logits, query.heads, -kInfinity);
  if (query.lse != nullptr) std::fill_n(query.lse, query.heads, kInfinity);
}

}  // namespace

void Attend(const LatentLeaf& leaf, const LatentQuery& query) {
  LatentTask task;
  task.heads = query.heads;
  task.count = static_cast<std::int64_t>(std::max(query.rows.size(), query.wide_rows.size()));
  if (task.count == 0) return AttendNothing(query);
  task.q = reinterpret_cast<const std::uint16_t*>(query.q);
  if (!query.rows.empty()) {
    task.rows = query.rows.data();
  } else {
    task.wide_rows = query.wide_rows.data();
  }
  task.scale_log2e = query.scale * std::numbers::log2e_v<float>;
  task.out = reinterpret_cast<std::uint16_t*>(query.out);
  float* factor = PlaceBuffers(task);
  leaf.weigh(task);
  for (int h = 0; h < query.heads; ++h) {
    const float largest = task.largest[h] * query.scale;
    // An infinite sink, or one far above every score, makes the sum infinite and the output 0.
    const float sink = query.sink == nullptr ? 0 : std::exp(query.sink[h] - largest);
    factor[h] = 1 / (task.sum[h] + sink);
    if (query.max_logits != nullptr) query.max_logits[h] = largest;
    if (query.lse != nullptr) query.lse[h] = largest + std::log(task.sum[h]);
  }
  leaf.combine(task);
}

std::vector<const LatentLeaf*> RunnableLatentLeaves() {
  std::vector<const LatentLeaf*> leaves;
#ifdef ASSAY_X86_LEAVES
  if (HasAvx512Bf16()) leaves.push_back(&Avx512Bf16LatentLeaf());
  if (Supports(Isa::kAvx512)) leaves.push_back(&Avx512LatentLeaf());
  if (Supports(Isa::kAvx2)) leaves.push_back(&Avx2LatentLeaf());
#endif
  leaves.push_back(&BaselineLatentLeaf());
  return leaves;
}

int LatentHeadsPerTask(std::int64_t tokens, int heads, int threads) {
  if (threads <= 0) threads = HardwareThreads();
  // Packing a panel of rows is repeated by every task of a token; hence whole tokens when there
  // are enough of them.
  return threads == 1 || tokens >= 2 * std::int64_t{threads} ? heads : kLatentGroup;
}

}  // namespace assay::cpu
