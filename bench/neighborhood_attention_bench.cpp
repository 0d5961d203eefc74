// CPU neighborhood attention against plain loops, against dense rows by oneDNN on one thread, and
// against the machine's oneDNN bf16 matrix rate, at captured shapes.
//
// An iteration runs each contender once, one after the other, so that they share whatever else the
// machine does; counters are medians over iterations, and ratios are medians of ratios within one
// iteration. GF/s counts the useful 4 * 64 flops of a (query, key) pair.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "bench/matrix_rate.h"
#include "cpu/gemm_onednn.h"
#include "ops/neighborhood_attention_3d/cpu_kernel.h"
#include "ops/neighborhood_attention_3d/spec.h"

namespace assay::neighborhood_attention_3d {
namespace {

// The slow contenders compute every n-th line (b, t, y) only: enough of them for about this much.
constexpr double kSampledFlops = 2e9;

std::int64_t Lines(const Args& a) { return a.b * a.t * a.y; }
double Flops(const Args& a) {
  return 4.0 * kHeadDim * static_cast<double>(Lines(a) * a.x * a.h * a.kt * a.ky * a.kx);
}
std::int64_t LineStep(const Args& a) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(Flops(a) / kSampledFlops));
}

// --- plain loops: what one writes first, with all cores ---

void PlainQuery(const Args& a, const Windows& w, std::int64_t b, std::int64_t t, std::int64_t y,
                std::int64_t x, std::int64_t h) {
  const auto at = [&](std::int64_t pt, std::int64_t py, std::int64_t px) {
    return ((((b * a.t + pt) * a.y + py) * a.x + px) * a.h + h) * kHeadDim;
  };
  const Span &st = w.t[static_cast<std::size_t>(t)], &sy = w.y[static_cast<std::size_t>(y)],
             &sx = w.x[static_cast<std::size_t>(x)];
  std::vector<float> p;
  float q[kHeadDim], o[kHeadDim] = {}, sum = 0, largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t d = 0; d < kHeadDim; ++d) q[d] = ToFloat(a.q[at(t, y, x) + d]);
  for (std::int64_t i = st.begin; i < st.end; ++i) {
    for (std::int64_t j = sy.begin; j < sy.end; ++j) {
      for (std::int64_t l = sx.begin; l < sx.end; ++l) {
        const bf16* k = a.k + at(i, j, l);
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (std::int64_t d = 0; d < kHeadDim; ++d) dot += q[d] * ToFloat(k[d]);
        p.push_back(dot);
        largest = std::max(largest, dot);
      }
    }
  }
  std::size_t key = 0;
  for (std::int64_t i = st.begin; i < st.end; ++i) {
    for (std::int64_t j = sy.begin; j < sy.end; ++j) {
      for (std::int64_t l = sx.begin; l < sx.end; ++l) {
        const bf16* v = a.v + at(i, j, l);
        const float weight = std::exp(p[key++] - largest);
        sum += weight;
        for (std::int64_t d = 0; d < kHeadDim; ++d) o[d] += weight * ToFloat(v[d]);
      }
    }
  }
  for (std::int64_t d = 0; d < kHeadDim; ++d) a.o[at(t, y, x) + d] = ToBF16(o[d] / sum);
}

void RunPlain(const Args& a, const Windows& w) {
  const std::int64_t step = LineStep(a);
  ParallelFor((Lines(a) + step - 1) / step, 0, [&](std::int64_t sample) {
    const std::int64_t line = sample * step;
    for (std::int64_t i = 0; i < a.x * a.h; ++i) {
      PlainQuery(a, w, line / (a.t * a.y), line / a.y % a.t, line % a.y, i / a.h, i % a.h);
    }
  });
}

// --- dense rows by oneDNN: a line of queries against all keys of its kt x ky lines, masked ---

