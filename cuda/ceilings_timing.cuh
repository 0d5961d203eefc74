// What the ceiling measurements share: a stream with two events, medians.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/ceilings.h"
#include "cuda/check.h"
#include "cuda/device_memory.cuh"

namespace assay::ceilings {

// A stream and two events around what is enqueued on it.
class Stopwatch {
 public:
  Stopwatch() {
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }
  void Wait() const { CheckCuda(cudaStreamSynchronize(stream_), "ceiling kernel"); }

  // Nanoseconds between events before and after `work`; waits.
  double Time(const std::function<void(cudaStream_t)>& work) const {
    CheckCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    work(stream_);
    CheckCuda(cudaGetLastError(), "launch of a ceiling kernel");
    CheckCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(end_), "ceiling kernel");
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e6;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// `count` times whatever `launch` enqueues, captured as one graph, run once.
class Graph {
 public:
  Graph(const Stopwatch& watch, int count, const std::function<void(cudaStream_t)>& launch) {
    const cudaStream_t stream = watch.stream();
    launch(stream);  // loads the kernel, which a capture should not have to do
    watch.Wait();
    CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int i = 0; i < count; ++i) launch(stream);
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    CheckCuda(error, "cudaGraphInstantiate");
    CheckCuda(cudaGraphUpload(graph_, stream), "cudaGraphUpload");
    Launch(stream);
    watch.Wait();
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(graph_); }
  void Launch(cudaStream_t stream) const {
    CheckCuda(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

inline Ceiling Median(std::string name, std::string unit, std::string how,
                      std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  Ceiling ceiling{std::move(name), 0, std::move(unit), std::move(how), 0, 0, 0};
  ceiling.n = static_cast<int>(samples.size());
  ceiling.value = samples[samples.size() / 2];
  ceiling.low = samples.front();
  ceiling.high = samples.back();
  return ceiling;
}

// Throws kInternal when a kernel did not do its work.
inline void RequireEqual(std::uint64_t got, std::uint64_t expected, const std::string& what) {
  if (got == expected) return;
  throw Error(Fault::kInternal,
              what + " gave " + std::to_string(got) + ", expected " + std::to_string(expected));
}

}  // namespace assay::ceilings
