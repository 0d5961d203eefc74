#include "peers/cudnn.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "cuda/check.h"
#include "ops/noncausal_dense_attention/spec.h"
#include "ops/prefix_cached_block_causal/spec.h"
#include "peers/cudnn_graph.h"

namespace assay::peers {
namespace {

namespace dense = noncausal_dense_attention;
namespace prefix = prefix_cached_block_causal;

// Empty tensors are legal problems for which cuDNN has no graph.
std::string EmptyAxis(const Problem& problem, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (problem.axis(name) == 0)
      return std::string("cuDNN takes no empty tensors; ") + name + " = 0";
  }
  return "";
}

std::string DenseRefusal(const Problem& problem, const Bundle& inputs) {
  if (inputs.has("mask")) return "cuDNN's attention operation takes no visibility mask";
  return EmptyAxis(problem, {"B", "Nq", "Nk"});
}

bool IsOneImage(const std::vector<prefix::Segment>& segments) {
  return segments.size() == 1 && segments[0].is_image;
}

std::string PrefixRefusal(const Problem& problem, const Bundle& inputs) {
  if (!prefix::IsPrefixForm(problem) && !IsOneImage(prefix::SegmentsOf(problem, inputs))) {
    return "cuDNN's attention operation has no mask for causal text runs or several segments";
  }
  return EmptyAxis(problem, {"B", "Nq"});
}

// K and V with the prefix before the suffix, [b, np + nq, h, d] each.
class JoinedKeys {
 public:
  explicit JoinedKeys(const prefix::Args& args) : args_(args) {
    const std::size_t bytes = static_cast<std::size_t>(args.b) * RowBytes(args.np + args.nq);
    CheckCuda(cudaMalloc(&k_, bytes), "cudaMalloc of joined keys");
    CheckCuda(cudaMalloc(&v_, bytes), "cudaMalloc of joined values");
  }
  JoinedKeys(const JoinedKeys&) = delete;
  JoinedKeys& operator=(const JoinedKeys&) = delete;
  ~JoinedKeys() {
    cudaFree(k_);
    cudaFree(v_);
  }

  void Enqueue(Stream stream) const {
    Copy(k_, 0, args_.k_prefix, args_.np, stream);
    Copy(k_, args_.np, args_.k, args_.nq, stream);
    Copy(v_, 0, args_.v_prefix, args_.np, stream);
    Copy(v_, args_.np, args_.v, args_.nq, stream);
  }
  const bf16* k() const { return static_cast<const bf16*>(k_); }
  const bf16* v() const { return static_cast<const bf16*>(v_); }

 private:
  std::size_t RowBytes(std::int64_t tokens) const {
    return static_cast<std::size_t>(tokens * args_.h * args_.d) * sizeof(bf16);
  }
  // `tokens` tokens of every batch, to token `first` of the joined tensor.
  void Copy(void* joined, std::int64_t first, const bf16* from, std::int64_t tokens,
            Stream stream) const {
    if (tokens == 0) return;
    CheckCuda(
        cudaMemcpy2DAsync(static_cast<std::byte*>(joined) + RowBytes(first),
                          RowBytes(args_.np + args_.nq), from, RowBytes(tokens), RowBytes(tokens),
                          static_cast<std::size_t>(args_.b), cudaMemcpyDeviceToDevice, stream),
        "copy of prefix and suffix");
  }

  prefix::Args args_;
  void *k_ = nullptr, *v_ = nullptr;
};

DeviceCall PrepareDense(const Cudnn& cudnn, const Problem& problem, const Bundle& inputs,
                        Bundle& outputs) {
  return cudnn.Prepare(dense::Bind(problem, inputs, outputs));
}

DeviceCall PreparePrefixForm(const Cudnn& cudnn, const prefix::Args& args) {
  const auto joined = std::make_shared<JoinedKeys>(args);
  dense::Args call = dense::Args::Contiguous(args.b, args.nq, args.np + args.nq, args.h, args.d);
  call.q = args.q;
  call.k = joined->k();
  call.v = joined->v();
  call.o = args.o;
  return [joined, attend = cudnn.Prepare(call)](Stream stream) {
    joined->Enqueue(stream);
    attend(stream);
  };
}

// A sequence of one image block is dense attention. (Its segments were read on the host.)
DeviceCall PrepareImage(const Cudnn& cudnn, const Problem& problem, const Bundle& inputs,
                        Bundle& outputs) {
  const std::int64_t tokens = problem.axis("Nq");
  dense::Args call = dense::Args::Contiguous(problem.axis("B"), tokens, tokens, problem.axis("H"),
                                             problem.axis("D"));
  call.q = inputs["Q"].as<bf16>();
  call.k = inputs["K"].as<bf16>();
  call.v = inputs["V"].as<bf16>();
  call.o = outputs["O"].as<bf16>();
  return cudnn.Prepare(call);
}

DeviceCall PreparePrefix(const Cudnn& cudnn, const Problem& problem, const Bundle& inputs,
                         Bundle& outputs) {
  if (!prefix::IsPrefixForm(problem)) return PrepareImage(cudnn, problem, inputs, outputs);
  return PreparePrefixForm(cudnn, prefix::Bind(problem, inputs, outputs));
}

// A backend that takes what `refusal` finds no reason against, where the library is usable.
Backend CudnnBackend(const std::vector<std::string>& paths, const char* summary,
                     std::string (*refusal)(const Problem&, const Bundle&),
                     DeviceCall (*prepare)(const Cudnn&, const Problem&, const Bundle&, Bundle&)) {
  const OpenedLate<Cudnn> cudnn(paths);
  Backend backend;
  backend.name = "cudnn";
  backend.summary = summary;
  backend.device = "cuda";
  backend.supports = [cudnn, refusal](const Problem& problem, const Bundle& inputs) {
    const std::string reason = refusal(problem, inputs);
    return reason.empty() ? cudnn()->why_not() : reason;
  };
  backend.prepare = [cudnn, prepare](const Problem& problem, const Bundle&, const Bundle& inputs,
                                     Bundle& outputs) {
    return prepare(*cudnn(), problem, inputs, outputs);
  };
  return backend;
}

}  // namespace

Backend CudnnDenseAttention(const std::vector<std::string>& paths) {
  return CudnnBackend(paths, "cuDNN graph: one attention operation, the heuristic's first engine",
                      DenseRefusal, PrepareDense);
}

Backend CudnnPrefixCachedAttention(const std::vector<std::string>& paths) {
  return CudnnBackend(paths, "cuDNN graph after copying prefix and suffix into one K and one V",
                      PrefixRefusal, PreparePrefix);
}

}  // namespace assay::peers
