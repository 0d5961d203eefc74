// What one call of the CPU tile kernel does, and its builds for each instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace assay::grouped_gemm_fp8_fp4 {

inline constexpr std::int64_t kMostTaskRows = 128;

// Some rows of one expert times a block of its columns. All scale bytes are ordinary (see below).
struct TileTask {
  std::int64_t k = 0;                      // a multiple of 32
  std::int64_t rows = 0;                   // 1 .. kMostTaskRows
  const e4m3* a[kMostTaskRows];            // [rows] of [k]
  const std::uint8_t* a_scales = nullptr;  // [rows, k/32]
  std::int64_t columns = 0;                // a multiple of 64
  const std::uint8_t* w = nullptr;         // [columns, k/2]
  const std::uint8_t* w_scales = nullptr;  // [columns, k/32], row stride w_scale_stride
  std::int64_t w_scale_stride = 0;
  bf16* d[kMostTaskRows];  // [rows] of [columns]
};

// Memory of one thread, kept between calls.
class TileScratch {
 public:
  bf16* activations(std::int64_t count) { return Grown<bf16>(activations_, count); }
  bf16* weights(std::int64_t count) { return Grown<bf16>(weights_, count); }
  float* sums(std::int64_t count) { return Grown<float>(sums_, count); }
  std::uint8_t* a_scales(std::int64_t count) { return Grown<std::uint8_t>(a_scales_, count); }
  std::uint8_t* w_scales(std::int64_t count) { return Grown<std::uint8_t>(w_scales_, count); }

 private:
  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  template <class T>
  T* Grown(std::vector<CacheLine>& lines, std::int64_t count) {
    const std::size_t wanted = static_cast<std::size_t>(count) * sizeof(T) / sizeof(CacheLine) + 1;
    if (lines.size() < wanted) lines.resize(wanted);
    return reinterpret_cast<T*>(lines.data());
  }
  std::vector<CacheLine> activations_, weights_, sums_, a_scales_, w_scales_;
};

// Scale bytes with which every operand is a normal bf16 number; other tasks take the wide path.
inline constexpr int kLeastActivationScale = 10, kMostActivationScale = 246;
inline constexpr int kLeastWeightScale = 2, kMostWeightScale = 252;
// The least product is 2^(-9 - 1 + a - 127 + w - 127); from this sum of scale bytes on it is no
// fp32 subnormal (some of the instructions would flush it).
inline constexpr int kLeastScaleSum = 138;

// bf16 bits of the sixteen e2m1 codes times each ordinary weight scale, twice in a row (a 32-entry
// permutation may then be fed with dirty fifth index bits).
struct alignas(64) ScaledCodes {
  std::uint16_t bits[256][32];
};

constexpr ScaledCodes MakeScaledCodes() {
  // Codes 1..7 relative to 0.5, which with scale byte b has exponent field b - 1.
  constexpr std::uint16_t kFromHalf[] = {0, 0x0000, 0x0080, 0x00C0, 0x0100, 0x0140, 0x0180, 0x01C0};
  ScaledCodes codes{};
  for (int scale = kLeastWeightScale; scale <= kMostWeightScale; ++scale) {
    for (int code = 0; code < 32; ++code) {
      const int sign = (code & 8) != 0 ? 0x8000 : 0, magnitude = code & 7;
      const int bits = magnitude == 0 ? 0 : ((scale - 1) << 7) + kFromHalf[magnitude];
      codes.bits[scale][code] = static_cast<std::uint16_t>(sign | bits);
    }
  }
  return codes;
}
inline constexpr ScaledCodes scaled_codes = MakeScaledCodes();

void RunTilesBaseline(const TileTask& task, TileScratch& scratch);
void RunTilesAvx2(const TileTask& task, TileScratch& scratch);
void RunTilesAvx512(const TileTask& task, TileScratch& scratch);
void RunTilesAvx512Bf16(const TileTask& task, TileScratch& scratch);

}  // namespace assay::grouped_gemm_fp8_fp4
