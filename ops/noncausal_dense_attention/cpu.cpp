// The CPU backend: checks, then the shared kernel of cpu/attention.h.
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay::noncausal_dense_attention {
namespace {

constexpr std::string_view kOperation = "noncausal_dense_attention";

void CheckMask(const Args& args, const attention::View& o) {
  if (args.mask == nullptr || args.b * args.h * args.nq * args.nk == 0) return;
  const MaskStrides& s = args.mask_strides;
  if (s.batch < 0 || s.head < 0 || s.query < 0 || (s.key != 0 && s.key != 1)) {
    BadInput(std::string(kOperation) + ": mask has strides [" + std::to_string(s.batch) + "," +
             std::to_string(s.head) + "," + std::to_string(s.query) + "," + std::to_string(s.key) +
             "], supported are non-negative ones with a key stride of 0 or 1");
  }
  const std::int64_t bytes = (args.b - 1) * s.batch + (args.h - 1) * s.head +
                             (args.nq - 1) * s.query + (args.nk - 1) * s.key + 1;
  // The mask as a one-row view of bf16 elements, rounded up: only its address range matters.
  const attention::View range{
      "mask", reinterpret_cast<const bf16*>(args.mask), 1, 1, 1, (bytes + 1) / 2, {}};
  attention::CheckNoOverlap(kOperation, o, range);
}

}  // namespace

Args Args::Contiguous(std::int64_t b, std::int64_t nq, std::int64_t nk, std::int64_t h,
                      std::int64_t d) {
  Args args;
  args.b = b;
  args.nq = nq;
  args.nk = nk;
  args.h = h;
  args.d = d;
  args.q_strides = args.o_strides = Strides::Contiguous(nq, h, d);
  args.k_strides = args.v_strides = Strides::Contiguous(nk, h, d);
  args.mask_strides = {h * nq * nk, nq * nk, nk, 1};
  return args;
}

void Check(const Args& args) {
  attention::CheckHeadDim(kOperation, args.d);
  const attention::View q{"Q", args.q, args.b, args.nq, args.h, args.d, args.q_strides};
  const attention::View k{"K", args.k, args.b, args.nk, args.h, args.d, args.k_strides};
  const attention::View v{"V", args.v, args.b, args.nk, args.h, args.d, args.v_strides};
  const attention::View o{"O", args.o, args.b, args.nq, args.h, args.d, args.o_strides};
  for (const attention::View& view : {q, k, v, o}) attention::CheckView(kOperation, view);
  attention::CheckOutputStrides(kOperation, o);
  for (const attention::View& input : {q, k, v}) attention::CheckNoOverlap(kOperation, o, input);
  CheckMask(args, o);
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  const std::int64_t b = problem.axis("B"), nq = problem.axis("Nq"), nk = problem.axis("Nk");
  const std::int64_t h = problem.axis("H"), d = problem.axis("D");
  const std::int64_t buffer = KeyBufferRows(problem);
  Args args = Args::Contiguous(b, nq, nk, h, d);
  args.k_strides = args.v_strides = Strides::Contiguous(buffer, h, d);
  args.q = attention::RequireTokens(kOperation, inputs, "Q", {b, nq, h, d}).as<bf16>();
  args.k = attention::RequireTokens(kOperation, inputs, "K", {b, buffer, h, d}).as<bf16>();
  args.v = attention::RequireTokens(kOperation, inputs, "V", {b, buffer, h, d}).as<bf16>();
  std::tie(args.mask, args.mask_strides) = BindMask(problem, inputs);
  attention::RequireTokens(kOperation, outputs, "O", {b, nq, h, d});
  args.o = outputs["O"].as<bf16>();
  return args;
}

cpu::Attention KernelArguments(const Args& args) {
  cpu::Attention kernel;
  kernel.batch = args.b;
  kernel.queries = args.nq;
  kernel.heads = args.h;
  kernel.head_dim = args.d;
  kernel.scale = 1 / std::sqrt(static_cast<float>(args.d));
  kernel.q = args.q;
  kernel.q_strides = args.q_strides.kernel();
  kernel.keys[0] = {args.nk, args.k, args.k_strides.kernel(), args.v, args.v_strides.kernel()};
  kernel.mask = {args.mask, args.mask_strides.batch, args.mask_strides.head,
                 args.mask_strides.query, args.mask_strides.key};
  kernel.o = args.o;
  kernel.o_strides = args.o_strides.kernel();
  return kernel;
}

void RunCpu(const Args& args, int threads) {
  Check(args);
  cpu::Run(KernelArguments(args), threads);
}

Backend CpuBackend() {
  return {
      "cpu", "flash style, fp32 FMA tiles for AVX-512, AVX2 or the baseline",
      [](const Problem&, const Bundle&) { return std::string(); },
      [](const Problem& problem, const Bundle& inputs, Bundle& outputs, const RunContext& context) {
        RunCpu(Bind(problem, inputs, outputs), context.threads);
      }};
}

}  // namespace assay::noncausal_dense_attention
