#include "peers/matrix_rate.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"
#include "cuda/check.h"
#include "cuda/random_fill.h"
#include "peers/cublaslt_api.h"

namespace assay::peers {
namespace {

constexpr int kSamples = 15;
// Large products are limited by power: after some milliseconds at full load the chip slows down.
constexpr auto kRest = std::chrono::milliseconds(100);
constexpr auto kBusy = std::chrono::seconds(1);
constexpr std::uint64_t kKey = 0x5EED;  // of the random operands; tensors 0 and 1

struct Freed {
  void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<void, Freed>;

DeviceMemory Allocate(std::size_t bytes) {
  void* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, bytes), "cudaMalloc for a matrix rate");
  return DeviceMemory(memory);
}

// D[m, n] = A[m, k] B[n, k]^T, m = n = k, bf16 out. cuBLASLt counts columns first: its first
// operand is our B, transposed.
class Product {
 public:
  Product(const CublasLtApi& api, DType type, std::int64_t size)
      : api_(api), type_(type), size_(size), workspace_(Allocate(kCublasLtWorkspaceBytes)) {
    const auto elements = static_cast<std::size_t>(size * size);
    a_ = Allocate(DTypeBytes(type, size * size));
    b_ = Allocate(DTypeBytes(type, size * size));
    d_ = Allocate(elements * sizeof(bf16));
    CheckCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&end_), "cudaEventCreate");
    FillUnitNormal(type, static_cast<std::byte*>(a_.get()), size * size, kKey, 0, stream_);
    FillUnitNormal(type, static_cast<std::byte*>(b_.get()), size * size, kKey, 1, stream_);
    CheckCuda(cudaMemsetAsync(d_.get(), 0xFF, elements * sizeof(bf16), stream_), "cudaMemset");
    CheckCuda(cudaStreamSynchronize(stream_), "fill of random operands");
    Describe();
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    api_.layout_destroy(operand_);
    api_.layout_destroy(result_);
    api_.desc_destroy(desc_);
    api_.destroy(handle_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  // The fastest candidate becomes the one that is measured.
  void ChooseAlgorithm() {
    double best_time = INFINITY;
    for (const CublasLtAlgorithm& candidate : Candidates()) {
      Seconds(candidate, 1);  // loads its kernel
      const double time = std::min({Seconds(candidate, 1), Seconds(candidate, 1)});
      if (time >= best_time) continue;
      best_time = time;
      algorithm_ = candidate;
    }
  }

  // Rates of single products of 8192 cubed, or of as much work in smaller ones, on a chip that
  // rests before each sample.
  std::vector<double> Burst() {
    const auto ratio = static_cast<int>(8192 / size_);
    std::vector<double> rates;
    for (int i = 0; i < kSamples; ++i) {
      std::this_thread::sleep_for(kRest);
      rates.push_back(Rate(ratio * ratio * ratio));
    }
    RequireRight();
    return rates;
  }

  // Rates of ten products each while the chip is busy without a pause; the second half of a second,
  // when clocks have settled to what the power limit allows.
  std::vector<double> Sustained() {
    std::vector<double> rates;
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < kBusy) rates.push_back(Rate(10));
    rates.erase(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2));
    RequireRight();
    return rates;
  }

 private:
  void Describe() {
    api_.Check(api_.create(&handle_), "cublasLtCreate");
    api_.Check(api_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    if (type_ == DType::kE4M3) {
      scale_ = Allocate(sizeof(float));
      const float one = 1;
      CheckCuda(cudaMemcpy(scale_.get(), &one, sizeof one, cudaMemcpyHostToDevice), "cudaMemcpy");
      Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_.get());
      Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_.get());
      Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    }
    const auto size = static_cast<std::uint64_t>(size_);
    const cudaDataType_t type = type_ == DType::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    api_.Check(api_.layout_create(&operand_, type, size, size, size_),
               "cublasLtMatrixLayoutCreate");
    api_.Check(api_.layout_create(&result_, CUDA_R_16BF, size, size, size_),
               "cublasLtMatrixLayoutCreate");
  }
  template <class T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    api_.Check(api_.desc_set(desc_, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  }

  std::vector<CublasLtAlgorithm> Candidates() const {
    std::vector<CublasLtAlgorithm> candidates =
        CublasLtCandidates(api_, handle_, {desc_, operand_, operand_, result_});
    if (candidates.empty()) throw Error(Fault::kDevice, "cuBLASLt offers no algorithm");
    return candidates;
  }

  double Rate(int products) {
    const double size = static_cast<double>(size_);
    return products * 2 * size * size * size / Seconds(algorithm_, products);
  }

  double Seconds(const CublasLtAlgorithm& algorithm, int products) {
    const float one = 1, zero = 0;
    // Keeps the stream busy until the products are enqueued: a product that starts late would look
    // slow.
    CheckCuda(cudaMemsetAsync(workspace_.get(), 0, kCublasLtWorkspaceBytes, stream_), "cudaMemset");
    CheckCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < products; ++i) {
      api_.Check(api_.matmul(handle_, desc_, &one, b_.get(), operand_, a_.get(), operand_, &zero,
                             d_.get(), result_, d_.get(), result_, &algorithm.value,
                             workspace_.get(), kCublasLtWorkspaceBytes, stream_),
                 "cublasLtMatmul");
    }
    CheckCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(end_), "cublasLtMatmul");
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

  float Operand(std::uint64_t tensor, std::int64_t row, std::int64_t k) const {
    const float x = UnitNormal(kKey, tensor, static_cast<std::uint64_t>(row * size_ + k));
    return type_ == DType::kE4M3 ? ToFloat(ToE4M3(double{x})) : ToFloat(ToBF16(x));
  }

  // Sums have a standard deviation of sqrt(k); 2 % of that covers the short accumulator of fp8.
  void RequireRight() const {
    for (std::uint64_t i = 0; i < 32; ++i) {
      const auto limit = static_cast<std::uint64_t>(size_);
      const auto row = static_cast<std::int64_t>(Mix64(kKey, 2, i) % limit);
      const auto column = static_cast<std::int64_t>(Mix64(kKey, 3, i) % limit);
      double expected = 0;
      for (std::int64_t k = 0; k < size_; ++k) {
        expected += double{Operand(0, row, k)} * Operand(1, column, k);
      }
      bf16 got;
      CheckCuda(cudaMemcpy(&got, static_cast<bf16*>(d_.get()) + row * size_ + column, sizeof got,
                           cudaMemcpyDeviceToHost),
                "cudaMemcpy");
      const double allowed =
          0.02 * std::sqrt(static_cast<double>(size_)) + 0.01 * std::abs(expected);
      if (!(std::abs(ToFloat(got) - expected) <= allowed)) {
        throw Error(Fault::kInternal, "matrix rate: element [" + std::to_string(row) + "," +
                                          std::to_string(column) + "] is " +
                                          std::to_string(ToFloat(got)) + ", expected " +
                                          std::to_string(expected));
      }
    }
  }

  const CublasLtApi& api_;
  const DType type_;
  const std::int64_t size_;
  DeviceMemory workspace_, a_, b_, d_, scale_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t operand_ = nullptr, result_ = nullptr;
  CublasLtAlgorithm algorithm_{};
};

