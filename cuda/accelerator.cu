// The CUDA implementation of Accelerator.
#include <cuda_runtime.h>

#include <cstdio>
#include <fstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/accelerator.h"
#include "cuda/check.h"

namespace assay {
namespace {

static_assert(std::is_same_v<Stream, cudaStream_t>);

constexpr int kCapability = 90;  // the only architecture that this build has code for
constexpr int kThreads = 256;

// Grid-stride over 16-byte words; `sink` is written only if the sum has one value out of
// 2^32, so that the reads stay.
__global__ void ReadKernel(const uint4* data, std::size_t words, unsigned* sink) {
  unsigned sum = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 word = __ldcg(data + i);  // through L2, past L1
    sum += word.x + word.y + word.z + word.w;
  }
  if (sum == 0x5EED5EEDu) *sink = sum;
}

__global__ void WriteKernel(uint4* data, std::size_t words, unsigned value) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    data[i] = make_uint4(value, value + 1, value + 2, static_cast<unsigned>(i));
  }
}

// The finaliser of base/random.h's Mix64.
__device__ std::uint64_t Scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__global__ void ChecksumKernel(const unsigned long long* data, std::size_t words,
                               unsigned long long* total) {
  unsigned long long sum = 0;
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words;
       i += std::size_t{gridDim.x} * blockDim.x) {
    sum += Scramble(data[i] + (i + 1) * 0x9E3779B97F4A7C15ull);
  }
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

class CudaRecording : public Recording {
 public:
  CudaRecording(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {
    CheckCuda(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&end_), "cudaEventCreate");
    CheckCuda(cudaGraphUpload(graph_, stream_), "cudaGraphUpload");
    CheckCuda(cudaStreamSynchronize(stream_), "upload of a graph");
  }
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;
  ~CudaRecording() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(graph_);
  }

  double Replay() override {
    CheckCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    CheckCuda(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
    CheckCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(end_), "replay of a graph");
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e6;
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// A finished capture; throws what Accelerator::Record promises.
cudaGraph_t Capture(cudaStream_t stream, const std::function<void(Stream)>& work) {
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work(stream);
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  if (error == cudaErrorStreamCaptureUnjoined) {
    cudaGetLastError();
    throw Error(Fault::kUnsupported,
                "the backend leaves work on a side stream that never joins the given stream");
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw Error(Fault::kUnsupported,
                std::string("the backend cannot be captured in a CUDA graph: ") +
                    cudaGetErrorString(error));
  }
  std::size_t nodes = 0;
  CheckCuda(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  if (nodes == 0) {
    cudaGraphDestroy(graph);
    throw Error(Fault::kUnsupported, "the backend enqueues nothing on the given stream");
  }
  return graph;
}

std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex;
  }
  return text;
}

// "580.159.04 (CUDA 13.0)"; without the first part where the kernel module does not tell.
std::string DriverText(int cuda_version) {
  const std::string cuda = "CUDA " + std::to_string(cuda_version / 1000) + "." +
                           std::to_string(cuda_version % 1000 / 10);
  std::string version;
  std::ifstream("/sys/module/nvidia/version") >> version;
  return version.empty() ? cuda : version + " (" + cuda + ")";
}

class CudaAccelerator : public Accelerator {
 public:
  explicit CudaAccelerator(int ordinal) {
    CheckCuda(cudaSetDevice(ordinal), "cudaSetDevice");
    cudaDeviceProp properties{};
    CheckCuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
    info_.name = properties.name;
    info_.uuid = UuidText(properties.uuid);
    char pci[32] = "";
    CheckCuda(cudaDeviceGetPCIBusId(pci, sizeof pci, ordinal), "cudaDeviceGetPCIBusId");
    info_.pci = pci;
    int driver = 0;
    CheckCuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    info_.driver = DriverText(driver);
    info_.capability = properties.major * 10 + properties.minor;
    info_.multiprocessors = properties.multiProcessorCount;
    info_.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    info_.l2_bytes = properties.l2CacheSize;
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    CheckCuda(cudaMalloc(&scratch_, 16), "cudaMalloc of a counter");
    usual_persisting_limit_ = PersistingLimit();
  }
  ~CudaAccelerator() override {
    cudaFree(flush_);
    cudaFree(scratch_);
    cudaStreamDestroy(stream_);
  }

  const AcceleratorInfo& info() const override { return info_; }

