// Drives the inner loops of attention_leaf.h: who computes which rows, in which order keys are
// walked, what is masked. All arithmetic on scores and outputs is in the leaf.
#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numbers>
#include <utility>

#include "base/parallel.h"
#include "cpu/attention_leaf.h"
#include "cpu/isa.h"

namespace assay::cpu {
namespace {

// Query rows that share one pass over a key block: 96 rows of fp32 queries, scores and outputs are
// 48 KB each at 128 channels, and every packed value is used 96 times per load from L2.
constexpr int kBlockRows = 96;
static_assert(kBlockRows % kRowStep == 0, "row blocks are made of whole register tiles");
// Keys packed at a time: K and V of 1024 keys x 128 channels are 1 MB in fp32, half of an L2.
constexpr int kChunkBlocks = 8;
// Fewer rows than this do not repay packing K and V again; more than kLargestItem would only grow
// the workspace (8 bytes a row and channel).
constexpr std::int64_t kSmallestItem = 192, kLargestItem = 3072;

// The rows of one (batch, head) that one thread computes.
struct Item {
  std::int64_t batch = 0, head = 0, first_row = 0, rows = 0;
};

class AlignedFloats {
 public:
  explicit AlignedFloats(std::int64_t count)
      : data_(static_cast<float*>(::operator new (static_cast<std::size_t>(count) * sizeof(float),
                                                  std::align_val_t{64}))) {}
  float* get() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* data) const { ::operator delete (data, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
};

const std::uint16_t* Bits(const bf16* data) { return reinterpret_cast<const std::uint16_t*>(data); }

// One thread's buffers and the way of one item through them.
class Worker {
 public:
  Worker(const AttentionLeaf& leaf, const Attention& attention, std::int64_t rows)
      : leaf_(leaf),
        a_(attention),
        dim_(static_cast<int>(attention.head_dim)),
        keys_(attention.keys[0].count + attention.keys[1].count),
        packed_k_(kChunkBlocks * kKeyBlock * attention.head_dim),
        packed_v_(kChunkBlocks * kKeyBlock * attention.head_dim),
        scores_(kBlockRows * kKeyBlock),
        q_(Padded(rows) * attention.head_dim),
        o_(Padded(rows) * attention.head_dim),
        row_max_(Padded(rows)),
        row_sum_(Padded(rows)) {}

  void Run(const Item& item) {
    item_ = item;
    Start();
    const std::int64_t end = a_.limits == nullptr ? keys_ : LimitRange(0, item.rows).second;
    for (std::int64_t key = 0; key < end; key += kChunkBlocks * kKeyBlock) {
      PackChunk(key, std::min<std::int64_t>(end - key, kChunkBlocks * kKeyBlock));
      for (std::int64_t row = 0; row < item.rows; row += kBlockRows) {
        for (const Block& block : blocks_) Step(row, block);
      }
    }
    for (std::int64_t row = 0; row < item.rows; ++row) Finish(row);
  }

 private:
  // A packed key block.
  struct Block {
    std::int64_t first_key = 0;
    int keys = 0;
    const float *k = nullptr, *v = nullptr;
    bool finite_values = true;
  };

  static std::int64_t Padded(std::int64_t rows) {
    return (rows + kRowStep - 1) / kRowStep * kRowStep;
  }

  void Start() {
    const std::int64_t padded = Padded(item_.rows);
    std::fill_n(o_.get(), padded * dim_, 0.0f);
    std::fill_n(row_max_.get(), padded, -std::numeric_limits<float>::infinity());
    std::fill_n(row_sum_.get(), padded, 0.0f);
    std::fill_n(q_.get() + item_.rows * dim_, (padded - item_.rows) * dim_, 0.0f);
    for (std::int64_t row = 0; row < item_.rows; ++row) {
      const bf16* from = a_.q + item_.batch * a_.q_strides.batch +
                         (item_.first_row + row) * a_.q_strides.token +
                         item_.head * a_.q_strides.head;
      leaf_.widen(Bits(from), dim_, q_.get() + row * dim_);
    }
  }

  // Smallest and largest limit of rows [row, row + rows) of the item, cut to the number of keys.
  std::pair<std::int64_t, std::int64_t> LimitRange(std::int64_t row, std::int64_t rows) const {
    const std::int64_t* limits = a_.limits + item_.first_row + row;
    const auto [low, high] = std::minmax_element(limits, limits + rows);
    return {std::clamp<std::int64_t>(*low, 0, keys_), std::clamp<std::int64_t>(*high, 0, keys_)};
  }

  void PackChunk(std::int64_t first_key, std::int64_t keys) {
    blocks_.clear();
    for (std::int64_t done = 0; done < keys; done += kKeyBlock) {
      Block block{first_key + done,
                  static_cast<int>(std::min<std::int64_t>(keys - done, kKeyBlock)),
                  packed_k_.get() + done * dim_, packed_v_.get() + done * dim_, true};
      if (!AnyKeyVisible(block)) continue;
      const std::uint16_t *k_rows[kKeyBlock], *v_rows[kKeyBlock];
      for (int key = 0; key < block.keys; ++key) {
        FindKey(block.first_key + key, k_rows[key], v_rows[key]);
      }
      leaf_.pack_keys(k_rows, block.keys, dim_, packed_k_.get() + done * dim_);
      block.finite_values =
          leaf_.pack_values(v_rows, block.keys, dim_, packed_v_.get() + done * dim_);
      blocks_.push_back(block);
    }
  }

  void FindKey(std::int64_t key, const std::uint16_t*& k, const std::uint16_t*& v) const {
    const bool second = key >= a_.keys[0].count;
    const AttentionKeys& keys = a_.keys[second ? 1 : 0];
    const std::int64_t token = second ? key - a_.keys[0].count : key;
    k = Bits(keys.k + item_.batch * keys.k_strides.batch + token * keys.k_strides.token +
             item_.head * keys.k_strides.head);
    v = Bits(keys.v + item_.batch * keys.v_strides.batch + token * keys.v_strides.token +
             item_.head * keys.v_strides.head);
  }

  const std::uint8_t* MaskRow(std::int64_t row) const {
    return a_.mask.visible + item_.batch * a_.mask.batch + item_.head * a_.mask.head +
           (item_.first_row + row) * a_.mask.query;
  }

  // False only when a mask that is common to all queries hides the whole block.
  bool AnyKeyVisible(const Block& block) const {
    if (a_.mask.visible == nullptr || a_.mask.query != 0) return true;
    for (int key = 0; key < block.keys; ++key) {
      if (MaskRow(0)[(block.first_key + key) * a_.mask.key] != 0) return true;
    }
    return false;
  }

  bool Visible(std::int64_t row, std::int64_t key) const {
    if (a_.limits != nullptr && key >= a_.limits[item_.first_row + row]) return false;
    return a_.mask.visible == nullptr || MaskRow(row)[key * a_.mask.key] != 0;
  }

  // One key block for kBlockRows rows.
  void Step(std::int64_t row, Block block) {
    const std::int64_t rows = std::min<std::int64_t>(item_.rows - row, kBlockRows);
    bool hidden = a_.mask.visible != nullptr;
    if (a_.limits != nullptr) {
      const auto [low, high] = LimitRange(row, rows);
      if (high <= block.first_key) return;
      block.keys = static_cast<int>(std::min<std::int64_t>(block.keys, high - block.first_key));
      hidden = hidden || low < block.first_key + block.keys;
    }
    const int padded = static_cast<int>(Padded(rows));
    float* s = scores_.get();
    leaf_.scores(q_.get() + row * dim_, padded, block.k, block.keys, dim_, s);
    if (hidden) Hide(row, rows, block);
    leaf_.softmax(s, padded, block.keys, a_.scale * std::numbers::log2e_v<float>,
                  row_max_.get() + row, row_sum_.get() + row, factor_);
    if (hidden && !block.finite_values) {
      AccumulateVisible(row, rows, block);
    } else {
      leaf_.accumulate(s, padded, block.v, block.keys, dim_, factor_, o_.get() + row * dim_);
    }
  }

  void Hide(std::int64_t row, std::int64_t rows, const Block& block) {
    constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
    for (std::int64_t r = 0; r < rows; ++r) {
      float* s = scores_.get() + r * kKeyBlock;
      if (a_.limits != nullptr) {
        const std::int64_t limit = a_.limits[item_.first_row + row + r] - block.first_key;
        for (std::int64_t key = std::max<std::int64_t>(limit, 0); key < block.keys; ++key) {
          s[key] = kMinusInfinity;
        }
      }
      if (a_.mask.visible == nullptr) continue;
      const std::uint8_t* mask = MaskRow(row + r) + block.first_key * a_.mask.key;
      for (int key = 0; key < block.keys; ++key) {
        s[key] = mask[key * a_.mask.key] != 0 ? s[key] : kMinusInfinity;
      }
    }
  }

  // The slow form of accumulate for a block whose V holds Inf or NaN: an invisible key's weight of
  // 0 would turn them into NaN, so invisible keys are left out instead.
  void AccumulateVisible(std::int64_t row, std::int64_t rows, const Block& block) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* p = scores_.get() + r * kKeyBlock;
      float* o = o_.get() + (row + r) * dim_;
      for (int d = 0; d < dim_; ++d) o[d] *= factor_[r];
      for (int key = 0; key < block.keys; ++key) {
        if (!Visible(row + r, block.first_key + key)) continue;
        for (int d = 0; d < dim_; ++d) {
          o[d] = std::fma(p[key], block.v[leaf_.value_offset(key, d)], o[d]);
        }
      }
    }
  }

