// Inner loops of latent attention for whatever the compiler's default allows (SSE2 on x86-64);
// compile flags in cpu/CMakeLists.txt.
#include "cpu/latent_tile.h"

namespace assay::cpu {
namespace {

struct Baseline {
  static constexpr int kLanes = 4, kVectors = 2, kTileRows = 4;
  typedef float Floats __attribute__((vector_size(16), may_alias));
  typedef float UnalignedFloats __attribute__((vector_size(16), may_alias, aligned(4)));
  typedef std::uint32_t Words __attribute__((vector_size(16), may_alias));
  typedef std::int32_t Signed __attribute__((vector_size(16)));
  typedef std::uint16_t Halves __attribute__((vector_size(8)));
  typedef std::uint32_t UnalignedWords __attribute__((vector_size(16), may_alias, aligned(2)));
  typedef std::uint16_t UnalignedHalves __attribute__((vector_size(8), may_alias, aligned(2)));
};

}  // namespace

const LatentLeaf& BaselineLatentLeaf() {
  static constexpr LatentLeaf kLeaf = Latent<Baseline>::Leaf("baseline");
  return kLeaf;
}

}  // namespace assay::cpu
