#include "base/tensor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"

namespace assay {
namespace {

constexpr std::size_t kPage = 4096;
// The bytes of any dtype then fit into 64 bits.
constexpr std::int64_t kMostElements = 1LL << 60;

constexpr std::size_t RoundUpToPage(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// A tensor takes [red zone][payload][rest of the page + red zone].
std::size_t SlotBytes(const TensorLayout& layout) {
  return kRedZoneBytes + RoundUpToPage(DTypeBytes(layout.dtype, ElementCount(layout.shape))) +
         kRedZoneBytes;
}

// The guard bytes after a tensor start right behind its last byte.
std::size_t TailBytes(const Tensor& tensor) {
  return RoundUpToPage(tensor.bytes()) - tensor.bytes() + kRedZoneBytes;
}

std::optional<std::size_t> FirstDamage(const std::byte* zone, std::size_t bytes) {
  // Intact memory, the usual case, equals itself shifted by one: memcmp checks 32 bytes at a time.
  if (zone[0] == kRedZoneByte && std::memcmp(zone, zone + 1, bytes - 1) == 0) return std::nullopt;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (zone[i] != kRedZoneByte) return i;
  }
  return std::nullopt;
}

// Maps `size` bytes; closes `fd` when that fails.
std::byte* MapOrThrow(std::size_t size, int flags, int fd) {
  const bool read_only = fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
  const int access = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* p = mmap(nullptr, size, access, flags, fd, 0);
  if (p == MAP_FAILED) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) close(fd);
    BadInput("cannot map " + std::to_string(size) + " bytes for tensors: " + reason);
  }
  return static_cast<std::byte*>(p);
}

}  // namespace

std::int64_t ElementCount(const Shape& shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count) || count > kMostElements) {
      BadInput("shape " + ShapeText(shape) + " has no usable element count");
    }
  }
  return count;
}

std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (d != 0) text += ',';
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

void Tensor::RequireDType(DType wanted) const {
  if (wanted != dtype) {
    throw Error(Fault::kInternal, "tensor '" + name + "' is " + std::string(DTypeName(dtype)) +
                                      ", read as " + std::string(DTypeName(wanted)));
  }
}

Bundle::Arena::~Arena() {
  if (base != nullptr) munmap(base, size);
  if (fd >= 0) close(fd);
}

std::size_t Bundle::ArenaBytes(const std::vector<TensorLayout>& layouts) {
  std::size_t total = 0;
  for (const TensorLayout& layout : layouts) total += SlotBytes(layout);
  return total == 0 ? kPage : total;
}

void Bundle::PlaceTensors(const std::vector<TensorLayout>& layouts, std::byte* base) {
  std::byte* slot = base;
  for (const TensorLayout& layout : layouts) {
    tensors_.push_back({layout.name, layout.dtype, layout.shape, slot + kRedZoneBytes});
    slot += SlotBytes(layout);
  }
}

Bundle Bundle::Place(const std::vector<TensorLayout>& layouts, std::byte* base, int fd) {
  Bundle bundle;
  bundle.arena_ = std::make_shared<Arena>(base, ArenaBytes(layouts), fd);
  bundle.PlaceTensors(layouts, base);
  return bundle;
}

Bundle Bundle::Over(const std::vector<TensorLayout>& layouts, std::byte* base) {
  Bundle bundle;
  bundle.PlaceTensors(layouts, base);
  return bundle;
}

Bundle Bundle::Allocate(const std::vector<TensorLayout>& layouts) {
  // Not reserved: a pool of pages may be larger than the memory of which it touches little.
  std::byte* base =
      MapOrThrow(ArenaBytes(layouts), MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  Bundle bundle = Place(layouts, base, -1);
  bundle.WriteRedZones();
  return bundle;
}

Bundle Bundle::AllocateShared(const std::vector<TensorLayout>& layouts) {
  const std::size_t size = ArenaBytes(layouts);
  const int fd = memfd_create("assay-bundle", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) BadInput(std::string("memfd_create failed: ") + std::strerror(errno));
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
    const std::string reason = std::strerror(errno);
    close(fd);
    BadInput("cannot reserve " + std::to_string(size) + " bytes of shared memory: " + reason);
  }
  // Who gets the descriptor may not cut the memory off: touching it would kill every process that
  // has it mapped.
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  Bundle bundle = Place(layouts, MapOrThrow(size, MAP_SHARED, fd), fd);
  bundle.WriteRedZones();
  return bundle;
}

