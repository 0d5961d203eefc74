// A typed view of memory, and a bundle: named tensors of one case inside one arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"

namespace assay {

using Shape = std::vector<std::int64_t>;

// Product of the dimensions; throws kInput if it is negative or passes 2^60.
std::int64_t ElementCount(const Shape& shape);
std::string ShapeText(const Shape& shape);  // "[4096,12288]"

// Row-major, contiguous. Does not own `data`.
struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::byte* data = nullptr;

  std::int64_t elements() const { return ElementCount(shape); }
  std::size_t bytes() const { return DTypeBytes(dtype, elements()); }

  // Typed access; throws kInternal when T is not the tensor's dtype.
  template <class T>
  T* as() {
    RequireDType(DTypeOf<T>::value);
    return reinterpret_cast<T*>(data);
  }
  template <class T>
  const T* as() const {
    RequireDType(DTypeOf<T>::value);
    return reinterpret_cast<const T*>(data);
  }

 private:
  void RequireDType(DType wanted) const;
};

// What a tensor will be, before memory exists.
struct TensorLayout {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

// Bytes of guard memory before and after every tensor of a bundle, and what they are filled with.
inline constexpr std::size_t kRedZoneBytes = 4096;
inline constexpr std::byte kRedZoneByte{0xA5};

// What poisoned memory of a type is made of: NaN for floating-point types, 0x7F for the others.
int PoisonByte(DType dtype);

// The tensors of a case in declared order. Each tensor starts on a page and lies between red zones
// that hold a fixed pattern; the layout depends only on the list of TensorLayouts, so two processes
// that map the same memory agree on every address.
class Bundle {
 public:
  Bundle() = default;

  // Private memory, red zones written, tensors zeroed. Throws kInput naming the bytes when the
  // allocation fails.
  static Bundle Allocate(const std::vector<TensorLayout>& layouts);
  // An anonymous shared-memory file (memfd) that another process can map through `fd()`.
  static Bundle AllocateShared(const std::vector<TensorLayout>& layouts);
  // Maps the memory of AllocateShared; takes ownership of `fd`. Memory behind a read-only
  // descriptor may only be read. Throws kInput when the memory is smaller than `layouts` need.
  static Bundle MapShared(const std::vector<TensorLayout>& layouts, int fd);
  // The same places in memory that somebody else owns, e.g. on a device; nothing is written. Only
  // the tensors' addresses are meaningful: no red-zone, poison or hole function may be called.
  static Bundle Over(const std::vector<TensorLayout>& layouts, std::byte* base);
  // Bytes an arena for `layouts` takes, red zones included.
  static std::size_t ArenaBytes(const std::vector<TensorLayout>& layouts);

  bool has(std::string_view name) const { return find(name) != nullptr; }
  Tensor* find(std::string_view name);
  const Tensor* find(std::string_view name) const;
  Tensor& operator[](std::string_view name);              // throws kInternal when absent
  const Tensor& operator[](std::string_view name) const;  // likewise

  std::span<Tensor> tensors() { return tensors_; }
  std::span<const Tensor> tensors() const { return tensors_; }
  std::vector<TensorLayout> layouts() const;
  std::size_t bytes() const;  // payload, without red zones
  int fd() const { return arena_ ? arena_->fd : -1; }
  // The whole arena, red zones included; empty for memory that somebody else owns.
  std::span<std::byte> arena() const {
    return arena_ ? std::span(arena_->base, arena_->size) : std::span<std::byte>();
  }

  // The parts of a tensor of this bundle that were ever touched, as [first, last) byte offsets into
  // it; the rest are holes of the shared-memory file, which read as zeros. Private memory counts as
  // touched.
  std::vector<std::pair<std::size_t, std::size_t>> TouchedParts(const Tensor& tensor) const;

  // The same of the whole arena, as offsets into arena().
  std::vector<std::pair<std::size_t, std::size_t>> TouchedParts() const;

  // Makes all of a shared-memory bundle a hole again: zeros that take no memory. Red zones
  // included.
  void PunchOut();
  // Fills every tensor with its PoisonByte, on up to `threads` threads (0 = all).
  void Poison(int threads = 1);
  // Rewrites the red zones. CheckRedZones names the first damaged tensor, side and byte offset.
  void WriteRedZones();
  std::optional<std::string> CheckRedZones() const;

 private:
  struct Arena {
    std::byte* base = nullptr;
    std::size_t size = 0;
    int fd = -1;
    Arena(std::byte* base_, std::size_t size_, int fd_) : base(base_), size(size_), fd(fd_) {}
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();
  };

  static Bundle Place(const std::vector<TensorLayout>& layouts, std::byte* base, int fd);
  std::vector<std::pair<std::size_t, std::size_t>> TouchedBetween(std::size_t first,
                                                                  std::size_t last) const;
  void PlaceTensors(const std::vector<TensorLayout>& layouts, std::byte* base);

  std::shared_ptr<Arena> arena_;
  std::vector<Tensor> tensors_;
};

}  // namespace assay
