// The rooms of a mixture of experts on the CPU against the machine: the oneDNN bf16 matrix rate,
// the read bandwidth of memory, and the same work through oneDNN on one thread, at captured shapes.
//
// An iteration runs each contender once, one after the other, so that they share whatever else the
// machine does; counters are medians over iterations, and ratios are medians of ratios within one
// iteration. Ours and the oneDNN formulation start with cold caches. GF/s and GB/s count the work
// of the families' cost models.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "base/stats.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"
#include "ops/moe_router_gemm_topk/spec.h"
#include "replay/measure.h"

namespace assay {
namespace {

using dnnl::memory;
using grouped_gemm_fp8_fp4::Args;
using grouped_gemm_fp8_fp4::kGroup;

template <class Body>
double Seconds(const Body& body) {
  // The previous contender's OpenMP threads spin for about a millisecond; let them fall asleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// D = A B^T of contiguous bf16 operands as one primitive; D is bf16 or f32.
class MatMul {
 public:
  MatMul(std::int64_t m, std::int64_t n, std::int64_t k,
         memory::data_type type = memory::data_type::bf16)
      : a_({m, k}, memory::data_type::bf16, memory::dims{k, 1}),
        b_({k, n}, memory::data_type::bf16, memory::dims{1, k}),
        d_({m, n}, type, memory::dims{n, 1}),
        stream_(Engine()),
        primitive_(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a_, b_, d_), Engine())) {}

  void Run(const void* a, const void* b, void* d) {
    primitive_.execute(stream_, {{DNNL_ARG_SRC, memory(a_, Engine(), const_cast<void*>(a))},
                                 {DNNL_ARG_WEIGHTS, memory(b_, Engine(), const_cast<void*>(b))},
                                 {DNNL_ARG_DST, memory(d_, Engine(), d)}});
    stream_.wait();
  }

 private:
  memory::desc a_, b_, d_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
};

// The matrix rate: a size where oneDNN is at its best, all cores.
class MatrixRate {
 public:
  static constexpr std::int64_t kSize = 2048;
  static constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  MatrixRate() : matmul_(kSize, kSize, kSize) {
    for (std::size_t i = 0; i < a_.size(); ++i) a_[i] = b_[i] = ToBF16(UnitNormal(1, 0, i));
    Run();
  }
  void Run() { matmul_.Run(a_.data(), b_.data(), d_.data()); }

 private:
  std::vector<bf16> a_ = std::vector<bf16>(kSize * kSize), b_ = a_, d_ = a_;
  MatMul matmul_;
};

// Sums `count` words with the vectors of the machine.
ASSAY_VECTOR_CLONES std::uint64_t SumWords(const std::uint64_t* words, std::int64_t count) {
  std::uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

// Reads 1 GiB on all cores.
class ReadRate {
 public:
  double bytes() const { return static_cast<double>(words_.size() * sizeof(std::uint64_t)); }
  void Run() {
    ParallelRanges(static_cast<std::int64_t>(words_.size()), 1 << 17, 0,
                   [&](std::int64_t begin, std::int64_t end) {
                     benchmark::DoNotOptimize(SumWords(words_.data() + begin, end - begin));
                   });
  }

 private:
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(1 << 27, 1);
};

// Runs `body` with one OpenMP thread.
template <class Body>
double SecondsOnOneThread(const Body& body) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const double seconds = Seconds(body);
  omp_set_num_threads(threads);
  return seconds;
}

// The same work by means that everybody has: on one thread, an expert's weights to bf16 by a table
// of byte pairs, its rows likewise, one oneDNN matmul. Only the first experts, scaled to all rows,
// when there are many.
class GroupedFormulation {
 public:
  static constexpr std::size_t kMostExperts = 12;

  explicit GroupedFormulation(const Args& args) : args_(args) {
    for (std::int64_t m = 0; m < args.m; ++m) rows_[args.m_indices[m]].push_back(m);
    while (rows_.size() > kMostExperts) rows_.erase(std::prev(rows_.end()));
    for (const auto& [expert, rows] : rows_) {
      const auto count = static_cast<std::int64_t>(rows.size());
      covered_ += count;
      most_ = std::max(most_, count);
      if (!matmuls_.contains(count)) {
        omp_set_num_threads(1);
        matmuls_.emplace(count, MatMul(count, args.n, args.k));
      }
    }
    a_.resize(static_cast<std::size_t>(most_ * args.k));
    w_.resize(static_cast<std::size_t>(args.n * args.k));
    d_.resize(static_cast<std::size_t>(most_ * args.n));
    for (unsigned pair = 0; pair < 256; ++pair) {
      pairs_[pair][0] = E2M1ToFloat(pair & 15);
      pairs_[pair][1] = E2M1ToFloat(pair >> 4);
    }
  }

