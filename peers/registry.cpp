#include "peers/registry.h"

#include <utility>

#include "peers/cublaslt.h"
#include "peers/cudnn.h"

namespace assay::peers {

Registry WithVendorBackends(const Registry& base) {
  std::vector<Family> families = base.families();
  for (Family& family : families) {
    const auto add = [&](std::vector<Backend> backends) {
      for (Backend& backend : backends) family.backends.push_back(std::move(backend));
    };
    if (family.name == "dense_gemm_bf16_nt") add(CublasLtBackends());
    if (family.name == "noncausal_dense_attention") add({CudnnDenseAttention()});
    if (family.name == "prefix_cached_block_causal") add({CudnnPrefixCachedAttention()});
  }
  return Registry(std::move(families));
}

}  // namespace assay::peers
