// What the tests of both MLA rooms use beyond replay/room_test.h. Test code only.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/tensor.h"

namespace assay::mla {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;  // fewer rows: fp64 loops are 20 times slower
#else
inline constexpr bool kSanitized = false;
#endif

inline double LargestDifference(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max<double>(largest, std::abs(ToFloat(a[i]) - ToFloat(b[i])));
  }
  return largest;
}

// The sentence of the kInput error that `action` throws, or "no error".
template <class Action>
std::string ErrorOf(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "no error";
}

// FNV-1a of all tensors.
inline std::uint64_t HashOf(const Bundle& bundle) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const Tensor& tensor : bundle.tensors()) {
    for (std::size_t i = 0; i < tensor.bytes(); ++i) {
      hash = (hash ^ std::to_integer<unsigned>(tensor.data[i])) * 0x100000001B3;
    }
  }
  return hash;
}

inline std::size_t TouchedBytes(const Bundle& bundle) {
  std::size_t touched = 0;
  for (const Tensor& tensor : bundle.tensors()) {
    for (const auto& [first, last] : bundle.TouchedParts(tensor)) touched += last - first;
  }
  return touched;
}

// A copy in memory whose neighbours on both sides cannot be touched; it ends, or begins, exactly at
// a border.
class Guarded {
 public:
  Guarded(const void* content, std::size_t bytes, bool at_end) {
    constexpr std::size_t kPage = 4096;
    const std::size_t inner = (bytes + kPage - 1) / kPage * kPage;
    size_ = inner + 2 * kPage;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + kPage, inner, PROT_READ | PROT_WRITE);
    data_ = base_ + kPage + (at_end ? inner - bytes : 0);
    std::memcpy(data_, content, bytes);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, size_); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char *base_ = nullptr, *data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace assay::mla
