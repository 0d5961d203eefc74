// Generated inputs: quantized activations, and weights of the experts that own rows (routing.cpp).
// Weights are the largest tensor of all captured operators (4.8 GB), hence the cheap source: one
// Mix64 makes 16 weights. Nothing here calls libm: the same bits on every machine.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

constexpr std::uint64_t kA = 0, kW = 2, kSFW = 3;  // positions in the declared order
constexpr std::uint64_t kUp = kAuxiliaryTensor + 2;

// Scale bytes around every limit of the number formats page; no sign appears in that variant, so
// that no overflow can cancel.
constexpr std::uint8_t kEdgeScales[] = {0, 1, 3, 134, 135, 246, 252, 254};

// --- activations ---

ASSAY_VECTOR_CLONES void FillNormal(std::uint64_t key, std::int64_t first, std::int64_t count,
                                    float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = UnitNormal(key, kA, static_cast<std::uint64_t>(first + i));
  }
}

// exp(x) for |x| <= 6 from additions and multiplications: Taylor on x/16, then four squarings.
inline double PortableExp(double x) {
  const double y = x * 0.0625;
  double p = 1.0 / 40320.0;
  for (const double c :
       {1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0}) {
    p = p * y + c;
  }
  p = p * p;
  p = p * p;
  p = p * p;
  return p * p;
}

// silu(gate) * up, both N(0, 1.5) as the gate+up projection leaves them (their clamps at 10 are out
// of reach).
ASSAY_VECTOR_CLONES void FillGated(std::uint64_t key, std::int64_t first, std::int64_t count,
                                   float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(first + i);
    const double gate = 1.5 * UnitNormal(key, kA, index);
    const double up = 1.5 * UnitNormal(key, kUp, index);
    out[i] = static_cast<float>(gate / (1.0 + PortableExp(-gate)) * up);
  }
}

// The code of |y| <= 448, round to nearest even, as ToE4M3; without branches, so that it
// vectorises.
inline std::uint8_t EncodeE4M3(float y) {
  const auto bits = std::bit_cast<std::uint32_t>(y);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal =
      ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  // Adding 2^14 leaves steps of 2^-9, those of the subnormal codes.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  const std::uint32_t code = magnitude < 0x3C800000u ? subnormal : normal;  // 2^-6
  return static_cast<std::uint8_t>((bits >> 24 & 0x80u) | code);
}

// As ScaleForE4M3: the smallest k with amax <= 448 * 2^k = 1.75 * 2^(k + 8). The addition carries
// into the exponent when the significand is above 1.75.
inline std::uint8_t ScaleByte(float amax) {
  return static_cast<std::uint8_t>(
      ((std::bit_cast<std::uint32_t>(std::max(amax, 1e-4f)) + 0x1FFFFFu) >> 23) - 8);
}

ASSAY_VECTOR_CLONES void QuantizeGroup(const float* x, std::int64_t count, std::uint8_t& scale,
                                       e4m3* codes) {
  float amax = 0;
#pragma omp simd reduction(max : amax)
  for (std::int64_t i = 0; i < count; ++i) amax = std::max(amax, std::abs(x[i]));
  scale = ScaleByte(amax);
  const float inverse = std::bit_cast<float>((254u - scale) << 23);
  for (std::int64_t i = 0; i < count; ++i) codes[i].bits = EncodeE4M3(x[i] * inverse);
}

bool IsDownProjection(const Problem& problem) { return problem.axis("N") > problem.axis("K"); }

// The down projection's input comes from a fused activation that quantizes 128 elements together;
// its scale bytes then come in fours.
std::int64_t QuantizedTogether(const Problem& problem) {
  const bool together = IsDownProjection(problem) && problem.variant != "group_32" &&
                        problem.axis("K") % (4 * kGroup) == 0;
  return together ? 4 * kGroup : kGroup;
}

struct ActivationRow {
  std::vector<float> x;
  std::vector<std::uint8_t> scales;
};

void MakeRow(const Problem& problem, std::uint64_t key, std::int64_t m, ActivationRow& row,
             e4m3* codes) {
  const std::int64_t k = problem.axis("K"), together = QuantizedTogether(problem);
  float* x = row.x.data();
  if (IsDownProjection(problem)) {
    FillGated(key, m * k, k, x);
  } else {
    FillNormal(key, m * k, k, x);
    for (std::int64_t j = 0; j < 4; ++j) x[k / 8 + j * k / 4] *= 10;  // outlier channels
  }
  for (std::int64_t i = 0; i < k; i += together) {
    std::uint8_t scale = 0;
    QuantizeGroup(x + i, together, scale, codes + i);
    std::fill_n(row.scales.begin() + i / kGroup, together / kGroup, scale);
  }
  if (problem.variant == "edge_scales") {
    for (std::int64_t i = 0; i < k; ++i) codes[i].bits &= 0x7F;
    const auto groups = static_cast<std::int64_t>(row.scales.size());
    if (groups > 1) std::fill_n(codes + kGroup, kGroup, e4m3{});  // a group of zeros
    for (std::int64_t g = 0; g < groups; ++g) {
      row.scales[static_cast<std::size_t>(g)] = kEdgeScales[(m + g) % 8];
    }
  } else if (problem.variant == "largest") {
    // 448 with alternating signs, so that all but the first element cancel.
    for (std::int64_t i = 0; i < k; ++i) codes[i].bits = i % 2 == 0 ? 0x7E : 0xFE;
    codes[0].bits = static_cast<std::uint8_t>(m % 0x7E);
    std::fill(row.scales.begin(), row.scales.end(), std::uint8_t{121});
  }
}