  void Finish(std::int64_t row) {
    bf16* to = a_.o + item_.batch * a_.o_strides.batch +
               (item_.first_row + row) * a_.o_strides.token + item_.head * a_.o_strides.head;
    const float* o = o_.get() + row * dim_;
    const float sum = row_sum_.get()[row];
    // The largest visible score has weight 1, so a sum of 0 means that no key is visible, or that
    // every visible score is -Inf, for which 0 * (1/0) = NaN is the truth.
    const float factor = sum == 0 && !AnyVisible(row) ? 1 : 1 / sum;
    leaf_.narrow(o, factor, dim_, reinterpret_cast<std::uint16_t*>(to));
  }

  bool AnyVisible(std::int64_t row) const {
    for (std::int64_t key = 0; key < keys_; ++key) {
      if (Visible(row, key)) return true;
    }
    return false;
  }

  const AttentionLeaf& leaf_;
  const Attention& a_;
  const int dim_;
  const std::int64_t keys_;
  Item item_;
  std::vector<Block> blocks_;
  AlignedFloats packed_k_, packed_v_, scores_, q_, o_, row_max_, row_sum_;
  float factor_[kBlockRows] = {};
};

// Rows of one item: whole heads when there are enough of them for all threads, else pieces.
std::int64_t ItemRows(const Attention& attention, int threads) {
  if (threads <= 0) threads = HardwareThreads();
  const std::int64_t heads = attention.batch * attention.heads;
  const std::int64_t pieces = (4 * threads + heads - 1) / heads;
  const std::int64_t rows = (attention.queries + pieces - 1) / pieces;
  const std::int64_t bounded = std::clamp(rows, kSmallestItem, kLargestItem);
  return std::min((bounded + kBlockRows - 1) / kBlockRows * kBlockRows, attention.queries);
}

// Buffers are reused from item to item; at most one set per running thread exists.
class Workers {
 public:
  Workers(const AttentionLeaf& leaf, const Attention& attention, std::int64_t rows)
      : leaf_(leaf), attention_(attention), rows_(rows) {}

