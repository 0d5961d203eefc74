// gdn_decode, kda_decode and the recurrent path of gdn_prefill on the GPU: every kernel against
// fp64, and their times. Stand-alone, so that it can be carried to a machine that has only a
// driver.
//   gdn_sm90_bench check            all kernels, small and captured shapes, against fp64
//   gdn_sm90_bench small            the same at a few small shapes, for sanitizers
//   gdn_sm90_bench decode [ROUNDS]  times of every decode kernel at the captured batches
//   gdn_sm90_bench copies [ROUNDS]  the bytes of the states moved in many ways (state_moves.cuh)
//                                   and the decode kernels beside them, also in place
//   gdn_sm90_bench kda [ROUNDS]     the same of kda_decode
//   gdn_sm90_bench prefill [ROUNDS] times of the recurrent kernels, rows a CTA or chunks of 16
//   gdn_sm90_bench once TOKENS      one call in chunks of 16, for a profiler
// Times in us. cold: a graph of 10 x (flush, call) minus a graph of 10 flushes, over 10; `write`
// flushes by writing 256 MB (dirty lines leave while the call runs), `read` by reading it. warm: a
// graph of 30 calls minus one of 10, over 20. A round times every contender of a shape once; median
// over rounds (a quarter of the rounds is below the figure in brackets). copy: the same bytes moved
// by a plain kernel.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "base/error.h"
#include "bench/state_moves.cuh"
#include "cuda/ceilings_timing.cuh"
#include "cuda/warp_rows.cuh"
#include "ops/gdn_decode/sm90.h"
#include "ops/gdn_prefill/sm90_recurrent.h"
#include "ops/kda_decode/sm90.h"

namespace assay {
namespace {

using ceilings::Graph;
using ceilings::Stopwatch;
using Call = std::function<void(Stream)>;

// Inputs and outputs of a problem in host memory and on the device.
struct Case {
  Case(const Family& family, std::string_view definition, const Axes& axes,
       const std::string& variant)
      : problem(MakeProblem(family, definition, axes, {}, variant)),
        host_inputs(Bundle::Allocate(family.input_layouts(problem))),
        host_outputs(Bundle::Allocate(OutputLayouts(family, problem))) {
    family.generate(problem, 7, host_inputs);
    input_memory = Upload(host_inputs);
    output_memory = Upload(host_outputs);
    inputs = Bundle::Over(host_inputs.layouts(), input_memory);
    outputs = Bundle::Over(host_outputs.layouts(), output_memory);
  }
  ~Case() {
    cudaFree(input_memory);
    cudaFree(output_memory);
  }
  Case(const Case&) = delete;
  void Poison() {
    CheckCuda(cudaMemset(output_memory, 0xFF, host_outputs.arena().size()), "cudaMemset");
  }
  void Download() {
    CheckCuda(cudaDeviceSynchronize(), "kernels");
    CheckCuda(cudaMemcpy(host_outputs.arena().data(), output_memory, host_outputs.arena().size(),
                         cudaMemcpyDeviceToHost),
              "cudaMemcpy of outputs");
  }

  Problem problem;
  Bundle host_inputs, host_outputs, inputs, outputs;
  std::byte *input_memory = nullptr, *output_memory = nullptr;

