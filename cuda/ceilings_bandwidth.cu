// Bandwidth of device memory and of the L2 cache. The buffers hold random words; every read ends in
// a sum that is compared with one taken by another loop, every write is read back.
#include <cstdint>

#include "base/error.h"
#include "cuda/ceilings_timing.cuh"

namespace assay {
namespace ceilings {
namespace {

using u32 = unsigned;

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // independent 16-byte accesses in flight per thread
constexpr int kReadUnroll = 8;
constexpr int kSamples = 12;
constexpr std::size_t kBufferBytes = std::size_t{4} << 30;

__device__ u32 Scramble(std::uint64_t i) {
  i = (i ^ (i >> 30)) * 0xBF58476D1CE4E5B9ull;
  i = (i ^ (i >> 27)) * 0x94D049BB133111EBull;
  return static_cast<u32>(i >> 32);
}

__device__ std::size_t FirstWord() { return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ std::size_t AllThreads() { return std::size_t{gridDim.x} * blockDim.x; }

__device__ u32 SumOf(uint4 word) { return word.x + word.y + word.z + word.w; }

__device__ void AddToTotal(u32 sum, u32* total) {
  sum = __reduce_add_sync(0xFFFFFFFFu, sum);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

__global__ void FillKernel(uint4* data, std::size_t words, u32 seed) {
  for (std::size_t i = FirstWord(); i < words; i += AllThreads()) {
    const std::uint64_t at = (std::uint64_t{seed} << 40) + 4 * i;
    data[i] = make_uint4(Scramble(at), Scramble(at + 1), Scramble(at + 2), Scramble(at + 3));
  }
}

// The boring sum that the others are compared with.
__global__ void SumKernel(const uint4* data, std::size_t words, u32* total) {
  u32 sum = 0;
  for (std::size_t i = FirstWord(); i < words; i += AllThreads()) sum += SumOf(data[i]);
  AddToTotal(sum, total);
}

// `words` is a multiple of the unrolling times the number of threads in all three.
template <int kUnrolled>
__global__ void ReadKernel(const uint4* data, std::size_t words, u32* total) {
  u32 sum = 0;
  const std::size_t step = AllThreads();
  for (std::size_t i = FirstWord(); i < words; i += kUnrolled * step) {
    uint4 word[kUnrolled];
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) word[j] = __ldcs(data + i + j * step);
#pragma unroll
    for (int j = 0; j < kUnrolled; ++j) sum += SumOf(word[j]);
  }
  AddToTotal(sum, total);
}

__global__ void WriteKernel(uint4* data, std::size_t words, u32 seed) {
  const std::size_t step = AllThreads();
  for (std::size_t i = FirstWord(); i < words; i += kUnroll * step) {
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const u32 at = static_cast<u32>(i + j * step) * 0x9E3779B9u + seed;
      __stcs(data + i + j * step, make_uint4(at, at ^ 0x5BD1E995u, ~at, at + 77));
    }
  }
}

__global__ void CopyKernel(const uint4* from, uint4* to, std::size_t words) {
  const std::size_t step = AllThreads();
  for (std::size_t i = FirstWord(); i < words; i += kUnroll * step) {
    uint4 word[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) word[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) __stcs(to + i + j * step, word[j]);
  }
}

// Reads all of `data` `passes` times, past L1 (ld.cg). A block takes another chunk in every pass,
// so that what it reads was last touched by another multiprocessor.
__global__ void L2ReadKernel(const uint4* data, std::size_t words, int passes, u32* total) {
  u32 sum = 0;
  for (int pass = 0; pass < passes; ++pass) {
    const std::size_t chunk = (blockIdx.x + std::size_t{37} * pass) % gridDim.x;
    const std::size_t begin = words * chunk / gridDim.x, end = words * (chunk + 1) / gridDim.x;
    std::size_t i = begin + threadIdx.x;
    for (; i + (kUnroll - 1) * kThreads < end; i += kUnroll * kThreads) {
      uint4 word[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) word[j] = __ldcg(data + i + j * kThreads);
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) sum += SumOf(word[j]);
    }
    for (; i < end; i += kThreads) sum += SumOf(__ldcg(data + i));
  }
  AddToTotal(sum, total);
}

class Bandwidth {
 public:
  Bandwidth()
      : words_(WordsOf(kBufferBytes)),
        from_(words_),
        to_(words_),
        total_(1),
        sms_(Multiprocessors()) {
    FillKernel<<<8 * sms_, kThreads, 0, watch_.stream()>>>(from_.data(), words_, 1);
    FillKernel<<<8 * sms_, kThreads, 0, watch_.stream()>>>(to_.data(), words_, 2);
    watch_.Wait();
    WarmUp();
  }

