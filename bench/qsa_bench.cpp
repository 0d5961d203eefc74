// The CPU kernels of qsa_index_topk_decode and qsa_sparse_gqa_decode against a read of as many
// bytes by all cores, the selection against std::partial_sort, and both operators against oneDNN on
// one thread.
//
// An iteration runs each contender once, one after the other, so that they share whatever else the
// machine does; counters are medians over iterations, and ratios are medians of ratios within one
// iteration.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "base/stats.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"

#ifdef ASSAY_HAVE_ONEDNN
#include <omp.h>

#include <dnnl.hpp>
#include <unordered_map>
#endif

namespace assay {
namespace {

namespace index = qsa_index_topk_decode;
namespace attention = qsa_sparse_gqa_decode;

template <class Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double MedianOf(const std::vector<double>& values) { return QuantileSorted(Sorted(values), 0.5); }

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return MedianOf(ratios);
}

struct Case {
  Family family;
  Problem problem;
  Bundle inputs, outputs;
};

// `rows` rows of `length` tokens that share nothing.
Case MakeCase(Family family, std::int64_t rows, std::int64_t length, std::int64_t page_tokens,
              std::int64_t (*pages_of)(std::int64_t)) {
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(rows), length);
  Case one{std::move(family), {}, {}, {}};
  one.problem = MakeProblem(
      one.family, one.family.definitions[0].name,
      {{"B", rows}, {"MP", pages_of(length)}, {"NP", rows * pages_of(length)}, {"P", page_tokens}},
      {{"sequence_lengths", lengths}});
  one.inputs = Bundle::Allocate(one.family.input_layouts(one.problem));
  one.family.generate(one.problem, 1, one.inputs);
  one.outputs = Bundle::Allocate(OutputLayouts(one.family, one.problem));
  return one;
}

