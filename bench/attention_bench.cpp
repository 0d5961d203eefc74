// CPU attention against a naive blocked loop and against the machine's oneDNN bf16 matrix rate, at
// captured shapes.
//
// An iteration runs each contender once, one after the other, so that they share whatever else the
// machine does; counters are medians over iterations, and ratios are medians of ratios within one
// iteration. GF/s counts 4 B H D Nq Nk for attention and 2 m n k for the matrix product.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "base/stats.h"
#include "bench/matrix_rate.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay {
namespace {

using noncausal_dense_attention::Args;

// --- the naive blocked loop: what one writes first, with cache blocking and all cores ---

constexpr std::int64_t kBlock = 64;

struct NaiveRow {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
  std::vector<float> q, o;
};

void NaiveStep(NaiveRow& row, const float* k, const float* v, std::int64_t keys, std::int64_t dim) {
  float s[kBlock];
  float largest = row.largest;
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  for (std::int64_t j = 0; j < keys; ++j) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t d = 0; d < dim; ++d)
      dot += row.q[static_cast<std::size_t>(d)] * k[j * dim + d];
    s[j] = dot * scale;
    largest = std::max(largest, s[j]);
  }
  const float rescale = std::exp(row.largest - largest);
  row.largest = largest;
  row.sum *= rescale;
  float* o = row.o.data();
  for (std::int64_t d = 0; d < dim; ++d) o[d] *= rescale;
  for (std::int64_t j = 0; j < keys; ++j) {
    const float p = std::exp(s[j] - largest);
    row.sum += p;
    for (std::int64_t d = 0; d < dim; ++d) o[d] += p * v[j * dim + d];
  }
}

void NaiveHead(const Args& a, std::int64_t b, std::int64_t h, std::int64_t first,
               std::int64_t end) {
  std::vector<NaiveRow> rows(static_cast<std::size_t>(end - first));
  for (std::int64_t i = first; i < end; ++i) {
    NaiveRow& row = rows[static_cast<std::size_t>(i - first)];
    const bf16* q = a.q + ((b * a.nq + i) * a.h + h) * a.d;
    for (std::int64_t d = 0; d < a.d; ++d) row.q.push_back(ToFloat(q[d]));
    row.o.assign(static_cast<std::size_t>(a.d), 0.0f);
  }
  std::vector<float> k(static_cast<std::size_t>(kBlock * a.d)), v(k.size());
  for (std::int64_t j0 = 0; j0 < a.nk; j0 += kBlock) {
    const std::int64_t keys = std::min(kBlock, a.nk - j0);
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t at = ((b * a.nk + j0 + j) * a.h + h) * a.d;
      for (std::int64_t d = 0; d < a.d; ++d) {
        k[static_cast<std::size_t>(j * a.d + d)] = ToFloat(a.k[at + d]);
        v[static_cast<std::size_t>(j * a.d + d)] = ToFloat(a.v[at + d]);
      }
    }
    for (NaiveRow& row : rows) NaiveStep(row, k.data(), v.data(), keys, a.d);
  }
  for (std::int64_t i = first; i < end; ++i) {
    const NaiveRow& row = rows[static_cast<std::size_t>(i - first)];
    bf16* o = a.o + ((b * a.nq + i) * a.h + h) * a.d;
    for (std::int64_t d = 0; d < a.d; ++d) {
      o[d] = ToBF16(row.o[static_cast<std::size_t>(d)] / row.sum);
    }
  }
}

void RunNaive(const Args& a) {
  const std::int64_t pieces = (a.nq + kBlock - 1) / kBlock;
  ParallelFor(a.b * a.h * pieces, 0, [&](std::int64_t index) {
    const std::int64_t head = index / pieces, first = index % pieces * kBlock;
    NaiveHead(a, head / a.h, head % a.h, first, std::min(first + kBlock, a.nq));
  });
}

struct Rates {
  std::vector<double> ours, naive, matrix;
};

void CpuAttention(benchmark::State& state) {
  const std::int64_t nq = state.range(0), nk = state.range(1), d = state.range(2), h = 32;
  Args args = Args::Contiguous(1, nq, nk, h, d);
  const std::vector<bf16> q = RandomBF16(nq * h * d, 0, 3), k = RandomBF16(nk * h * d, 1, 1);
  const std::vector<bf16> v = RandomBF16(nk * h * d, 2, 1);
  std::vector<bf16> o(q.size());
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.o = o.data();
  const double flops = 4.0 * static_cast<double>(h * d) * static_cast<double>(nq * nk);
#ifdef ASSAY_HAVE_ONEDNN
  MatrixRate matrix;
  matrix.Run();
#endif
  Rates rates;
  for (auto _ : state) {
    const double ours = Seconds([&] { noncausal_dense_attention::RunCpu(args, 0); });
    state.SetIterationTime(ours);
    rates.ours.push_back(flops / ours / 1e9);
    rates.naive.push_back(flops / Seconds([&] { RunNaive(args); }) / 1e9);
#ifdef ASSAY_HAVE_ONEDNN
    rates.matrix.push_back(MatrixRate::kFlops / Seconds([&] { matrix.Run(); }) / 1e9);
#endif
  }
  state.counters["GF/s"] = Median(rates.ours);
  state.counters["naive_GF/s"] = Median(rates.naive);
  state.counters["times_naive"] = MedianRatio(rates.ours, rates.naive);
  if (rates.matrix.empty()) return;
  state.counters["onednn_bf16_GF/s"] = Median(rates.matrix);
  state.counters["of_onednn"] = MedianRatio(rates.ours, rates.matrix);
}

// Nq, Nk, D.
BENCHMARK(CpuAttention)
    ->Args({1120, 1120, 128})
    ->Args({2352, 1024, 128})
    ->Args({1120, 1024, 64})
    ->ArgNames({"Nq", "Nk", "D"})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace assay

BENCHMARK_MAIN();
