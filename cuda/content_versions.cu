// Reads and writes the words of the parts that change, at the memory's bandwidth.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/check.h"
#include "cuda/content_versions.h"

namespace assay {
namespace {

constexpr unsigned kThreads = 256, kBlocksPerMultiprocessor = 4;  // all resident
constexpr int kWordsPerVector = 2;                                // a thread's 16 bytes
constexpr std::size_t kVector = kWordsPerVector * kLowBitWord;
constexpr std::size_t kVectorsPerLine = kLowBitLine / kVector;

struct VersionState {
  std::uint64_t next = kFirstTimedVersion;
  unsigned finished_blocks = 0;
};

// The last bytes of a tensor: lanes behind its end are zeros, which stay.
__device__ void ChangeTail(std::byte* data, std::size_t bytes, std::uint64_t draw, int place,
                           const LowBitLanes& lanes) {
  for (std::size_t at = 0; at < bytes; at += kLowBitWord, ++place) {
    std::uint64_t word = 0;
    const std::size_t end = min(bytes, at + kLowBitWord);
    for (std::size_t b = at; b < end; ++b) {
      word |= static_cast<std::uint64_t>(data[b]) << (8 * (b - at));
    }
    word = ChangeLowBits(word, draw, place, lanes);
    for (std::size_t b = at; b < end; ++b) data[b] = static_cast<std::byte>(word >> (8 * (b - at)));
  }
}

// The change of 16 bytes at `at` of a part.
struct VectorChange {
  std::uint64_t draw;
  int place;

  __device__ VectorChange(const ContentPart& part, std::size_t at, std::uint64_t from,
                          std::uint64_t to) {
    const std::uint64_t line = part.first_line + at / kLowBitLine;
    draw = LowBitDraw(from, part.tensor, line) ^ LowBitDraw(to, part.tensor, line);
    place = static_cast<int>(at / kVector % kVectorsPerLine) * kWordsPerVector;
  }
  __device__ void Apply(ulonglong2& words, const LowBitLanes& lanes) const {
    words.x = ChangeLowBits(words.x, draw, place, lanes);
    words.y = ChangeLowBits(words.y, draw, place + 1, lanes);
  }
};

// All loads before the first store: a thread has 64 bytes on their way.
__device__ void ChangeFullPart(const ContentPart& part, std::uint64_t from, std::uint64_t to) {
  constexpr int kVectors = ContentPart::kMostBytes / (kThreads * kVector);
  auto* const vectors = reinterpret_cast<ulonglong2*>(part.data) + threadIdx.x;
  ulonglong2 words[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) words[v] = vectors[v * kThreads];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    VectorChange(part, (threadIdx.x + v * kThreads) * kVector, from, to)
        .Apply(words[v], part.lanes);
    vectors[v * kThreads] = words[v];
  }
}

__device__ void ChangePart(const ContentPart& part, std::uint64_t from, std::uint64_t to) {
  if (part.bytes == ContentPart::kMostBytes) return ChangeFullPart(part, from, to);
  for (std::size_t at = threadIdx.x * kVector; at < part.bytes; at += kThreads * kVector) {
    const VectorChange change(part, at, from, to);
    if (at + kVector <= part.bytes) {
      change.Apply(*reinterpret_cast<ulonglong2*>(part.data + at), part.lanes);
    } else {
      ChangeTail(part.data + at, part.bytes - at, change.draw, change.place, part.lanes);
    }
  }
}

// `versions` are those of the parts. The last block to finish counts up: by then every block has
// read the next version.
__global__ void __launch_bounds__(kThreads)
    NextVersionKernel(const ContentPart* parts, std::uint64_t* versions, unsigned count,
                      VersionState* state) {
  const std::uint64_t to = state->next;
  const PartSteps steps = StepsOf(to, count);
  for (std::uint64_t p = steps.first + blockIdx.x * steps.step; p < count;
       p += gridDim.x * steps.step) {
    ChangePart(parts[p], versions[p], to);
    __syncthreads();
    if (threadIdx.x == 0) versions[p] = to;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicInc(&state->finished_blocks, gridDim.x - 1) == gridDim.x - 1) state->next = to + 1;
}

class CudaContentVersions : public ContentVersions {
 public:
  CudaContentVersions(const std::vector<ContentPart>& parts, int multiprocessors, Stream stream)
      : count_(static_cast<unsigned>(parts.size())),
        blocks_(
            std::min(count_, kBlocksPerMultiprocessor * static_cast<unsigned>(multiprocessors))),
        stream_(stream) {
    const std::size_t bytes = parts.size() * sizeof(ContentPart);
    CheckCuda(cudaMalloc(&parts_, std::max<std::size_t>(bytes, 1)), "cudaMalloc of content parts");
    CheckCuda(cudaMalloc(&versions_, std::max<std::size_t>(count_, 1) * sizeof *versions_),
              "cudaMalloc of versions");
    CheckCuda(cudaMalloc(&state_, sizeof *state_), "cudaMalloc of a version");
    CheckCuda(cudaMemcpyAsync(parts_, parts.data(), bytes, cudaMemcpyHostToDevice, stream_),
              "upload of content parts");
    Reset();
  }
  CudaContentVersions(const CudaContentVersions&) = delete;
  CudaContentVersions& operator=(const CudaContentVersions&) = delete;
  ~CudaContentVersions() override {
    cudaFree(parts_);
    cudaFree(versions_);
    cudaFree(state_);
  }

  void EnqueueNext(Stream stream) override {
    if (count_ == 0) return;
    NextVersionKernel<<<blocks_, kThreads, 0, stream>>>(parts_, versions_, count_, state_);
    CheckCuda(cudaGetLastError(), "launch of NextVersionKernel");
  }

  void SetNext(std::uint64_t version) override { Write(&state_->next, &version, sizeof version); }

  void Reset() override {
    CheckCuda(cudaMemsetAsync(versions_, 0, count_ * sizeof *versions_, stream_),
              "cudaMemset of versions");
    const VersionState fresh;
    Write(state_, &fresh, sizeof fresh);
  }

 private:
  void Write(void* to, const void* from, std::size_t bytes) {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_),
              "upload of a version");
    CheckCuda(cudaStreamSynchronize(stream_), "upload of a version");
  }

  unsigned count_, blocks_;
  Stream stream_;
  ContentPart* parts_ = nullptr;
  std::uint64_t* versions_ = nullptr;  // of every part
  VersionState* state_ = nullptr;
};

}  // namespace

std::unique_ptr<ContentVersions> MakeContentVersions(const std::vector<ContentPart>& parts,
                                                     int multiprocessors, Stream stream) {
  return std::make_unique<CudaContentVersions>(parts, multiprocessors, stream);
}

}  // namespace assay
