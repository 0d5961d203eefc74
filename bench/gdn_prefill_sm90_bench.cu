// gdn_prefill on the GPU: correctness of the kernels and their times. Needs only a driver where it
// runs.
//   gdn_prefill_sm90_bench factors          what the first kernel writes, against fp64
//   gdn_prefill_sm90_bench check [T N ..]   all chains against the recurrence in fp64
//   gdn_prefill_sm90_bench small            the same at small shapes, for sanitizers
//   gdn_prefill_sm90_bench time [ROUNDS] [T N ..]   all chains, cold and warm
// Times: per sample a write of 256 MB (flushes L2; not for warm), then events around the replay of
// a graph with one call; contenders in turn, median over rounds.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/tensor.h"
#include "ops/gdn_prefill/check_factors_sm90.cuh"
#include "ops/gdn_prefill/check_sm90.cuh"
#include "ops/gdn_prefill/sm90.h"

namespace assay::gdn_prefill {
namespace {

struct Size {
  std::int64_t tokens, sequences;
};

// Generated inputs in host memory and on the device; outputs on the device.
class Case {
 public:
  // v times `value_scale`.
  Case(const Size& size, const std::string& variant, float value_scale = 1, std::uint64_t key = 7)
      : family_(MakeFamily()),
        problem_(MakeProblem(family_, "gdn_prefill_qk4_v8_d128_k_last",
                             {{"total_seq_len", size.tokens},
                              {"num_seqs", size.sequences},
                              {"len_cu_seqlens", size.sequences + 1}},
                             {}, variant)),
        host_inputs_(Bundle::Allocate(family_.input_layouts(problem_))),
        host_outputs_(Bundle::Allocate(OutputLayouts(family_, problem_))) {
    family_.generate(problem_, key, host_inputs_);
    host = Bind(problem_, host_inputs_, host_outputs_);
    bf16* v = host_inputs_["v"].as<bf16>();
    for (std::size_t i = 0; i < OutputCount() && value_scale != 1; ++i) {
      v[i] = ToBF16(value_scale * ToFloat(v[i]));
    }
    device = host;
    for (Tensor& tensor : host_inputs_.tensors()) Upload(tensor);
    for (Tensor& tensor : host_outputs_.tensors()) Upload(tensor);
    device.q = At<bf16>(host.q);
    device.k = At<bf16>(host.k);
    device.v = At<bf16>(host.v);
    device.a = At<bf16>(host.a);
    device.b = At<bf16>(host.b);
    device.a_log = At<float>(host.a_log);
    device.dt_bias = At<float>(host.dt_bias);
    if (host.state != nullptr) device.state = At<float>(host.state);
    device.cu_seqlens = At<std::int64_t>(host.cu_seqlens);
    device.output = At<bf16>(host.output);
    device.new_state = At<float>(host.new_state);
  }
  ~Case() {
    for (const auto& [from, to] : copies_) cudaFree(to);
  }
  Case(const Case&) = delete;

  void PoisonOutputs() {
    CheckCuda(cudaMemset(device.output, 0xFF, OutputCount() * 2), "cudaMemset");
    CheckCuda(cudaMemset(device.new_state, 0xFF, StateCount() * 4), "cudaMemset");
  }
  std::vector<std::uint16_t> Output() const {
    return Get<std::uint16_t>(device.output, OutputCount());
  }
  std::vector<float> State() const { return Get<float>(device.new_state, StateCount()); }

  Args host, device;