  void Run(const Item& item) {
    std::unique_ptr<Worker> worker = Take();
    worker->Run(item);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(worker));
  }

 private:
  std::unique_ptr<Worker> Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Worker> worker = std::move(idle_.back());
        idle_.pop_back();
        return worker;
      }
    }
    return std::make_unique<Worker>(leaf_, attention_, rows_);
  }

  const AttentionLeaf& leaf_;
  const Attention& attention_;
  const std::int64_t rows_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace

std::vector<const AttentionLeaf*> RunnableAttentionLeaves() {
  std::vector<const AttentionLeaf*> leaves;
#ifdef ASSAY_X86_LEAVES
  if (Supports(Isa::kAvx512)) leaves.push_back(&Avx512AttentionLeaf());
  if (Supports(Isa::kAvx2)) leaves.push_back(&Avx2AttentionLeaf());
#endif
  leaves.push_back(&BaselineAttentionLeaf());
  return leaves;
}

void RunWith(const AttentionLeaf& leaf, const Attention& attention, int threads) {
  const std::int64_t heads = attention.batch * attention.heads;
  if (heads == 0 || attention.queries == 0) return;
  const std::int64_t rows = ItemRows(attention, threads);
  const std::int64_t pieces = (attention.queries + rows - 1) / rows;
  Workers workers(leaf, attention, rows);
  ParallelFor(heads * pieces, threads, [&](std::int64_t index) {
    const std::int64_t head = index / pieces, first = index % pieces * rows;
    workers.Run({head / attention.heads, head % attention.heads, first,
                 std::min(rows, attention.queries - first)});
  });
}

void Run(const Attention& attention, int threads) {
  static const AttentionLeaf& best = *RunnableAttentionLeaves().front();
  RunWith(best, attention, threads);
}

}  // namespace assay::cpu