// The fastest read that we know: every core sums 64-bit words of its own pieces.
ASSAY_VECTOR_CLONES
std::uint64_t SumWords(const std::uint64_t* words, std::int64_t count) {
  std::uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

class MemoryRead {
 public:
  explicit MemoryRead(double bytes) : words_(static_cast<std::size_t>(bytes / 8), 1) {}

  void Run() const {
    constexpr std::int64_t kPiece = 1 << 16;
    ParallelRanges(static_cast<std::int64_t>(words_.size()), kPiece, 0,
                   [&](std::int64_t begin, std::int64_t end) {
                     benchmark::DoNotOptimize(SumWords(words_.data() + begin, end - begin));
                   });
  }

 private:
  std::vector<std::uint64_t> words_;
};

// Kernel against a read of the operator's least traffic.
void AgainstMemory(benchmark::State& state, Case& one) {
  const double bytes = one.family.cost(one.problem, one.inputs).bytes;
  const MemoryRead read(bytes);
  const Backend& backend = one.family.backends.front();
  std::vector<double> kernel_s, read_s;
  for (auto _ : state) {
    kernel_s.push_back(
        Seconds([&] { backend.run(one.problem, one.inputs, one.outputs, RunContext{}); }));
    read_s.push_back(Seconds([&] { read.Run(); }));
  }
  state.counters["MB"] = bytes * 1e-6;
  state.counters["kernel_GB/s"] = bytes * 1e-9 / MedianOf(kernel_s);
  state.counters["read_GB/s"] = bytes * 1e-9 / MedianOf(read_s);
  state.counters["of_bandwidth"] = MedianRatio(read_s, kernel_s);
}

// rows x 65,504 groups: the longest captured kind of row.
void IndexScoring(benchmark::State& state) {
  Case one = MakeCase(index::MakeFamily(), state.range(0), 4 * 65504, 16, index::PagesOfTokens);
  AgainstMemory(state, one);
}

void SparseAttention(benchmark::State& state) {
  Case one = MakeCase(attention::MakeFamily(), state.range(0), 8195, 64, attention::PagesOfTokens);
  AgainstMemory(state, one);
}

// The selection of 512 out of 65,504 natural scores, against the standard library: the scores
// alone, and (score, id) pairs, which is what it takes to know the ids.
void IndexSelection(benchmark::State& state) {
  constexpr std::int64_t kGroups = 65504, kTopK = 512;
  Case one = MakeCase(index::MakeFamily(), 1, 4 * kGroups, 16, index::PagesOfTokens);
  std::vector<float> scores(kGroups), sorted;
  index::Args args = index::Bind(one.problem, one.inputs, one.outputs);
  args.scores = scores.data();
  args.scores_stride = kGroups;
  index::RunCpu(args, 0);
  std::vector<std::int32_t> ids(kTopK);
  std::vector<std::pair<float, std::int32_t>> pairs;
  std::vector<double> ours, scores_s, pairs_s;
  for (auto _ : state) {
    ours.push_back(Seconds([&] { index::SelectCpu(scores.data(), kGroups, kTopK, ids.data()); }));
    sorted = scores;
    scores_s.push_back(Seconds([&] {
      std::partial_sort(sorted.begin(), sorted.begin() + kTopK, sorted.end(), std::greater<>());
    }));
    pairs.clear();
    for (std::int32_t j = 0; j < kGroups; ++j) {
      pairs.emplace_back(-scores[static_cast<std::size_t>(j)], j);
    }
    pairs_s.push_back(
        Seconds([&] { std::partial_sort(pairs.begin(), pairs.begin() + kTopK, pairs.end()); }));
  }
  state.counters["us"] = 1e6 * MedianOf(ours);
  state.counters["partial_sort_us"] = 1e6 * MedianOf(scores_s);
  state.counters["x_partial_sort"] = MedianRatio(scores_s, ours);
  state.counters["x_partial_sort_pairs"] = MedianRatio(pairs_s, ours);
}

#ifdef ASSAY_HAVE_ONEDNN
// C [m, n] fp32 = A [m, k] B of bf16 operands on one thread; B is [n, k] or [k, n].
class OneDnn {
 public:
  OneDnn(std::int64_t m, std::int64_t n, std::int64_t k, bool b_transposed, bf16* a, bf16* b,
         float* c)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    const auto half = memory::data_type::bf16, full = memory::data_type::f32;
    const memory::desc a_desc({m, k}, half, memory::dims{k, 1});
    const memory::desc b_desc({k, n}, half, b_transposed ? memory::dims{1, k} : memory::dims{n, 1});
    const memory::desc c_desc({m, n}, full, memory::dims{n, 1});
    const dnnl::matmul::desc description(a_desc, b_desc, c_desc);
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(description, engine_));
    arguments_ = {{DNNL_ARG_SRC, memory(a_desc, engine_, a)},
                  {DNNL_ARG_WEIGHTS, memory(b_desc, engine_, b)},
                  {DNNL_ARG_DST, memory(c_desc, engine_, c)}};
  }

  void Run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

void AgainstOneDnn(benchmark::State& state, Case& one, const std::function<void()>& one_dnn) {
  const Backend& backend = one.family.backends.front();
  std::vector<double> kernel_s, one_dnn_s;
  for (auto _ : state) {
    kernel_s.push_back(
        Seconds([&] { backend.run(one.problem, one.inputs, one.outputs, RunContext{1}); }));
    one_dnn_s.push_back(Seconds(one_dnn));
  }
  state.counters["us"] = 1e6 * MedianOf(kernel_s);
  state.counters["onednn_us"] = 1e6 * MedianOf(one_dnn_s);
  state.counters["x_onednn"] = MedianRatio(one_dnn_s, kernel_s);
}

