#include "ops/mla/inputs.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/mla/codec.h"
#include "ops/room.h"

namespace assay::mla {
namespace {

constexpr std::uint64_t kGains = kAuxiliaryTensor + 240;  // + tensor

ASSAY_VECTOR_CLONES void FillNormal(std::uint64_t key, std::uint64_t tensor, std::uint64_t first,
                                    std::int64_t count, float factor, bf16* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = ToBF16(factor * UnitNormal(key, tensor, first + static_cast<std::uint64_t>(i)));
  }
}

ASSAY_VECTOR_CLONES void FillNormal(std::uint64_t key, std::uint64_t tensor, std::uint64_t first,
                                    std::int64_t count, float factor, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = factor * UnitNormal(key, tensor, first + static_cast<std::uint64_t>(i));
  }
}

// Exponent field all ones: NaN or infinity.
ASSAY_VECTOR_CLONES bool AllFinite(const bf16* x, std::int64_t count) {
  unsigned special = 0;
  for (std::int64_t i = 0; i < count; ++i) special |= (x[i].bits & 0x7F80u) == 0x7F80u;
  return special == 0;
}

std::string Where(const Problem& problem, const Tensor& tensor, std::int64_t index) {
  return problem.definition->name + ": " + tensor.name + "[" + std::to_string(index) + "]";
}

}  // namespace

void GenerateQueries(std::uint64_t key, std::uint64_t tensor, std::int64_t tokens, bf16* q) {
  ParallelRanges(tokens * kHeads, 64, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      // 37 is odd: every head has a factor of its own, and neighbours differ much.
      const float factor = 0.75f + 2.25f / 63 * static_cast<float>(row % kHeads * 37 % kHeads);
      FillNormal(key, tensor, static_cast<std::uint64_t>(row * kDim), kDim, factor, q + row * kDim);
    }
  });
}

void GenerateSinks(std::uint64_t key, std::uint64_t tensor, float* sink) {
  for (std::int64_t head = 0; head < kHeads; ++head) {
    sink[head] = UnitNormal(key, tensor, static_cast<std::uint64_t>(head));
  }
  sink[3] = -std::numeric_limits<float>::infinity();
  sink[17] = std::numeric_limits<float>::infinity();
  sink[29] = 20;
  sink[41] = 8;
}

void LatentRow(std::uint64_t key, std::uint64_t tensor, std::int64_t row, float* x) {
  const auto number = static_cast<std::uint64_t>(row);
  const auto gain = static_cast<float>(0.5 + 1.5 * Uniform(key, kGains + tensor, number));
  FillNormal(key, tensor, number * static_cast<std::uint64_t>(kDim), kDim, gain, x);
}

void CheckLengths(const Problem& problem, const Tensor* lengths, std::int64_t width) {
  if (lengths == nullptr) return;
  for (std::int64_t i = 0; i < lengths->elements(); ++i) {
    const std::int32_t length = lengths->as<std::int32_t>()[i];
    if (length < 0 || length > width) {
      BadInput(Where(problem, *lengths, i) + " = " + std::to_string(length) + " is outside 0.." +
               std::to_string(width));
    }
  }
}

void CheckSinks(const Problem& problem, const Tensor* sink) {
  if (sink == nullptr) return;
  for (std::int64_t head = 0; head < sink->elements(); ++head) {
    if (std::isnan(sink->as<float>()[head])) BadInput(Where(problem, *sink, head) + " is NaN");
  }
}

void CheckQueries(const Problem& problem, const Tensor& q) {
  std::atomic<std::int64_t> bad{INT64_MAX};
  ParallelRanges(q.elements(), 1 << 20, 0, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = FirstNonFinite(q.as<bf16>() + begin, end - begin);
    if (at < 0) return;
    std::int64_t known = bad.load();
    while (begin + at < known && !bad.compare_exchange_weak(known, begin + at)) {
    }
  });
  if (bad == INT64_MAX) return;
  const std::int64_t token = bad / (kHeads * kDim), head = bad / kDim % kHeads;
  BadInput(problem.definition->name + ": q[" + std::to_string(token) + "," + std::to_string(head) +
           "," + std::to_string(bad % kDim) + "] = " + std::to_string(ToFloat(q.as<bf16>()[bad])) +
           " is not finite");
}

float ScaleOf(const Problem& problem, const Bundle& inputs) {
  const Tensor* tensor =
      RequireTensor(problem, inputs, "sm_scale", DType::kF32, {Shape{}}, /*optional=*/true);
  if (tensor == nullptr) return kDefaultScale;
  const float scale = tensor->as<float>()[0];
  if (!(scale > 0) || !std::isfinite(scale)) {
    BadInput(problem.definition->name + ": sm_scale = " + std::to_string(scale) +
             " is not a positive finite number");
  }
  return scale;
}

std::int64_t FirstNonFinite(const bf16* x, std::int64_t count) {
  if (AllFinite(x, count)) return -1;
  const bf16* at = std::find_if(x, x + count, [](bf16 e) { return (e.bits & 0x7F80u) == 0x7F80u; });
  return at - x;
}

}  // namespace assay::mla
