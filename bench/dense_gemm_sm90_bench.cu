// dense_gemm_bf16_nt on the GPU: our kernels and cuBLASLt's candidates in one process, interleaved
// in shuffled order. Stand-alone, so that it can be carried to a machine that has only a driver.
//   dense_gemm_sm90_bench check [PREFIX]   every kernel against fp64 and against the generic one
//   dense_gemm_sm90_bench small [PREFIX]   the same at three small shapes, for sanitizers
//   dense_gemm_sm90_bench tune [ROUNDS] [M,M,..] [REST_MS]     every kernel in several orders
//   dense_gemm_sm90_bench compare [ROUNDS] [M,M,..] [REST_MS]  the plan that a user gets
// Method: per sample a write of 256 MB (flushes L2), then events around the replay of a graph with
// one call; REST_MS of idling before each sample keep the chip cool (0: at its power limit); random
// data, inputs rotate over copies; median over rounds. JSON lines go to the file
// $OUT/dense_gemm_sm90_<mode>.jsonl when OUT is set.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/error.h"
#include "cuda/clocks.h"
#include "cuda/random_fill.h"
#include "ops/dense_gemm_bf16_nt/check_sm90.cuh"
#include "ops/dense_gemm_bf16_nt/sm90.h"
#include "peers/cublaslt_gemm.h"
#include "peers/loader.h"