  std::byte* Allocate(std::size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free_bytes = 0, total = 0;
      cudaMemGetInfo(&free_bytes, &total);
      throw OutOfDeviceMemory("needs " + std::to_string(bytes) + " bytes of device memory, " +
                              std::to_string(free_bytes) + " are free");
    }
    CheckCuda(error, "cudaMalloc");
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory) noexcept override { cudaFree(memory); }

  void Upload(std::byte* to, const std::byte* from, std::size_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload");
    Synchronize();
  }
  void Download(std::byte* to, const std::byte* from, std::size_t bytes) override {
    CheckCuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download");
    Synchronize();
  }
  void Fill(std::byte* to, int byte, std::size_t bytes) override {
    CheckCuda(cudaMemsetAsync(to, byte, bytes, stream_), "cudaMemset");
    Synchronize();
  }
  std::uint64_t Checksum(const std::byte* data, std::size_t bytes) override {
    auto* total = reinterpret_cast<unsigned long long*>(scratch_);
    CheckCuda(cudaMemsetAsync(total, 0, sizeof *total, stream_), "cudaMemset");
    ChecksumKernel<<<Blocks(), kThreads, 0, stream_>>>(
        reinterpret_cast<const unsigned long long*>(data), bytes / 8, total);
    CheckCuda(cudaGetLastError(), "launch of ChecksumKernel");
    std::uint64_t sum = 0;
    Download(reinterpret_cast<std::byte*>(&sum), scratch_, sizeof sum);
    return sum;
  }

  Stream stream() override { return stream_; }
  void Synchronize() override { CheckCuda(cudaStreamSynchronize(stream_), "work on the device"); }

  void EnqueueFlush(Stream stream, FlushKind kind) override {
    const std::size_t words = 2 * static_cast<std::size_t>(info_.l2_bytes) / sizeof(uint4);
    auto* buffer = reinterpret_cast<uint4*>(flush_);
    if (kind == FlushKind::kRead) {
      ReadKernel<<<Blocks(), kThreads, 0, stream>>>(buffer, words,
                                                    reinterpret_cast<unsigned*>(scratch_) + 2);
    } else {
      WriteKernel<<<Blocks(), kThreads, 0, stream>>>(buffer, words, 0x3C003C00u);
    }
    CheckCuda(cudaGetLastError(), "launch of the cache flush");
  }
  std::unique_ptr<ContentVersions> MakeVersions(const std::vector<ContentPart>& parts) override {
    return MakeContentVersions(parts, info_.multiprocessors, stream_);
  }
  void ResetPersistingLines() override {
    CheckCuda(cudaCtxResetPersistingL2Cache(), "cudaCtxResetPersistingL2Cache");
  }

  bool TakePersistingLimit() override {
    if (PersistingLimit() == usual_persisting_limit_) return false;
    CheckCuda(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, usual_persisting_limit_),
              "cudaDeviceSetLimit");
    return true;
  }

  std::unique_ptr<ActivityRecorder> RecordActivities(std::string& why_not) override {
    return RecordCudaActivities(why_not);
  }

  std::unique_ptr<Recording> Record(const std::function<void(Stream)>& work) override {
    PrepareFlush();  // allocation inside a capture is not allowed
    cudaGraph_t graph = Capture(stream_, work);
    cudaGraphExec_t executable = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(error, "cudaGraphInstantiate");
    return std::make_unique<CudaRecording>(executable, stream_);
  }

 private:
  static std::size_t PersistingLimit() {
    std::size_t bytes = 0;
    CheckCuda(cudaDeviceGetLimit(&bytes, cudaLimitPersistingL2CacheSize), "cudaDeviceGetLimit");
    return bytes;
  }
  unsigned Blocks() const { return static_cast<unsigned>(8 * info_.multiprocessors); }
  // The buffer that flushes read or write, written once so that no read is of undefined memory.
  void PrepareFlush() {
    if (flush_ != nullptr) return;
    const std::size_t bytes = 2 * static_cast<std::size_t>(info_.l2_bytes);
    flush_ = Allocate(bytes);
    WriteKernel<<<Blocks(), kThreads, 0, stream_>>>(reinterpret_cast<uint4*>(flush_),
                                                    bytes / sizeof(uint4), 0x9E3779B9u);
    CheckCuda(cudaGetLastError(), "launch of WriteKernel");
    Synchronize();
  }

  AcceleratorInfo info_;
  cudaStream_t stream_ = nullptr;
  std::byte* flush_ = nullptr;
  std::size_t usual_persisting_limit_ = 0;  // not 0 on every driver
  std::byte* scratch_ = nullptr;            // a 64-bit counter and a word that reads may write to
};

}  // namespace

std::unique_ptr<Accelerator> OpenAccelerator(int rank, std::string& why_not) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    cudaGetLastError();
    why_not = std::string("no usable GPU: ") + cudaGetErrorString(error);
    return nullptr;
  }
  if (rank < 0 || devices == 0) {
    why_not = "process " + std::to_string(rank) + " of this machine finds " +
              std::to_string(devices) + " GPUs";
    return nullptr;
  }
  try {
    auto accelerator = std::make_unique<CudaAccelerator>(rank % devices);
    if (accelerator->info().capability == kCapability) return accelerator;
    why_not = accelerator->info().name + " has compute capability " +
              std::to_string(accelerator->info().capability / 10) + "." +
              std::to_string(accelerator->info().capability % 10) +
              "; this build has code for 9.0 (sm_90a) only";
  } catch (const Error& failed) {
    why_not = failed.what();
  }
  return nullptr;
}

}  // namespace assay
