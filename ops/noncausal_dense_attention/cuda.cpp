// The `cuda` backend: the H200 kernels of ops/attention behind the seam of ops/family.h.
#include "cuda/check.h"
#include "ops/attention/sm90.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay::noncausal_dense_attention {
namespace {

attention::Sm90Call CallOf(const Args& args) {
  attention::Sm90Call call;
  attention::Sm90Tensors& x = call.tensors;
  x.batch = args.b;
  x.queries = args.nq;
  x.heads = args.h;
  x.head_dim = args.d;
  x.q = args.q;
  x.q_strides = args.q_strides;
  x.suffix = {args.nk, args.k, args.k_strides, args.v, args.v_strides};
  x.mask = {args.mask, args.mask_strides.batch, args.mask_strides.head, args.mask_strides.query,
            args.mask_strides.key};
  x.o = args.o;
  x.o_strides = args.o_strides;
  x.lse = args.lse;
  call.workspace = args.workspace;
  return call;
}

// Checks what any call must fulfil.
attention::Sm90Call CheckedCall(const Args& args) {
  Check(args);
  return CallOf(args);
}

}  // namespace

std::size_t WorkspaceBytes() { return attention::Sm90WorkspaceBytes(); }

void RunCuda(const Args& args, Stream stream) { attention::RunSm90(CheckedCall(args), stream); }

Backend CudaBackend() {
  Backend backend;
  backend.name = "cuda";
  backend.summary =
      "wgmma kernels for sm_90a: warp-specialised for long keys, resident or split keys for short";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return WhyNoSm90(); };
  backend.prepare = [](const Problem& problem, const Bundle&, const Bundle& inputs,
                       Bundle& outputs) {
    return attention::PrepareSm90(CheckedCall(Bind(problem, inputs, outputs)));
  };
  return backend;
}

}  // namespace assay::noncausal_dense_attention