#ifdef ASSAY_HAVE_ONEDNN
void DenseLine(const Args& a, const Windows& w, std::int64_t line, std::int64_t h) {
  const std::int64_t b = line / (a.t * a.y), t = line / a.y % a.t, y = line % a.y;
  const Span &st = w.t[static_cast<std::size_t>(t)], &sy = w.y[static_cast<std::size_t>(y)];
  const std::int64_t keys = a.kt * a.ky * a.x;
  std::vector<bf16> k(static_cast<std::size_t>(keys * kHeadDim)), v(k.size()),
      p(static_cast<std::size_t>(a.x * keys));
  std::int64_t key = 0;
  for (std::int64_t i = st.begin; i < st.end; ++i) {
    for (std::int64_t j = sy.begin; j < sy.end; ++j) {
      for (std::int64_t x = 0; x < a.x; ++x, ++key) {
        const std::int64_t at = ((((b * a.t + i) * a.y + j) * a.x + x) * a.h + h) * kHeadDim;
        std::copy_n(a.k + at, kHeadDim, k.data() + key * kHeadDim);
        for (std::int64_t d = 0; d < kHeadDim; ++d) {
          v[static_cast<std::size_t>(d * keys + key)] = a.v[at + d];
        }
      }
    }
  }
  const std::int64_t row = a.h * kHeadDim, first = (line * a.x * a.h + h) * kHeadDim;
  cpu::RunOneDnn({a.x, keys, kHeadDim, a.q + first, row, k.data(), kHeadDim, p.data(), keys}, 1);
  for (std::int64_t x = 0; x < a.x; ++x) {
    bf16* weights = p.data() + x * keys;
    const Span& sx = w.x[static_cast<std::size_t>(x)];
    float sum = 0;
    for (std::int64_t i = 0; i < keys; ++i) {
      const bool visible = i % a.x >= sx.begin && i % a.x < sx.end;
      const float weight = visible ? std::exp(ToFloat(weights[i])) : 0;
      weights[i] = ToBF16(weight);
      sum += weight;
    }
    for (std::int64_t i = 0; i < keys; ++i) weights[i] = ToBF16(ToFloat(weights[i]) / sum);
  }
  cpu::RunOneDnn({a.x, kHeadDim, keys, p.data(), keys, v.data(), keys, a.o + first, row}, 1);
}

void RunDense(const Args& a, const Windows& w) {
  for (std::int64_t line = 0; line < Lines(a); line += LineStep(a)) {
    for (std::int64_t h = 0; h < a.h; ++h) DenseLine(a, w, line, h);
  }
}
#endif

// The share of the whole that the slow contenders compute.
double SampledShare(const Args& a) {
  const std::int64_t step = LineStep(a);
  return static_cast<double>((Lines(a) + step - 1) / step) / static_cast<double>(Lines(a));
}

void CpuNeighborhoodAttention(benchmark::State& state, const std::string& definition) {
  static const Family family = MakeFamily();
  const Problem problem =
      MakeProblem(family, "neighborhood_attention_3d_" + definition,
                  {{"B", 1}, {"T", state.range(0)}, {"Y", state.range(1)}, {"X", state.range(2)}});
  Bundle inputs = Bundle::Allocate(family.input_layouts(problem));
  family.generate(problem, 1, inputs);
  Bundle outputs = Bundle::Allocate(OutputLayouts(family, problem));
  const Args args = Bind(problem, inputs, outputs);
  const Windows windows = ShiftedWindows(args);
  const double flops = Flops(args), sampled = flops * SampledShare(args);
#ifdef ASSAY_HAVE_ONEDNN
  MatrixRate matrix;
  matrix.Run();
  RunDense(args, windows);
#endif
  RunCpu(args, 0);  // first touch of O
  std::vector<double> ours, plain, dense, rate;
  for (auto _ : state) {
    const double seconds = Seconds([&] { RunCpu(args, 0); });
    state.SetIterationTime(seconds);
    ours.push_back(flops / seconds / 1e9);
    plain.push_back(sampled / Seconds([&] { RunPlain(args, windows); }) / 1e9);
#ifdef ASSAY_HAVE_ONEDNN
    dense.push_back(sampled / Seconds([&] { RunDense(args, windows); }) / 1e9);
    rate.push_back(MatrixRate::kFlops / Seconds([&] { matrix.Run(); }) / 1e9);
#endif
  }
  state.counters["GF/s"] = Median(ours);
  state.counters["plain_GF/s"] = Median(plain);
  state.counters["times_plain"] = MedianRatio(ours, plain);
  state.counters["executed_useful"] = ExecutedOverUseful(windows);
  if (rate.empty()) return;
  state.counters["times_dense_onednn"] = MedianRatio(ours, dense);
  state.counters["onednn_bf16_GF/s"] = Median(rate);
  state.counters["of_onednn"] = MedianRatio(ours, rate);
}

// T, Y, X.
BENCHMARK_CAPTURE(CpuNeighborhoodAttention, h32_3x7x7, "h32_d64_kt3_ky7_kx7")
    ->Args({9, 14, 24})
    ->Iterations(7)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CpuNeighborhoodAttention, h16_3x7x7, "h16_d64_kt3_ky7_kx7")
    ->Args({9, 28, 48})
    ->Iterations(7)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CpuNeighborhoodAttention, h8_3x5x5, "h8_d64_kt3_ky5_kx5")
    ->Args({17, 28, 48})
    ->Args({33, 56, 96})
    ->Iterations(7)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CpuNeighborhoodAttention, h4_11x11x11, "h4_d64_kt11_ky11_kx11")
    ->Args({49, 80, 128})
    ->Iterations(3)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace assay::neighborhood_attention_3d

BENCHMARK_MAIN();
