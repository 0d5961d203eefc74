#include <cuda_runtime.h>

#include "cuda/check.h"
#include "cuda/timing_probes.h"

namespace assay {
namespace {

constexpr int kThreads = 256;
constexpr int kMostSpins = 4096;

__device__ std::uint64_t DeviceNanoseconds() {
  std::uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void EmptyKernel() {}

// times: [kMostSpins] lengths in nanoseconds; count: how many were written.
__global__ void SpinKernel(long long cycles, unsigned long long* times, unsigned* count) {
  const std::uint64_t begin = DeviceNanoseconds();
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  const std::uint64_t end = DeviceNanoseconds();
  if (times == nullptr) return;
  const unsigned slot = atomicAdd(count, 1);
  if (slot < kMostSpins) times[slot] = end - begin;
}

__global__ void SumKernel(const uint4* data, std::size_t words, unsigned* sink) {
  unsigned sum = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 word = __ldcg(data + i);
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  if (sum == 0x5EED5EEDu) *sink = sum;
}

__global__ void RandomKernel(uint4* data, std::size_t words) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const auto x = static_cast<unsigned>(i * 0x9E3779B97F4A7C15ull >> 17);
    data[i] = make_uint4(x, x * 747796405u, x ^ 0xDEADBEEFu, ~x);
  }
}

class CudaTimingProbes : public TimingProbes {
 public:
  CudaTimingProbes(Accelerator& gpu, std::size_t largest)
      : blocks_(static_cast<unsigned>(8 * gpu.info().multiprocessors)), bytes_(largest) {
    CheckCuda(cudaMalloc(&from_, bytes_), "cudaMalloc of a source");
    CheckCuda(cudaMalloc(&to_, bytes_), "cudaMalloc of a target");
    CheckCuda(cudaMalloc(&times_, kMostSpins * sizeof *times_), "cudaMalloc of times");
    CheckCuda(cudaMalloc(&count_, 2 * sizeof *count_), "cudaMalloc of a counter");
    CheckCuda(cudaMemset(count_, 0, 2 * sizeof *count_), "cudaMemset");
    for (cudaStream_t* stream : {&left_, &right_}) {
      CheckCuda(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    for (cudaEvent_t* event : {&fork_, &left_done_, &right_done_}) {
      CheckCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
    }
    RandomKernel<<<blocks_, kThreads>>>(from_, bytes_ / sizeof(uint4));
    CheckCuda(cudaGetLastError(), "launch of RandomKernel");
    CheckCuda(cudaDeviceSynchronize(), "RandomKernel");
    CalibrateClock();
  }
  ~CudaTimingProbes() override {
    for (void* memory : {static_cast<void*>(from_), static_cast<void*>(to_),
                         static_cast<void*>(times_), static_cast<void*>(count_)}) {
      cudaFree(memory);
    }
    for (cudaStream_t stream : {left_, right_}) cudaStreamDestroy(stream);
    for (cudaEvent_t event : {fork_, left_done_, right_done_}) cudaEventDestroy(event);
  }

  void Empty(Stream stream) override {
    EmptyKernel<<<1, 1, 0, stream>>>();
    CheckCuda(cudaGetLastError(), "launch of EmptyKernel");
  }

  void Spin(Stream stream, double ns) override {
    SpinKernel<<<1, 1, 0, stream>>>(Cycles(ns), times_, count_);
    CheckCuda(cudaGetLastError(), "launch of SpinKernel");
  }

  std::vector<double> SpinTimes() override {
    unsigned count = 0;
    CheckCuda(cudaMemcpy(&count, count_, sizeof count, cudaMemcpyDeviceToHost), "cudaMemcpy");
    count = count < kMostSpins ? count : kMostSpins;
    std::vector<unsigned long long> raw(count);
    CheckCuda(cudaMemcpy(raw.data(), times_, count * sizeof raw[0], cudaMemcpyDeviceToHost),
              "cudaMemcpy");
    CheckCuda(cudaMemset(count_, 0, sizeof count), "cudaMemset");
    return {raw.begin(), raw.end()};
  }

  void ParallelSpins(Stream stream, double ns) override {
    CheckCuda(cudaEventRecord(fork_, stream), "cudaEventRecord");
    SpinOnSide(left_, left_done_, ns);
    SpinOnSide(right_, right_done_, ns);
    CheckCuda(cudaStreamWaitEvent(stream, left_done_), "cudaStreamWaitEvent");
    CheckCuda(cudaStreamWaitEvent(stream, right_done_), "cudaStreamWaitEvent");
  }

  void UnjoinedSpin(Stream stream, double ns) override {
    Empty(stream);
    CheckCuda(cudaEventRecord(fork_, stream), "cudaEventRecord");
    SpinOnSide(left_, left_done_, ns);
  }

  void SpinElsewhere(double ns) override {
    SpinKernel<<<1, 1, 0, right_>>>(Cycles(ns), nullptr, nullptr);
    CheckCuda(cudaGetLastError(), "launch of SpinKernel");
  }

  void Copy(Stream stream, std::size_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to_, from_, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
  }

  void Read(Stream stream, std::size_t bytes) override {
    SumKernel<<<blocks_, kThreads, 0, stream>>>(from_, bytes / sizeof(uint4), count_ + 1);
    CheckCuda(cudaGetLastError(), "launch of SumKernel");
  }

  void PinnedRead(Stream stream, std::size_t bytes) override {
    if (!set_aside_) {  // not allowed inside a capture: the first, direct call does it
      CheckCuda(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, bytes), "cudaDeviceSetLimit");
      set_aside_ = true;
    }
    cudaLaunchAttribute window{};
    window.id = cudaLaunchAttributeAccessPolicyWindow;
    window.val.accessPolicyWindow.base_ptr = from_;
    window.val.accessPolicyWindow.num_bytes = bytes;
    window.val.accessPolicyWindow.hitRatio = 1;
    window.val.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    window.val.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks_;
    config.blockDim = kThreads;
    config.stream = stream;
    config.attrs = &window;
    config.numAttrs = 1;
    CheckCuda(cudaLaunchKernelEx(&config, SumKernel, static_cast<const uint4*>(from_),
                                 bytes / sizeof(uint4), count_ + 1),
              "launch of SumKernel");
  }

 private:
  void SpinOnSide(cudaStream_t side, cudaEvent_t done, double ns) {
    CheckCuda(cudaStreamWaitEvent(side, fork_), "cudaStreamWaitEvent");
    SpinKernel<<<1, 1, 0, side>>>(Cycles(ns), times_, count_);
    CheckCuda(cudaGetLastError(), "launch of SpinKernel");
    CheckCuda(cudaEventRecord(done, side), "cudaEventRecord");
  }

  long long Cycles(double ns) const { return static_cast<long long>(ns * cycles_per_ns_); }

  // Cycles of the SM's clock per nanosecond of the device's clock, after a spin that wakes it up.
  void CalibrateClock() {
    constexpr long long kCycles = 20'000'000;
    for (int attempt = 0; attempt < 2; ++attempt) {
      SpinKernel<<<1, 1>>>(kCycles, times_, count_);
      CheckCuda(cudaGetLastError(), "launch of SpinKernel");
      CheckCuda(cudaDeviceSynchronize(), "SpinKernel");
      cycles_per_ns_ = static_cast<double>(kCycles) / SpinTimes().front();
    }
  }

  unsigned blocks_;
  std::size_t bytes_;
  uint4 *from_ = nullptr, *to_ = nullptr;
  unsigned long long* times_ = nullptr;
  unsigned* count_ = nullptr;
  cudaStream_t left_ = nullptr, right_ = nullptr;
  cudaEvent_t fork_ = nullptr, left_done_ = nullptr, right_done_ = nullptr;
  double cycles_per_ns_ = 1.98;
  bool set_aside_ = false;
};

}  // namespace

std::unique_ptr<TimingProbes> MakeTimingProbes(Accelerator& gpu, std::size_t largest) {
  return std::make_unique<CudaTimingProbes>(gpu, largest);
}

}  // namespace assay
