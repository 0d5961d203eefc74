// Templates behind latent_leaf.h. Both products of latent attention are one register tile:
//
//   scores [keys, heads] = rows [keys, 512] * Q^T [512, heads]    rows are read where they are
//   out [heads, 512]     = weights [heads, keys] * rows [keys, 512]
//
// The left operand is broadcast element by element, the right one is a packed panel of kGroup
// columns. With heads along the lanes, the softmax over keys needs no exchange between lanes, and
// its weights lie as the second product wants them.
#pragma once

#include "cpu/attention_tile.h"
#include "cpu/latent_leaf.h"

namespace assay::cpu {
namespace {

// fp32 operands, one element of the summed dimension a step.
template <class Isa>
struct SingleSteps {
  using Floats = typename Isa::Floats;
  using Words = typename Isa::Words;
  using Word = float;
  static constexpr int kDepth = 1;

  static void Add(Floats& sum, Word a, Floats b) { sum += a * b; }

  // Two consecutive elements of the summed dimension, as the bit halves of each lane.
  static void StorePair(Words pair, float* to, int stride) {
    *reinterpret_cast<Words*>(to) = pair << 16;
    *reinterpret_cast<Words*>(to + stride) = pair & 0xFFFF0000u;
  }
  static void StoreWeights(Floats first, Floats second, float* to, int stride) {
    *reinterpret_cast<Floats*>(to) = first;
    *reinterpret_cast<Floats*>(to + stride) = second;
  }
};

// `Isa`: vector types as in attention_tile.h, and kTileRows. `Steps`: SingleSteps, or pairs of bf16
// for AVX512-BF16.
template <class Isa, template <class> class StepsOf = SingleSteps>
struct Latent {
  using Common = Tile<Isa>;
  using Steps = StepsOf<Isa>;
  using Floats = typename Isa::Floats;
  using Words = typename Isa::Words;
  using Word = typename Steps::Word;

  static constexpr int kLanes = Isa::kLanes, kVectors = Isa::kVectors, kGroup = kLanes * kVectors;
  static constexpr int kRows = Isa::kTileRows;
  static constexpr int kDepth = Steps::kDepth;
  static constexpr bool kPairs = kDepth == 2;
  static_assert(kLatentGroup % kGroup == 0 && kGroup % kRows == 0, "groups are whole tiles");
  static_assert(kRows <= kLatentPadding, "a tile may run kRows - 1 rows over the end of the list");

  using Accumulators = Floats[kRows][kVectors];

