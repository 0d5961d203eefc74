#include "engine/model.h"

#include <cstring>

#include "base/error.h"

namespace assay::engine {
namespace {

unsigned Code(const Matrix& w, std::int64_t i, std::int64_t k) {
  const auto byte = std::to_integer<unsigned>(w.data.get()[(i * w.k + k) / 2]);
  return k % 2 == 0 ? byte & 15u : byte >> 4;  // low nibble = even k
}

float GroupScale(const Matrix& w, std::int64_t i, std::int64_t k) {
  const std::int64_t group = w.format == WeightFormat::kMXFP4 ? kMXFP4Group : kNVFP4Group;
  const auto byte = std::to_integer<std::uint8_t>(w.scales.get()[i * (w.k / group) + k / group]);
  return w.format == WeightFormat::kMXFP4 ? ToFloat(ue8m0{byte}) : ToFloat(e4m3{byte});
}

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kFP8:
      return "fp8";
    case WeightFormat::kMXFP4:
      return "mxfp4";
    case WeightFormat::kNVFP4:
      return "nvfp4";
  }
  return "unknown";
}

std::int64_t Matrix::bytes() const {
  switch (format) {
    case WeightFormat::kBF16:
      return 2 * n * k;
    case WeightFormat::kFP8:
      return n * k + 4 * FP8Blocks(n) * FP8Blocks(k);
    case WeightFormat::kMXFP4:
      return n * k / 2 + n * k / kMXFP4Group;
    case WeightFormat::kNVFP4:
      return n * k / 2 + n * k / kNVFP4Group + 4;
  }
  return 0;
}

void DecodeRow(const Matrix& w, std::int64_t i, std::int64_t k0, std::int64_t k1, bf16* target) {
  if (w.format == WeightFormat::kBF16) {
    std::memcpy(target, w.row(i) + k0, static_cast<std::size_t>(k1 - k0) * sizeof(bf16));
    return;
  }
  for (std::int64_t k = k0; k < k1; ++k) {
    if (w.format == WeightFormat::kFP8) {
      target[k - k0] =
          ToBF16(ToFloat(e4m3{std::to_integer<std::uint8_t>(w.data.get()[i * w.k + k])}));
    } else {
      target[k - k0] = ToBF16(E2M1ToFloat(Code(w, i, k)) * GroupScale(w, i, k));
    }
  }
}

float BlockScale(const Matrix& w, std::int64_t i, std::int64_t block) {
  const std::int64_t index = i / kFP8Block * FP8Blocks(w.k) + block;
  float scale = 0;
  std::memcpy(&scale, w.scales.get() + index * 4, sizeof scale);
  return scale;
}

double WeightValue(const Matrix& w, std::int64_t i, std::int64_t k) {
  bf16 value;
  DecodeRow(w, i, k, k + 1, &value);
  const double x = ToFloat(value);
  switch (w.format) {
    case WeightFormat::kFP8:
      return x * BlockScale(w, i, k / kFP8Block);
    case WeightFormat::kNVFP4:
      return x * w.scale;
    default:
      return x;
  }
}

}  // namespace assay::engine
