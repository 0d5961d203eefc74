// Arguments of the attention kernels from a call: tensor maps, key tiles, the scale.
#include <cuda_runtime.h>

#include <cmath>
#include <memory>
#include <numbers>
#include <utility>

#include "cuda/tensor_map.cuh"
#include "ops/attention/sm90_launch.cuh"

namespace assay::attention {
namespace {

// [batch, tokens, heads, dim] with boxes of `rows` tokens x 64 channels of one head. An axis with
// stride 0 becomes an axis of 1; its step says so.
CUtensorMap TokenMap(const char* name, const bf16* data, std::int64_t tokens,
                     const Strides& strides, const Sm90Tensors& x, int rows,
                     std::int32_t& batch_step, std::int32_t& head_step) {
  const auto axis = [](std::int64_t extent, std::int64_t stride, std::int32_t& step) {
    step = stride == 0 || extent == 1 ? 0 : 1;
    return step == 0 ? std::pair<std::int64_t, std::int64_t>{1, 16}
                     : std::pair<std::int64_t, std::int64_t>{extent, stride * 2};
  };
  const auto [heads, head_bytes] = axis(x.heads, strides.head, head_step);
  const auto [batches, batch_bytes] = axis(x.batch, strides.batch, batch_step);
  sm90::TensorMapSpec spec;
  spec.name = name;
  spec.base = data;
  spec.extents = {x.head_dim, tokens, heads, batches};
  spec.strides_bytes = {tokens == 1 ? 16 : strides.token * 2, head_bytes, batch_bytes};
  spec.box = {64, rows, 1, 1};
  return sm90::EncodeTensorMap(spec);
}

KeySource SourceOf(const char* name, const bf16* data, std::int64_t count, const Strides& strides,
                   const Sm90Tensors& x, int rows, int tail_rows) {
  KeySource source = {};
  if (count == 0) return source;
  source.whole = TokenMap(name, data, count, strides, x, rows, source.batch_step, source.head_step);
  source.tail = tail_rows == 0 ? source.whole
                               : TokenMap(name, data, count, strides, x, tail_rows,
                                          source.batch_step, source.head_step);
  return source;
}

}  // namespace

Visibility VisibilityOf(const Sm90Call& call) {
  if (call.block_causal) return Visibility::kBlockCausal;
  return call.tensors.mask.visible == nullptr ? Visibility::kAll : Visibility::kMask;
}

Params MakeParams(const Sm90Call& call, const Sm90Plan& plan, int rows, int keys) {
  const Sm90Tensors& x = call.tensors;
  Params params = {};
  params.tensors = x;
  params.scale_log2 = std::numbers::log2e_v<float> / std::sqrt(static_cast<float>(x.head_dim));
  params.unscale = std::nextafter(1 / params.scale_log2, 0.0f);
  params.split = plan.split;
  params.blocks.count = static_cast<std::int32_t>(call.blocks.size());
  std::copy(call.blocks.begin(), call.blocks.end(), params.blocks.blocks);
  if (rows == 0) return params;  // the generic kernel
  params.query_tiles = static_cast<std::int32_t>((x.queries + rows - 1) / rows);
  params.tiles = static_cast<std::int32_t>(params.query_tiles * x.heads * x.batch);
  params.whole_tiles = params.tiles;
  params.keys = CutKeys(x.suffix.count, x.prefix.count, keys);
  params.q =
      TokenMap("Q", x.q, x.queries, x.q_strides, x, rows, params.q_batch_step, params.q_head_step);
  params.o = TokenMap("O", x.o, x.queries, x.o_strides, x, kOutputRows, params.o_batch_step,
                      params.o_head_step);
  const int packed = params.keys.packed, rest = packed == 0 ? 0 : keys - packed;
  params.k[0] = SourceOf("K", x.suffix.k, x.suffix.count, x.suffix.k_strides, x, keys, rest);
  params.v[0] = SourceOf("V", x.suffix.v, x.suffix.count, x.suffix.v_strides, x, keys, rest);
  params.k[1] =
      SourceOf("K_prefix", x.prefix.k, x.prefix.count, x.prefix.k_strides, x, keys, packed);
  params.v[1] =
      SourceOf("V_prefix", x.prefix.v, x.prefix.count, x.prefix.v_strides, x, keys, packed);
  return params;
}

std::function<void(Stream)> PrepareSm90(const Sm90Call& call, const Sm90Plan& plan) {
  const Sm90Tensors& x = call.tensors;
  if (x.batch * x.heads * x.queries * x.head_dim == 0) return [](Stream) {};
  if (const std::string reason = WhyNot(call, plan.kernel); !reason.empty()) {
    BadInput("attention: kernel " + std::string(plan.kernel) + " cannot run: " + reason);
  }
  const bool clusters = plan.kernel.starts_with("split");
  if (plan.split < 1 || (clusters && (plan.split > 8 || 64 % plan.split != 0))) {
    BadInput("attention: split = " + std::to_string(plan.split) + " is not 1, 2, 4 or 8");
  }
  if (plan.share && (call.workspace == nullptr || !plan.kernel.starts_with("core"))) {
    BadInput("attention: kernel " + std::string(plan.kernel) +
             " cannot share tiles: that takes a core kernel and a workspace");
  }
  Sm90Prepare prepare = FindCore(plan.kernel, VisibilityOf(call));
  if (prepare == nullptr) prepare = FindShort(plan.kernel, VisibilityOf(call));
  if (prepare == nullptr) {
    BadInput("attention: kernel " + std::string(plan.kernel) + " has no instance for this mask");
  }
  return prepare(call, plan);
}

std::function<void(Stream)> PrepareSm90(Sm90Call call) {
  call.workspace = &call;  // anything but null: would the plan use one?
  if (!ChooseSm90Plan(call).share) {
    call.workspace = nullptr;
    return PrepareSm90(call, ChooseSm90Plan(call));
  }
  CheckCuda(cudaMalloc(&call.workspace, Sm90WorkspaceBytes()), "cudaMalloc of shares");
  const std::shared_ptr<void> owner(call.workspace, [](void* memory) { cudaFree(memory); });
  CheckCuda(cudaMemset(call.workspace, 0, Sm90WorkspaceBytes()), "cudaMemset of shares");
  // The call may go to a stream that does not wait for the default one.
  CheckCuda(cudaStreamSynchronize(nullptr), "cudaMemset of shares");
  return
      [owner, launch = PrepareSm90(call, ChooseSm90Plan(call))](Stream stream) { launch(stream); };
}

void RunSm90(const Sm90Call& call, Stream stream) {
  PrepareSm90(call, ChooseSm90Plan(call))(stream);
}

}  // namespace assay::attention
