// The MLA kernels at captured shapes against the machine's oneDNN bf16 matrix rate, its memory
// bandwidth, and a one-thread formulation of the same work with oneDNN products.
//
// An iteration runs each contender once, one after the other, so that they share whatever else the
// machine does; counters are medians over iterations, and ratios are medians of ratios within one
// iteration. GF/s counts 4 * 64 * 512 flops per attended row: useful work only.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "bench/matrix_rate.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/sparse_mla_prefill/spec.h"

#ifdef ASSAY_HAVE_ONEDNN
#include <omp.h>
#endif

namespace assay {
namespace {

struct Case {
  Problem problem;
  Bundle inputs, outputs;
  Cost cost;
};

Case MakeCase(const Family& family, const char* definition, const Axes& axes,
              const Attributes& attributes) {
  Case one{MakeProblem(family, definition, axes, attributes), {}, {}, {}};
  one.inputs = Bundle::Allocate(family.input_layouts(one.problem));
  family.generate(one.problem, 1, one.inputs);
  one.outputs = Bundle::Allocate(OutputLayouts(family, one.problem));
  one.cost = family.cost(one.problem, one.inputs);
  return one;
}

#ifdef ASSAY_HAVE_ONEDNN
// What one writes first with a matrix library: per query gather the rows, scores = Q K^T, softmax,
// out = P V, on one thread.
class Formulation {
 public:
  explicit Formulation(std::int64_t keys)
      : keys_(keys),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        rows_(static_cast<std::size_t>(keys * 512)),
        p_(static_cast<std::size_t>(keys * 64)),
        s_(p_.size()),
        o_(64 * 512) {
    using dnnl::memory;
    const auto bf = memory::data_type::bf16, f32 = memory::data_type::f32;
    q_desc_ = memory::desc({64, 512}, bf, memory::dims{512, 1});
    const memory::desc kt({512, keys}, bf, memory::dims{1, 512});
    const memory::desc v({keys, 512}, bf, memory::dims{512, 1});
    const memory::desc s({64, keys}, f32, memory::dims{keys, 1});
    const memory::desc p({64, keys}, bf, memory::dims{keys, 1});
    const memory::desc o({64, 512}, f32, memory::dims{512, 1});
    scores_ = MakeProduct(q_desc_, kt, s);
    values_ = MakeProduct(p, v, o);
    scores_arguments_ = {{DNNL_ARG_WEIGHTS, memory(kt, engine_, rows_.data())},
                         {DNNL_ARG_DST, memory(s, engine_, s_.data())}};
    values_arguments_ = {{DNNL_ARG_SRC, memory(p, engine_, p_.data())},
                         {DNNL_ARG_WEIGHTS, memory(v, engine_, rows_.data())},
                         {DNNL_ARG_DST, memory(o, engine_, o_.data())}};
  }

  void Run(const sparse_mla_prefill::Args& args, std::int64_t queries) {
    omp_set_num_threads(1);
    for (std::int64_t m = 0; m < queries; ++m) RunQuery(args, m);
    omp_set_num_threads(HardwareThreads());
  }

 private:
  dnnl::matmul MakeProduct(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                           const dnnl::memory::desc& c) {
    return dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine_));
  }

  void RunQuery(const sparse_mla_prefill::Args& args, std::int64_t m) {
    for (std::int64_t j = 0; j < keys_; ++j) {
      const std::int64_t index = args.indices[m * args.width + j];
      std::copy_n(args.kv + index * 512, 512, rows_.data() + j * 512);
    }
    auto* q = const_cast<bf16*>(args.q + m * 64 * 512);
    scores_arguments_.insert_or_assign(DNNL_ARG_SRC, dnnl::memory(q_desc_, engine_, q));
    scores_.execute(stream_, scores_arguments_);
    for (std::int64_t h = 0; h < 64; ++h) {
      const float* s = s_.data() + h * keys_;
      const float largest = *std::max_element(s, s + keys_);
      float sum = std::exp(args.attn_sink[h] - largest * args.sm_scale);
      for (std::int64_t j = 0; j < keys_; ++j) {
        const float p = std::exp((s[j] - largest) * args.sm_scale);
        sum += p;
        p_[static_cast<std::size_t>(h * keys_ + j)] = ToBF16(p);
      }
      sums_[h] = sum;
    }
    values_.execute(stream_, values_arguments_);
    for (std::int64_t i = 0; i < 64 * 512; ++i) {
      args.out[m * 64 * 512 + i] = ToBF16(o_[static_cast<std::size_t>(i)] / sums_[i / 512]);
    }
  }

  std::int64_t keys_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::memory::desc q_desc_;
  dnnl::matmul scores_, values_;
  std::unordered_map<int, dnnl::memory> scores_arguments_, values_arguments_;
  std::vector<bf16> rows_, p_;
  std::vector<float> s_, o_;
  float sums_[64] = {};
};
#endif

struct Times {
  std::vector<double> ours, half, matrix, formulation, read;
};

