// Wrong grouped GEMMs that verification must reject: one plain kernel with a mistake switched on.
// Each is a mistake that a real kernel made or could make.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

enum class Mistake {
  kNibblesSwapped,
  kScaleOfNextGroup,
  kWeightScalePer64,
  kActivationScalePer128,
  kScalesTransposed,
  kScaleBias128,
  kCodeOneAsNormal,
  kE4M3AsE5M2,
  kExpertOfTile,
  kNextExpert,
  kOffsetsIn32Bits,
  kLastGroupDropped,
  kHalfTheColumnsInterleaved,
  kOddRowSkipped,
  kSumInBF16,
  kRequantizedPerToken,
  kPaddingIsExpertZero,
};

// The tile of consecutive rows that takes one expert for all of them.
constexpr std::int64_t kTileRows = 64;

// Values of the sixteen e2m1 codes.
std::array<float, 16> CodeValues(Mistake mistake) {
  std::array<float, 16> values{};
  for (unsigned code = 0; code < 16; ++code) values[code] = E2M1ToFloat(code);
  if (mistake == Mistake::kCodeOneAsNormal) {
    // "Exponent 0 is like any other": 2^-1 * (1 + m/2).
    values[0] = 0.5f, values[1] = 0.75f, values[8] = -0.5f, values[9] = -0.75f;
  }
  return values;
}

std::vector<float> ActivationRow(const Args& args, std::int64_t m, Mistake mistake) {
  std::vector<float> row(static_cast<std::size_t>(args.k));
  float amax = 0;
  for (std::int64_t i = 0; i < args.k; ++i) {
    std::int64_t g = i / kGroup;
    if (mistake == Mistake::kActivationScalePer128) g = g / 4 * 4;
    const float scale = ToFloat(args.sfa[m * args.sfa_stride + g]);
    float& x = row[static_cast<std::size_t>(i)];
    const e4m3 code = args.a[m * args.lda + i];
    x = mistake == Mistake::kE4M3AsE5M2 ? ToFloat(e5m2{code.bits}) : ToFloat(code);
    x *= scale;
    amax = std::max(amax, std::abs(x));
  }
  if (mistake == Mistake::kRequantizedPerToken) {
    const float scale = amax / 448;
    for (float& x : row) x = ToFloat(ToE4M3(x / scale)) * scale;
  }
  return row;
}

std::int64_t FirstWeightByte(const Args& args, std::int64_t expert, Mistake mistake) {
  const std::int64_t elements = expert * args.n * args.k;
  if (mistake == Mistake::kOffsetsIn32Bits) return static_cast<std::uint32_t>(elements) / 2;
  return elements / 2;
}

float WeightScale(const Args& args, std::int64_t expert, std::int64_t n, std::int64_t g,
                  Mistake mistake) {
  const std::int64_t groups = args.k / kGroup;
  if (mistake == Mistake::kScaleOfNextGroup) g = (g + 1) % groups;
  if (mistake == Mistake::kWeightScalePer64) g = g / 2 * 2;
  std::int64_t at = n * args.sfw_stride + g;
  if (mistake == Mistake::kScalesTransposed) at = g * args.n + n;
  const float scale = ToFloat(args.sfw[expert * args.n * args.sfw_stride + at]);
  return mistake == Mistake::kScaleBias128 ? scale / 2 : scale;
}

// Row m times column n of the expert.
float Dot(const Args& args, const float* a, std::int64_t expert, std::int64_t n,
          const std::array<float, 16>& values, Mistake mistake) {
  const std::uint8_t* w = args.w + FirstWeightByte(args, expert, mistake) + n * args.k / 2;
  const int low = mistake == Mistake::kNibblesSwapped ? 4 : 0;
  std::int64_t groups = args.k / kGroup;
  if (mistake == Mistake::kLastGroupDropped) --groups;
  float sum = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    const float scale = WeightScale(args, expert, n, g, mistake);
    float of_group = 0;
    for (std::int64_t i = g * kGroup; i < (g + 1) * kGroup; i += 2) {
      const unsigned pair = w[i / 2];
      of_group += a[i] * values[pair >> low & 15];
      of_group += a[i + 1] * values[pair >> (4 - low) & 15];
    }
    sum += of_group * scale;
    if (mistake == Mistake::kSumInBF16) sum = ToFloat(ToBF16(sum));
  }
  return sum;
}

std::int64_t Expert(const Args& args, std::int64_t m, Mistake mistake) {
  if (mistake == Mistake::kExpertOfTile) m = m / kTileRows * kTileRows;
  std::int64_t expert = args.m_indices[m];
  if (expert < 0 && mistake == Mistake::kPaddingIsExpertZero) {
    expert = 0;
    while (std::find(args.m_indices, args.m_indices + args.m, expert) == args.m_indices + args.m) {
      ++expert;  // weights of idle experts must not be read: the first that has any
    }
  }
  if (mistake == Mistake::kNextExpert && expert >= 0) expert = (expert + 1) % args.experts;
  return expert;
}

