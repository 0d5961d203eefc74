// What the benches measure against: this machine's bf16 matrix rate through oneDNN, and its memory
// bandwidth.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "base/stats.h"

#ifdef ASSAY_HAVE_ONEDNN
#include <dnnl.hpp>
#include <unordered_map>
#endif

namespace assay {

template <class Body>
double Seconds(const Body& body) {
  // The previous contender's OpenMP threads spin for about a millisecond; let them fall asleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline std::vector<bf16> RandomBF16(std::int64_t count, std::uint64_t tensor, float factor) {
  std::vector<bf16> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = ToBF16(factor * UnitNormal(1, tensor, i));
  }
  return values;
}

inline double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return Median(ratios);
}

// Reads of a buffer far larger than any cache, all threads: bytes per second.
class ReadRate {
 public:
  static constexpr std::int64_t kBytes = std::int64_t{512} << 20;

  void Run() {
    constexpr std::int64_t kBlock = 1 << 20;
    std::vector<std::uint64_t> sums(kBytes / kBlock);
    ParallelFor(kBytes / kBlock, 0, [&](std::int64_t block) {
      sums[static_cast<std::size_t>(block)] = Sum(data_.data() + block * (kBlock / 8), kBlock / 8);
    });
    for (std::uint64_t sum : sums) checksum_ += sum;
  }
  std::uint64_t checksum() const { return checksum_; }

 private:
  ASSAY_VECTOR_CLONES static std::uint64_t Sum(const std::uint64_t* x, std::int64_t count) {
    std::uint64_t a = 0, b = 0, c = 0, d = 0;
    for (std::int64_t i = 0; i < count; i += 32) {
      for (int j = 0; j < 8; ++j) {
        a += x[i + j];
        b += x[i + 8 + j];
        c += x[i + 16 + j];
        d += x[i + 24 + j];
      }
    }
    return a + b + c + d;
  }

  std::vector<std::uint64_t> data_ = std::vector<std::uint64_t>(kBytes / 8, 1);
  std::uint64_t checksum_ = 0;
};

#ifdef ASSAY_HAVE_ONEDNN
// One bf16 matmul primitive of a size where oneDNN is at its best.
class MatrixRate {
 public:
  static constexpr std::int64_t kSize = 2048;
  static constexpr double kFlops = 2.0 * kSize * kSize * kSize;

  MatrixRate() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    const auto type = memory::data_type::bf16;
    const memory::desc a({kSize, kSize}, type, memory::dims{kSize, 1});
    const memory::desc b({kSize, kSize}, type, memory::dims{1, kSize});
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, a), engine_));
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, a_.data())},
                  {DNNL_ARG_WEIGHTS, memory(b, engine_, b_.data())},
                  {DNNL_ARG_DST, memory(a, engine_, c_.data())}};
  }

  void Run() {
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  std::vector<bf16> a_ = RandomBF16(kSize * kSize, 8, 1), b_ = RandomBF16(kSize * kSize, 9, 1);
  std::vector<bf16> c_ = std::vector<bf16>(a_.size());
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};
#endif

}  // namespace assay
