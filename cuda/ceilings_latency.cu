// What it costs to start, to wait and to fetch: kernels in a graph, barriers, dependent loads.
#include <cstdint>

#include "base/error.h"
#include "base/random.h"
#include "cuda/ceilings_timing.cuh"

namespace assay {
namespace ceilings {
namespace {

using u32 = unsigned;
using u64 = unsigned long long;

constexpr int kSamples = 15;

__global__ void EmptyKernel() {}

// One thread continues what the kernel before it left.
__global__ void CountKernel(u32* counter) { *counter += 1; }

// The same, but the launch overlaps the kernel before (PTX griddepcontrol).
__global__ void OverlappedCountKernel(u32* counter) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
  *counter += 1;
}

__device__ u32 LoadAcquire(const u32* address) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// All blocks have come `round` times when the counter has reached round * gridDim.x.
__device__ void GridBarrier(u32* counter, u32 round) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    while (LoadAcquire(counter) < round * gridDim.x) {
    }
  }
  __syncthreads();
}

__global__ void GridBarrierKernel(int rounds, u32* counter) {
  for (int round = 1; round <= rounds; ++round) GridBarrier(counter, static_cast<u32>(round));
}

// Proves that the barrier is one: a block that ran ahead would see its neighbour's old number.
__global__ void GridBarrierCheckKernel(int rounds, u32* counter, u32* slots, u32* errors) {
  const u32 neighbour = (blockIdx.x + 1) % gridDim.x;
  for (int i = 1; i <= rounds; ++i) {
    if (threadIdx.x == blockDim.x - 1) slots[blockIdx.x] = static_cast<u32>(i);
    GridBarrier(counter, static_cast<u32>(2 * i - 1));
    if (threadIdx.x == 0 && LoadAcquire(slots + neighbour) != static_cast<u32>(i)) {
      atomicAdd(errors, 1);
    }
    GridBarrier(counter, static_cast<u32>(2 * i));
  }
}

__device__ void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Every block adds to the shared memory of the next one each round; the sums prove the rounds.
__global__ void ClusterBarrierKernel(int rounds) {
  for (int round = 0; round < rounds; ++round) ClusterBarrier();
}

__global__ void ClusterBarrierCheckKernel(int rounds, u32* errors) {
  __shared__ u32 slot;
  u32 rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  const auto own = static_cast<u32>(__cvta_generic_to_shared(&slot));
  u32 next;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(next) : "r"(own), "r"((rank + 1) % size));
  for (int i = 1; i <= rounds; ++i) {
    if (threadIdx.x == 0) {
      asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(next), "r"(i * 64 + rank) : "memory");
    }
    ClusterBarrier();
    const u32 expected = static_cast<u32>(i) * 64 + (rank + size - 1) % size;
    if (threadIdx.x == 0 && *static_cast<volatile u32*>(&slot) != expected) atomicAdd(errors, 1);
    ClusterBarrier();
  }
}

// links[i] is the place of the next link, in words of `memory`; spread once, then followed.
__global__ void SpreadLinksKernel(const u32* places, u32 count, u32 stride_words, u32* memory) {
  const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  memory[std::size_t{places[i]} * stride_words] = places[(i + 1) % count];
}

__global__ void FollowLinksKernel(const u32* memory, u32 stride_words, u32 start, u32 hops,
                                  u32* end) {
  u32 place = start;
  for (u32 hop = 0; hop < hops; ++hop) {
    const u32* address = memory + std::size_t{place} * stride_words;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(place) : "l"(address) : "memory");
  }
  *end = place;
}

__global__ void OverwriteKernel(uint4* data, std::size_t words, u32 value) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    data[i] = make_uint4(value, value + 1, static_cast<u32>(i), value);
  }
}

// Nanoseconds per step from runs of two lengths, so that what is constant falls out.
std::vector<double> PerStep(const std::function<double(int steps)>& time, int few, int many) {
  time(few);
  time(many);
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) {
    const double longer = time(many), shorter = time(few);
    samples.push_back((longer - shorter) / (many - few));
  }
  return samples;
}

u32 Fetch(const u32* value) {
  u32 host = 0;
  CheckCuda(cudaMemcpy(&host, value, sizeof host, cudaMemcpyDefault), "cudaMemcpy");
  return host;
}

// Some tens of milliseconds of work, so that clocks have risen.
void WarmUp(const Stopwatch& watch) {
  const DeviceMemory<uint4> buffer(std::size_t{1} << 24);
  for (u32 i = 0; i < 200; ++i) {
    OverwriteKernel<<<1024, 256, 0, watch.stream()>>>(buffer.data(), buffer.size(), i);
  }
  watch.Wait();
}

class Launches {
 public:
  Launches() : counter_(1) { WarmUp(watch_); }

