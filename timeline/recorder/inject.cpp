// The library that CUDA loads into an unmodified program (CUDA_INJECTION64_PATH). CUPTI is opened
// with dlopen, so the file loads anywhere. Activity buffers come from a bounded pool; the completed
// callback only queues; one thread encodes and writes. Nothing here may throw into the program.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cuda/cupti_library.h"
#include "timeline/recorder/encode.h"

namespace {

using namespace assay::timeline::recorder;  // NOLINT

constexpr std::size_t kBufferBytes = 8u << 20;
constexpr std::size_t kMostBuffers = 24;  // 192 MiB at most, then records are dropped and counted
constexpr auto kFlushPeriod = std::chrono::seconds(1);

std::int64_t Now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}
std::uint64_t CUPTIAPI Timestamp() { return static_cast<std::uint64_t>(Now(CLOCK_MONOTONIC)); }

struct Completed {
  std::uint8_t* data;
  std::size_t bytes;
  std::size_t dropped;
};

// Lives until the process ends: CUPTI may call back from its own threads at any time.
struct Recorder {
  assay::CuptiLibrary cupti;
  int file = -1;
  Encoder* encoder = nullptr;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Completed> completed;
  std::vector<std::uint8_t*> pool;
  std::size_t buffers = 0;
  std::atomic<std::uint64_t> refused{0};
  bool stopping = false;
  std::thread writer, flusher;
  std::atomic<bool> finished{false};
  int signal_pipe[2] = {-1, -1};
};
Recorder* recorder = nullptr;

void WriteOut(const std::string& bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t wrote = write(recorder->file, bytes.data() + at, bytes.size() - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;  // disk full: the missing end marker tells
    at += static_cast<std::size_t>(wrote);
  }
}

void CUPTIAPI BufferRequested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *most = 0;
  *bytes = kBufferBytes;
  const std::lock_guard lock(recorder->mutex);
  if (!recorder->pool.empty()) {
    *buffer = recorder->pool.back();
    recorder->pool.pop_back();
  } else if (recorder->buffers < kMostBuffers) {
    *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, kBufferBytes));
    recorder->buffers += *buffer != nullptr;
  } else {
    *buffer = nullptr;
  }
  if (!*buffer) *bytes = 0;
}

void CUPTIAPI BufferCompleted(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                              std::size_t, std::size_t valid) {
  std::size_t dropped = 0;
  recorder->cupti.dropped(context, stream, &dropped);
  const std::lock_guard lock(recorder->mutex);
  recorder->completed.push_back({buffer, valid, dropped});
  recorder->wake.notify_all();
}

void WriterLoop() {
  for (;;) {
    Completed next{};
    {
      std::unique_lock lock(recorder->mutex);
      recorder->wake.wait(lock, [] { return recorder->stopping || !recorder->completed.empty(); });
      if (recorder->completed.empty()) return;
      next = recorder->completed.front();
      recorder->completed.pop_front();
    }
    if (next.data) recorder->encoder->Buffer(next.data, next.bytes);
    recorder->encoder->Dropped(next.dropped);
    WriteOut(recorder->encoder->Take());
    const std::lock_guard lock(recorder->mutex);
    if (next.data) recorder->pool.push_back(next.data);
  }
}

void FlusherLoop() {
  std::unique_lock lock(recorder->mutex);
  while (!recorder->stopping) {
    recorder->wake.wait_for(lock, kFlushPeriod, [] { return recorder->stopping; });
    if (recorder->stopping) return;
    lock.unlock();
    recorder->cupti.flush_all(0);
    lock.lock();
  }
}

// Flushes everything and writes the end marker; the second caller returns at once.
void Finish() {
  if (!recorder || recorder->finished.exchange(true)) return;
  recorder->cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  {
    const std::lock_guard lock(recorder->mutex);
    recorder->stopping = true;
    recorder->wake.notify_all();
  }
  if (recorder->writer.joinable()) recorder->writer.join();
  if (recorder->flusher.joinable()) recorder->flusher.join();
  recorder->encoder->End();
  WriteOut(recorder->encoder->Take());
  fdatasync(recorder->file);
}

// A program without handlers of its own dies of SIGTERM without running exit handlers: flush
// first, then die the same way. Programs with handlers keep them.
void OnSignal(int number) {
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t wrote = write(recorder->signal_pipe[1], &byte, 1);
}

