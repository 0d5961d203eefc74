// gdn_decode against a copy of the same bytes; gdn_prefill against the plain recurrence. Times are
// real time on all cores of the process; compare rows of one run only.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/parallel.h"
#include "ops/gdn_decode/gates.h"
#include "ops/gdn_decode/spec.h"
#include "ops/gdn_prefill/spec.h"

namespace {

using assay::Bundle;
using assay::Family;
using assay::Problem;

struct Case {
  Problem problem;
  Bundle inputs, outputs;
};

Case MakeCase(const Family& family, const assay::Axes& axes) {
  Case one{assay::MakeProblem(family, family.definitions[0].name, axes), {}, {}};
  one.inputs = Bundle::Allocate(family.input_layouts(one.problem));
  family.generate(one.problem, 1, one.inputs);
  one.outputs = Bundle::Allocate(assay::OutputLayouts(family, one.problem));
  return one;
}

Case MakePrefillCase(benchmark::State& state) {
  static const Family family = assay::gdn_prefill::MakeFamily();
  const std::int64_t tokens = state.range(0), sequences = state.range(1);
  return MakeCase(
      family,
      {{"total_seq_len", tokens}, {"num_seqs", sequences}, {"len_cu_seqlens", sequences + 1}});
}

void DecodeCpu(benchmark::State& state) {
  static const Family family = assay::gdn_decode::MakeFamily();
  Case one = MakeCase(family, {{"batch_size", state.range(0)}});
  const auto args = assay::gdn_decode::Bind(one.problem, one.inputs, one.outputs);
  for (auto _ : state) assay::gdn_decode::RunCpu(args, 0);
  state.counters["GB/s"] = benchmark::Counter(family.cost(one.problem, one.inputs).bytes * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

// memcpy of the state by the same number of threads, in blocks of the kernel's size.
void DecodeCopy(benchmark::State& state) {
  constexpr std::int64_t kBlock = 16384;
  const std::int64_t bytes = state.range(0) * 8 * 128 * 128 * 4;
  std::vector<char> from(static_cast<std::size_t>(bytes), 1), to(static_cast<std::size_t>(bytes));
  for (auto _ : state) {
    assay::ParallelFor(bytes / kBlock, 0, [&](std::int64_t block) {
      std::memcpy(to.data() + block * kBlock, from.data() + block * kBlock, kBlock);
    });
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(2 * bytes) * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void PrefillCpu(benchmark::State& state) {
  Case one = MakePrefillCase(state);
  const auto args = assay::gdn_prefill::Bind(one.problem, one.inputs, one.outputs);
  for (auto _ : state) assay::gdn_prefill::RunCpu(args, 0);
}

float DotPlain(const float* x, const float* y) {
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += x[i] * y[i];
  return sum;
}

float DotSimd(const float* x, const float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < 128; ++i) sum += x[i] * y[i];
  return sum;
}

// The recurrence as the page writes it, token by token, one thread per (s, h, 32 rows).
template <float (*Dot)(const float*, const float*)>
void PlainRows(const assay::gdn_prefill::Args& args, std::int64_t s, std::int64_t h,
               std::int64_t first_row) {
  const std::int64_t state_at = (s * 8 + h) * 128 * 128;
  float* state = args.new_state + state_at;
  for (std::int64_t i = first_row * 128; i < (first_row + 32) * 128; ++i) {
    state[i] = args.state == nullptr ? 0 : args.state[state_at + i];
  }
  for (std::int64_t t = args.cu_seqlens[s]; t < args.cu_seqlens[s + 1]; ++t) {
    const auto gates = assay::gdn_decode::ComputeGates(args.a_log[h], args.a[t * 8 + h],
                                                       args.dt_bias[h], args.b[t * 8 + h]);
    float q[128], k[128];
    for (std::int64_t i = 0; i < 128; ++i) {
      q[i] = assay::ToFloat(args.q[(t * 4 + h / 2) * 128 + i]);
      k[i] = assay::ToFloat(args.k[(t * 4 + h / 2) * 128 + i]);
    }
    for (std::int64_t row = first_row; row < first_row + 32; ++row) {
      float* x = state + row * 128;
      for (int i = 0; i < 128; ++i) x[i] *= gates.g;
      const float v = assay::ToFloat(args.v[(t * 8 + h) * 128 + row]);
      const float u = gates.beta * (v - Dot(x, k));
      for (int i = 0; i < 128; ++i) x[i] += u * k[i];
      args.output[(t * 8 + h) * 128 + row] = assay::ToBF16(args.scale * Dot(x, q));
    }
  }
}

template <float (*Dot)(const float*, const float*)>
void PrefillPlain(benchmark::State& state) {
  Case one = MakePrefillCase(state);
  const auto args = assay::gdn_prefill::Bind(one.problem, one.inputs, one.outputs);
  for (auto _ : state) {
    assay::ParallelFor(args.sequences * 32, 0, [&](std::int64_t task) {
      PlainRows<Dot>(args, task / 32, task / 4 % 8, task % 4 * 32);
    });
  }
}

BENCHMARK(DecodeCpu)->Arg(1)->Arg(8)->Arg(64)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(DecodeCopy)->Arg(1)->Arg(8)->Arg(64)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(PrefillCpu)
    ->ArgPair(6, 1)
    ->ArgPair(134, 1)
    ->ArgPair(8192, 1)
    ->ArgPair(8192, 57)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(PrefillPlain<DotPlain>)->ArgPair(8192, 1)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(PrefillPlain<DotSimd>)->ArgPair(8192, 1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