 private:
  static std::byte* Upload(Bundle& host) {
    void* memory = nullptr;
    CheckCuda(cudaMalloc(&memory, host.arena().size()), "cudaMalloc of a case");
    CheckCuda(cudaMemcpy(memory, host.arena().data(), host.arena().size(), cudaMemcpyHostToDevice),
              "cudaMemcpy of a case");
    return static_cast<std::byte*>(memory);
  }
};

// Elements outside |x - r| <= atol + rtol |r|, and the first of them.
struct Errors {
  std::int64_t outside = 0, elements = 0, first = -1;
  double got = 0, expected = 0, worst = 0;  // largest error as a share of its tolerance
  double difference = 0, truth = 0;         // sums of squares
  void Add(double x, double r, double atol, double rtol) {
    const double share = std::abs(x - r) / (atol + rtol * std::abs(r));
    if (!(share <= 1) && outside++ == 0) {
      first = elements;
      got = x;
      expected = r;
    }
    if (!(share <= worst)) worst = share;
    ++elements;
    difference += (x - r) * (x - r);
    truth += r * r;
  }
};

bool Print(const std::string& what, const char* tensor, const Errors& errors) {
  const bool good = errors.outside == 0;
  std::printf("%s %-52s %-9s worst %8.2g of tolerance, rel rms %.2g", good ? "ok  " : "FAIL",
              what.c_str(), tensor, errors.worst, std::sqrt(errors.difference / errors.truth));
  if (!good) {
    std::printf(": %lld of %lld outside, first at %lld: got %g, expected %g",
                static_cast<long long>(errors.outside), static_cast<long long>(errors.elements),
                static_cast<long long>(errors.first), errors.got, errors.expected);
  }
  std::printf("\n");
  return good;
}

std::vector<ExpectedRows> Truth(const Family& family, const Case& c) {
  RowLists rows;
  for (const TensorSpec& spec : family.outputs) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(RowCount(spec, c.problem)));
    for (std::size_t r = 0; r < all.size(); ++r) all[r] = static_cast<std::int64_t>(r);
    rows.push_back(std::move(all));
  }
  return family.reference(c.problem, c.host_inputs, rows, SumOrder::kForward);
}

bool Compare(const std::string& what, Case& c, const std::vector<ExpectedRows>& truth) {
  c.Download();
  Errors output, state;
  const bf16* got = c.host_outputs["output"].as<bf16>();
  for (std::size_t i = 0; i < truth[0].value.size(); ++i) {
    output.Add(ToFloat(got[i]), truth[0].value[i], 0.005, 0.016);
  }
  const float* got_state = c.host_outputs["new_state"].as<float>();
  for (std::size_t i = 0; i < truth[1].value.size(); ++i) {
    state.Add(got_state[i], truth[1].value[i], 2e-5, 1e-4);
  }
  const bool good = Print(what, "output", output);
  return Print(what, "new_state", state) && good;
}

Case DecodeCase(const Family& family, std::int64_t batch, const std::string& variant = "default") {
  return Case(family, "gdn_decode_qk4_v8_d128_k_last", {{"batch_size", batch}}, variant);
}

Case PrefillCase(const Family& family, std::int64_t tokens, std::int64_t sequences,
                 const std::string& variant = "default") {
  return Case(
      family, "gdn_prefill_qk4_v8_d128_k_last",
      {{"total_seq_len", tokens}, {"num_seqs", sequences}, {"len_cu_seqlens", sequences + 1}},
      variant);
}

bool CheckDecode(const std::vector<std::int64_t>& batches, bool all_kernels) {
  const Family family = gdn_decode::MakeFamily();
  bool good = true;
  for (const std::int64_t batch : batches) {
    Case c = DecodeCase(family, batch, batch == 3 ? "extreme_gates" : "default");
    const auto truth = Truth(family, c);
    for (const std::string_view kernel : gdn_decode::Sm90Kernels()) {
      c.Poison();
      const auto args = gdn_decode::BindOnDevice(c.problem, c.inputs, c.outputs);
      PrepareCuda(args, {all_kernels ? kernel : ChoosePlan(args).kernel})(nullptr);
      const std::string what = "decode B " + std::to_string(batch) + " " + std::string(kernel);
      good = Compare(what, c, truth) && good;
      if (!all_kernels) break;
    }
  }
  return good;
}

Case KdaCase(const Family& family, std::int64_t heads, std::int64_t batch,
             const std::string& gate = "", const std::string& variant = "default") {
  return Case(family, "kda_decode_h" + std::to_string(heads) + "_d128" + gate,
              {{"batch_size", batch}}, variant);
}

bool CheckKda(const std::vector<std::int64_t>& batches) {
  const Family family = kda_decode::MakeFamily();
  bool good = true;
  for (const std::int64_t batch : batches) {
    for (const std::string gate : {"", "_unbounded", "_plain"}) {
      Case c = KdaCase(family, 64, batch, gate, batch == 2 ? "extreme_gates" : "default");
      const auto truth = Truth(family, c);
      c.Poison();
      c.Poison();
      kda_decode::PrepareCuda(kda_decode::Bind(c.problem, c.inputs, c.outputs))(nullptr);
      good = Compare("kda" + gate + " B " + std::to_string(batch), c, truth) && good;
    }
  }
  return good;
}