// True for the last row of an expert with an odd number of rows.
bool LeftOver(const Args& args, std::int64_t m) {
  const std::int32_t* end = args.m_indices + args.m;
  const std::int32_t expert = args.m_indices[m];
  if (std::find(args.m_indices + m + 1, end, expert) != end) return false;
  return std::count(args.m_indices, end, expert) % 2 == 1;
}

void Run(const Args& args, Mistake mistake) {
  const std::array<float, 16> values = CodeValues(mistake);
  for (std::int64_t m = 0; m < args.m; ++m) {
    bf16* d = args.d + m * args.ldd;
    const std::int64_t expert = Expert(args, m, mistake);
    if (expert < 0 || (mistake == Mistake::kOddRowSkipped && LeftOver(args, m))) {
      std::fill_n(d, args.n, bf16{});
      continue;
    }
    std::vector<float> a = ActivationRow(args, m, mistake);
    if (args.m_indices[m] < 0) std::fill(a.begin(), a.end(), 1.0f);  // A of padding rows is NaN
    ParallelRanges(args.n, 64, 0, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        // Gate and up rows taken to alternate.
        const bool interleaved = mistake == Mistake::kHalfTheColumnsInterleaved;
        const std::int64_t to = interleaved ? n % (args.n / 2) * 2 + n / (args.n / 2) : n;
        d[to] = ToBF16(Dot(args, a.data(), expert, n, values, mistake));
      }
    });
  }
}

bool HasGroupsOf32(const Problem& problem) {
  return problem.axis("N") < problem.axis("K") || problem.variant == "group_32";
}

bool Passes32Bits(const Problem& problem) {
  return problem.axis("E") * problem.axis("N") * problem.axis("K") > std::int64_t{1} << 32;
}

bool HasSeveralExperts(const Problem& problem) { return problem.axis("M") > 1; }

Mutant Make(const char* name, const char* text, Mistake mistake,
            bool (*applies)(const Problem&) = nullptr, const char* variant = "") {
  const auto run = [mistake](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
    Run(Bind(problem, inputs, outputs), mistake);
  };
  return {name, text, run, applies, variant};
}

}  // namespace

std::vector<Mutant> Mutants() {
  return {
      Make("nibbles_swapped", "takes the high nibble for the even k", Mistake::kNibblesSwapped),
      Make("scale_of_next_group", "reads weight scales one group too far",
           Mistake::kScaleOfNextGroup),
      Make("weight_scale_per_64", "uses every second weight scale for two groups",
           Mistake::kWeightScalePer64),
      Make("activation_scale_per_128", "assumes that activation scales come in fours",
           Mistake::kActivationScalePer128, HasGroupsOf32),
      Make("scales_transposed", "reads plain weight scales as [K/32, N]",
           Mistake::kScalesTransposed),
      Make("scale_bias_128", "takes byte b of a weight scale for 2^(b-128)",
           Mistake::kScaleBias128),
      Make("code_one_as_normal", "decodes e2m1 exponent 0 as a normal number",
           Mistake::kCodeOneAsNormal),
      Make("e4m3_as_e5m2", "decodes activations with two fraction bits", Mistake::kE4M3AsE5M2),
      Make("expert_of_tile", "uses the expert of a tile's first row for 64 rows",
           Mistake::kExpertOfTile, HasSeveralExperts),
      Make("next_expert", "expert numbers are off by one", Mistake::kNextExpert),
      Make("offsets_in_32_bits", "element offsets of experts wrap at 2^32",
           Mistake::kOffsetsIn32Bits, Passes32Bits),
      Make("last_group_dropped", "leaves out the last 32 of K", Mistake::kLastGroupDropped),
      Make("columns_interleaved", "takes gate and up columns to alternate",
           Mistake::kHalfTheColumnsInterleaved),
      Make("odd_row_skipped", "writes zeros for the last row of an odd-sized expert",
           Mistake::kOddRowSkipped),
      Make("sum_in_bf16", "keeps the sum over groups in bf16", Mistake::kSumInBF16),
      Make("requantized_per_token", "quantizes activations again with one scale a row",
           Mistake::kRequantizedPerToken),
      Make("padding_is_expert_zero", "gives padding rows to an expert",
           Mistake::kPaddingIsExpertZero, nullptr, "padding_rows"),
  };
}

}  // namespace assay::grouped_gemm_fp8_fp4
