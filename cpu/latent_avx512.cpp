// Inner loops of latent attention for AVX-512; compile flags in cpu/CMakeLists.txt.
#include "cpu/latent_tile.h"

namespace assay::cpu {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16, kVectors = 2, kTileRows = 8;
  typedef float Floats __attribute__((vector_size(64), may_alias));
  typedef float UnalignedFloats __attribute__((vector_size(64), may_alias, aligned(4)));
  typedef std::uint32_t Words __attribute__((vector_size(64), may_alias));
  typedef std::int32_t Signed __attribute__((vector_size(64)));
  typedef std::uint16_t Halves __attribute__((vector_size(32)));
  typedef std::uint32_t UnalignedWords __attribute__((vector_size(64), may_alias, aligned(2)));
  typedef std::uint16_t UnalignedHalves __attribute__((vector_size(32), may_alias, aligned(2)));
};

}  // namespace

const LatentLeaf& Avx512LatentLeaf() {
  static constexpr LatentLeaf kLeaf = Latent<Avx512>::Leaf("avx512");
  return kLeaf;
}

}  // namespace assay::cpu
