// Attention on the GPU: our kernels and cuDNN in one process, interleaved in shuffled order.
// Stand-alone, so that it can be carried to a machine that has only a driver.
//   attention_sm90_bench check [PREFIX]       every kernel at awkward shapes against fp64
//   attention_sm90_bench small                the same at a few small shapes
//   attention_sm90_bench once [PREFIX]        every kernel once at five tiny shapes, for sanitizers
//   attention_sm90_bench time SET [ROUNDS] [PLANS]  d64, d128, prefix, world or cross; PLANS: user
//                                             (the chosen one), or every kernel whose name starts
//                                             so (all = any), with several splits
// Method: a graph of n pairs (write 256 MB, call) less a graph of n writes, over n: launch gaps of
// a graph are in it, host and event costs are not. Random data; median over rounds. JSON lines go
// to $OUT/attention_sm90_<set>.jsonl when OUT is set.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>

#include "base/error.h"
#include "ops/attention/cases_sm90.cuh"
#include "ops/attention/check_sm90.cuh"
#include "peers/cudnn_graph.h"
#include "peers/loader.h"

namespace assay {
namespace {

using namespace attention;

std::string PlanName(const Sm90Plan& plan) {
  return std::string(plan.kernel) + "/" + std::to_string(plan.split) + (plan.share ? "s" : "");
}

// Plans that can run the call; splits beyond 1 where the kernel knows them.
std::vector<Sm90Plan> PlansFor(const Sm90Call& call, std::string_view prefix) {
  std::vector<Sm90Plan> plans;
  for (const std::string_view kernel : Sm90Kernels()) {
    if (!kernel.starts_with(prefix) || !WhyNot(call, kernel).empty()) continue;
    const bool cluster = kernel.starts_with("split");
    const std::int64_t tiles = (call.tensors.queries + 63) / 64;
    for (const int split : {1, 2, 4, 8, 16}) {
      if (split > 1 && !cluster && !kernel.starts_with("resident")) continue;
      if (cluster && split > 8) continue;
      if (!cluster && split > tiles) continue;
      plans.push_back({kernel, split});
      if (kernel.starts_with("core") && !call.block_causal) plans.push_back({kernel, split, true});
    }
  }
  return plans;
}

void DescribeFirst(const CaseData& data, unsigned long long first) {
  const Sm90Tensors& x = data.call.tensors;
  const auto d = static_cast<std::int64_t>(first) % x.head_dim;
  const std::int64_t row = static_cast<std::int64_t>(first) / x.head_dim;
  const std::int64_t q = row % x.queries, pair = row / x.queries;
  const std::int64_t batch = pair / x.heads, head = pair % x.heads;
  std::printf("      first at b %ld h %ld q %ld d %ld;", batch, head, q, d);
  const std::vector<std::uint16_t> all = data.Output();
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t at =
        ((batch * x.queries + q) * x.heads + head) * x.head_dim + (d + i) % x.head_dim;
    std::printf(" %g", ToFloat(bf16{all[static_cast<std::size_t>(at)]}));
  }
  // The same element by the generic kernel.
  PrepareSm90(data.call, {"generic", 1})(nullptr);
  CheckCuda(cudaDeviceSynchronize(), "generic");
  const std::vector<std::uint16_t> good = data.Output();
  std::printf("  generic:");
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::int64_t at =
        ((batch * x.queries + q) * x.heads + head) * x.head_dim + (d + i) % x.head_dim;
    std::printf(" %g", ToFloat(bf16{good[static_cast<std::size_t>(at)]}));
  }
  std::printf("\n");
}