  // sum[r] = a[r][0..depth) * b[depth, kGroup]; the words of a[r] are kStride apart.
  template <int kStride>
  [[gnu::always_inline]] static void Multiply(const Word* const (&a)[kRows], const float* b,
                                              std::int64_t depth, Accumulators& sum) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Floats{};
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      Floats x[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) x[v] = Common::Load(b + k * kGroup + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Word y = a[r][k * kStride];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) Steps::Add(sum[r][v], y, x[v]);
      }
    }
  }

  // Q of kGroup heads, transposed: [512 / kDepth, kGroup] words.
  static void PackQueries(const std::uint16_t* q, float* packed) {
    for (int head = 0; head < kGroup; head += kLanes) {
      for (int channel = 0; channel < kLatentDim; channel += 2 * kLanes) {
        Words block[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          block[i] = *reinterpret_cast<const typename Isa::UnalignedWords*>(
              q + (head + i) * kLatentDim + channel);
        }
        Common::template TransposeFrom<1>(block);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          float* to = packed + (channel + 2 * i) / kDepth * kGroup + head;
          Steps::StorePair(block[i], to, kGroup);
        }
      }
    }
  }

  static const std::uint16_t* Row(const LatentTask& task, std::int64_t key) {
    return reinterpret_cast<const std::uint16_t*>(task.rows[key]);
  }

  // The rows key, key + 1, ... of the list as words; zeros beyond its end.
  static void FindRows(const LatentTask& task, std::int64_t key, const Word* (&a)[kRows]) {
    alignas(64) static constexpr std::uint16_t kZeros[2 * kLatentDim] = {};
    for (int r = 0; r < kRows; ++r) {
      const bool exists = key + r < task.count;
      if (!kPairs && exists && task.wide_rows != nullptr) {
        a[r] = reinterpret_cast<const Word*>(task.wide_rows[key + r]);
      } else if (!kPairs && exists) {
        Common::Widen(Row(task, key + r), kLatentDim, task.row_tile + r * kLatentDim);
        a[r] = reinterpret_cast<const Word*>(task.row_tile + r * kLatentDim);
      } else {
        a[r] = reinterpret_cast<const Word*>(exists ? Row(task, key + r) : kZeros);
      }
    }
  }

  // Rows of a long list are scattered over gigabytes: those of the tile after the next are on their
  // way from memory while this one is multiplied.
  static void PrefetchRows(const LatentTask& task, std::int64_t key) {
    if (task.rows == nullptr) return;
    for (std::int64_t j = key; j < key + kRows && j < task.count; ++j) {
      const auto* row = reinterpret_cast<const char*>(task.rows[j]);
      for (int line = 0; line < 2 * kLatentDim; line += 64) __builtin_prefetch(row + line, 0, 2);
    }
  }

  static void Scores(const LatentTask& task, float* s) {
    for (std::int64_t key = 0; key < task.count; key += kRows) {
      PrefetchRows(task, key + 2 * kRows);
      const Word* a[kRows];
      FindRows(task, key, a);
      Accumulators sum;
      Multiply<1>(a, task.packed_q, kLatentDim / kDepth, sum);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          Common::Store(s + (key + r) * kGroup + v * kLanes, sum[r][v]);
        }
      }
    }
  }

  // Scores become weights, in place. A list is weighed as a whole: its scores are still in L2, and
  // nothing ever has to be rescaled.
  static void Softmax(const LatentTask& task, float* s, float* largest, float* sums) {
    for (int v = 0; v < kVectors; ++v, s += kLanes) {
      Floats top = Common::Load(s);
      for (std::int64_t key = 1; key < task.count; ++key) {
        top = Common::Max(top, Common::Load(s + key * kGroup));
      }
      Floats sum{};
      for (std::int64_t key = 0; key < task.count; key += 2) {
        const auto weight = [&](std::int64_t j) {
          if (j >= task.count) return Floats{};
          return Common::Exp2((Common::Load(s + j * kGroup) - top) * task.scale_log2e);
        };
        const Floats first = weight(key), second = weight(key + 1);
        sum += first;
        sum += second;
        Steps::StoreWeights(first, second, s + key / kDepth * kGroup, kGroup);
      }
      Common::Store(largest + v * kLanes, top);
      Common::Store(sums + v * kLanes, sum);
    }
  }

  static std::int64_t WeightsOfGroup(const LatentTask& task, int head) {
    return head * (task.count + kLatentPadding);
  }

  static void Weigh(const LatentTask& task) {
    for (int head = 0; head < task.heads; head += kGroup) {
      PackQueries(task.q + head * kLatentDim, task.packed_q);
      float* s = task.weights + WeightsOfGroup(task, head);
      Scores(task, s);
      Softmax(task, s, task.largest + head, task.sum + head);
    }
  }

  // Channels [channel, channel + kGroup) of all rows: [count / kDepth, kGroup] words.
  static void PackPanel(const LatentTask& task, int channel) {
    for (std::int64_t key = 0; key < task.count; key += 2) {
      const bool two = key + 1 < task.count;
      float* to = task.panel + key / kDepth * kGroup;
      for (int i = 0; i < kGroup; i += kLanes) {
        if (!kPairs && task.wide_rows != nullptr) {
          const auto wide = [&](std::int64_t j) {
            return *reinterpret_cast<const typename Isa::UnalignedFloats*>(task.wide_rows[j] +
                                                                           channel + i);
          };
          Steps::StoreWeights(wide(key), two ? wide(key + 1) : Floats{}, to + i, kGroup);
        } else {
          const Words low = Common::LoadHalves(Row(task, key) + channel + i);
          const Words high = two ? Common::LoadHalves(Row(task, key + 1) + channel + i) : Words{};
          Steps::StorePair(low | high << 16, to + i, kGroup);
        }
      }
    }
  }

  static void Combine(const LatentTask& task) {
    const std::int64_t depth = (task.count + kDepth - 1) / kDepth;
    for (int channel = 0; channel < kLatentDim; channel += kGroup) {
      PackPanel(task, channel);
      for (int head = 0; head < task.heads; head += kRows) {
        const int group = head / kGroup * kGroup;
        const auto* weights =
            reinterpret_cast<const Word*>(task.weights + WeightsOfGroup(task, group));
        const Word* a[kRows];
        for (int r = 0; r < kRows; ++r) a[r] = weights + head - group + r;
        Accumulators sum;
        Multiply<kGroup>(a, task.panel, depth, sum);
        for (int r = 0; r < kRows; ++r) {
          alignas(64) float row[kGroup];
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) Common::Store(row + v * kLanes, sum[r][v]);
          Common::Narrow(row, task.factor[head + r], kGroup,
                         task.out + (head + r) * kLatentDim + channel);
        }
      }
    }
  }

  static constexpr LatentLeaf Leaf(const char* name) { return {name, Weigh, Combine}; }
};

}  // namespace
}  // namespace assay::cpu