// Scales of one row into either storage; `row` counts inside the leading index `block`.
void StoreScales(Tensor& tensor, std::int64_t block, std::int64_t row, const std::uint8_t* scales,
                 std::int64_t groups) {
  const std::size_t rank = tensor.shape.size();
  const std::int64_t rows = tensor.shape[rank - 2], stride = tensor.shape[rank - 1];
  std::byte* base =
      tensor.data + static_cast<std::int64_t>(DTypeBytes(tensor.dtype, rows * stride)) * block;
  if (tensor.dtype == DType::kI32) {
    for (std::int64_t g = 0; g < groups; ++g) {
      base[(g / kPackedGroups * stride + row) * 4 + g % kPackedGroups] = std::byte{scales[g]};
    }
    return;
  }
  std::memcpy(base + row * stride, scales, static_cast<std::size_t>(groups));
  std::memset(base + row * stride + groups, 0xFF, static_cast<std::size_t>(stride - groups));
}

void GenerateActivations(const Problem& problem, std::uint64_t key,
                         const std::vector<std::int32_t>& experts, Bundle& inputs) {
  const std::int64_t k = problem.axis("K"), groups = k / kGroup;
  Tensor& sfa = inputs["SFA"];
  e4m3* a = inputs["A"].as<e4m3>();
  if (sfa.dtype == DType::kI32) std::memset(sfa.data, 0xFF, sfa.bytes());  // rows behind M
  ParallelRanges(problem.axis("M"), 16, 0, [&](std::int64_t begin, std::int64_t end) {
    ActivationRow row{std::vector<float>(static_cast<std::size_t>(k)),
                      std::vector<std::uint8_t>(static_cast<std::size_t>(groups))};
    for (std::int64_t m = begin; m < end; ++m) {
      if (experts[static_cast<std::size_t>(m)] >= 0) {
        MakeRow(problem, key, m, row, a + m * k);
      } else {  // a padding row is never read: NaN
        std::fill_n(a + m * k, k, e4m3{0x7F});
        std::fill(row.scales.begin(), row.scales.end(), std::uint8_t{0xFF});
      }
      StoreScales(sfa, 0, m, row.scales.data(), groups);
    }
  });
}

// --- weights ---

ASSAY_VECTOR_CLONES void FillWords(std::uint64_t key, std::uint64_t first, std::int64_t count,
                                   std::uint64_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = Mix64(key, kW, first + static_cast<std::uint64_t>(i));
  }
}

// Eight scale bytes a word from three bits each: 119, 120, 121 with probabilities 4/8, 3/8, 1/8.
// With uniform codes (rms 2.93) the weights have rms 2.93 * 2^-7 = 0.023.
ASSAY_VECTOR_CLONES void FillScaleWords(std::uint64_t key, std::uint64_t first, std::int64_t count,
                                        std::uint64_t* out) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t x = Mix64(key, kSFW, first + static_cast<std::uint64_t>(i));
    const std::uint64_t bit2 = x >> 2 & kOnes, all = bit2 & (x >> 1) & x;
    out[i] = 119 * kOnes + bit2 + all;
  }
}

// Columns [begin, end) of one expert: codes, in bytes of two.
void FillCodes(const Problem& problem, std::uint64_t key, std::int64_t expert, std::int64_t begin,
               std::int64_t end, Tensor& w) {
  const std::int64_t row_bytes = problem.axis("K") / 2;
  const std::int64_t first = (expert * problem.axis("N") + begin) * row_bytes;
  const std::int64_t count = (end - begin) * row_bytes;
  std::byte* out = w.data + first;
  if (problem.variant == "largest") {
    std::memset(out, 0x77, static_cast<std::size_t>(count));
    return;
  }
  // K is a multiple of 32: rows are whole words.
  FillWords(key, static_cast<std::uint64_t>(first / 8), count / 8,
            reinterpret_cast<std::uint64_t*>(out));
  if (problem.variant == "edge_scales") {
    for (std::int64_t i = 0; i < count; ++i) out[i] &= std::byte{0x77};
  }
}

