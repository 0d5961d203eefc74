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

void ChangeVersion(Bundle& inputs, std::uint64_t from, std::uint64_t to) {
  if (from == to) return;
  for (std::size_t t = 0; t < inputs.tensors().size(); ++t) {
    const Tensor& tensor = inputs.tensors()[t];
    if (!MayChange(tensor)) continue;
    const LowBitLanes lanes = LowBitLanesOf(tensor.dtype);
    for (const auto& [first, last] : inputs.TouchedParts(tensor)) {  // whole pages, but the end
      const std::size_t stop = last, begin_line = first / kLowBitLine;
      const std::size_t lines = (last - first + kLowBitLine - 1) / kLowBitLine;
      ParallelRanges(
          static_cast<std::int64_t>(lines), 1 << 12, 0, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t l = begin; l < end; ++l) {
              const std::size_t line = begin_line + static_cast<std::size_t>(l);
              const std::uint64_t draw = LowBitDraw(from, t, line) ^ LowBitDraw(to, t, line);
              ChangeLine(tensor.data + line * kLowBitLine,
                         tensor.data + std::min((line + 1) * kLowBitLine, stop), draw, lanes);
            }
          });
    }
  }
}

}  // namespace assay