  std::vector<Ceiling> Measure() {
    const auto sms = static_cast<u32>(Multiprocessors());
    std::vector<Ceiling> all;
    all.push_back(Chain("launch", "empty kernel of 1 block x 32 threads",
                        [](cudaStream_t stream) { EmptyKernel<<<1, 32, 0, stream>>>(); }));
    all.push_back(Chain("launch_full", "empty kernel of 1024 threads on every multiprocessor",
                        [sms](cudaStream_t stream) { EmptyKernel<<<sms, 1024, 0, stream>>>(); }));
    all.push_back(CountingChain(
        "dependent_launch", "kernel that adds 1 to a word in memory",
        [this](cudaStream_t stream) { CountKernel<<<1, 1, 0, stream>>>(counter_.data()); }));
    all.push_back(CountingChain("programmatic_launch",
                                "the same with programmatic dependent launch",
                                [this](cudaStream_t stream) { LaunchOverlapped(stream); }));
    all.push_back(EmptyGraph());
    return all;
  }

 private:
  static constexpr int kFew = 100, kMany = 1100;

  Ceiling Chain(const char* name, const std::string& what,
                const std::function<void(cudaStream_t)>& launch) {
    const Graph few(watch_, kFew, launch), many(watch_, kMany, launch);
    const auto time = [&](int steps) {
      return watch_.Time([&](cudaStream_t stream) { (steps == kFew ? few : many).Launch(stream); });
    };
    return Median(name, "ns", what + ", per node of a graph: chain of 1100 less chain of 100",
                  PerStep(time, kFew, kMany));
  }

  // Both graphs run once when built (and one kernel alone before), once before the samples, and
  // once per sample.
  Ceiling CountingChain(const char* name, const std::string& what,
                        const std::function<void(cudaStream_t)>& launch) {
    CheckCuda(cudaMemset(counter_.data(), 0, sizeof(u32)), "cudaMemset");
    Ceiling result = Chain(name, what, launch);
    RequireEqual(Fetch(counter_.data()), 2 + (kFew + kMany) * (2 + kSamples), name);
    return result;
  }

  void LaunchOverlapped(cudaStream_t stream) const {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1);
    config.blockDim = dim3(1);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CheckCuda(cudaLaunchKernelEx(&config, OverlappedCountKernel, counter_.data()),
              "cudaLaunchKernelEx");
  }

  // What every time of a graph replay contains.
  Ceiling EmptyGraph() {
    const Graph graph(watch_, 1, [](cudaStream_t stream) { EmptyKernel<<<1, 32, 0, stream>>>(); });
    std::vector<double> samples;
    for (int i = 0; i < 200; ++i) {
      samples.push_back(watch_.Time([&](cudaStream_t stream) { graph.Launch(stream); }));
    }
    return Median("event_overhead", "ns", "graph of one empty kernel between two events",
                  std::move(samples));
  }

  Stopwatch watch_;
  DeviceMemory<u32> counter_;
};

class Barriers {
 public:
  Barriers() : counter_(1), errors_(1), slots_(1024) { WarmUp(watch_); }

  std::vector<Ceiling> Measure() {
    std::vector<Ceiling> all;
    CheckGrid();
    for (const int threads : {128, 1024}) all.push_back(Grid(threads));
    for (const int blocks : {2, 8, 16}) {
      CheckCluster(blocks);
      all.push_back(Cluster(blocks));
    }
    return all;
  }

 private:
  // A cooperative launch fails instead of hanging when not all blocks fit at once.
  void LaunchGrid(const void* kernel, int threads, void** arguments, cudaStream_t stream) const {
    CheckCuda(cudaMemsetAsync(counter_.data(), 0, sizeof(u32), stream), "cudaMemset");
    CheckCuda(cudaLaunchCooperativeKernel(kernel, dim3(Multiprocessors()), dim3(threads), arguments,
                                          0, stream),
              "cudaLaunchCooperativeKernel");
  }

  void CheckGrid() const {
    int rounds = 500;
    u32 *counter = counter_.data(), *slots = slots_.data(), *errors = errors_.data();
    void* arguments[] = {&rounds, &counter, &slots, &errors};
    CheckCuda(cudaMemset(errors, 0, sizeof(u32)), "cudaMemset");
    LaunchGrid(reinterpret_cast<const void*>(GridBarrierCheckKernel), 256, arguments,
               watch_.stream());
    watch_.Wait();
    RequireEqual(Fetch(errors), 0, "grid_barrier: blocks that ran ahead");
    RequireEqual(Fetch(counter), static_cast<std::uint64_t>(2 * rounds) * Multiprocessors(),
                 "grid_barrier");
  }

  Ceiling Grid(int threads) const {
    const auto time = [&](int steps) {
      return watch_.Time([&](cudaStream_t stream) {
        u32* counter = counter_.data();
        void* arguments[] = {&steps, &counter};
        LaunchGrid(reinterpret_cast<const void*>(GridBarrierKernel), threads, arguments, stream);
      });
    };
    std::vector<double> samples = PerStep(time, 200, 2200);
    RequireEqual(Fetch(counter_.data()), std::uint64_t{200} * Multiprocessors(), "grid_barrier");
    return Median("grid_barrier_" + std::to_string(threads), "ns",
                  "counter in memory (release add, acquire spin), a block of " +
                      std::to_string(threads) +
                      " threads on every multiprocessor: 2200 rounds less 200",
                  std::move(samples));
  }

