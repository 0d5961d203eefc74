// Inner loops of latent attention for AVX2 and FMA; compile flags in cpu/CMakeLists.txt.
#include "cpu/latent_tile.h"

namespace assay::cpu {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8, kVectors = 2, kTileRows = 4;
  typedef float Floats __attribute__((vector_size(32), may_alias));
  typedef float UnalignedFloats __attribute__((vector_size(32), may_alias, aligned(4)));
  typedef std::uint32_t Words __attribute__((vector_size(32), may_alias));
  typedef std::int32_t Signed __attribute__((vector_size(32)));
  typedef std::uint16_t Halves __attribute__((vector_size(16)));
  typedef std::uint32_t UnalignedWords __attribute__((vector_size(32), may_alias, aligned(2)));
  typedef std::uint16_t UnalignedHalves __attribute__((vector_size(16), may_alias, aligned(2)));
};

}  // namespace

const LatentLeaf& Avx2LatentLeaf() {
  static constexpr LatentLeaf kLeaf = Latent<Avx2>::Leaf("avx2");
  return kLeaf;
}

}  // namespace assay::cpu
