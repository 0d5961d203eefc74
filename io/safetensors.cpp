#include "io/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"

namespace assay {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data are little-endian");

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
// The limit of the format's own library; no real header comes near it.
constexpr std::uint64_t kLargestHeader = 100'000'000;

struct NameRow {
  DType dtype;
  std::string_view name;
};

constexpr std::array kNames = {
    NameRow{DType::kBF16, "BF16"},    NameRow{DType::kF16, "F16"},
    NameRow{DType::kE4M3, "F8_E4M3"}, NameRow{DType::kE5M2, "F8_E5M2"},
    NameRow{DType::kE2M1, "F4"},      NameRow{DType::kUE8M0, "F8_E8M0"},
    NameRow{DType::kF32, "F32"},      NameRow{DType::kF64, "F64"},
    NameRow{DType::kI32, "I32"},      NameRow{DType::kI64, "I64"},
    NameRow{DType::kU8, "U8"},        NameRow{DType::kBool, "BOOL"},
    NameRow{DType::kI16, "I16"},      NameRow{DType::kI8, "I8"},
};

std::string_view FileDTypeName(DType dtype) {
  const auto row = std::find_if(kNames.begin(), kNames.end(),
                                [&](const NameRow& candidate) { return candidate.dtype == dtype; });
  return row->name;
}

// The parts of a file that was split but not yet understood.
struct Parts {
  Json header;
  const std::byte* data = nullptr;
  std::uint64_t data_bytes = 0;
};

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  std::vector<Tensor> Read(std::span<const std::byte> bytes) const {
    const Parts parts = Split(bytes);
    std::vector<Tensor> tensors;
    for (const auto& [key, entry] : parts.header.items()) {
      if (key != "__metadata__") tensors.push_back(ReadEntry(key, entry, parts));
    }
    std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      return a.data != b.data ? a.data < b.data : a.bytes() < b.bytes();
    });
    RequireCover(tensors, parts);
    return tensors;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const { BadInput(name_ + ": " + what); }
  [[noreturn]] void Fail(const std::string& tensor, const std::string& what) const {
    Fail("tensor '" + tensor + "' " + what);
  }

  Parts Split(std::span<const std::byte> bytes) const {
    if (bytes.size() < kLengthBytes) {
      Fail("a safetensors file has at least 8 bytes, this one has " + std::to_string(bytes.size()));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > bytes.size() - kLengthBytes || length > kLargestHeader) {
      Fail("the header claims " + std::to_string(length) + " bytes, but the file has " +
           std::to_string(bytes.size() - kLengthBytes) + " behind its length field");
    }
    const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
    return {ParseHeader({text, static_cast<std::size_t>(length)}),
            bytes.data() + kLengthBytes + length, bytes.size() - kLengthBytes - length};
  }

  Json ParseHeader(std::string_view text) const {
    try {
      Json header = ParseJson(text);
      if (!header.is_object()) Fail("the header is not a JSON object");
      return header;
    } catch (const JsonError& problem) {
      Fail(std::string("the header is malformed: ") + problem.what());
    }
  }

  Tensor ReadEntry(const std::string& key, const Json& entry, const Parts& parts) const {
    if (!entry.is_object()) Fail(key, "is not described by a JSON object");
    Tensor tensor{key, ReadDType(key, entry), ReadShape(key, entry), nullptr};
    const auto [begin, end] = ReadOffsets(key, entry);
    if (begin > end || end > parts.data_bytes) {
      Fail(key, "lies at bytes " + std::to_string(begin) + ".." + std::to_string(end) +
                    ", but the file has " + std::to_string(parts.data_bytes) + " bytes of data");
    }
    if (const std::size_t wanted = tensor.bytes(); wanted != end - begin) {
      Fail(key, "of " + std::string(DTypeName(tensor.dtype)) + " " + ShapeText(tensor.shape) +
                    " needs " + std::to_string(wanted) + " bytes, but holds " +
                    std::to_string(end - begin));
    }
    // The mapping is read-only; Tensor has no const form. Only const Tensors leave this class.
    tensor.data = const_cast<std::byte*>(parts.data) + begin;
    return tensor;
  }

  DType ReadDType(const std::string& key, const Json& entry) const {
    const auto it = entry.find("dtype");
    if (it == entry.end() || !it->is_string()) Fail(key, "has no dtype");
    const auto& name = it->get_ref<const std::string&>();
    for (const NameRow& row : kNames) {
      if (row.name == name) return row.dtype;
    }
    Fail(key, "has the unsupported dtype '" + name + "'");
  }

  Shape ReadShape(const std::string& key, const Json& entry) const {
    const auto it = entry.find("shape");
    if (it == entry.end() || !it->is_array()) Fail(key, "has no shape");
    Shape shape;
    for (const Json& extent : *it) {
      if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > (1ULL << 62)) {
        Fail(key, "has the bad dimension " + extent.dump());
      }
      shape.push_back(extent.get<std::int64_t>());
    }
    try {
      ElementCount(shape);
    } catch (const Error& problem) {
      Fail(key, std::string("is too large: ") + problem.what());
    }
    return shape;
  }

  std::pair<std::uint64_t, std::uint64_t> ReadOffsets(const std::string& key,
                                                      const Json& entry) const {
    const auto it = entry.find("data_offsets");
    const bool pair = it != entry.end() && it->is_array() && it->size() == 2 &&
                      (*it)[0].is_number_unsigned() && (*it)[1].is_number_unsigned();
    if (!pair) Fail(key, "has no data_offsets of the form [begin, end]");
    return {(*it)[0].get<std::uint64_t>(), (*it)[1].get<std::uint64_t>()};
  }

  // Tensors in order of their data must follow each other without overlap or gap, to the end.
  void RequireCover(const std::vector<Tensor>& tensors, const Parts& parts) const {
    const std::byte* next = parts.data;
    for (const Tensor& tensor : tensors) {
      if (tensor.data < next) Fail(tensor.name, "overlaps the tensor before it");
      if (tensor.data > next) Fail(tensor.name, "follows a gap of unused bytes");
      next = tensor.data + tensor.bytes();
    }
    if (next != parts.data + parts.data_bytes) {
      Fail(std::to_string(parts.data + parts.data_bytes - next) +
           " bytes at the end belong to no " + "tensor");
    }
  }

  const std::string& name_;
};