// The scales of one expert, [N, G] plain bytes.
void MakeScales(const Problem& problem, std::uint64_t key, std::int64_t expert,
                std::vector<std::uint64_t>& words) {
  const std::int64_t n = problem.axis("N"), groups = problem.axis("K") / kGroup;
  words.resize(static_cast<std::size_t>(n * groups / 8));  // N is a multiple of 64
  const auto first = static_cast<std::uint64_t>(expert * n * groups / 8);
  FillScaleWords(key, first, n * groups / 8, words.data());
  if (problem.variant == "edge_scales") {
    auto* bytes = reinterpret_cast<std::uint8_t*>(words.data());
    for (std::int64_t i = 0; i < n * groups; ++i) {
      bytes[i] = kEdgeScales[(i / groups + i % groups / 2) % 8];
    }
  }
}

void GenerateScales(const Problem& problem, std::uint64_t key, std::int64_t expert, Tensor& sfw,
                    std::vector<std::uint64_t>& words) {
  const std::int64_t n = problem.axis("N"), groups = problem.axis("K") / kGroup;
  MakeScales(problem, key, expert, words);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data());
  if (sfw.dtype != DType::kI32 && sfw.shape[2] == groups) {
    std::memcpy(sfw.data + expert * n * groups, bytes, static_cast<std::size_t>(n * groups));
    return;
  }
  for (std::int64_t row = 0; row < n; ++row) {
    StoreScales(sfw, expert, row, bytes + row * groups, groups);
  }
}

void GenerateWeights(const Problem& problem, std::uint64_t key,
                     const std::vector<std::int64_t>& active, Bundle& inputs) {
  Tensor& w = inputs["W"];
  Tensor& sfw = inputs["SFW"];
  const std::int64_t n = problem.axis("N");
  constexpr std::int64_t kParts = 8;  // of an expert's columns, so that one expert feeds all cores
  const auto experts = static_cast<std::int64_t>(active.size());
  ParallelFor(experts * kParts, 0, [&](std::int64_t task) {
    const std::int64_t part = task % kParts;
    FillCodes(problem, key, active[static_cast<std::size_t>(task / kParts)], n * part / kParts,
              n * (part + 1) / kParts, w);
  });
  ParallelRanges(experts, 1, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint64_t> words;
    for (std::int64_t i = begin; i < end; ++i) {
      GenerateScales(problem, key, active[static_cast<std::size_t>(i)], sfw, words);
    }
  });
}

// NaN scales, and codes of 6, in a few experts that own no row.
void PoisonIdle(const std::vector<std::int64_t>& rows_of_expert, Bundle& inputs) {
  std::int64_t left = kPoisonedExperts;
  for (std::size_t e = rows_of_expert.size(); e-- > 0 && left > 0;) {
    if (rows_of_expert[e] != 0) continue;
    for (const char* name : {"W", "SFW"}) {
      Tensor& tensor = inputs[name];
      const std::size_t bytes = tensor.bytes() / rows_of_expert.size();
      std::memset(tensor.data + e * bytes, 0xFF, bytes);
    }
    --left;
  }
}

template <class Integer>
void StoreOffsets(const std::vector<std::int64_t>& rows_of_expert, Integer* offsets) {
  std::int64_t sum = 0;
  for (std::size_t e = 0; e < rows_of_expert.size(); ++e) {
    offsets[e] = static_cast<Integer>(sum);
    sum += rows_of_expert[e];
  }
  offsets[rows_of_expert.size()] = static_cast<Integer>(sum);
}

}  // namespace

std::vector<std::string> Variants() {
  return {"tokens",        "uniform",      "same_experts", "one_129",     "one_each",
          "shuffled",      "padding_rows", "offsets",      "offsets_i64", "packed_scales",
          "padded_scales", "group_32",     "poison",       "edge_scales", "largest"};
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::vector<std::int32_t> experts = GenerateRouting(problem, key);
  std::vector<std::int64_t> rows_of_expert(static_cast<std::size_t>(problem.axis("E")));
  for (const std::int32_t e : experts) {
    if (e >= 0) ++rows_of_expert[static_cast<std::size_t>(e)];
  }
  if (Tensor* rows = inputs.find("m_indices")) {
    std::copy(experts.begin(), experts.end(), rows->as<std::int32_t>());
  }
  if (Tensor* offsets = inputs.find("expert_offsets")) {
    if (offsets->dtype == DType::kI64) {
      StoreOffsets(rows_of_expert, offsets->as<std::int64_t>());
    } else {
      StoreOffsets(rows_of_expert, offsets->as<std::int32_t>());
    }
  }
  std::vector<std::int64_t> active;
  for (std::size_t e = 0; e < rows_of_expert.size(); ++e) {
    if (rows_of_expert[e] != 0) active.push_back(static_cast<std::int64_t>(e));
  }
  GenerateActivations(problem, key, experts, inputs);
  GenerateWeights(problem, key, active, inputs);
  if (problem.variant == "poison") PoisonIdle(rows_of_expert, inputs);
}

}  // namespace assay::grouped_gemm_fp8_fp4
