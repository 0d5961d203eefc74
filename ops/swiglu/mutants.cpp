// Wrong kernels that verification must reject: one plain activation with a mistake switched on.
#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/swiglu/spec.h"

namespace assay::swiglu {
namespace {

enum class Mistake {
  kGateNotClamped,
  kGateClampedBelow,
  kClampAfterSilu,
  kUpNotClamped,
  kUpClampedAbove,
  kSwapped,
  kSigmoid,
  kSteeperSigmoid,
  kGelu,
  kUpPlusOne,
  kRoundedTwice,
  kTruncated,
  kOnePercent,
};

float Silu(float x) { return x / (1 + std::exp(-x)); }

float ActivatedGate(float gate, float limit, Mistake mistake) {
  if (mistake == Mistake::kGateNotClamped) return Silu(gate);
  if (mistake == Mistake::kClampAfterSilu) return std::min(Silu(gate), limit);
  if (mistake == Mistake::kGateClampedBelow) gate = std::max(gate, -limit);
  gate = std::min(gate, limit);
  switch (mistake) {
    case Mistake::kSigmoid:
      return 1 / (1 + std::exp(-gate));
    case Mistake::kSteeperSigmoid:
      return gate / (1 + std::exp(-1.702f * gate));
    case Mistake::kGelu:
      return 0.5f * gate * (1 + std::erf(gate * 0.70710678f));
    case Mistake::kRoundedTwice:
      return ToFloat(ToBF16(Silu(gate)));
    default:
      return Silu(gate);
  }
}

float ClampedUp(float up, float limit, Mistake mistake) {
  if (mistake == Mistake::kUpNotClamped) return up;
  if (mistake == Mistake::kUpClampedAbove) return std::min(up, limit);
  return std::clamp(up, -limit, limit);
}

void RunMutant(Mistake mistake, const Args& args) {
  for (std::int64_t i = 0; i < args.m * args.n; ++i) {
    float gate = ToFloat(args.gate[i]), up = ToFloat(args.up[i]);
    if (mistake == Mistake::kSwapped) std::swap(gate, up);
    up = ClampedUp(up, args.limit, mistake);
    if (mistake == Mistake::kUpPlusOne) up += 1;
    float y = ActivatedGate(gate, args.limit, mistake) * up;
    if (mistake == Mistake::kOnePercent) y *= 1.01f;
    args.y[i] = ToBF16(y);
    if (mistake == Mistake::kTruncated) {
      args.y[i] = {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(y) >> 16)};
    }
  }
}

Mutant Make(const char* name, const char* what, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr) {
  const auto run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    RunMutant(mistake, Bind(problem, inputs, outputs));
  };
  return {name, what, run, applies};
}

// At limit 10, silu is within 4.6e-5 of its argument: a tenth of half a unit of bf16 hides that.
bool LimitIsSmall(const Problem& problem) { return LimitOf(problem) <= 4; }

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("gate_not_clamped", "leaves the gate as it is", Mistake::kGateNotClamped),
      Make("gate_clamped_below", "clamps the gate at -limit as well", Mistake::kGateClampedBelow),
      Make("clamp_after_silu", "clamps silu(gate) instead of the gate", Mistake::kClampAfterSilu,
           LimitIsSmall),
      Make("up_not_clamped", "leaves up as it is", Mistake::kUpNotClamped),
      Make("up_clamped_above", "does not clamp up at -limit", Mistake::kUpClampedAbove),
      Make("swapped", "activates up and multiplies by the gate", Mistake::kSwapped),
      Make("sigmoid", "multiplies by the sigmoid of the gate alone", Mistake::kSigmoid),
      Make("steeper_sigmoid", "uses gate * sigmoid(1.702 gate), another family's activation",
           Mistake::kSteeperSigmoid),
      Make("gelu", "uses gelu for silu", Mistake::kGelu),
      Make("up_plus_one", "multiplies by up + 1, another family's convention", Mistake::kUpPlusOne),
      Make("rounded_twice", "rounds silu(gate) to bf16 before the product", Mistake::kRoundedTwice),
      Make("truncated", "cuts to bf16 instead of rounding", Mistake::kTruncated),
      Make("one_percent", "is 1 percent too large", Mistake::kOnePercent),
  };
}

}  // namespace assay::swiglu