  std::vector<Ceiling> Measure() {
    std::vector<Ceiling> all;
    all.push_back(Memcpy());
    all.push_back(OverGrids("copy_kernel", 2, [&](u32 blocks, cudaStream_t stream) {
      CopyKernel<<<blocks, kThreads, 0, stream>>>(from_.data(), to_.data(), words_);
    }));
    RequireEqual(Sum(to_.data(), words_), Sum(from_.data(), words_), "copy_kernel");
    all.push_back(Read());
    all.push_back(OverGrids("write", 1, [&](u32 blocks, cudaStream_t stream) {
      WriteKernel<<<blocks, kThreads, 0, stream>>>(to_.data(), words_, ++seed_);
    }));
    RequireWritten();
    all.push_back(Memset());
    all.push_back(L2Read());
    return all;
  }

 private:
  using Launch = std::function<void(u32 blocks, cudaStream_t)>;

  // A multiple of every grid's share, so that the kernels need no bounds inside.
  std::size_t WordsOf(std::size_t bytes) const {
    const std::size_t share = std::size_t{kReadUnroll} * kThreads * 32 * Multiprocessors();
    return bytes / sizeof(uint4) / share * share;
  }

  double BytesPerSecond(double bytes, const std::function<void(cudaStream_t)>& work) const {
    return bytes / watch_.Time(work) * 1e9;
  }
  std::vector<double> Rates(double bytes, const std::function<void(cudaStream_t)>& work) const {
    work(watch_.stream());
    std::vector<double> rates;
    for (int i = 0; i < kSamples; ++i) rates.push_back(BytesPerSecond(bytes, work));
    return rates;
  }

  // Clocks rise from idle within some tens of milliseconds.
  void WarmUp() const {
    for (int i = 0; i < 60; ++i) {
      CopyKernel<<<8 * sms_, kThreads, 0, watch_.stream()>>>(from_.data(), to_.data(), words_);
    }
    watch_.Wait();
  }

  // The best grid of a few: a ceiling is what the machine can do, not what one choice gives.
  Ceiling OverGrids(const char* name, int directions, const Launch& launch) const {
    Ceiling best;
    for (const int per_sm : {1, 2, 4, 8, 16, 32}) {
      const auto blocks = static_cast<u32>(per_sm * sms_);
      const std::string how = Gib() + ", " + std::to_string(per_sm) + " x " +
                              std::to_string(kThreads) + " threads per multiprocessor";
      Ceiling one = Median(name, "B/s", how,
                           Rates(static_cast<double>(directions) * from_.bytes(),
                                 [&](cudaStream_t stream) { launch(blocks, stream); }));
      if (one.value > best.value) best = one;
    }
    return best;
  }
  std::string Gib() const {
    return std::to_string((from_.bytes() >> 20) / 1024.0).substr(0, 4) + " GiB";
  }

  u32 ReadTotal() const {
    u32 sum = 0;
    CheckCuda(cudaMemcpyAsync(&sum, total_.data(), sizeof sum, cudaMemcpyDefault, watch_.stream()),
              "copy of a sum");
    watch_.Wait();
    return sum;
  }
  void ClearTotal() const {
    CheckCuda(cudaMemsetAsync(total_.data(), 0, sizeof(u32), watch_.stream()), "cudaMemset");
  }
  u32 Sum(const uint4* data, std::size_t words) const {
    ClearTotal();
    SumKernel<<<4 * sms_, kThreads, 0, watch_.stream()>>>(data, words, total_.data());
    return ReadTotal();
  }

  Ceiling Memcpy() const {
    Ceiling result = Median("copy", "B/s", Gib() + " by cudaMemcpy, bytes read plus written",
                            Rates(2.0 * from_.bytes(), [&](cudaStream_t stream) {
                              CheckCuda(cudaMemcpyAsync(to_.data(), from_.data(), from_.bytes(),
                                                        cudaMemcpyDeviceToDevice, stream),
                                        "cudaMemcpy");
                            }));
    RequireEqual(Sum(to_.data(), words_), Sum(from_.data(), words_), "cudaMemcpy");
    CheckCuda(cudaMemsetAsync(to_.data(), 0, to_.bytes(), watch_.stream()), "cudaMemset");
    return result;
  }

