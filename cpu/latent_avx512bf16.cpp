// Inner loops of latent attention for AVX512-BF16: products of bf16 pairs, summed in fp32 (which
// flushes subnormal operands). Compile flags in cpu/CMakeLists.txt.
#include <immintrin.h>

#include "cpu/latent_tile.h"

namespace assay::cpu {
namespace {

struct Avx512Bf16 {
  static constexpr int kLanes = 16, kVectors = 2, kTileRows = 8;
  typedef float Floats __attribute__((vector_size(64), may_alias));
  typedef float UnalignedFloats __attribute__((vector_size(64), may_alias, aligned(4)));
  typedef std::uint32_t Words __attribute__((vector_size(64), may_alias));
  typedef std::int32_t Signed __attribute__((vector_size(64)));
  typedef std::uint16_t Halves __attribute__((vector_size(32)));
  typedef std::uint32_t UnalignedWords __attribute__((vector_size(64), may_alias, aligned(2)));
  typedef std::uint16_t UnalignedHalves __attribute__((vector_size(32), may_alias, aligned(2)));
};

// A word is a pair of bf16 that are neighbours in the summed dimension, the earlier one low.
template <class Isa>
struct PairSteps {
  using Floats = typename Isa::Floats;
  using Words = typename Isa::Words;
  typedef std::uint32_t Word __attribute__((may_alias));
  static constexpr int kDepth = 2;

  static void Add(Floats& sum, Word a, Floats b) {
    const __m512i pair = _mm512_set1_epi32(static_cast<int>(a));
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(pair), reinterpret_cast<__m512bh>(b));
  }

  static void StorePair(Words pair, float* to, int) { *reinterpret_cast<Words*>(to) = pair; }

  // Weights are rounded to nearest even; they are never negative, and a NaN stays one.
  static void StoreWeights(Floats first, Floats second, float* to, int) {
    const auto round = [](Floats x) {
      const Words bits = reinterpret_cast<Words>(x);
      return bits + 0x7FFFu + ((bits >> 16) & 1u);
    };
    *reinterpret_cast<Words*>(to) = round(first) >> 16 | (round(second) & 0xFFFF0000u);
  }
};

using Pairs = Latent<Avx512Bf16, PairSteps>;

void Weigh(const LatentTask& task) {
  task.wide_rows != nullptr ? Avx512LatentLeaf().weigh(task) : Pairs::Weigh(task);
}

void Combine(const LatentTask& task) {
  task.wide_rows != nullptr ? Avx512LatentLeaf().combine(task) : Pairs::Combine(task);
}

}  // namespace

const LatentLeaf& Avx512Bf16LatentLeaf() {
  static constexpr LatentLeaf kLeaf{"avx512bf16", Weigh, Combine};
  return kLeaf;
}

}  // namespace assay::cpu