void Report(benchmark::State& state, const Case& one, const Times& times) {
  std::vector<double> rate, bandwidth, of_matrix, of_bandwidth;
  for (std::size_t i = 0; i < times.ours.size(); ++i) {
    rate.push_back(one.cost.flops / times.ours[i] * 1e-9);
    bandwidth.push_back(one.cost.bytes / times.ours[i] * 1e-9);
#ifdef ASSAY_HAVE_ONEDNN
    of_matrix.push_back(rate[i] / (MatrixRate::kFlops / times.matrix[i] * 1e-9));
#endif
    if (!times.read.empty()) {
      of_bandwidth.push_back(bandwidth[i] /
                             (static_cast<double>(ReadRate::kBytes) / times.read[i] * 1e-9));
    }
  }
  state.counters["GF/s"] = Median(rate);
  state.counters["GB/s"] = Median(bandwidth);
  if (!of_matrix.empty()) state.counters["of_onednn"] = Median(of_matrix);
  if (!of_bandwidth.empty()) state.counters["of_bandwidth"] = Median(of_bandwidth);
  if (!times.half.empty()) state.counters["half_time"] = MedianRatio(times.half, times.ours);
  if (!times.formulation.empty()) {
    state.counters["times_one_thread_onednn"] = MedianRatio(times.formulation, times.ours);
  }
}

// M, sequence length, compression ratio (0: k128). half_time: the same with half of each list, over
// the time of the whole.
void Prefill(benchmark::State& state) {
  static const Family family = sparse_mla_prefill::MakeFamily();
  const std::int64_t m = state.range(0), sequence = state.range(1), ratio = state.range(2);
  const std::int64_t compressed = ratio == 0 ? 0 : sequence / ratio;
  Case one = MakeCase(
      family, ratio == 0 ? "sparse_mla_prefill_h64_d512_k128" : "sparse_mla_prefill_h64_d512_k640",
      {{"M", m}, {"Nkv", compressed + std::min(sequence, m + 127)}},
      {{"sequence_lengths", std::vector<std::int64_t>{sequence}}, {"compression_ratio", ratio}});
  const auto args = sparse_mla_prefill::Bind(one.problem, one.inputs, one.outputs);
  std::vector<std::int32_t> halves(args.topk_length, args.topk_length + m);
  for (std::int32_t& length : halves) length /= 2;
  auto half = args;
  half.topk_length = halves.data();
#ifdef ASSAY_HAVE_ONEDNN
  MatrixRate matrix;
  matrix.Run();
  const std::int64_t full = args.topk_length[m - 1];  // every list is full where there is a prefix
  const bool all_full = args.topk_length[0] == full;
  Formulation formulation(full);
#endif
  Times times;
  for (auto _ : state) {
    times.ours.push_back(Seconds([&] { sparse_mla_prefill::RunCpu(args, 0); }));
    state.SetIterationTime(times.ours.back());
    times.half.push_back(Seconds([&] { sparse_mla_prefill::RunCpu(half, 0); }));
#ifdef ASSAY_HAVE_ONEDNN
    times.matrix.push_back(Seconds([&] { matrix.Run(); }));
    const std::int64_t few = std::min<std::int64_t>(m, 64);
    if (all_full) {
      times.formulation.push_back(Seconds([&] { formulation.Run(args, few); }) *
                                  static_cast<double>(m) / static_cast<double>(few));
    }
#endif
  }
  Report(state, one, times);
}

// B, pages of cache4 (cache8 has one a row): 3 rows as captured; 256 rows of 457 pages each pass
// any cache.
void Decode(benchmark::State& state) {
  static const Family family = mixed_mla_decode::MakeFamily();
  const std::int64_t b = state.range(0);
  Case one = MakeCase(family, family.definitions[0].name.c_str(),
                      {{"B", b}, {"N8", b}, {"N4", state.range(1)}}, {});
  const auto args = mixed_mla_decode::Bind(one.problem, one.inputs, one.outputs);
  ReadRate read;
  read.Run();
#ifdef ASSAY_HAVE_ONEDNN
  MatrixRate matrix;
  matrix.Run();
#endif
  Times times;
  for (auto _ : state) {
    times.ours.push_back(Seconds([&] { mixed_mla_decode::RunCpu(args, 0); }));
    state.SetIterationTime(times.ours.back());
#ifdef ASSAY_HAVE_ONEDNN
    times.matrix.push_back(Seconds([&] { matrix.Run(); }));
#endif
    times.read.push_back(Seconds([&] { read.Run(); }));
  }
  benchmark::DoNotOptimize(read.checksum());
  Report(state, one, times);
}

BENCHMARK(Prefill)
    ->Args({128, 128, 1})
    ->Args({448, 142016, 2})
    ->Args({2432, 989824, 1})
    ->Args({4096, 546048, 0})
    ->ArgNames({"M", "seq", "ratio"})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(Decode)
    ->Args({1, 457})
    ->Args({3, 146})
    ->Args({256, 8192})
    ->ArgNames({"B", "N4"})
    ->Iterations(9)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace assay

BENCHMARK_MAIN();