  Ceiling Read() const {
    const u32 expected = Sum(from_.data(), words_);
    u32 launches = 0;
    ClearTotal();
    Ceiling narrow = OverGrids("read", 1, [&](u32 blocks, cudaStream_t stream) {
      ReadKernel<kUnroll><<<blocks, kThreads, 0, stream>>>(from_.data(), words_, total_.data());
      ++launches;
    });
    Ceiling wide = OverGrids("read", 1, [&](u32 blocks, cudaStream_t stream) {
      ReadKernel<kReadUnroll><<<blocks, kThreads, 0, stream>>>(from_.data(), words_, total_.data());
      ++launches;
    });
    RequireEqual(ReadTotal(), expected * launches, "read");
    narrow.how += ", 4 loads in flight per thread";
    wide.how += ", 8 loads in flight per thread";
    return narrow.value > wide.value ? narrow : wide;
  }

  // One word near each end and one in the middle, against the formula of WriteKernel.
  void RequireWritten() const {
    for (const std::size_t i : {std::size_t{3}, words_ / 2, words_ - 1}) {
      uint4 word{};
      CheckCuda(cudaMemcpy(&word, to_.data() + i, sizeof word, cudaMemcpyDefault), "cudaMemcpy");
      const u32 at = static_cast<u32>(i) * 0x9E3779B9u + seed_;
      RequireEqual(word.x, at, "write");
      RequireEqual(word.w, at + 77, "write");
    }
  }

  Ceiling Memset() const {
    Ceiling result =
        Median("write_memset", "B/s", Gib() + " by cudaMemset",
               Rates(to_.bytes(), [&](cudaStream_t stream) {
                 CheckCuda(cudaMemsetAsync(to_.data(), 0x5A, to_.bytes(), stream), "cudaMemset");
               }));
    RequireEqual(Sum(to_.data(), words_), static_cast<u32>(4 * words_ * 0x5A5A5A5Aull),
                 "cudaMemset");
    return result;
  }

  // The best of a few sizes that fit: which lines of a set share a slice decides.
  Ceiling L2Read() const {
    constexpr int kPasses = 200;
    Ceiling best;
    for (const int mib : {16, 24, 32, 40}) {
      const std::size_t words = (static_cast<std::size_t>(mib) << 20) / sizeof(uint4);
      const u32 expected = Sum(from_.data(), words);
      for (const int per_sm : {2, 4}) {
        u32 launches = 0;
        ClearTotal();
        const std::string how = std::to_string(mib) + " MiB read " + std::to_string(kPasses) +
                                " times, another chunk per block each time, ld.cg, " +
                                std::to_string(per_sm) + " x " + std::to_string(kThreads) +
                                " threads per multiprocessor";
        const double bytes = static_cast<double>(words) * sizeof(uint4) * kPasses;
        Ceiling one = Median("l2_read", "B/s", how, Rates(bytes, [&](cudaStream_t stream) {
                               L2ReadKernel<<<per_sm * sms_, kThreads, 0, stream>>>(
                                   from_.data(), words, kPasses, total_.data());
                               ++launches;
                             }));
        RequireEqual(ReadTotal(), expected * kPasses * launches, "l2_read");
        if (one.value > best.value) best = one;
      }
    }
    return best;
  }

  Stopwatch watch_;
  std::size_t words_;
  DeviceMemory<uint4> from_, to_;
  DeviceMemory<u32> total_;
  int sms_;
  u32 seed_ = 0;
};

}  // namespace
}  // namespace ceilings

std::vector<Ceiling> MeasureBandwidth() { return ceilings::Bandwidth().Measure(); }

std::vector<Ceiling> MeasureDeviceCeilings() {
  std::vector<Ceiling> all = MeasureBandwidth();
  for (auto* measure : {MeasureLaunches, MeasureLatencies}) {
    for (Ceiling& ceiling : measure()) all.push_back(std::move(ceiling));
  }
  return all;
}

}  // namespace assay