// Pages copied together, one product, ReLU and head sum, partial_sort. Both on one thread.
void IndexAgainstOneDnn(benchmark::State& state) {
  omp_set_num_threads(1);
  const std::int64_t n = state.range(0);
  Case one = MakeCase(index::MakeFamily(), 1, 4 * n, 16, index::PagesOfTokens);
  const index::Args args = index::Bind(one.problem, one.inputs, one.outputs);
  std::vector<bf16> keys(static_cast<std::size_t>(n * 128)), q(args.q, args.q + 4 * 128);
  std::vector<float> dots(static_cast<std::size_t>(4 * n));
  OneDnn product(4, n, 128, true, q.data(), keys.data(), dots.data());
  std::vector<std::pair<float, std::int32_t>> pairs(static_cast<std::size_t>(n));
  AgainstOneDnn(state, one, [&] {
    for (std::int64_t j = 0; j < n; j += 16) {
      std::copy_n(args.index_k_cache + args.page_table[j / 16] * std::int64_t{2048},
                  std::min<std::int64_t>(n - j, 16) * 128, keys.data() + j * 128);
    }
    product.Run();
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t h = 0; h < 4; ++h) {
        sum -= std::max(dots[static_cast<std::size_t>(h * n + j)], 0.0f);
      }
      pairs[static_cast<std::size_t>(j)] = {sum, static_cast<std::int32_t>(j)};
    }
    std::partial_sort(pairs.begin(), pairs.begin() + 512, pairs.end());
  });
}

// Tokens copied together per KV head, two products around a softmax. Both on one thread.
void AttentionAgainstOneDnn(benchmark::State& state) {
  omp_set_num_threads(1);
  Case one = MakeCase(attention::MakeFamily(), 1, state.range(0), 64, attention::PagesOfTokens);
  const attention::Args args = attention::Bind(one.problem, one.inputs, one.outputs);
  const std::vector<std::int64_t> tokens = attention::AttendedTokens(args, 0);
  const auto m = static_cast<std::int64_t>(tokens.size());
  std::vector<bf16> q(12 * 256), k(static_cast<std::size_t>(m * 256)), v(k.size());
  std::vector<bf16> p(static_cast<std::size_t>(12 * m));
  std::vector<float> scores(p.size()), values(12 * 256);
  OneDnn qk(12, m, 256, true, q.data(), k.data(), scores.data());
  OneDnn pv(12, 256, m, false, p.data(), v.data(), values.data());
  AgainstOneDnn(state, one, [&] {
    for (std::int64_t g = 0; g < 2; ++g) {
      std::copy_n(args.q + g * 12 * 256, 12 * 256, q.data());
      for (std::int64_t i = 0; i < m; ++i) {
        const std::int64_t token = tokens[static_cast<std::size_t>(i)];
        const std::int64_t at =
            ((args.page_table[token / 64] * std::int64_t{64} + token % 64) * 2 + g) * 256;
        std::copy_n(args.k_cache + at, 256, k.data() + i * 256);
        std::copy_n(args.v_cache + at, 256, v.data() + i * 256);
      }
      qk.Run();
      float sums[12];
      for (std::int64_t h = 0; h < 12; ++h) {
        float* s = scores.data() + h * m;
        const float largest = *std::max_element(s, s + m);
        float sum = 0;
        for (std::int64_t i = 0; i < m; ++i) {
          const float weight = std::exp((s[i] - largest) * 0.0625f);
          sum += weight;
          p[static_cast<std::size_t>(h * m + i)] = ToBF16(weight);
        }
        sums[h] = sum;
      }
      pv.Run();
      for (std::int64_t i = 0; i < 12 * 256; ++i) {
        args.out[g * 12 * 256 + i] = ToBF16(values[static_cast<std::size_t>(i)] / sums[i / 256]);
      }
    }
  });
}

BENCHMARK(IndexAgainstOneDnn)->Arg(736)->Arg(65504)->UseRealTime();
BENCHMARK(AttentionAgainstOneDnn)->Arg(8195)->UseRealTime();
#endif

BENCHMARK(IndexScoring)->Arg(1)->Arg(16)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(IndexSelection)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(SparseAttention)->Arg(1)->Arg(8)->Arg(48)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace assay

BENCHMARK_MAIN();