bool CheckPrefill(const std::vector<std::array<std::int64_t, 2>>& shapes,
                  const std::vector<std::string>& variants) {
  const Family family = gdn_prefill::MakeFamily();
  bool good = true;
  for (const auto& [tokens, sequences] : shapes) {
    for (const std::string& variant : variants) {
      Case c = PrefillCase(family, tokens, sequences, variant);
      const auto truth = Truth(family, c);
      for (const int rows : {8, 16, 32, 0}) {  // 0: chunks of 16 tokens
        c.Poison();
        gdn_prefill::RecurrentOptions options;
        options.rows_per_cta = rows;
        (rows == 0 ? gdn_prefill::RunRecurrent16 : gdn_prefill::RunRecurrent)(
            gdn_prefill::BindOnDevice(c.problem, c.inputs, c.outputs), options, nullptr);
        good = Compare("prefill T " + std::to_string(tokens) + " N " + std::to_string(sequences) +
                           " " + variant + " rows " + std::to_string(rows),
                       c, truth) &&
               good;
      }
    }
  }
  return good;
}

// ------------------------------------------------------------------ times

constexpr std::size_t kFlushBytes = 256u << 20;

__global__ void WriteFlush(float4* data, float x) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kFlushBytes / 16; i += step) {
    data[i] = make_float4(x, x, x, x);
  }
}

__global__ void ReadFlush(const float4* data, float* result) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  float sum = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < kFlushBytes / 16; i += step) {
    sum += __ldcg(data + i).x;
  }
  if (sum == 12345.678f) *result = sum;
}

// The bytes of the states of `batch` rows from one place to another, 4 KB a warp.
__global__ void __launch_bounds__(128) CopyKernel(const float* from, float* to) {
  const std::size_t at =
      (std::size_t{blockIdx.x} * 4 + threadIdx.x / 32) * 1024 + threadIdx.x % 32 * 4;
  float4 x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = sm90::LoadFloat4<sm90::Keep::kNormal>(from + at + 128 * i);
#pragma unroll
  for (int i = 0; i < 8; ++i) sm90::StoreFloat4<sm90::Keep::kNormal>(to + at + 128 * i, x[i]);
}

class Timer {
 public:
  explicit Timer(int rounds) : rounds_(rounds) {
    CheckCuda(cudaMalloc(&flush_, kFlushBytes), "cudaMalloc of the flush buffer");
    CheckCuda(cudaMemset(flush_, 1, kFlushBytes), "cudaMemset");
    for (int i = 0; i < 2; ++i) {
      base_[i] = std::make_unique<Graph>(watch_, 10, [&, i](cudaStream_t s) { Flush(i == 1, s); });
    }
  }
  ~Timer() { cudaFree(flush_); }

  // Of every call, sorted samples: cold after a written flush, after a read one, warm.
  using Samples = std::array<std::vector<double>, 3>;
  std::vector<Samples> Times(const std::vector<Call>& calls) {
    std::vector<Samples> samples(calls.size());
    for (std::size_t kind = 0; kind < 3; ++kind) {
      std::vector<std::unique_ptr<Graph>> few, many;
      for (const Call& call : calls) {
        const auto flushed = [&](cudaStream_t s) {
          if (kind < 2) Flush(kind == 1, s);
          call(s);
        };
        many.push_back(std::make_unique<Graph>(watch_, kind < 2 ? 10 : 30, flushed));
        if (kind == 2) few.push_back(std::make_unique<Graph>(watch_, 10, call));
      }
      for (int round = -1; round < rounds_; ++round) {
        for (std::size_t c = 0; c < calls.size(); ++c) {
          const double rest = Run(kind < 2 ? *base_[kind] : *few[c]);
          const double us = (Run(*many[c]) - rest) / (kind < 2 ? 10 : 20);
          if (round >= 0) samples[c][kind].push_back(us);
        }
      }
      for (Samples& of_call : samples) std::sort(of_call[kind].begin(), of_call[kind].end());
    }
    return samples;
  }

 private:
  void Flush(bool read, cudaStream_t stream) {
    if (read) {
      ReadFlush<<<1056, 256, 0, stream>>>(flush_, reinterpret_cast<float*>(flush_));
    } else {
      WriteFlush<<<1056, 256, 0, stream>>>(flush_, 0.5f);
    }
  }
  double Run(const Graph& graph) {
    return watch_.Time([&](cudaStream_t s) { graph.Launch(s); }) / 1e3;
  }
  int rounds_;
  Stopwatch watch_;
  float4* flush_ = nullptr;
  std::unique_ptr<Graph> base_[2];
};