Bundle Bundle::MapShared(const std::vector<TensorLayout>& layouts, int fd) {
  const std::size_t size = ArenaBytes(layouts);
  // Touching a page behind the end of the file would kill the process.
  struct stat info {};
  if (fstat(fd, &info) != 0 || static_cast<std::size_t>(info.st_size) < size) {
    if (fd >= 0) close(fd);
    BadInput("shared memory for tensors has " + std::to_string(info.st_size) + " bytes, not " +
             std::to_string(size));
  }
  return Place(layouts, MapOrThrow(size, MAP_SHARED, fd), fd);
}

Tensor* Bundle::find(std::string_view name) {
  for (Tensor& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

const Tensor* Bundle::find(std::string_view name) const {
  return const_cast<Bundle*>(this)->find(name);
}

Tensor& Bundle::operator[](std::string_view name) {
  Tensor* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(Fault::kInternal, "bundle has no tensor '" + std::string(name) + "'");
  }
  return *tensor;
}

const Tensor& Bundle::operator[](std::string_view name) const {
  return const_cast<Bundle&>(*this)[name];
}

std::vector<TensorLayout> Bundle::layouts() const {
  std::vector<TensorLayout> result;
  for (const Tensor& tensor : tensors_) result.push_back({tensor.name, tensor.dtype, tensor.shape});
  return result;
}

std::size_t Bundle::bytes() const {
  std::size_t total = 0;
  for (const Tensor& tensor : tensors_) total += tensor.bytes();
  return total;
}

using Parts = std::vector<std::pair<std::size_t, std::size_t>>;

// Offsets relative to `first`.
Parts Bundle::TouchedBetween(std::size_t first, std::size_t last) const {
  if (fd() < 0) return {{0, last - first}};
  const auto begin = static_cast<off_t>(first), end = static_cast<off_t>(last);
  Parts parts;
  for (off_t at = begin; at < end;) {
    const off_t data = lseek(fd(), at, SEEK_DATA);  // ENXIO: only a hole is left
    if (data < 0 || data >= end) break;
    const off_t hole = std::min(lseek(fd(), data, SEEK_HOLE), end);
    if (hole <= data) break;
    parts.emplace_back(data - begin, hole - begin);
    at = hole;
  }
  return parts;
}

Parts Bundle::TouchedParts(const Tensor& tensor) const {
  const auto begin = fd() < 0 ? 0 : static_cast<std::size_t>(tensor.data - arena_->base);
  return TouchedBetween(begin, begin + tensor.bytes());
}

Parts Bundle::TouchedParts() const { return TouchedBetween(0, arena().size()); }

void Bundle::PunchOut() {
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (fallocate(fd(), mode, 0, static_cast<off_t>(arena_->size)) != 0) {
    throw Error(Fault::kDevice, std::string("cannot clear shared memory: ") + std::strerror(errno));
  }
}

int PoisonByte(DType dtype) { return IsFloat(dtype) ? 0xFF : 0x7F; }

void Bundle::Poison(int threads) {
  constexpr std::int64_t kPiece = 8 << 20;
  for (Tensor& tensor : tensors_) {
    const auto size = static_cast<std::int64_t>(tensor.bytes());
    ParallelRanges(size, kPiece, size > kPiece ? threads : 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     std::memset(tensor.data + begin, PoisonByte(tensor.dtype),
                                 static_cast<std::size_t>(end - begin));
                   });
  }
}

void Bundle::WriteRedZones() {
  for (Tensor& tensor : tensors_) {
    std::memset(tensor.data - kRedZoneBytes, static_cast<int>(kRedZoneByte), kRedZoneBytes);
    std::memset(tensor.data + tensor.bytes(), static_cast<int>(kRedZoneByte), TailBytes(tensor));
  }
}

std::optional<std::string> Bundle::CheckRedZones() const {
  for (const Tensor& tensor : tensors_) {
    if (auto at = FirstDamage(tensor.data - kRedZoneBytes, kRedZoneBytes)) {
      return "tensor '" + tensor.name + "': byte " + std::to_string(kRedZoneBytes - *at) +
             " before its start was overwritten";
    }
    if (auto at = FirstDamage(tensor.data + tensor.bytes(), TailBytes(tensor))) {
      return "tensor '" + tensor.name + "': byte " + std::to_string(*at) +
             " behind its end was overwritten";
    }
  }
  return std::nullopt;
}

}  // namespace assay