  double Seconds() {
    const double seconds = SecondsOnOneThread([&] {
      for (auto& [expert, rows] : rows_) RunExpert(expert, rows);
    });
    return seconds * static_cast<double>(args_.m) / static_cast<double>(covered_);
  }

 private:
  void RunExpert(std::int64_t expert, const std::vector<std::int64_t>& rows) {
    const std::int64_t k = args_.k, groups = k / kGroup;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const e4m3* from = args_.a + rows[r] * args_.lda;
      bf16* to = a_.data() + static_cast<std::int64_t>(r) * k;
      for (std::int64_t i = 0; i < k; ++i) {
        to[i] =
            ToBF16(ToFloat(from[i]) * ToFloat(args_.sfa[rows[r] * args_.sfa_stride + i / kGroup]));
      }
    }
    const std::int64_t first = expert * args_.n;
    for (std::int64_t g = 0; g < args_.n * groups; ++g) {
      const float scale = ToFloat(args_.sfw[first * groups + g]);
      const std::uint8_t* from = args_.w + (first * groups + g) * (kGroup / 2);
      bf16* to = w_.data() + g * kGroup;
      for (std::int64_t i = 0; i < kGroup / 2; ++i) {
        to[2 * i] = ToBF16(pairs_[from[i]][0] * scale);
        to[2 * i + 1] = ToBF16(pairs_[from[i]][1] * scale);
      }
    }
    matmuls_.at(static_cast<std::int64_t>(rows.size())).Run(a_.data(), w_.data(), d_.data());
  }

  const Args& args_;
  std::map<std::int64_t, std::vector<std::int64_t>> rows_;
  std::map<std::int64_t, MatMul> matmuls_;
  std::int64_t covered_ = 0, most_ = 0;
  std::vector<bf16> a_, w_, d_;
  float pairs_[256][2];
};

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

// Times of one benchmark, contender by contender.
struct Times {
  std::vector<double> ours, matrix, read, onednn;

  void Report(const Cost& cost, const ReadRate& reader, benchmark::State& state) const {
    const double seconds = Median(ours);
    state.counters["GF/s"] = cost.flops / seconds / 1e9;
    state.counters["GB/s"] = cost.bytes / seconds / 1e9;
    state.counters["onednn_bf16_GF/s"] = MatrixRate::kFlops / Median(matrix) / 1e9;
    state.counters["read_GB/s"] = reader.bytes() / Median(read) / 1e9;
    state.counters["of_onednn_rate"] = cost.flops / MatrixRate::kFlops * MedianRatio(matrix, ours);
    state.counters["of_read_rate"] = cost.bytes / reader.bytes() * MedianRatio(read, ours);
    state.counters["times_onednn_1t"] = MedianRatio(onednn, ours);
  }
};

template <class Body>
double ColdSeconds(const Bundle& inputs, const Bundle& outputs, const Body& body) {
  EvictFromCaches(inputs);
  EvictFromCaches(outputs);
  return Seconds(body);
}

void CpuGroupedGemm(benchmark::State& state) {
  static const Family family = grouped_gemm_fp8_fp4::MakeFamily();
  const auto definition = static_cast<std::size_t>(state.range(0) == 4608 ? 0 : 1);
  const Problem problem =
      MakeProblem(family, family.definitions[definition].name, {{"M", state.range(1)}});
  Bundle inputs = Bundle::AllocateShared(family.input_layouts(problem));
  Bundle outputs = Bundle::AllocateShared(OutputLayouts(family, problem));
  const double generation_s = Seconds([&] { family.generate(problem, 1, inputs); });
  const Args args = grouped_gemm_fp8_fp4::Bind(problem, inputs, outputs);
  const Cost cost = family.cost(problem, inputs);
  MatrixRate matrix;
  ReadRate read;
  GroupedFormulation onednn(args);
  const auto run = [&] { grouped_gemm_fp8_fp4::RunCpu(args, 0); };
  run();
  Times times;
  for (auto _ : state) {
    times.ours.push_back(ColdSeconds(inputs, outputs, run));
    state.SetIterationTime(times.ours.back());
    times.matrix.push_back(Seconds([&] { matrix.Run(); }));
    times.read.push_back(Seconds([&] { read.Run(); }));
    EvictFromCaches(inputs);
    times.onednn.push_back(onednn.Seconds());
  }
  times.Report(cost, read, state);
  state.counters["generate_s"] = generation_s;
}

