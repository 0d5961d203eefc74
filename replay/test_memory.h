// Memory for tests of what a kernel touches beside its tensors and of how far its offsets reach.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>

#include "base/tensor.h"

namespace assay {

// A copy between two pages that cannot be touched; it ends, or begins, exactly at a border.
class Guarded {
 public:
  Guarded(const void* content, std::size_t bytes, bool at_end) {
    constexpr std::size_t kPage = 4096;
    const std::size_t inner = (bytes + kPage - 1) / kPage * kPage;
    size_ = inner + 2 * kPage;
    base_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + kPage, inner, PROT_READ | PROT_WRITE), 0);
    data_ = base_ + kPage + (at_end ? inner - bytes : 0);
    std::memcpy(data_, content, bytes);
  }
  explicit Guarded(const Tensor& tensor, bool at_end = true)
      : Guarded(tensor.data, tensor.bytes(), at_end) {}
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

// A range of addresses that is not backed by memory until it is touched, page by page.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    if (ok()) munmap(memory_, bytes_);
  }

  bool ok() const { return memory_ != MAP_FAILED; }
  template <class T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace assay