int CheckCase(const Case& c, std::string_view prefix) {
  int failures = 0;
  CaseData data(c);
  for (const Sm90Plan& plan : PlansFor(data.call, prefix)) {
    data.Poison();
    const auto call = PrepareSm90(data.call, plan);
    call(nullptr);
    CheckCuda(cudaDeviceSynchronize(), (PlanName(plan) + " at " + c.Name()).c_str());
    const std::vector<std::uint16_t> first = data.Output();
    const CheckResult result = CheckOnDevice(data.call);
    bool repeats = true;
    for (int i = 0; i < 3; ++i) {
      data.Poison();
      call(nullptr);
      repeats = repeats && data.Output() == first;
    }
    const bool touched = data.GuardTouched(first);
    const bool good = result.outside == 0 && repeats && !touched && result.wrong_lse == 0 &&
                      result.worst_slice <= 0.005;
    failures += !good;
    std::printf("%-5s %-28s %-24s outside %llu captured %llu slice %.2e lse %llu%s%s\n",
                good ? "ok" : "WRONG", c.Name().c_str(), PlanName(plan).c_str(), result.outside,
                result.captured, result.worst_slice, result.wrong_lse, repeats ? "" : " DIFFERS",
                touched ? " GUARD" : "");
    if (!good && result.outside > 0) DescribeFirst(data, result.first);
    std::fflush(stdout);
  }
  return failures;
}

int CheckAll(const std::vector<Case>& cases, std::string_view prefix) {
  int failures = 0;
  for (const Case& c : cases) failures += CheckCase(c, prefix);
  std::printf("%d failures\n", failures);
  return failures;
}

int RunOnce(std::string_view prefix) {
  for (const Case& c :
       {Case{1, 1, 64, 1, 1}, Case{1, 1, 128, 70, 1}, Case{1, 1, 128, 1, 513},
        Case{1, 1, 128, 130, 200, 25}, Case{1, 1, 128, 130, 130, 0, 0, true, {{5, 100}}},
        Case{1, 1, 64, 70, 130, 0, 2}, Case{1, 2, 64, 200, 300}}) {
    CaseData data(c);
    for (const Sm90Plan& plan : PlansFor(data.call, prefix)) {
      if (plan.split > 2) continue;
      PrepareSm90(data.call, plan)(nullptr);
      CheckCuda(cudaDeviceSynchronize(), (PlanName(plan) + " at " + c.Name()).c_str());
      std::printf("ran %s %s\n", c.Name().c_str(), PlanName(plan).c_str());
      std::fflush(stdout);
    }
  }
  return 0;
}