// Logits by one fp32 matmul, then a partial sort of each row, on one thread.
class RouterFormulation {
 public:
  explicit RouterFormulation(const moe_router_gemm_topk::Args& args)
      : args_(args), logits_(static_cast<std::size_t>(args.m * args.experts)) {
    omp_set_num_threads(1);
    matmul_ = std::make_unique<MatMul>(args.m, args.experts, args.k, memory::data_type::f32);
    omp_set_num_threads(HardwareThreads());
  }

  void Run() {
    matmul_->Run(args_.x, args_.w, logits_.data());
    std::vector<float> score(static_cast<std::size_t>(args_.experts));
    std::vector<std::int32_t> order(score.size());
    for (std::int64_t m = 0; m < args_.m; ++m) {
      for (std::size_t e = 0; e < score.size(); ++e) {
        score[e] = std::sqrt(
            std::log1p(std::exp(logits_[static_cast<std::size_t>(m) * score.size() + e])));
        order[e] = static_cast<std::int32_t>(e);
      }
      const auto rank = [&](std::int32_t e) {
        return score[static_cast<std::size_t>(e)] + args_.bias[e];
      };
      std::partial_sort(order.begin(), order.begin() + args_.chosen, order.end(),
                        [&](std::int32_t a, std::int32_t b) {
                          return rank(a) > rank(b) || (rank(a) == rank(b) && a < b);
                        });
      std::sort(order.begin(), order.begin() + args_.chosen);
      float sum = 0;
      for (std::int64_t i = 0; i < args_.chosen; ++i) {
        sum += score[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])];
      }
      for (std::int64_t i = 0; i < args_.chosen; ++i) {
        const std::int32_t e = order[static_cast<std::size_t>(i)];
        args_.expert_ids[m * args_.chosen + i] = e;
        args_.expert_weights[m * args_.chosen + i] =
            score[static_cast<std::size_t>(e)] / sum * args_.scaling;
      }
    }
  }

 private:
  const moe_router_gemm_topk::Args& args_;
  std::vector<float> logits_;
  std::unique_ptr<MatMul> matmul_;
};

void CpuRouter(benchmark::State& state) {
  static const Family family = moe_router_gemm_topk::MakeFamily();
  const Problem problem = MakeProblem(family, family.definitions[0].name, {{"M", state.range(0)}});
  Bundle inputs = Bundle::AllocateShared(family.input_layouts(problem));
  Bundle outputs = Bundle::AllocateShared(OutputLayouts(family, problem));
  family.generate(problem, 1, inputs);
  const moe_router_gemm_topk::Args args = moe_router_gemm_topk::Bind(problem, inputs, outputs);
  MatrixRate matrix;
  ReadRate read;
  RouterFormulation onednn(args);
  const auto run = [&] { moe_router_gemm_topk::RunCpu(args, 0); };
  run();
  Times times;
  for (auto _ : state) {
    times.ours.push_back(ColdSeconds(inputs, outputs, run));
    state.SetIterationTime(times.ours.back());
    times.matrix.push_back(Seconds([&] { matrix.Run(); }));
    times.read.push_back(Seconds([&] { read.Run(); }));
    EvictFromCaches(inputs);
    times.onednn.push_back(SecondsOnOneThread([&] { onednn.Run(); }));
  }
  times.Report(family.cost(problem, inputs), read, state);
}

BENCHMARK(CpuRouter)
    ->ArgNames({"M"})
    ->ArgsProduct({{1, 3, 128, 448, 4096}})
    ->Iterations(9)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// N (4608: gate and up, 5120: down) and M.
BENCHMARK(CpuGroupedGemm)
    ->ArgNames({"N", "M"})
    ->ArgsProduct({{4608, 5120}, {6, 18, 768, 2688, 11904, 24576}})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace assay

BENCHMARK_MAIN();
