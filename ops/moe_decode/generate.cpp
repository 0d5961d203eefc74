// Generated inputs: rows as a norm leaves them, experts whose gates and ups have a deviation of 4
// (the clamps at 10 are hit), only experts that have rows. Only + - * / and table look-ups, so that
// a key gives the same bits on every machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/parallel.h"
#include "base/random.h"
#include "ops/moe_decode/spec.h"

namespace assay::moe_decode {
namespace {

// Positions in the declared order: tensor numbers of the element source. Codes of matrix i are
// kMatrix + 2 i, its scales one more.
constexpr std::uint64_t kX = 0, kWeights = 2, kMatrix = 3;
constexpr std::uint64_t kRouting = kAuxiliaryTensor + 300;

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

// 256 e4m3 codes, more small ones than large ones, up to 3 in magnitude.
const std::array<std::uint8_t, 256>& Codes8() {
  static const std::array<std::uint8_t, 256> codes = [] {
    std::array<std::uint8_t, 256> made{};
    for (std::size_t i = 0; i < made.size(); ++i) {
      const double u = (static_cast<double>(i) - 127.5) / 127.5;
      made[i] = ToE4M3(1.5 * u * (1 + u * u)).bits;
    }
    return made;
  }();
  return codes;
}
constexpr double kRms8 = 1.4041;  // of the codes above: sqrt(1.5^2 (1/3 + 2/5 + 1/7))
constexpr double kRms4 = 2.9262;  // of the 16 codes of e2m1: sqrt(68.5 / 8)

// Writes into a bundle that it was bound to as an input.
struct Filler {
  std::uint64_t key, tensor;
  const Matrix& w;
  double sigma;  // wanted deviation of the values

  void Codes(std::int64_t expert) const {
    const std::int64_t bytes = FourBits(w.format) ? w.n * w.k / 2 : w.n * w.k;
    auto* codes = const_cast<std::uint8_t*>(w.codes) + expert * bytes;
    const std::array<std::uint8_t, 256>& table = Codes8();
    ParallelRanges(bytes / 8, 1 << 14, 0, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t word = begin; word < end; ++word) {
        std::uint64_t random = Mix64(key, tensor, Index(expert * (bytes / 8) + word));
        for (int i = 0; i < 8; ++i, random >>= 8) {
          const auto byte = static_cast<std::uint8_t>(random);
          codes[word * 8 + i] = FourBits(w.format) ? byte : table[byte];
        }
      }
    });
  }

  // One of eight values around `middle` for scale `index`.
  unsigned Choice(std::int64_t index) const {
    return static_cast<unsigned>(Mix64(key, tensor + 1, Index(index)) >> 61);
  }

  void Scales(std::int64_t expert) const {
    if (w.format == Format::kFP8) {
      const std::int64_t count = w.n / kBlock * (w.k / kBlock);
      auto* blocks = const_cast<float*>(w.blocks) + expert * count;
      const auto unit = static_cast<float>(sigma / kRms8);
      for (std::int64_t i = 0; i < count; ++i) {
        blocks[i] = unit * (0.75f + static_cast<float>(Choice(expert * count + i)) / 14);
      }
      return;
    }
    const std::int64_t count = w.n * (w.k / ScaleGroup(w.format));
    auto* groups = const_cast<std::uint8_t*>(w.groups) + expert * count;
    if (w.format == Format::kNVFP4) {
      const_cast<float*>(w.global)[expert] = static_cast<float>(sigma / kRms4 / 16);
    }
    // The power of two nearest to the wanted scale, half and double of it; 16 * (0.75 .. 1.25) in
    // e4m3.
    int exponent = 0;
    std::frexp(sigma / kRms4 * 1.41421356, &exponent);
    constexpr int kSteps[8] = {-1, -1, 0, 0, 0, 0, 1, 1};
    constexpr std::uint8_t kE4M3[8] = {0x54, 0x55, 0x56, 0x57, 0x58, 0x58, 0x59, 0x5A};
    for (std::int64_t i = 0; i < count; ++i) {
      const unsigned choice = Choice(expert * count + i);
      groups[i] = w.format == Format::kNVFP4
                      ? kE4M3[choice]
                      : static_cast<std::uint8_t>(127 + exponent - 1 + kSteps[choice]);
    }
  }

  void Poison(std::int64_t expert) const {
    if (w.format == Format::kFP8) {
      const std::int64_t count = w.n / kBlock * (w.k / kBlock);
      std::memset(const_cast<float*>(w.blocks) + expert * count, 0xFF,
                  static_cast<std::size_t>(4 * count));
    } else {
      const std::int64_t count = w.n * (w.k / ScaleGroup(w.format));
      std::memset(const_cast<std::uint8_t*>(w.groups) + expert * count, 0xFF,
                  static_cast<std::size_t>(count));
    }
  }
};

void FillRoutes(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t m = problem.axis("M"), k = problem.axis("K"), experts = problem.axis("E");
  auto* ids = inputs["topk_ids"].as<std::int32_t>();
  auto* weights = inputs["topk_weights"].as<float>();
  for (std::int64_t row = 0; row < m; ++row) {
    const std::int64_t like = problem.variant == "same_experts" ? 0 : row;
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    for (std::int64_t j = 0; j < k; ++j) {  // the first k of a Fisher-Yates shuffle
      const std::uint64_t random = Mix64(key, kRouting, Index(like * k + j));
      std::swap(order[static_cast<std::size_t>(j)],
                order[static_cast<std::size_t>(j) + random % Index(experts - j)]);
      ids[row * k + j] = order[static_cast<std::size_t>(j)];
    }
    float sum = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      float& weight = weights[row * k + j];
      weight = static_cast<float>(0.2 + 0.6 * Uniform(key, kWeights, Index(row * k + j)));
      sum += weight;
    }
    for (std::int64_t j = 0; j < k; ++j) weights[row * k + j] *= 2.5f / sum;
  }
}

}  // namespace

std::vector<std::string> Variants() { return {"independent", "same_experts", "large", "poison"}; }

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  FillRoutes(problem, key, inputs);
  Tensor& x = inputs["x"];
  const float gain = problem.variant == "large" ? 4.0f : 1.0f;  // a third of the gates is clamped
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    x.as<bf16>()[i] = ToBF16(gain * UnitNormal(key, kX, Index(i)));
  }
  const Args args = BindInputs(problem, inputs);
  const std::vector<bool> active = ActiveExperts(args);
  const Matrix* const matrices[] = {&args.gate, &args.up, &args.down};
  for (std::uint64_t i = 0; i < 3; ++i) {
    const Matrix& w = *matrices[i];
    const double sigma = (i < 2 ? 4.0 : 0.25) / std::sqrt(static_cast<double>(w.k));
    const Filler fill{key, kMatrix + 2 * i, w, sigma};
    std::int64_t poisoned = problem.variant == "poison" ? 0 : kPoisonedExperts;
    for (std::size_t e = 0; e < active.size(); ++e) {
      const auto expert = static_cast<std::int64_t>(e);
      if (active[e]) {
        fill.Codes(expert);
        fill.Scales(expert);
      } else if (poisoned < kPoisonedExperts) {
        fill.Poison(expert);
        ++poisoned;
      }
    }
  }
}

}  // namespace assay::moe_decode
