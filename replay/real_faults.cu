#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/check.h"
#include "replay/faulty_family.h"
#include "replay/real_faults.h"

namespace assay {
namespace {

struct Arrays {
  std::int64_t n = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* sum = nullptr;
};

constexpr int kThreads = 256;

unsigned Blocks(const Arrays& arrays) {
  return static_cast<unsigned>((arrays.n + kThreads - 1) / kThreads);
}

__global__ void SumKernel(Arrays arrays) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arrays.n) arrays.sum[i] = arrays.a[i] + arrays.b[i];
}

// One float behind the end: inside the guard band.
__global__ void SumPastTheEndKernel(Arrays arrays) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arrays.n) arrays.sum[i] = arrays.a[i] + arrays.b[i];
  if (i == 0) arrays.sum[arrays.n] = 0;
}

__global__ void SumIntoInputKernel(Arrays arrays) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arrays.n) arrays.sum[i] = arrays.a[i] + arrays.b[i];
  if (i == 0) const_cast<float*>(arrays.a)[0] += 1;
}

__global__ void FarAwayKernel(Arrays arrays) { arrays.sum[std::int64_t{1} << 40] = 1; }

__global__ void EndlessKernel(volatile const float* a) {
  while (a[0] == a[0] || a[0] != 0) {
  }
}

// Counts its calls in memory of its own and stops working after the fourth.
__global__ void LazyKernel(Arrays arrays, unsigned* calls) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (*calls < 4 && i < arrays.n) arrays.sum[i] = arrays.a[i] + arrays.b[i];
}
__global__ void CountKernel(unsigned* calls) { ++*calls; }

__global__ void CompareKernel(Arrays arrays, const float* kept_a, unsigned* different) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arrays.n && arrays.a[i] != kept_a[i]) *different = 1;
}
__global__ void CopyIfSameKernel(Arrays arrays, const float* kept_sum, const unsigned* different) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < arrays.n && *different == 0) arrays.sum[i] = kept_sum[i];
}

Backend Make(const std::string& name, DeviceCall (*prepare)(const Arrays&)) {
  Backend backend;
  backend.name = name;
  backend.summary = "test backend on a GPU";
  backend.device = "cuda";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.prepare = [prepare](const Problem& problem, const Bundle&, const Bundle& inputs,
                              Bundle& outputs) {
    return prepare({problem.axis("N"), inputs["a"].as<float>(), inputs["b"].as<float>(),
                    outputs["sum"].as<float>()});
  };
  return backend;
}

template <void (*Kernel)(Arrays)>
DeviceCall Launch(const Arrays& arrays) {
  return [arrays](Stream stream) {
    Kernel<<<Blocks(arrays), kThreads, 0, stream>>>(arrays);
    CheckCuda(cudaGetLastError(), "launch");
  };
}

cudaStream_t OwnStream() {
  static cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    CheckCuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate");
    return made;
  }();
  return stream;
}

DeviceCall Elsewhere(const Arrays& arrays) {
  return [arrays](Stream) {
    SumKernel<<<Blocks(arrays), kThreads, 0, OwnStream()>>>(arrays);
    CheckCuda(cudaGetLastError(), "launch");
  };
}

// A token kernel on the given stream, the work on another one: the call "returns early".
DeviceCall EarlyReturn(const Arrays& arrays) {
  return [arrays](Stream stream) {
    CountKernel<<<1, 1, 0, stream>>>(reinterpret_cast<unsigned*>(arrays.sum));
    SumKernel<<<Blocks(arrays), kThreads, 0, OwnStream()>>>(arrays);
    CheckCuda(cudaGetLastError(), "launch");
  };
}

DeviceCall Unjoined(const Arrays& arrays) {
  return [arrays](Stream stream) {
    cudaEvent_t fork = nullptr;
    CheckCuda(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), "cudaEventCreate");
    CheckCuda(cudaEventRecord(fork, stream), "cudaEventRecord");
    CheckCuda(cudaStreamWaitEvent(OwnStream(), fork), "cudaStreamWaitEvent");
    SumKernel<<<Blocks(arrays), kThreads, 0, OwnStream()>>>(arrays);
    CheckCuda(cudaEventDestroy(fork), "cudaEventDestroy");
  };
}