namespace assay {
namespace {

using dense_gemm_bf16_nt::Args;
using dense_gemm_bf16_nt::CheckOnDevice;
using dense_gemm_bf16_nt::ChoosePlan;
using dense_gemm_bf16_nt::CountDifferences;
using dense_gemm_bf16_nt::Plan;
using dense_gemm_bf16_nt::PrepareCuda;

template <class T>
T* Allocate(std::int64_t count) {
  void* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(memory);
}

bf16* AllocateRandom(std::int64_t count, std::uint64_t key, std::uint64_t tensor) {
  bf16* data = Allocate<bf16>(count);
  FillUnitNormal(DType::kBF16, reinterpret_cast<std::byte*>(data), count, key, tensor, nullptr);
  return data;
}

std::FILE* OpenLog(const char* mode) {
  const char* folder = std::getenv("OUT");
  if (folder == nullptr) return nullptr;
  return std::fopen((std::string(folder) + "/dense_gemm_sm90_" + mode + ".jsonl").c_str(), "w");
}

// One problem with fresh random operands; C starts as NaN.
struct Operands {
  Args args;
  Operands(std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t key) {
    args = {m, n,
            k, AllocateRandom(m * k, key, 0),
            k, AllocateRandom(n * k, key, 1),
            k, Allocate<bf16>(m * n),
            n};
    Poison();
  }
  void Poison() {
    CheckCuda(cudaMemset(args.c, 0xFF, static_cast<std::size_t>(args.m * args.n) * 2),
              "cudaMemset");
  }
  ~Operands() {
    cudaFree(const_cast<bf16*>(args.a));
    cudaFree(const_cast<bf16*>(args.b));
    cudaFree(args.c);
  }
  Operands(const Operands&) = delete;
};

using Shapes = std::vector<std::array<std::int64_t, 3>>;  // M, N, K
const Shapes kAllShapes = {{4125, 4096, 4096}, {4096, 4096, 4096}, {1, 4096, 4096},
                           {129, 512, 1024},   {16, 2560, 8192},   {300, 4088, 72},
                           {4125, 12288, 320}, {640, 4096, 12288}, {2048, 2048, 64}};
const Shapes kSmallShapes = {{129, 520, 328}, {300, 256, 512}, {64, 1024, 64}};

int Check(const Shapes& shapes, std::string_view prefix) {
  int failures = 0;
  std::printf("%-20s %18s %9s %9s %9s\n", "kernel", "shape", "outside", ">1ulp", "differ");
  for (const auto& [m, n, k] : shapes) {
    Operands truth(m, (n + 7) / 8 * 8, k, 77);
    truth.args.n = n;
    PrepareCuda(truth.args, {"generic"})(nullptr);
    for (const std::string_view kernel : dense_gemm_bf16_nt::Sm90Kernels()) {
      if (!kernel.starts_with(prefix)) continue;
      for (const bool by_columns : {false, true}) {
        if (kernel == "generic" && by_columns) continue;
        Args args = truth.args;
        args.c = Allocate<bf16>(m * args.ldc);
        CheckCuda(cudaMemset(args.c, 0xFF, static_cast<std::size_t>(m * args.ldc) * 2),
                  "cudaMemset");
        PrepareCuda(args, {kernel, by_columns ? 3 : 8, by_columns})(nullptr);
        CheckCuda(cudaDeviceSynchronize(), std::string(kernel).c_str());
        const auto differ = CountDifferences(args, truth.args);
        // fp64 is the truth for the generic kernel; the others must have its bits.
        dense_gemm_bf16_nt::CheckResult result;
        if (kernel == "generic" || differ != 0) result = CheckOnDevice(args);
        failures += result.outside != 0 || differ != 0;
        std::printf("%-20s %5ldx%5ldx%5ld %9llu %9llu %9llu%s\n", std::string(kernel).c_str(), m, n,
                    k, result.outside, result.beyond_one_ulp, differ,
                    by_columns ? " by columns" : "");
        if (result.outside != 0) {
          std::printf("   first at row %llu column %llu\n", result.first / n, result.first % n);
        }
        std::fflush(stdout);
        cudaFree(args.c);
      }
    }
  }
  std::printf("%d failures\n", failures);
  return failures;
}

// A contender: its call for each copy of the operands, as an instantiated graph.
struct Contender {
  std::string name, what;  // what: cuBLASLt's numbers of its algorithm
  std::vector<cudaGraphExec_t> graphs;
  std::vector<double> us;
  double Median() const {
    std::vector<double> sorted = us;
    std::sort(sorted.begin(), sorted.end());
    return sorted.empty() ? 0 : sorted[sorted.size() / 2];
  }
};

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

// Every kernel but the generic one, in several orders of its tiles.
std::vector<Plan> PlansToTry() {
  std::vector<Plan> plans;
  for (const std::string_view kernel : dense_gemm_bf16_nt::Sm90Kernels()) {
    if (kernel == "generic") continue;
    for (const int band : {4, 8}) plans.push_back({kernel, band, false});
    for (const int band : {4, 16}) plans.push_back({kernel, band, true});
  }
  return plans;
}

std::string PlanName(const Plan& plan) {
  return std::string(plan.kernel) + "/" + std::to_string(plan.band) + (plan.by_columns ? "c" : "r");
}

class Tuner {
 public:
  // `tune`: all plans, else the one that a user gets.
  Tuner(bool tune, int rest_ms) : tune_(tune), rest_ms_(rest_ms) {
    CheckCuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&start_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&stop_), "cudaEventCreate");
    flush_ = Allocate<char>(kFlushBytes);
    char bus[32] = {};
    CheckCuda(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0), "cudaDeviceGetPCIBusId");
    bus_ = bus;
    log_ = OpenLog(tune ? "tune" : "compare");
    library_.reset(new peers::CublasLtSession(peers::VendorPaths("libcublasLt.so.13")));
    if (library_->api.why_not.empty()) return;
    std::printf("no cuBLASLt: %s\n", library_->api.why_not.c_str());
    library_ = nullptr;
  }

  void Shape(std::int64_t m, std::int64_t n, std::int64_t k, int rounds) {
    const std::vector<Contender> contenders = Measure(m, n, k, rounds);
    double best_library = 1e30, best_own = 1e30;
    std::string library_name, own_name;
    for (const Contender& contender : contenders) {
      const bool library = contender.name.starts_with("lt");
      double& best = library ? best_library : best_own;
      if (contender.Median() < best) {
        best = contender.Median();
        (library ? library_name : own_name) = contender.name;
      }
    }
    const double tera = 2e-6 * m * n * k;  // FLOP per us -> TFLOP/s
    std::printf(
        "%5ld %5ld %5ld  own %-24s %8.1f us %6.1f T | %-4s %8.1f us %6.1f T | lt0 %8.1f | ratio "
        "%.3f\n",
        m, n, k, own_name.c_str(), best_own, tera / best_own, library_name.c_str(), best_library,
        tera / best_library, contenders[0].Median(), best_library / best_own);
    log_ratios_ += std::log(best_library / best_own);
    least_ratio_ = std::min(least_ratio_, best_library / best_own);
    ++shapes_;
    if (tune_) PrintKernels(contenders, best_library);
    std::fflush(stdout);
  }

  void Summary() const {
    std::printf("best library time / our time: geometric mean %.3f, least %.3f, %d shapes\n",
                std::exp(log_ratios_ / shapes_), least_ratio_, shapes_);
  }

 private:
  static constexpr std::int64_t kFlushBytes = 256 << 20;

  // The best order of each kernel.
  static void PrintKernels(const std::vector<Contender>& contenders, double best_library) {
    std::map<std::string, const Contender*> best;
    for (const Contender& contender : contenders) {
      const std::string kernel = contender.name.substr(0, contender.name.find('/'));
      if (kernel.starts_with("lt")) continue;
      const Contender*& entry = best[kernel];
      if (entry == nullptr || contender.Median() < entry->Median()) entry = &contender;
    }
    for (const auto& [kernel, contender] : best) {
      std::printf("      %-24s %.3f\n", contender->name.c_str(),
                  best_library / contender->Median());
    }
  }

  std::vector<Contender> Measure(std::int64_t m, std::int64_t n, std::int64_t k, int rounds) {
    std::vector<std::unique_ptr<Operands>> copies;
    for (std::uint64_t copy = 0; copy < 2; ++copy) {
      copies.push_back(std::make_unique<Operands>(m, n, k, seed_ += 10));
    }
    std::vector<Contender> contenders;
    if (library_ != nullptr) {
      const peers::CublasLtGemm product(library_, copies[0]->args);
      library_->workspace();  // allocated here: a capture may not
      for (const peers::CublasLtAlgorithm& algorithm : product.Candidates()) {
        Contender contender{"lt" + std::to_string(contenders.size()),
                            peers::AlgorithmText(library_->api, algorithm),
                            {},
                            {}};
        for (const auto& copy : copies) {
          contender.graphs.push_back(Capture(
              stream_, [&](Stream stream) { product.Enqueue(algorithm, copy->args, stream); }));
        }
        contenders.push_back(contender);
      }
    }
    for (const Plan& plan : tune_ ? PlansToTry() : std::vector{ChoosePlan(copies[0]->args)}) {
      Contender contender{PlanName(plan), "", {}, {}};
      for (const auto& copy : copies) {
        contender.graphs.push_back(Capture(stream_, PrepareCuda(copy->args, plan)));
      }
      contenders.push_back(contender);
    }
    const ClockReading before = ReadClocks(bus_);
    Sample(contenders, rounds);
    const ClockReading after = ReadClocks(bus_);
    Log(m, n, k, contenders, before, after);
    for (Contender& contender : contenders) {
      for (const cudaGraphExec_t graph : contender.graphs) cudaGraphExecDestroy(graph);
    }
    return contenders;
  }

  // Round 0 warms up.
  void Sample(std::vector<Contender>& contenders, int rounds) {
    std::vector<std::size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int round = 0; round <= rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random_);
      for (const std::size_t index : order) {
        Contender& contender = contenders[index];
        if (rest_ms_ > 0) std::this_thread::sleep_for(std::chrono::milliseconds(rest_ms_));
        CheckCuda(cudaMemsetAsync(flush_, round, kFlushBytes, stream_), "flush");
        CheckCuda(cudaEventRecord(start_, stream_), "cudaEventRecord");
        CheckCuda(cudaGraphLaunch(
                      contender.graphs[static_cast<std::size_t>(round) % contender.graphs.size()],
                      stream_),
                  "cudaGraphLaunch");
        CheckCuda(cudaEventRecord(stop_, stream_), "cudaEventRecord");
        CheckCuda(cudaStreamSynchronize(stream_), contender.name.c_str());
        float ms = 0;
        CheckCuda(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
        if (round > 0) contender.us.push_back(ms * 1e3);
      }
    }
  }

  void Log(std::int64_t m, std::int64_t n, std::int64_t k, const std::vector<Contender>& contenders,
           const ClockReading& before, const ClockReading& after) {
    if (log_ == nullptr) return;
    for (const Contender& contender : contenders) {
      std::fprintf(log_,
                   "{\"m\":%ld,\"n\":%ld,\"k\":%ld,\"contender\":\"%s\",\"what\":\"%s\","
                   "\"median_us\":%.2f,\"sm_mhz\":[%.0f,%.0f],\"power_w\":[%.0f,%.0f],\"us\":[",
                   m, n, k, contender.name.c_str(), contender.what.c_str(), contender.Median(),
                   before.sm_mhz, after.sm_mhz, before.power_w, after.power_w);
      for (std::size_t s = 0; s < contender.us.size(); ++s) {
        std::fprintf(log_, "%s%.2f", s == 0 ? "" : ",", contender.us[s]);
      }
      std::fprintf(log_, "]}\n");
    }
    std::fflush(log_);
  }

  bool tune_ = false;
  int rest_ms_ = 0;
  double log_ratios_ = 0, least_ratio_ = 1e30;
  int shapes_ = 0;
  std::shared_ptr<peers::CublasLtSession> library_;  // null: not there
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  char* flush_ = nullptr;
  std::string bus_;
  std::FILE* log_ = nullptr;
  std::mt19937_64 random_{20261130};
  std::uint64_t seed_ = 1;
};