void SignalLoop() {
  char byte = 0;
  while (read(recorder->signal_pipe[0], &byte, 1) != 1) {
    if (errno != EINTR) return;
  }
  Finish();
  signal(byte, SIG_DFL);
  kill(getpid(), byte);
}

void WatchSignals() {
  if (pipe2(recorder->signal_pipe, O_CLOEXEC) != 0) return;
  for (const int number : {SIGTERM, SIGINT}) {
    struct sigaction current {};
    if (sigaction(number, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) continue;
    struct sigaction own {};
    own.sa_handler = OnSignal;
    own.sa_flags = SA_RESTART;
    sigaction(number, &own, nullptr);
  }
  std::thread(SignalLoop).detach();
}

// A forked child has none of the threads; CUDA does not work there either until it executes anew.
void InChild() { recorder->finished = true; }

void EnableKinds(bool graph_level) {
  const assay::CuptiLibrary& cupti = recorder->cupti;
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_DEVICE, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET,
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_OVERHEAD,
        CUPTI_ACTIVITY_KIND_MARKER, CUPTI_ACTIVITY_KIND_RUNTIME}) {
    cupti.enable(kind);
  }
  if (graph_level) cupti.enable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
  // Calls that frameworks make between any two launches and that explain nothing.
  for (const CUpti_CallbackId id : {CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020,
                                    CUPTI_RUNTIME_TRACE_CBID_cudaPeekAtLastError_v3020,
                                    CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020,
                                    CUPTI_RUNTIME_TRACE_CBID_cudaSetDevice_v3020}) {
    cupti.enable_runtime(id, 0);
  }
  // Of the driver API only what launches, copies or waits: the runtime calls the rest all the time.
  for (const CUpti_CallbackId id :
       {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
        CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
        CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz, CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2, CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoDAsync_v2,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2, CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoH_v2,
        CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync, CUPTI_DRIVER_TRACE_CBID_cuMemsetD32Async,
        CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async, CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize,
        CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, CUPTI_DRIVER_TRACE_CBID_cuEventSynchronize}) {
    cupti.enable_driver(id, 1);
  }
}

bool Begin() {
  recorder = new Recorder;
  if (!recorder->cupti.Open()) {
    std::fprintf(stderr, "assay recorder: CUPTI could not be loaded: %s\n", dlerror());
    return false;
  }
  const char* folder = std::getenv("ASSAY_RECORD_DIR");
  const std::string path =
      std::string(folder ? folder : ".") + "/assay_" + std::to_string(getpid()) + ".segment";
  recorder->file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (recorder->file < 0) {
    std::fprintf(stderr, "assay recorder: cannot write %s: %s\n", path.c_str(), strerror(errno));
    return false;
  }
  const char* graph = std::getenv("ASSAY_RECORD_GRAPH");
  const bool graph_level = !graph || std::strcmp(graph, "node") != 0;
  std::uint32_t version = 0;
  recorder->cupti.version(&version);
  recorder->encoder = new Encoder(recorder->cupti.next_record, recorder->cupti.callback_name);
  // CUPTI's default clock can step; ours is what Python's perf_counter reads.
  recorder->cupti.register_timestamp(Timestamp);
  recorder->encoder->Start(static_cast<std::uint32_t>(getpid()), Now(CLOCK_MONOTONIC),
                           Now(CLOCK_REALTIME), version, graph_level);
  WriteOut(recorder->encoder->Take());
  recorder->cupti.register_callbacks(BufferRequested, BufferCompleted);
  EnableKinds(graph_level);
  recorder->writer = std::thread(WriterLoop);
  recorder->flusher = std::thread(FlusherLoop);
  WatchSignals();
  pthread_atfork(nullptr, nullptr, InChild);
  std::atexit(Finish);
  return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection(void) {
  static std::once_flag once;
  static bool running = false;
  std::call_once(once, [] {
    try {
      running = Begin();
    } catch (...) {
      std::fprintf(stderr, "assay recorder: could not start; the program runs unrecorded\n");
    }
  });
  return running ? 1 : 0;
}

// NVTX ranges come through CUPTI's own NVTX handler, to which this forwards.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    void* get_export_table) {
  using Forward = int (*)(void*);
  void* library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
  if (!library) library = dlopen("/usr/local/cuda/lib64/libcupti.so", RTLD_NOW | RTLD_GLOBAL);
  const auto forward =
      library ? reinterpret_cast<Forward>(dlsym(library, "InitializeInjectionNvtx2")) : nullptr;
  return forward ? forward(get_export_table) : 0;
}