struct Contender {
  std::string name;
  std::vector<cudaGraphExec_t> graphs;
  std::vector<double> us;
  double Median() const {
    std::vector<double> sorted = us;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
};

class Timer {
 public:
  Timer(const std::string& set, int rounds, const std::string& plans)
      : rounds_(rounds),
        all_(plans != "user"),
        prefix_(plans == "all" ? "" : plans),
        cudnn_(peers::VendorPaths("libcudnn.so.9")) {
    CheckCuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&start_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&stop_), "cudaEventCreate");
    flush_ = Allocate<char>(kFlushBytes);
    if (const char* folder = std::getenv("OUT")) {
      log_ = std::fopen((std::string(folder) + "/attention_sm90_" + set + ".jsonl").c_str(), "w");
    }
    if (!cudnn_.why_not().empty()) std::printf("no cuDNN: %s\n", cudnn_.why_not().c_str());
  }

  void Measure(const Case& c) {
    CaseData data(c);
    data.call.tensors.lse = nullptr;  // the peers make none
    const int repeats = c.Flop() > 3e11 ? 2 : 8;
    std::vector<Contender> contenders;
    contenders.push_back({"flush", {Capture(repeats, [](Stream) {})}, {}});
    AddPeers(c, data, repeats, contenders);
    std::vector<Sm90Plan> plans = {ChooseSm90Plan(data.call)};
    if (all_) {
      plans = PlansFor(data.call, prefix_);
      std::erase_if(plans, [](const Sm90Plan& plan) { return plan.kernel == "generic"; });
    }
    for (const Sm90Plan& plan : plans) {
      contenders.push_back({PlanName(plan), {Capture(repeats, PrepareSm90(data.call, plan))}, {}});
    }
    std::vector<std::size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(static_cast<unsigned>(c.nq * 31 + c.nk));
    for (int round = -1; round < rounds_; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t i : order) {
        const double us = Replay(contenders[i].graphs[0]) / repeats;
        if (round >= 0) contenders[i].us.push_back(us);
      }
    }
    Report(c, contenders);
    for (Contender& contender : contenders) {
      for (cudaGraphExec_t graph : contender.graphs) cudaGraphExecDestroy(graph);
    }
    for (void* p : joined_) cudaFree(p);
    joined_.clear();
  }

  void Summary() const {
    if (shapes_ == 0) return;
    std::printf("cuDNN time / our time: geometric mean %.3f, least %.3f, %d shapes\n",
                std::exp(log_ratios_ / shapes_), least_ratio_, shapes_);
  }

 private:
  static constexpr std::int64_t kFlushBytes = 256 << 20;

  cudaGraphExec_t Capture(int repeats, const std::function<void(Stream)>& call) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CheckCuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < repeats; ++i) {
      CheckCuda(cudaMemsetAsync(flush_, i, kFlushBytes, stream_), "cudaMemsetAsync");
      call(stream_);
    }
    CheckCuda(cudaStreamEndCapture(stream_, &graph), "end of capture");
    CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    CheckCuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return executable;
  }

  // cuDNN on the same tensors, or on keys already joined where there is a prefix.
  void AddPeers(const Case& c, const CaseData& data, int repeats,
                std::vector<Contender>& contenders) {
    if (!cudnn_.why_not().empty() || c.mask > 0) return;
    if (c.block_causal && !(c.blocks.size() == 1 && c.blocks[0].end - c.blocks[0].start == c.nq)) {
      return;
    }
    auto args = noncausal_dense_attention::Args::Contiguous(c.b, c.nq, c.nk + c.np, c.h, c.d);
    args.q = data.call.tensors.q;
    args.k = data.call.tensors.suffix.k;
    args.v = data.call.tensors.suffix.v;
    const int inner = static_cast<int>(c.h * c.d);
    if (c.np > 0) {
      joined_.push_back(AllocateRandom(c.b * (c.nk + c.np) * inner, 8, inner, 1, 0));
      args.k = static_cast<bf16*>(joined_.back());
      joined_.push_back(AllocateRandom(c.b * (c.nk + c.np) * inner, 9, inner, 1, 1));
      args.v = static_cast<bf16*>(joined_.back());
    }
    joined_.push_back(Allocate<bf16>(c.b * c.nq * inner));
    args.o = static_cast<bf16*>(joined_.back());
    try {
      contenders.push_back({"cudnn", {Capture(repeats, cudnn_.Prepare(args))}, {}});
    } catch (const Error& error) {
      std::printf("cudnn: %s\n", error.what());
    }
  }

  double Replay(cudaGraphExec_t graph) {
    CheckCuda(cudaEventRecord(start_, stream_), "cudaEventRecord");
    CheckCuda(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
    CheckCuda(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    CheckCuda(cudaStreamSynchronize(stream_), "replay");
    float ms = 0;
    CheckCuda(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return ms * 1e3;
  }

  void Report(const Case& c, const std::vector<Contender>& contenders) {
    const double flush = contenders[0].Median();
    double peer = 0, best = 1e30;
    std::string name;
    for (std::size_t i = 1; i < contenders.size(); ++i) {
      const double us = contenders[i].Median() - flush;
      if (contenders[i].name == "cudnn") {
        peer = us;
      } else if (us < best) {
        best = us;
        name = contenders[i].name;
      }
      if (log_ != nullptr) {
        std::fprintf(
            log_,
            "{\"case\":\"%s\",\"contender\":\"%s\",\"us\":%.3f,\"tflops\":%.1f,\"rounds\":%d}\n",
            c.Name().c_str(), contenders[i].name.c_str(), us, c.Flop() / us * 1e-6, rounds_);
      }
    }
    std::printf("%-30s own %-24s %8.2f us %6.1f T | cudnn %8.2f us %6.1f T | ratio %.3f\n",
                c.Name().c_str(), name.c_str(), best, c.Flop() / best * 1e-6, peer,
                peer == 0 ? 0 : c.Flop() / peer * 1e-6, peer / best);
    if (all_) {
      for (std::size_t i = 1; i < contenders.size(); ++i) {
        std::printf("    %-26s %8.2f us\n", contenders[i].name.c_str(),
                    contenders[i].Median() - flush);
      }
    }
    std::fflush(stdout);
    if (log_ != nullptr) std::fflush(log_);
    if (peer == 0) return;
    log_ratios_ += std::log(peer / best);
    least_ratio_ = std::min(least_ratio_, peer / best);
    ++shapes_;
  }

  int rounds_;
  bool all_;
  std::string prefix_;
  peers::Cudnn cudnn_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  char* flush_ = nullptr;
  std::FILE* log_ = nullptr;
  std::vector<void*> joined_;
  double log_ratios_ = 0, least_ratio_ = 1e30;
  int shapes_ = 0;
};

std::vector<Case> Set(std::string_view set) {
  std::vector<Case> cases;
  for (const std::int64_t b : {1, 2, 4}) {
    if (set == "d128") {
      for (const auto& [q, k] : {std::pair<int, int>{2352, 2352},
                                 {2352, 1024},
                                 {1120, 1120},
                                 {1120, 1024},
                                 {2560, 2560},
                                 {2560, 1024}}) {
        cases.push_back({b, 32, 128, q, k});
      }
    } else if (set == "d64") {
      for (const auto& [q, k] : {std::pair<int, int>{51, 51},
                                 {51, 1024},
                                 {2352, 51},
                                 {51, 2352},
                                 {1120, 51},
                                 {51, 1120},
                                 {126, 126},
                                 {126, 1024},
                                 {2560, 126},
                                 {126, 2560}}) {
        cases.push_back({b, 32, 64, q, k});
      }
    }
  }
  if (set == "prefix") {
    for (const auto& [q, p] :
         {std::pair<int, int>{4096, 25}, {4096, 32}, {4096, 4125}, {6144, 30}}) {
      cases.push_back({1, 32, 128, q, q, p});
    }
    cases.push_back({1, 32, 128, 4125, 4125, 0, 0, true, {{8, 4104}}});
    for (const int q : {25, 30, 32}) cases.push_back({1, 32, 128, q, q, 0, 0, true});
  } else if (set == "causal") {
    cases.push_back({1, 32, 128, 4125, 4125});
    cases.push_back({1, 32, 128, 4125, 4125, 0, 0, true, {{8, 4104}}});
    cases.push_back({1, 32, 128, 4125, 4125});
  } else if (set == "world") {
    for (const std::int64_t h : {10, 20, 40}) {
      for (const auto& [q, k] : {std::pair<int, int>{4680, 4680},
                                 {4680, 18720},
                                 {4680, 28080},
                                 {10560, 10560},
                                 {10560, 42240},
                                 {10560, 63360}}) {
        cases.push_back({1, h, 128, q, k});
      }
    }
  } else if (set == "cross") {
    for (const std::int64_t h : {10, 20, 40}) {
      for (const int q : {4680, 10560}) cases.push_back({1, h, 128, q, 512});
    }
  }
  return cases;
}

int Main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU\n");
    return 0;
  }
  if (mode == "check") return CheckAll(AwkwardCases(), argc > 2 ? argv[2] : "") != 0;
  if (mode == "small") {
    return CheckAll({{1, 2, 64, 1, 1},
                     {1, 2, 64, 70, 130},
                     {1, 2, 128, 130, 513},
                     {1, 1, 128, 130, 200, 25},
                     {1, 1, 128, 130, 130, 0, 0, true, {{5, 100}}},
                     {1, 2, 64, 70, 130, 0, 2}},
                    "") != 0;
  }
  if (mode == "once") return RunOnce(argc > 2 ? argv[2] : "");
  if (mode == "time" && argc > 2) {
    Timer timer(argv[2], argc > 3 ? std::atoi(argv[3]) : 15, argc > 4 ? argv[4] : "user");
    for (const Case& c : Set(argv[2])) timer.Measure(c);
    timer.Summary();
    return 0;
  }
  std::printf(
      "usage: attention_sm90_bench check [PREFIX] | small | once [PREFIX] | time SET [ROUNDS] "
      "[user|all|PREFIX]\n");
  return 2;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  try {
    return assay::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