int Time(bool tune, int argc, char** argv) {
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 21;
  std::vector<std::int64_t> sizes = {4096, 4125, 6144, 8192, 12288, 16384, 24576};
  if (argc > 3) {
    sizes.clear();
    for (char* token = std::strtok(argv[3], ","); token != nullptr;
         token = std::strtok(nullptr, ",")) {
      sizes.push_back(std::atoll(token));
    }
  }
  Tuner tuner(tune, argc > 4 ? std::atoi(argv[4]) : 0);
  const std::int64_t layers[][2] = {{12288, 4096}, {4096, 4096}, {4096, 12288}};
  for (const auto& [n, k] : layers) {
    for (const std::int64_t m : sizes) tuner.Shape(m, n, k, rounds);
  }
  tuner.Summary();
  return 0;
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  try {
    const std::string mode = argc > 1 ? argv[1] : "";
    const std::string_view prefix = argc > 2 ? argv[2] : "";
    if (mode == "check") return assay::Check(assay::kAllShapes, prefix) == 0 ? 0 : 1;
    if (mode == "small") return assay::Check(assay::kSmallShapes, prefix) == 0 ? 0 : 1;
    if (mode == "tune" || mode == "compare") return assay::Time(mode == "tune", argc, argv);
    std::fprintf(stderr,
                 "usage: dense_gemm_sm90_bench check|small [PREFIX] | tune|compare [ROUNDS] "
                 "[M,M,..] [REST_MS]\n");
    return 2;
  } catch (const assay::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.fault());
  }
}