struct Contender {
  std::string name;
  Call call;
};

void PrintTimes(Timer& timer, const std::string& shape, const std::vector<Contender>& contenders) {
  std::vector<Call> calls;
  for (const Contender& contender : contenders) calls.push_back(contender.call);
  const auto samples = timer.Times(calls);
  for (std::size_t c = 0; c < calls.size(); ++c) {
    std::printf("%-16s %-32s", shape.c_str(), contenders[c].name.c_str());
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const std::vector<double>& us = samples[c][kind];
      constexpr std::array kNames = {"write", "read", "warm"};
      std::printf(" %s %7.2f (%7.2f)", kNames[kind], us[us.size() / 2], us[us.size() / 4]);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

void TimeDecode(int rounds) {
  const Family family = gdn_decode::MakeFamily();
  Timer timer(rounds);
  for (const std::int64_t batch : {1, 4, 8, 16, 32, 48, 64}) {
    Case c = DecodeCase(family, batch);
    const auto args = gdn_decode::BindOnDevice(c.problem, c.inputs, c.outputs);
    std::vector<Contender> contenders;
    contenders.push_back({"copy", [args](Stream s) {
                            CopyKernel<<<static_cast<unsigned>(args.batch * 32), 128, 0, s>>>(
                                args.state, args.new_state);
                          }});
    for (const std::string_view kernel : gdn_decode::Sm90Kernels()) {
      for (const bool overlap : {false, true}) {
        contenders.push_back(
            {std::string(kernel) + (overlap ? " pdl" : ""), PrepareCuda(args, {kernel, overlap})});
      }
    }
    PrintTimes(timer, "B " + std::to_string(batch), contenders);
  }
}

// The ceiling of this machine and moment: a copy far larger than any cache, both directions
// counted.
double CopyBandwidth() {
  const std::size_t bytes = 2ull << 30;
  const DeviceMemory<std::byte> from(bytes), to(bytes);
  CheckCuda(cudaMemset(from.data(), 1, bytes), "cudaMemset");
  const Stopwatch watch;
  std::vector<double> samples;
  for (int i = 0; i < 12; ++i) {
    const double ns = watch.Time([&](cudaStream_t s) {
      CheckCuda(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, s),
                "copy");
    });
    samples.push_back(2.0 * static_cast<double>(bytes) / ns);  // GB/s
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void TimeCopies(int rounds) {
  const Family family = gdn_decode::MakeFamily();
  const double bandwidth = CopyBandwidth();
  std::printf("copy of 2 GiB by cudaMemcpy, bytes read plus written: %.0f GB/s\n", bandwidth);
  Timer timer(rounds);
  for (const std::int64_t batch : {16, 32, 48, 64}) {
    Case c = DecodeCase(family, batch);
    const auto args = gdn_decode::BindOnDevice(c.problem, c.inputs, c.outputs);
    const auto elements = static_cast<std::size_t>(batch * 8 * 128 * 128);
    const DeviceMemory<float> in_place(elements);
    const DeviceMemory<unsigned long long> arrived(1);
    CheckCuda(cudaMemcpy(in_place.data(), args.state, elements * 4, cudaMemcpyDeviceToDevice),
              "cudaMemcpy");
    CheckCuda(cudaMemset(arrived.data(), 0, 8), "cudaMemset");
    std::vector<Contender> contenders;
    for (const auto& form : state_moves::AllForms(
             {args.state, args.new_state, in_place.data(), arrived.data(), elements * 4})) {
      contenders.push_back({form.name, form.call});
    }
    auto own_place = args;
    own_place.state = own_place.new_state = in_place.data();
    for (const std::string_view kernel : gdn_decode::Sm90Kernels()) {
      contenders.push_back({"OWN " + std::string(kernel), PrepareCuda(args, {kernel})});
      contenders.push_back(
          {"OWN " + std::string(kernel) + " in place", PrepareCuda(own_place, {kernel})});
    }
    std::printf("B %lld: %.2f us at that bandwidth\n", static_cast<long long>(batch),
                (static_cast<double>(batch) * 1054752 + 64) / bandwidth / 1e3);
    PrintTimes(timer, "B " + std::to_string(batch), contenders);
  }
}

void TimeKda(int rounds) {
  const Family family = kda_decode::MakeFamily();
  Timer timer(rounds);
  for (const std::int64_t heads : {64, 8}) {
    for (const std::int64_t batch : {1, 2, 4, 8, 16, 32, 64}) {
      if (heads * batch > 2048) continue;
      Case c = KdaCase(family, heads, batch);
      const auto args = kda_decode::Bind(c.problem, c.inputs, c.outputs);
      std::vector<Contender> contenders;
      contenders.push_back({"copy", [args](Stream s) {
                              const auto heads = static_cast<unsigned>(args.batch * args.heads);
                              CopyKernel<<<heads * 4, 128, 0, s>>>(args.state, args.new_state);
                            }});
      contenders.push_back({"cuda", kda_decode::PrepareCuda(args)});
      PrintTimes(timer, "KDA H " + std::to_string(heads) + " B " + std::to_string(batch),
                 contenders);
    }
  }
}

void TimePrefill(int rounds) {
  const Family family = gdn_prefill::MakeFamily();
  Timer timer(rounds);
  constexpr std::array<std::array<std::int64_t, 2>, 19> kShapes = {{{6, 1},
                                                                    {16, 1},
                                                                    {35, 1},
                                                                    {61, 1},
                                                                    {134, 1},
                                                                    {525, 1},
                                                                    {2107, 1},
                                                                    {28, 2},
                                                                    {76, 2},
                                                                    {132, 2},
                                                                    {248, 2},
                                                                    {574, 2},
                                                                    {139, 3},
                                                                    {255, 3},
                                                                    {973, 3},
                                                                    {959, 4},
                                                                    {3999, 13},
                                                                    {8192, 20},
                                                                    {8192, 57}}};
  for (const auto& [tokens, sequences] : kShapes) {
    Case c = PrefillCase(family, tokens, sequences);
    const auto args = gdn_prefill::BindOnDevice(c.problem, c.inputs, c.outputs);
    std::vector<Contender> contenders;
    for (const int rows : {8, 16, 32, 0}) {
      for (const bool overlap : {false, true}) {
        if (overlap && tokens > 134) continue;
        gdn_prefill::RecurrentOptions options;
        options.rows_per_cta = rows;
        options.overlap_launch = overlap;
        const auto run = rows == 0 ? gdn_prefill::RunRecurrent16 : gdn_prefill::RunRecurrent;
        contenders.push_back({(rows == 0 ? "chunks of 16" : "rows " + std::to_string(rows)) +
                                  (overlap ? " pdl" : ""),
                              [args, options, run](Stream s) { run(args, options, s); }});
      }
    }
    PrintTimes(timer, "T " + std::to_string(tokens) + " N " + std::to_string(sequences),
               contenders);
  }
}

void RunOnce(int tokens) {
  const Family family = gdn_prefill::MakeFamily();
  Case c = PrefillCase(family, tokens, 1);
  RunRecurrent16(gdn_prefill::BindOnDevice(c.problem, c.inputs, c.outputs), {}, nullptr);
  c.Download();
}

int Main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "check";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 12;
  if (mode == "small") {
    const bool good = CheckDecode({1, 3}, true) && CheckKda({1});
    return CheckPrefill({{11, 1}, {21, 3}}, {"default"}) && good ? 0 : 1;
  }
  if (mode == "check") {
    const bool good = CheckDecode({1, 3, 4, 17, 64}, true) && CheckKda({1, 2, 5});
    return CheckPrefill({{1, 1}, {8, 1}, {61, 1}, {139, 3}, {959, 4}},
                        {"default", "with_empty", "gate_spike", "repeated_key", "state_null"}) &&
                   good
               ? 0
               : 1;
  }
  if (mode == "decode") return TimeDecode(rounds), 0;
  if (mode == "copies") return TimeCopies(rounds), 0;
  if (mode == "once") return RunOnce(argc > 2 ? std::atoi(argv[2]) : 2107), 0;
  if (mode == "kda") return TimeKda(rounds), 0;
  if (mode == "prefill") return TimePrefill(rounds), 0;
  std::printf("unknown mode %s\n", argv[1]);
  return 2;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  try {
    return assay::Main(argc, argv);
  } catch (const assay::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
