// The `cuda` backend: the H200 kernels of ops/attention behind the seam of ops/family.h.
#include <algorithm>

#include "base/error.h"
#include "cuda/check.h"
#include "ops/attention/sm90.h"
#include "ops/prefix_cached_block_causal/spec.h"

namespace assay::prefix_cached_block_causal {
namespace {

// Form (b) when `args` has segments; a call without queries has none.
attention::Sm90Call CallOf(const Args& args) {
  attention::Sm90Call call;
  attention::Sm90Tensors& x = call.tensors;
  x.batch = args.b;
  x.queries = args.nq;
  x.heads = args.h;
  x.head_dim = args.d;
  x.q = args.q;
  x.q_strides = args.q_strides;
  x.suffix = {args.nq, args.k, args.k_strides, args.v, args.v_strides};
  x.prefix = {args.np, args.k_prefix, args.k_prefix_strides, args.v_prefix, args.v_prefix_strides};
  x.o = args.o;
  x.o_strides = args.o_strides;
  x.lse = args.lse;
  call.workspace = args.workspace;
  call.block_causal = !args.segments.empty();
  for (const Segment& segment : args.segments) {
    if (!segment.is_image) continue;
    call.blocks.push_back(
        {static_cast<std::int32_t>(segment.start), static_cast<std::int32_t>(segment.end)});
  }
  return call;
}

std::string WhyNotSegments(const std::vector<Segment>& segments) {
  const auto blocks = std::count_if(segments.begin(), segments.end(),
                                    [](const Segment& segment) { return segment.is_image; });
  if (blocks <= attention::kMaxImageBlocks) return {};
  return std::to_string(blocks) + " image blocks, the kernels' arguments hold " +
         std::to_string(attention::kMaxImageBlocks);
}

// Checks what any call must fulfil.
attention::Sm90Call CheckedCall(const Args& args) {
  Check(args);
  if (const std::string reason = WhyNotSegments(args.segments); !reason.empty()) {
    BadInput("prefix_cached_block_causal: " + reason);
  }
  return CallOf(args);
}

}  // namespace

std::size_t WorkspaceBytes() { return attention::Sm90WorkspaceBytes(); }

void RunCuda(const Args& args, Stream stream) { attention::RunSm90(CheckedCall(args), stream); }

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary =
      "wgmma kernels for sm_90a over prefix and suffix without concatenation; key tiles that no "
      "query of a tile sees are never loaded";
  backend.device = "cuda";
  backend.supports = [](const Problem& problem, const Bundle& inputs) {
    const std::string reason = WhyNoSm90();
    if (!reason.empty() || IsPrefixForm(problem)) return reason;
    return WhyNotSegments(SegmentsOf(problem, inputs));
  };
  backend.prepare = [](const Problem& problem, const Bundle& host_inputs, const Bundle& inputs,
                       Bundle& outputs) {
    // image_ids is an integer tensor: read on the host.
    Args args = BindTensors(problem, inputs, outputs);
    if (!IsPrefixForm(problem)) args.segments = SegmentsOf(problem, host_inputs);
    return attention::PrepareSm90(CheckedCall(args));
  };
  return backend;
}

}  // namespace assay::prefix_cached_block_causal
