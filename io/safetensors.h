// Safetensors files: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}}, raw row-major little-endian data. Read by mapping, written in one go.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace assay {

// The tensors of a mapped file, in the order of their data. Their `data` is read-only and may be
// unaligned for its type: copy it, for example with ReadInto.
class SafetensorsFile {
 public:
  // Throws kInput naming the file and what is malformed: too short, header length, JSON, duplicate
  // name, dtype, shape, offsets outside the file, overlap, gap, or a byte length that is not shape
  // x dtype. "__metadata__" is ignored.
  static SafetensorsFile Open(const std::string& path);
  // The same on bytes in memory, which must outlive the result; `name` stands in messages.
  static SafetensorsFile Parse(std::span<const std::byte> bytes, const std::string& name);

  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor* find(std::string_view tensor) const;

  // Copies a tensor. Throws kInput when it is missing or has another dtype or shape than `target`.
  // The same bytes under another name are accepted: uint8 for ue8m0, and uint8 with half the last
  // dimension for e2m1.
  void ReadInto(std::string_view tensor, Tensor& target) const;

 private:
  std::string name_;
  std::shared_ptr<const std::byte> mapping_;  // empty for Parse
  std::vector<Tensor> tensors_;
};

// Throws what WriteFile (io/file.h) throws.
void WriteSafetensors(const std::string& path, std::span<const Tensor> tensors);
// Header length, header and padding to 8 bytes: what stands before the data of `tensors`.
std::string SafetensorsPrefix(std::span<const Tensor> tensors);

}  // namespace assay
