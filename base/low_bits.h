// New content at the cost of one pass over the memory: the lowest mantissa bit of every
// floating-point element is drawn again. A kernel that keeps results by content never meets the
// same content twice, while ranges, indices and whatever zeros mean stay what they were.
// The same bits on CPU and GPU.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/random.h"

namespace assay {

// Bytes that share one draw, and the words that are changed one by one.
inline constexpr std::size_t kLowBitLine = 64, kLowBitWord = 8;

// A format as lanes of a 64-bit word, each mask repeated in every lane.
struct LowBitLanes {
  std::uint64_t low = 0;       // the lowest mantissa bit; 0 = elements of this type stay
  std::uint64_t mantissa = 0;  // the others
  std::uint64_t exponent = 0;
  int top = 0;  // position of a lane's highest bit
};

constexpr LowBitLanes LowBitLanesOf(DType dtype) {
  const auto lanes = [](std::uint64_t low, std::uint64_t mantissa, std::uint64_t exponent,
                        int top) {
    return LowBitLanes{low, low * mantissa, low * exponent, top};
  };
  constexpr std::uint64_t k8 = 0x0101010101010101u, k16 = 0x0001000100010001u;
  switch (dtype) {
    case DType::kBF16:
      return lanes(k16, 0x7E, 0x7F80, 15);
    case DType::kF16:
      return lanes(k16, 0x3FE, 0x7C00, 15);
    case DType::kE4M3:
      return lanes(k8, 0x06, 0x78, 7);
    case DType::kE5M2:
      return lanes(k8, 0x02, 0x7C, 7);
    case DType::kF32:
      return lanes(0x0000000100000001u, 0x7FFFFE, 0x7F800000, 31);
    case DType::kF64:
      return lanes(1, 0xFFFFFFFFFFFFEu, 0x7FF0000000000000u, 63);
    default:
      return {};
  }
}

// What version `version` of a content has in line `line` (64 bytes) of a tensor. Version 0 is the
// content as it was generated or stored.
constexpr std::uint64_t LowBitDraw(std::uint64_t version, std::uint64_t tensor,
                                   std::uint64_t line) {
  return version == 0 ? 0 : Mix64(version, tensor, line);
}

// Word `place` (0 to 7) of a line, changed by the XOR of the draws of the version that it has and
// of the one that it gets. Zeros, powers of two, infinities and NaNs stay: they may mean something
// exactly. Whether an element stays does not depend on its lowest bit, so every change can be
// taken back.
constexpr std::uint64_t ChangeLowBits(std::uint64_t word, std::uint64_t draw, int place,
                                      const LowBitLanes& lanes) {
  const std::uint64_t below = (lanes.low << lanes.top) - lanes.low;  // all of a lane but its top
  // A lane's top bit is set where the masked part is not zero; no sum leaves its lane.
  const std::uint64_t inexact = (word & lanes.mantissa) + below;
  const std::uint64_t finite = (~word & lanes.exponent) + below;
  return word ^ ((draw >> place) & ((inexact & finite) >> lanes.top) & lanes.low);
}

}  // namespace assay
