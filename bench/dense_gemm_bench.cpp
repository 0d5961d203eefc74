// The `cpu` backend of dense_gemm_bf16_nt against calling oneDNN directly, at captured (n, k).
//
// An iteration runs each contender once, one after the other, so that they share whatever else the
// machine does; counters are medians over iterations, and ratios are medians of ratios within one
// iteration. GF/s counts 2 m n k. `onednn` is one bf16 matmul primitive on all cores; `onednn_f32`
// the same product in fp32, the rate of a machine's fused multiply-adds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "base/stats.h"
#include "cpu/gemm.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay {
namespace {

using dnnl::memory;

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// C = A B^T of contiguous operands as one oneDNN primitive, built before any timing.
class DirectOneDnn {
 public:
  DirectOneDnn(memory::data_type type, std::int64_t m, std::int64_t n, std::int64_t k, void* a,
               void* b, void* c)
      : stream_(Engine()) {
    const memory::desc a_desc({m, k}, type, memory::dims{k, 1});
    const memory::desc b_desc({k, n}, type, memory::dims{1, k});
    const memory::desc c_desc({m, n}, type, memory::dims{n, 1});
    const dnnl::matmul::desc description(a_desc, b_desc, c_desc);
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(description, Engine()));
    arguments_ = {{DNNL_ARG_SRC, memory(a_desc, Engine(), a)},
                  {DNNL_ARG_WEIGHTS, memory(b_desc, Engine(), b)},
                  {DNNL_ARG_DST, memory(c_desc, Engine(), c)}};
  }

  void Run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, memory> arguments_;
};

template <class Body>
double Seconds(const Body& body) {
  // The previous contender's OpenMP threads spin for about a millisecond; let them fall asleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<bf16> RandomBF16(std::int64_t count, std::uint64_t tensor) {
  std::vector<bf16> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = ToBF16(UnitNormal(1, tensor, i));
  return values;
}

std::vector<float> Widened(const std::vector<bf16>& values) {
  std::vector<float> wide;
  wide.reserve(values.size());
  for (const bf16 x : values) wide.push_back(ToFloat(x));
  return wide;
}

std::vector<double> Ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return ratios;
}

void CpuAgainstOneDnn(benchmark::State& state) {
  const std::int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  std::vector<bf16> a = RandomBF16(m * k, 0), b = RandomBF16(n * k, 1);
  std::vector<bf16> c(static_cast<std::size_t>(m * n));
  std::vector<float> a32 = Widened(a), b32 = Widened(b), c32(c.size());
  DirectOneDnn direct(memory::data_type::bf16, m, n, k, a.data(), b.data(), c.data());
  DirectOneDnn direct_f32(memory::data_type::f32, m, n, k, a32.data(), b32.data(), c32.data());
  const dense_gemm_bf16_nt::Args args{m, n, k, a.data(), k, b.data(), k, c.data(), n};
  const auto run_cpu = [&] { dense_gemm_bf16_nt::RunCpu(args); };
  run_cpu();  // first calls build primitives and touch scratch memory
  direct.Run();
  direct_f32.Run();
  std::vector<double> cpu, own, onednn, onednn_f32;
  for (auto _ : state) {
    cpu.push_back(Seconds(run_cpu));
    onednn.push_back(Seconds([&] { direct.Run(); }));
    own.push_back(Seconds([&] {
      cpu::RunOwnLoops({m, n, k, a.data(), k, b.data(), k, c.data(), n}, 0);
    }));
    onednn_f32.push_back(Seconds([&] { direct_f32.Run(); }));
    state.SetIterationTime(cpu.back());
  }
  const double gflop =
      2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  state.counters["cpu_GFs"] = gflop / Median(cpu);
  state.counters["own_loops_GFs"] = gflop / Median(own);
  state.counters["onednn_GFs"] = gflop / Median(onednn);
  state.counters["onednn_f32_GFs"] = gflop / Median(onednn_f32);
  state.counters["cpu_to_onednn"] = Median(Ratios(onednn, cpu));  // speed ratio; target >= 0.9
  state.counters["own_to_onednn_f32"] = Median(Ratios(onednn_f32, own));
}

// {m, n, k}; m of captured size where a run of the slowest contender stays below ~10 s on two
// cores.
BENCHMARK(CpuAgainstOneDnn)
    ->ArgNames({"m", "n", "k"})
    ->Args({64, 4096, 4096})
    ->Args({512, 4096, 4096})
    ->Args({4096, 4096, 4096})
    ->Args({64, 12288, 4096})
    ->Args({512, 12288, 4096})
    ->Args({64, 4096, 12288})
    ->Args({512, 4096, 12288})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace assay

BENCHMARK_MAIN();