 private:
  std::size_t OutputCount() const {
    return static_cast<std::size_t>(host.tokens * kValueHeads * kHeadSize);
  }
  std::size_t StateCount() const {
    return static_cast<std::size_t>(host.sequences * kValueHeads * kStateElements);
  }
  void Upload(const Tensor& tensor) {
    void* memory = nullptr;
    CheckCuda(cudaMalloc(&memory, std::max<std::size_t>(tensor.bytes(), 16)), "cudaMalloc");
    CheckCuda(cudaMemcpy(memory, tensor.data, tensor.bytes(), cudaMemcpyHostToDevice), "upload");
    copies_.emplace_back(tensor.data, memory);
  }
  template <class T>
  T* At(const T* host_address) const {
    for (const auto& [from, to] : copies_) {
      if (from == reinterpret_cast<const std::byte*>(host_address)) return static_cast<T*>(to);
    }
    throw Error(Fault::kInternal, "a tensor that was not uploaded");
  }
  template <class T>
  static std::vector<T> Get(const void* from, std::size_t count) {
    std::vector<T> values(count);
    CheckCuda(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost),
              "download");
    return values;
  }

  Family family_;
  Problem problem_;
  Bundle host_inputs_, host_outputs_;
  std::vector<std::pair<const std::byte*, void*>> copies_;
};

std::string NameOf(const Plan& plan) {
  if (plan.recurrent) return "recurrent";
  std::string name = std::to_string(plan.chain_rows) + " rows";
  if (plan.paired) name += " paired";
  if (plan.piece_chunks > 0) name = "pieces of " + std::to_string(plan.piece_chunks);
  return name;
}

bool Exists(const Plan& plan, const Size& size) {
  return plan.piece_chunks == 0 || size.tokens <= kMostPieces * plan.piece_chunks * kChunk;
}

int Factors() {
  int failures = 0;
  for (const auto& [size, variant] :
       std::vector<std::pair<Size, std::string>>{{{64, 1}, "default"},
                                                 {{17, 1}, "default"},
                                                 {{300, 3}, "default"},
                                                 {{200, 5}, "with_empty"},
                                                 {{128, 1}, "gate_spike"},
                                                 {{128, 1}, "repeated_key"},
                                                 {{128, 1}, "alternating_key"},
                                                 {{128, 1}, "strong_decay"},
                                                 {{2107, 1}, "default"}}) {
    const Case test(size, variant);
    const FactorErrors errors = CheckFactors(test.device, test.host);
    const bool good = errors.k.error <= 1e-7 && errors.q.error <= 1e-7 && errors.t.error <= 4e-3 &&
                      errors.p.error <= 1e-3 && errors.gates.error <= 2e-5;
    failures += !good;
    std::printf("factors %4ld,%ld %-15s %s\n  k %s\n  q %s\n  T %s\n  P %s\n  gates %s\n",
                size.tokens, size.sequences, variant.c_str(), good ? "ok" : "WRONG",
                errors.k.Text().c_str(), errors.q.Text().c_str(), errors.t.Text().c_str(),
                errors.p.Text().c_str(), errors.gates.Text().c_str());
    std::fflush(stdout);
  }
  return failures;
}

int CheckCase(const Size& size, const std::string& variant) {
  int failures = 0;
  Case test(size, variant);
  const Truth truth = ComputeTruth(test.device);
  for (const Plan& plan : std::vector<Plan>{{false, 16},
                                            {false, 32},
                                            {false, 64},
                                            {false, 64, true},
                                            {false, 64, true, 1},
                                            {false, 64, true, 3},
                                            {false, 64, true, 6}}) {
    if (!Exists(plan, size)) continue;
    test.PoisonOutputs();
    PrepareCuda(test.device, test.host.cu_seqlens, plan)(nullptr);
    CheckCuda(cudaDeviceSynchronize(), "chunk path");
    const std::vector<std::uint16_t> output = test.Output();
    const Judgement j =
        Judge(truth, test.host.cu_seqlens, test.host.sequences, output, test.State());
    failures += !j.passed();
    std::printf(
        "%5ld,%-3ld %-15s %-16s %-6s strict-out %6ld rms %.1e  state %.1e head %.1e max %.1e",
        size.tokens, size.sequences, variant.c_str(), NameOf(plan).c_str(),
        j.passed() ? "ok" : "WRONG", j.outside_strict, j.worst_output, j.state, j.worst_state,
        j.max_state);
    if (j.outside_chunk != 0) {
      std::printf(" | %ld outside, first token %ld head %ld row %ld: %g, not %g", j.outside_chunk,
                  j.first / 1024, j.first / 128 % 8, j.first % 128, j.got, j.expected);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return failures;
}

int Check(const std::vector<Size>& sizes) {
  int failures = 0;
  if (!sizes.empty()) {
    for (const Size& size : sizes) failures += CheckCase(size, "default");
    return failures;
  }
  for (const auto& [size, variant] :
       std::vector<std::pair<Size, std::string>>{{{64, 1}, "state_zeros"},
                                                 {{64, 1}, "default"},
                                                 {{17, 1}, "default"},
                                                 {{128, 1}, "default"},
                                                 {{300, 3}, "all_continued"},
                                                 {{200, 5}, "with_empty"},
                                                 {{192, 2}, "state_null"},
                                                 {{320, 2}, "gate_spike"},
                                                 {{320, 2}, "strong_decay"},
                                                 {{320, 2}, "repeated_key"},
                                                 {{320, 2}, "alternating_key"},
                                                 {{320, 2}, "beta_zero"},
                                                 {{320, 2}, "correlated"},
                                                 {{320, 2}, "v50"},
                                                 {{320, 2}, "v1e4"},
                                                 {{2107, 1}, "default"},
                                                 {{3028, 5}, "default"},
                                                 {{8192, 57}, "default"}}) {
    failures += CheckCase(size, variant);
  }
  return failures;
}

// Relative rms of outputs and states (no state before the sequences) as v becomes small.
int SmallValues() {
  for (const float scale : {1.0f, 1e-3f, 1e-4f, 3e-5f, 1e-5f, 3e-6f, 1e-6f}) {
    Case test({403, 3}, "state_zeros", scale);
    const Truth truth = ComputeTruth(test.device);
    for (const int rows : {16, 64}) {
      test.PoisonOutputs();
      PrepareCuda(test.device, test.host.cu_seqlens, {false, rows})(nullptr);
      CheckCuda(cudaDeviceSynchronize(), "chunk path");
      const std::vector<std::uint16_t> output = test.Output();
      const std::vector<float> state = test.State();
      Ratio outputs, states;
      for (std::size_t i = 0; i < output.size(); ++i) {
        outputs.Add(ToFloat(bf16{output[i]}), truth.output[i]);
      }
      for (std::size_t i = 0; i < state.size(); ++i) states.Add(state[i], truth.state[i]);
      std::printf(
          "v times %.0e, %d rows: rms of outputs %.1e, relative error %.1e; of states %.1e, %.1e\n",
          scale, rows, std::sqrt(outputs.truth / output.size()),
          std::sqrt(outputs.difference / outputs.truth), std::sqrt(states.truth / state.size()),
          std::sqrt(states.difference / states.truth));
    }
  }
  return 0;
}

cudaGraphExec_t Capture(cudaStream_t stream, const std::function<void(Stream)>& call) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of capture");
  call(stream);
  CheckCuda(cudaStreamEndCapture(stream, &graph), "end of capture");
  CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  CheckCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return executable;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Timer {
 public:
  Timer() {
    CheckCuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&start_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&stop_), "cudaEventCreate");
    CheckCuda(cudaMalloc(&flush_, kFlushBytes), "cudaMalloc");
  }

  void Measure(const Size& size, int rounds, const std::string& variant) {
    Case test(size, variant);
    std::vector<std::string> names{"factors"};
    std::vector<std::function<void(Stream)>> calls;
    Workspace workspace;
    const auto slots = static_cast<std::size_t>(FirstSlot(size.tokens, size.sequences));
    CheckCuda(cudaMalloc(&workspace.keys, slots * kKeyHeads * sizeof(KeyTile)), "cudaMalloc");
    CheckCuda(cudaMalloc(&workspace.heads, slots * kValueHeads * sizeof(HeadTile)), "cudaMalloc");
    calls.push_back([&](Stream stream) { LaunchFactors(test.device, workspace, stream); });
    for (const Plan& plan : std::vector<Plan>{{true},
                                              {false, 16},
                                              {false, 32},
                                              {false, 64},
                                              {false, 64, true},
                                              {false, 64, true, 4},
                                              {false, 64, true, 8},
                                              {false, 64, true, 12},
                                              {false, 64, true, 16},
                                              {false, 64, true, 24},
                                              {false, 64, true, 40}}) {
      if (!Exists(plan, size)) continue;
      names.push_back(NameOf(plan));
      calls.push_back(PrepareCuda(test.device, test.host.cu_seqlens, plan));
    }
    std::vector<cudaGraphExec_t> graphs;
    for (const auto& call : calls) graphs.push_back(Capture(stream_, call));
    std::vector<std::vector<double>> cold(calls.size()), warm(calls.size());
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < graphs.size(); ++i) {
        cold[i].push_back(Sample(graphs[i], true));
        warm[i].push_back(Sample(graphs[i], false));
      }
    }
    std::int64_t longest = 0;
    for (std::int64_t s = 0; s < size.sequences; ++s) {
      longest = std::max(longest, test.host.cu_seqlens[s + 1] - test.host.cu_seqlens[s]);
    }
    std::printf("%5ld,%-3ld max %5ld us cold (warm):", size.tokens, size.sequences, longest);
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      std::printf("  %s %.1f (%.1f)", names[i].c_str(), Median(cold[i]), Median(warm[i]));
      CheckCuda(cudaGraphExecDestroy(graphs[i]), "cudaGraphExecDestroy");
    }
    std::printf("\n");
    std::fflush(stdout);
    cudaFree(workspace.keys);
    cudaFree(workspace.heads);
  }

 private:
  static constexpr std::size_t kFlushBytes = std::size_t{256} << 20;

  double Sample(cudaGraphExec_t graph, bool cold) {
    if (cold) CheckCuda(cudaMemsetAsync(flush_, 1, kFlushBytes, stream_), "flush");
    CheckCuda(cudaEventRecord(start_, stream_), "cudaEventRecord");
    CheckCuda(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
    CheckCuda(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(stop_), "a timed call");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return ms * 1e3;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  void* flush_ = nullptr;
};

int Time(int rounds, std::vector<Size> sizes, const std::string& variant) {
  if (sizes.empty()) {
    sizes = {{6, 1},    {61, 1},    {134, 1},   {139, 3},   {255, 3},  {294, 3},  {525, 1},
             {574, 2},  {959, 4},   {1377, 1},  {2107, 1},  {2857, 3}, {3028, 5}, {3999, 13},
             {5709, 2}, {8192, 20}, {8192, 37}, {8192, 57}, {8192, 1}, {8192, 8}, {32768, 4}};
  }
  Timer timer;
  for (const Size& size : sizes) timer.Measure(size, rounds, variant);
  return 0;
}

std::vector<Size> Sizes(int argc, char** argv, int first) {
  std::vector<Size> sizes;
  for (int i = first; i + 1 < argc; i += 2)
    sizes.push_back({std::atol(argv[i]), std::atol(argv[i + 1])});
  return sizes;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "factors") return Factors();
  if (mode == "check") return Check(Sizes(argc, argv, 2));
  if (mode == "small") return Check({{70, 1}, {150, 3}, {64, 2}, {300, 1}});
  if (mode == "values") return SmallValues();
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (mode == "time") return Time(rounds, Sizes(argc, argv, 3), "default");
  if (mode == "equal") return Time(rounds, Sizes(argc, argv, 3), "equal");
  std::fprintf(stderr, "usage: gdn_prefill_sm90_bench factors | check | small | time\n");
  return 2;
}

}  // namespace
}  // namespace assay::gdn_prefill

int main(int argc, char** argv) {
  try {
    return assay::gdn_prefill::Main(argc, argv) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
