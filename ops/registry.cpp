// The explicit list of operator families. (Self-registration would drop rooms from static archives
// and hide the list.) This is the only file that asks whether CUDA was compiled in.
#include "ops/registry.h"

#include <utility>

#include "ops/dense_gemm_bf16_nt/spec.h"
#include "ops/gdn_decode/spec.h"
#include "ops/gdn_prefill/spec.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"
#include "ops/kda_decode/spec.h"
#include "ops/kpool_index_decode/spec.h"
#include "ops/mhc/spec.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/moe_decode/spec.h"
#include "ops/moe_router_gemm_topk/spec.h"
#include "ops/neighborhood_attention_3d/spec.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "ops/nope_mla_decode/spec.h"
#include "ops/prefix_cached_block_causal/spec.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"
#include "ops/rms_norm/spec.h"
#include "ops/sparse_mla_prefill/spec.h"
#include "ops/swiglu/spec.h"

namespace assay {

namespace {

std::vector<Family> CpuFamilies() {
  return {
      dense_gemm_bf16_nt::MakeFamily(),
      gdn_decode::MakeFamily(),
      gdn_prefill::MakeFamily(),
      grouped_gemm_fp8_fp4::MakeFamily(),
      kda_decode::MakeFamily(),
      kda_decode::MakeVerifyFamily(),
      kpool_index_decode::MakeFamily(),
      mhc::MakeFamily(),
      mixed_mla_decode::MakeFamily(),
      moe_decode::MakeW4Family(),
      moe_decode::MakeW8Family(),
      moe_router_gemm_topk::MakeFamily(),
      neighborhood_attention_3d::MakeFamily(),
      noncausal_dense_attention::MakeFamily(),
      nope_mla_decode::MakeFamily(),
      prefix_cached_block_causal::MakeFamily(),
      qsa_index_topk_decode::MakeFamily(),
      qsa_sparse_gqa_decode::MakeFamily(),
      rms_norm::MakeFamily(),
      sparse_mla_prefill::MakeFamily(),
      swiglu::MakeFamily(),
  };
}

// Families in the room of another name.
constexpr std::pair<std::string_view, std::string_view> kSharedRooms[] = {
    {"kda_verify", "kda_decode"}, {"moe_w4_decode", "moe_decode"}, {"moe_w8_decode", "moe_decode"}};

#ifdef ASSAY_HAVE_CUDA
void AddBackend(std::vector<Family>& families, std::string_view family_name, Backend backend) {
  for (Family& family : families) {
    if (family.name == family_name) family.backends.push_back(std::move(backend));
  }
}
#endif

// The kernels for the GPU, where they were compiled.
std::vector<Family> AllFamilies() {
  std::vector<Family> families = CpuFamilies();
#ifdef ASSAY_HAVE_CUDA
  AddBackend(families, "dense_gemm_bf16_nt", dense_gemm_bf16_nt::CudaBackend());
  AddBackend(families, "noncausal_dense_attention", noncausal_dense_attention::CudaBackend());
  AddBackend(families, "prefix_cached_block_causal", prefix_cached_block_causal::CudaBackend());
  AddBackend(families, "gdn_decode", gdn_decode::CudaBackend());
  AddBackend(families, "kda_decode", kda_decode::CudaBackend());
  AddBackend(families, "kda_verify", kda_decode::CudaBackend());
  AddBackend(families, "gdn_prefill", gdn_prefill::CudaBackend());
#endif
  return families;
}

}  // namespace

const Registry& BuiltInRegistry() {
  static const Registry registry(AllFamilies());
  return registry;
}

std::string_view RoomOf(std::string_view family) {
  for (const auto& [name, room] : kSharedRooms) {
    if (name == family) return room;
  }
  return family;
}

}  // namespace assay