Ceiling Summary(DType type, std::int64_t size, const std::string& suffix, const std::string& how,
                std::vector<double> rates) {
  std::sort(rates.begin(), rates.end());
  const bool eight_bits = type == DType::kE4M3;
  Ceiling ceiling;
  ceiling.name = (eight_bits ? "fp8_matrix" : "bf16_matrix") + suffix;
  ceiling.value = rates[rates.size() / 2];
  ceiling.unit = "FLOP/s";
  ceiling.how = "cuBLASLt, " + std::to_string(size) + " cubed, random " +
                (eight_bits ? "e4m3 with one scale per tensor and fast accumulation" : "bf16") +
                ", bf16 result, best of its first candidates, " + how;
  ceiling.n = static_cast<int>(rates.size());
  ceiling.low = rates.front();
  ceiling.high = rates.back();
  return ceiling;
}

std::vector<Ceiling> Measure(const CublasLtApi& api, DType type) {
  std::vector<Ceiling> all;
  for (const std::int64_t size : {4096, 8192}) {
    Product product(api, type, size);
    product.ChooseAlgorithm();
    all.push_back(Summary(type, size, size == 8192 ? "" : "_" + std::to_string(size),
                          "100 ms of rest before each sample", product.Burst()));
    if (size != 8192) continue;
    all.push_back(
        Summary(type, size, "_sustained", "without a pause for a second", product.Sustained()));
  }
  return all;
}

}  // namespace

std::vector<Ceiling> MeasureMatrixRates(std::string& why_not,
                                        const std::vector<std::string>& paths) {
  const CublasLtApi api(paths);
  why_not = api.why_not;
  if (!why_not.empty()) return {};
  std::vector<Ceiling> all;
  for (const DType type : {DType::kBF16, DType::kE4M3}) {
    for (Ceiling& ceiling : Measure(api, type)) all.push_back(std::move(ceiling));
  }
  return all;
}

}  // namespace assay::peers
