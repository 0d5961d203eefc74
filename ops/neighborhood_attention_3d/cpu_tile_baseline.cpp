// The tile step for every processor.
#define ASSAY_LANES 4
#include "ops/neighborhood_attention_3d/cpu_tile_fp32.h"

namespace assay::neighborhood_attention_3d {

const TileLeaf& BaselineLeaf() {
  static constexpr TileLeaf kLeaf = Fp32Leaf("baseline");
  return kLeaf;
}

}  // namespace assay::neighborhood_attention_3d
