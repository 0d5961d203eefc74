#include "replay/fresh_inputs.h"

#include <algorithm>
#include <cstring>

#include "base/low_bits.h"
#include "base/parallel.h"

namespace assay {
namespace {

bool MayChange(const Tensor& tensor) {
  return !tensor.shape.empty() && LowBitLanesOf(tensor.dtype).low != 0;
}

// Words of [begin, end), a part of line `line`.
void ChangeLine(std::byte* begin, const std::byte* end, std::uint64_t draw,
                const LowBitLanes& lanes) {
  for (int place = 0; begin < end; ++place, begin += kLowBitWord) {
    const std::size_t size = std::min<std::size_t>(kLowBitWord, end - begin);
    std::uint64_t word = 0;  // lanes behind the end are zeros, which stay
    std::memcpy(&word, begin, size);
    word = ChangeLowBits(word, draw, place, lanes);
    std::memcpy(begin, &word, size);
  }
}

}  // namespace

bool HasVersions(const Bundle& inputs) {
  return std::any_of(inputs.tensors().begin(), inputs.tensors().end(),
                     [](const Tensor& tensor) { return MayChange(tensor) && tensor.bytes() > 0; });
}

std::vector<ContentPart> ChangingParts(const Bundle& inputs, std::byte* arena) {
  std::vector<ContentPart> parts;
  for (std::size_t t = 0; t < inputs.tensors().size(); ++t) {
    const Tensor& tensor = inputs.tensors()[t];
    if (!MayChange(tensor)) continue;
    std::byte* const data = arena + (tensor.data - inputs.arena().data());
    const LowBitLanes lanes = LowBitLanesOf(tensor.dtype);
    for (const auto& [first, last] : inputs.TouchedParts(tensor)) {  // whole pages, but the end
      for (std::size_t at = first; at < last; at += ContentPart::kMostBytes) {
        const std::size_t bytes = std::min(ContentPart::kMostBytes, last - at);
        parts.push_back({data + at, static_cast<std::uint32_t>(bytes),
                         static_cast<std::uint32_t>(t), at / kLowBitLine, lanes});
      }
    }
  }
  return parts;
}

void ChangePart(const ContentPart& part, std::uint64_t from, std::uint64_t to) {
  std::byte* const end = part.data + part.bytes;
  std::uint64_t line = part.first_line;
  for (std::byte* at = part.data; at < end; at += kLowBitLine, ++line) {
    const std::uint64_t draw =
        LowBitDraw(from, part.tensor, line) ^ LowBitDraw(to, part.tensor, line);
    ChangeLine(at, std::min(at + kLowBitLine, end), draw, part.lanes);
  }
}

void ChangeVersion(Bundle& inputs, std::uint64_t from, std::uint64_t to) {
  if (from == to) return;
  const std::vector<ContentPart> parts = ChangingParts(inputs, inputs.arena().data());
  constexpr std::int64_t kPartsPerThread = 16;
  ParallelRanges(static_cast<std::int64_t>(parts.size()), kPartsPerThread, 0,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t p = begin; p < end; ++p) {
                     ChangePart(parts[static_cast<std::size_t>(p)], from, to);
                   }
                 });
}

}  // namespace assay