DeviceCall Synchronises(const Arrays& arrays) {
  return [arrays](Stream stream) {
    SumKernel<<<Blocks(arrays), kThreads, 0, stream>>>(arrays);
    CheckCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  };
}

DeviceCall Lazy(const Arrays& arrays) {
  unsigned* calls = nullptr;
  CheckCuda(cudaMalloc(&calls, sizeof *calls), "cudaMalloc");
  CheckCuda(cudaMemset(calls, 0, sizeof *calls), "cudaMemset");
  return [arrays, calls](Stream stream) {
    LazyKernel<<<Blocks(arrays), kThreads, 0, stream>>>(arrays, calls);
    CountKernel<<<1, 1, 0, stream>>>(calls);
    CheckCuda(cudaGetLastError(), "launch");
  };
}

// What is enqueued first, for the checks, is honest and keeps input and result. What is enqueued
// later, into timed graphs, finds known content again and does nothing on other.
DeviceCall KnowsTheChecks(const Arrays& arrays) {
  const std::size_t bytes = static_cast<std::size_t>(arrays.n) * sizeof(float);
  float *kept_a = nullptr, *kept_sum = nullptr;
  unsigned* different = nullptr;
  CheckCuda(cudaMalloc(&kept_a, bytes), "cudaMalloc");
  CheckCuda(cudaMalloc(&kept_sum, bytes), "cudaMalloc");
  CheckCuda(cudaMalloc(&different, sizeof *different), "cudaMalloc");
  return [=, calls = 0](Stream stream) mutable {
    const auto copy = [&](float* to, const float* from) {
      CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
    };
    if (++calls <= 2) {
      SumKernel<<<Blocks(arrays), kThreads, 0, stream>>>(arrays);
      copy(kept_a, arrays.a);
      copy(kept_sum, arrays.sum);
    } else {
      CheckCuda(cudaMemsetAsync(different, 0, sizeof *different, stream), "memset");
      CompareKernel<<<Blocks(arrays), kThreads, 0, stream>>>(arrays, kept_a, different);
      CopyIfSameKernel<<<Blocks(arrays), kThreads, 0, stream>>>(arrays, kept_sum, different);
    }
    CheckCuda(cudaGetLastError(), "launch");
  };
}

DeviceCall Hang(const Arrays& arrays) {
  return [arrays](Stream stream) {
    EndlessKernel<<<1, 1, 0, stream>>>(arrays.a);
    CheckCuda(cudaGetLastError(), "launch");
  };
}

DeviceCall TooMuchMemory(const Arrays& arrays) {
  void* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, std::size_t{1} << 50), "cudaMalloc of a petabyte");
  return Launch<SumKernel>(arrays);
}

DeviceCall Pins(const Arrays& arrays) {
  CheckCuda(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20), "cudaDeviceSetLimit");
  return Launch<SumKernel>(arrays);
}

}  // namespace

const Registry& RealFaultsRegistry() {
  static const Registry registry = [] {
    Family family = MakeFaultyFamily();
    family.backends = {
        Make("good", Launch<SumKernel>),
        Make("writes_behind", Launch<SumPastTheEndKernel>),
        Make("modifies_input", Launch<SumIntoInputKernel>),
        Make("illegal_address", Launch<FarAwayKernel>),
        Make("elsewhere", Elsewhere),
        Make("early_return", EarlyReturn),
        Make("unjoined", Unjoined),
        Make("synchronises", Synchronises),
        Make("lazy", Lazy),
        Make("knows_the_checks", KnowsTheChecks),
        Make("hangs", Hang),
        Make("too_much_memory", TooMuchMemory),
        Make("pins", Pins),
    };
    return Registry({family});
  }();
  return registry;
}

}  // namespace assay