// A blob is named by its SHA-256; other names promise nothing.
void CheckDigest(const std::string& path, std::span<const std::byte> bytes) {
  const std::string stem = std::filesystem::path(path).stem().string();
  const bool digest =
      stem.size() == 64 && stem.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (!digest) return;
  std::string wanted = stem;
  for (char& c : wanted) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::string got = Sha256Hex(bytes);
  if (got != wanted) BadInput(path + ": the content has SHA-256 " + got + ", not that of its name");
}

struct Mapping {
  std::shared_ptr<const std::byte> base;
  std::size_t size = 0;
};

Mapping MapFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) BadInput("cannot read '" + path + "': " + std::strerror(errno));
  struct stat info {};
  const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const auto size = static_cast<std::size_t>(regular ? info.st_size : 0);
  void* base = size > 0 ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int problem = errno;
  close(fd);
  if (!regular) BadInput("cannot read '" + path + "': not a regular file");
  if (base == MAP_FAILED) BadInput("cannot map '" + path + "': " + std::strerror(problem));
  const auto unmap = [size](const std::byte* p) {
    if (p != nullptr) munmap(const_cast<std::byte*>(p), size);
  };
  return {std::shared_ptr<const std::byte>(static_cast<const std::byte*>(base), unmap), size};
}

bool SameBytes(const Tensor& stored, const Tensor& wanted) {
  if (stored.dtype == wanted.dtype) return stored.shape == wanted.shape;
  if (stored.dtype != DType::kU8) return false;
  if (wanted.dtype == DType::kUE8M0) return stored.shape == wanted.shape;
  if (wanted.dtype != DType::kE2M1 || wanted.shape.empty()) return false;
  Shape packed = wanted.shape;
  packed.back() = (packed.back() + 1) / 2;
  return stored.shape == packed && stored.bytes() == wanted.bytes();
}

}  // namespace

SafetensorsFile SafetensorsFile::Parse(std::span<const std::byte> bytes, const std::string& name) {
  SafetensorsFile file;
  file.name_ = name;
  file.tensors_ = Reader(name).Read(bytes);
  return file;
}

SafetensorsFile SafetensorsFile::Open(const std::string& path) {
  Mapping mapping = MapFile(path);
  const std::span<const std::byte> bytes(mapping.base.get(), mapping.size);
  CheckDigest(path, bytes);
  SafetensorsFile file = Parse(bytes, path);
  file.mapping_ = std::move(mapping.base);
  return file;
}

const Tensor* SafetensorsFile::find(std::string_view tensor) const {
  for (const Tensor& candidate : tensors_) {
    if (candidate.name == tensor) return &candidate;
  }
  return nullptr;
}

void SafetensorsFile::ReadInto(std::string_view tensor, Tensor& target) const {
  const Tensor* stored = find(tensor);
  if (stored == nullptr) BadInput(name_ + ": no tensor '" + std::string(tensor) + "'");
  if (!SameBytes(*stored, target)) {
    BadInput(name_ + ": tensor '" + stored->name + "' is " + std::string(DTypeName(stored->dtype)) +
             " " + ShapeText(stored->shape) + ", but input '" + target.name + "' is " +
             std::string(DTypeName(target.dtype)) + " " + ShapeText(target.shape));
  }
  if (stored->bytes() > 0) std::memcpy(target.data, stored->data, stored->bytes());
}

std::string SafetensorsPrefix(std::span<const Tensor> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) {
      BadInput("a safetensors file cannot hold two tensors named '" + tensor.name + "'");
    }
    const std::uint64_t end = begin + tensor.bytes();
    header[tensor.name] = {{"dtype", FileDTypeName(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::string prefix(kLengthBytes, '\0');
  std::memcpy(prefix.data(), &length, kLengthBytes);
  return prefix + text;
}

void WriteSafetensors(const std::string& path, std::span<const Tensor> tensors) {
  const std::string prefix = SafetensorsPrefix(tensors);
  std::vector<std::string_view> parts = {prefix};
  for (const Tensor& tensor : tensors) {
    parts.emplace_back(reinterpret_cast<const char*>(tensor.data), tensor.bytes());
  }
  WriteFile(path, parts);
}

}  // namespace assay