  template <class... Arguments>
  void LaunchCluster(void (*kernel)(Arguments...), int blocks, cudaStream_t stream,
                     Arguments... arguments) const {
    // More than 8 blocks is a size that not every GPU of the architecture must have.
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
              "cudaFuncSetAttribute");
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<u32>(blocks);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<u32>(blocks));
    config.blockDim = dim3(128);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CheckCuda(cudaLaunchKernelEx(&config, kernel, arguments...), "cudaLaunchKernelEx");
  }

  void CheckCluster(int blocks) const {
    CheckCuda(cudaMemset(errors_.data(), 0, sizeof(u32)), "cudaMemset");
    LaunchCluster(ClusterBarrierCheckKernel, blocks, watch_.stream(), 500, errors_.data());
    watch_.Wait();
    RequireEqual(Fetch(errors_.data()), 0, "cluster_barrier: blocks that ran ahead");
  }

  Ceiling Cluster(int blocks) const {
    const auto time = [&](int steps) {
      return watch_.Time(
          [&](cudaStream_t stream) { LaunchCluster(ClusterBarrierKernel, blocks, stream, steps); });
    };
    return Median(
        "cluster_barrier_" + std::to_string(blocks), "ns",
        "cluster of " + std::to_string(blocks) + " blocks x 128 threads: 11000 rounds less 1000",
        PerStep(time, 1000, 11000));
  }

  Stopwatch watch_;
  DeviceMemory<u32> counter_, errors_, slots_;
};

// A random cycle through `count` different places below `range`.
std::vector<u32> RandomPlaces(u32 count, u32 range, std::uint64_t key) {
  std::vector<u32> places;
  std::vector<bool> used(range);
  for (std::uint64_t i = 0; places.size() < count; ++i) {
    const auto place = static_cast<u32>(Mix64(key, 0, i) % range);
    if (used[place]) continue;
    used[place] = true;
    places.push_back(place);
  }
  return places;
}

class Latencies {
 public:
  Latencies() : end_(1) { WarmUp(watch_); }

  std::vector<Ceiling> Measure() {
    constexpr std::size_t kMiB = std::size_t{1} << 20;
    // Over 4 GiB, translations of addresses miss as well.
    return {Chase("l2_latency", 4 * kMiB, false), Chase("memory_latency", 256 * kMiB, true),
            Chase("memory_latency_wide", 4096 * kMiB, true)};
  }

 private:
  static constexpr u32 kStrideBytes = 128;  // one link per line
  static constexpr u32 kHops = 16384;

  // Dependent loads of one thread along a random cycle of lines in `bytes` of memory. `cold`: the
  // lines are evicted before each sample by writing 256 MiB, and no line is visited twice.
  Ceiling Chase(const char* name, std::size_t bytes, bool cold) const {
    const auto range = static_cast<u32>(bytes / kStrideBytes);
    const std::vector<u32> places = RandomPlaces(kHops, range, range);
    const DeviceMemory<u32> memory(bytes / sizeof(u32));
    const DeviceMemory<u32> device_places(kHops);
    const DeviceMemory<uint4> flush(std::size_t{256 << 20} / sizeof(uint4));
    const cudaStream_t stream = watch_.stream();
    constexpr u32 kStride = kStrideBytes / sizeof(u32);
    device_places.CopyIn(places.data());
    SpreadLinksKernel<<<kHops / 256, 256, 0, stream>>>(device_places.data(), kHops, kStride,
                                                       memory.data());
    std::vector<double> samples;
    for (u32 i = 0; i <= kSamples; ++i) {
      if (cold) OverwriteKernel<<<1024, 256, 0, stream>>>(flush.data(), flush.size(), i);
      watch_.Wait();
      const auto follow = [&](u32 hops) {
        return watch_.Time([&](cudaStream_t on) {
          FollowLinksKernel<<<1, 1, 0, on>>>(memory.data(), kStride, places[0], hops, end_.data());
        });
      };
      const double time = follow(kHops - 1);
      RequireEqual(Fetch(end_.data()), places.back(), name);
      if (i > 0) samples.push_back(time / (kHops - 1));
    }
    return Median(name, "ns",
                  std::to_string(kHops) + " dependent loads of one thread, random lines of " +
                      std::to_string(bytes >> 20) + " MiB" +
                      (cold ? ", evicted before by writing 256 MiB" : ", resident"),
                  std::move(samples));
  }

  Stopwatch watch_;
  DeviceMemory<u32> end_;
};

}  // namespace
}  // namespace ceilings

std::vector<Ceiling> MeasureLaunches() {
  std::vector<Ceiling> all = ceilings::Launches().Measure();
  for (Ceiling& ceiling : ceilings::Barriers().Measure()) all.push_back(std::move(ceiling));
  return all;
}

std::vector<Ceiling> MeasureLatencies() { return ceilings::Latencies().Measure(); }

}  // namespace assay
