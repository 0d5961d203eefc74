// A launch-heavy program to measure the recorder's overhead with and to record as evidence:
// `recorder_load [launches] [elements]` prints the wall time of its loop. With the default 65,536
// elements a kernel takes 1 us and the host is the limit; with 2,097,152 some 6 us, and the GPU is,
// as in an inference engine. On a machine with a GPU:
//   for i in 1 2 3 4 5; do ./recorder_load; assay timeline record --out r.sqlite --
//   ./recorder_load; done
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

__global__ void AddKernel(float* values, int n) {
  const int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < n) values[k] += 1.0f;
}

static void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "recorder_load: %s\n", cudaGetErrorString(error));
  std::exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 4 : 70);
}

int main(int argc, char** argv) {
  const int launches = argc > 1 ? std::atoi(argv[1]) : 200'000;
  const int count = argc > 2 ? std::atoi(argv[2]) : 1 << 16;  // a multiple of 256
  constexpr int kStep = 1'000;
  float *device = nullptr, *host = nullptr;
  Check(cudaMalloc(&device, count * sizeof(float)));
  Check(cudaMallocHost(&host, count * sizeof(float)));
  cudaStream_t stream;
  Check(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t graph_exec;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int k = 0; k < 8; ++k) AddKernel<<<count / 256, 256, 0, stream>>>(device, count);
  Check(cudaStreamEndCapture(stream, &graph));
  Check(cudaGraphInstantiate(&graph_exec, graph, 0));
  Check(cudaStreamSynchronize(stream));
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0; done < launches; done += kStep) {
    nvtxRangePushA("step");
    Check(cudaMemsetAsync(device, 0, count * sizeof(float), stream));
    for (int k = 0; k < kStep; ++k) AddKernel<<<count / 256, 256, 0, stream>>>(device, count);
    Check(cudaGraphLaunch(graph_exec, stream));
    Check(cudaMemcpyAsync(host, device, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    Check(cudaStreamSynchronize(stream));
    nvtxRangePop();
    if (host[0] != kStep + 8 || host[count - 1] != kStep + 8) return 70;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%d launches in %.4f s\n", launches, seconds.count());
  return 0;
}
