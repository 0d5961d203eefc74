// The CPU backend: checks, then the shared kernel of cpu/attention.h.
#include <cmath>

#include "base/error.h"
#include "ops/prefix_cached_block_causal/spec.h"

namespace assay::prefix_cached_block_causal {
namespace {

constexpr const char* kOperation = "prefix_cached_block_causal";
constexpr std::int64_t kHeadDim = 128;

}  // namespace

Args Args::Contiguous(std::int64_t b, std::int64_t nq, std::int64_t np, std::int64_t h,
                      std::int64_t d) {
  Args args;
  args.b = b;
  args.nq = nq;
  args.np = np;
  args.h = h;
  args.d = d;
  args.q_strides = args.k_strides = args.v_strides = args.o_strides = Strides::Contiguous(nq, h, d);
  args.k_prefix_strides = args.v_prefix_strides = Strides::Contiguous(np, h, d);
  return args;
}

void Check(const Args& args) {
  if (args.d != kHeadDim) {
    BadInput(std::string(kOperation) + ": Q has head dimension " + std::to_string(args.d) +
             ", supported is 128");
  }
  if (!args.segments.empty()) {
    if (args.np != 0) {
      BadInput(std::string(kOperation) + ": segments are given together with a prefix of " +
               std::to_string(args.np) + " keys, supported is one of them");
    }
    CheckSegments(args.segments, args.nq);
  }
  const attention::View inputs[] = {
      {"Q", args.q, args.b, args.nq, args.h, args.d, args.q_strides},
      {"K", args.k, args.b, args.nq, args.h, args.d, args.k_strides},
      {"V", args.v, args.b, args.nq, args.h, args.d, args.v_strides},
      {"K_prefix", args.k_prefix, args.b, args.np, args.h, args.d, args.k_prefix_strides},
      {"V_prefix", args.v_prefix, args.b, args.np, args.h, args.d, args.v_prefix_strides}};
  const attention::View o{"O", args.o, args.b, args.nq, args.h, args.d, args.o_strides};
  attention::CheckView(kOperation, o);
  attention::CheckOutputStrides(kOperation, o);
  for (const attention::View& input : inputs) {
    attention::CheckView(kOperation, input);
    attention::CheckNoOverlap(kOperation, o, input);
  }
}

Args BindTensors(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  const std::int64_t b = problem.axis("B"), nq = problem.axis("Nq"), np = problem.axis("Np");
  const std::int64_t h = problem.axis("H"), d = problem.axis("D");
  Args args = Args::Contiguous(b, nq, np, h, d);
  const auto tokens = [&](const Bundle& bundle, const char* name, std::int64_t count) {
    return attention::RequireTokens(kOperation, bundle, name, {b, count, h, d}).as<bf16>();
  };
  args.q = tokens(inputs, "Q", nq);
  args.k = tokens(inputs, "K", nq);
  args.v = tokens(inputs, "V", nq);
  if (IsPrefixForm(problem)) {
    args.k_prefix = tokens(inputs, "K_prefix", np);
    args.v_prefix = tokens(inputs, "V_prefix", np);
  }
  tokens(outputs, "O", nq);
  args.o = outputs["O"].as<bf16>();
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindTensors(problem, inputs, outputs);
  if (!IsPrefixForm(problem)) args.segments = SegmentsOf(problem, inputs);
  return args;
}

cpu::Attention KernelArguments(const Args& args, const std::vector<std::int64_t>& limits) {
  cpu::Attention kernel;
  kernel.batch = args.b;
  kernel.queries = args.nq;
  kernel.heads = args.h;
  kernel.head_dim = args.d;
  kernel.scale = 1 / std::sqrt(static_cast<float>(args.d));
  kernel.q = args.q;
  kernel.q_strides = args.q_strides.kernel();
  kernel.keys[0] = {args.np, args.k_prefix, args.k_prefix_strides.kernel(), args.v_prefix,
                    args.v_prefix_strides.kernel()};
  kernel.keys[1] = {args.nq, args.k, args.k_strides.kernel(), args.v, args.v_strides.kernel()};
  kernel.limits = limits.empty() ? nullptr : limits.data();
  kernel.o = args.o;
  kernel.o_strides = args.o_strides.kernel();
  return kernel;
}

void RunCpu(const Args& args, int threads) {
  Check(args);
  const std::vector<std::int64_t> limits = Limits(args.segments);
  cpu::Run(KernelArguments(args, limits), threads);
}

Backend CpuBackend() {
  return {
      "cpu", "flash style over prefix and suffix without concatenation, fp32 FMA tiles",
      [](const Problem&, const Bundle&) { return std::string(); },
      [](const Problem& problem, const Bundle& inputs, Bundle& outputs, const RunContext& context) {
        RunCpu(Bind(problem, inputs, outputs), context.threads);
      }};
}

}  // namespace assay::prefix_cached_block_causal
