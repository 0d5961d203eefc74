// The CPU backend of both families: a weight row is decoded to fp32 in L1 once and meets all rows
// of its expert.
#include <algorithm>
#include <bit>
#include <cmath>

#include "base/parallel.h"
#include "base/simd.h"
#include "ops/moe_decode/spec.h"

namespace assay::moe_decode {
namespace {

constexpr int kSums = 32;  // two vectors of AVX-512: enough chains to hide a multiply-add's latency
constexpr std::int64_t kTileRows = 16;  // weight rows of a task

// sum of a[i] b[i] in 32 lanes, added pairwise; n is a multiple of 32.
ASSAY_VECTOR_CLONES float Dot(const float* a, const float* b, std::int64_t n) {
  float sums[kSums] = {};
  for (std::int64_t i = 0; i < n; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) {
      sums[lane] = __builtin_fmaf(a[i + lane], b[i + lane], sums[lane]);
    }
  }
  for (int step = kSums / 2; step > 0; step /= 2) {
    for (int lane = 0; lane < step; ++lane) sums[lane] += sums[lane + step];
  }
  return sums[0];
}

// The magnitude's bits become fraction and exponent of an fp32 number; those without implicit bit
// come out as 2^-7 (1 + m / 8) and are m 2^-9.
ASSAY_VECTOR_CLONES void DecodeE4M3(const std::uint8_t* codes, std::int64_t n, float scale,
                                    float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t code = codes[i], magnitude = code & 0x7Fu;
    const float normal = std::bit_cast<float>((magnitude << 20) + (120u << 23));
    const float value = magnitude < 8 ? 2 * (normal - 0x1p-7f) : normal;
    out[i] =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(value * scale) ^ ((code & 0x80u) << 24));
  }
}

// Twice the value of an e2m1 code. The sign is put in as a bit: a choice would not be vectorised.
[[gnu::always_inline]] inline float TwiceE2M1(std::uint32_t code) {
  const auto magnitude = static_cast<std::int32_t>((0xC8643210u >> (4 * (code & 7u))) & 15u);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(magnitude)) |
                              (code & 8u) << 28);
}

// Low nibbles of a row to `even`, high ones to `odd`, twice as large. A whole row at a time: the
// bytes of one group are too few for a vector.
ASSAY_VECTOR_CLONES void ExpandE2M1(const std::uint8_t* __restrict codes, std::int64_t bytes,
                                    float* __restrict even, float* __restrict odd) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    const std::uint32_t pair = codes[i];
    even[i] = TwiceE2M1(pair & 15u);
    odd[i] = TwiceE2M1(pair >> 4);
  }
}

// Multiplies runs of kRun values of both halves by a scale each.
template <int kRun>
[[gnu::always_inline]] inline void ScaleRuns(const float* __restrict scales, std::int64_t count,
                                             float* __restrict even, float* __restrict odd) {
  for (std::int64_t run = 0; run < count; ++run) {
    const float scale = scales[run];
    for (int i = 0; i < kRun; ++i) even[run * kRun + i] *= scale;
    for (int i = 0; i < kRun; ++i) odd[run * kRun + i] *= scale;
  }
}
ASSAY_VECTOR_CLONES void ScaleGroups(const float* scales, std::int64_t count, bool mxfp4,
                                     float* even, float* odd) {
  mxfp4 ? ScaleRuns<16>(scales, count, even, odd) : ScaleRuns<8>(scales, count, even, odd);
}

// What the 256 scale bytes of a format mean.
template <class Byte>
const float* ScaleTable() {
  static const std::vector<float> table = [] {
    std::vector<float> made;
    for (int byte = 0; byte < 256; ++byte) {
      made.push_back(ToFloat(Byte{static_cast<std::uint8_t>(byte)}));
    }
    return made;
  }();
  return table.data();
}

// Where element i of a row stands among the values that a decoder gives.
std::int64_t PlaceOf(Format format, std::int64_t i, std::int64_t n) {
  return FourBits(format) ? i / 2 + i % 2 * (n / 2) : i;
}

float Bf16(float x) { return ToFloat(ToBF16(x)); }

float Activate(float gate, float up, float limit) {
  const float g = std::min(Bf16(gate), limit);
  const float u = std::clamp(Bf16(up), -limit, limit);
  return Bf16(g / (1 + std::exp(-g)) * u);
}

// The rows of every expert that has some, and where their values stand.
struct Plan {
  struct Group {
    std::int64_t expert = 0, first = 0;  // pairs first .. of this expert
    std::vector<std::int64_t> rows;
  };
  std::vector<Group> groups;
  std::vector<std::vector<std::pair<std::int64_t, float>>> pairs;  // by row: pair, weight;
                                                                   // ascending experts
  std::int64_t count = 0;

  explicit Plan(const Args& args) : pairs(static_cast<std::size_t>(args.m)) {
    std::vector<std::vector<std::pair<std::int64_t, float>>> rows(
        static_cast<std::size_t>(args.experts + 1));
    for (std::int64_t row = 0; row < args.m; ++row) {
      for (std::int64_t j = 0; j < args.top_k; ++j) {
        rows[static_cast<std::size_t>(args.ids[row * args.top_k + j])].push_back(
            {row, args.weights[row * args.top_k + j]});
      }
      if (args.shared) rows.back().push_back({row, 1.0f});
    }
    for (std::size_t e = 0; e < rows.size(); ++e) {
      if (rows[e].empty()) continue;
      Group& group = groups.emplace_back();
      group.expert = static_cast<std::int64_t>(e);
      group.first = count;
      for (const auto& [row, weight] : rows[e]) {
        group.rows.push_back(row);
        pairs[static_cast<std::size_t>(row)].push_back({count++, weight});
      }
    }
  }
};

// Calls body(group, first weight row, last) for tiles of all groups.
template <class Body>
void ForTiles(const Plan& plan, std::int64_t weight_rows, int threads, const Body& body) {
  const std::int64_t tiles = (weight_rows + kTileRows - 1) / kTileRows;
  const auto groups = static_cast<std::int64_t>(plan.groups.size());
  ParallelFor(groups * tiles, threads, [&](std::int64_t task) {
    const std::int64_t row0 = task % tiles * kTileRows;
    body(plan.groups[static_cast<std::size_t>(task / tiles)], row0,
         std::min(row0 + kTileRows, weight_rows));
  });
}

std::vector<float> WidenRows(const Args& args) {
  std::vector<float> x(static_cast<std::size_t>(args.m * args.hidden));
  for (std::int64_t row = 0; row < args.m; ++row) {
    for (std::int64_t i = 0; i < args.hidden; ++i) {
      x[static_cast<std::size_t>(row * args.hidden + PlaceOf(args.gate.format, i, args.hidden))] =
          ToFloat(args.x[row * args.hidden + i]);
    }
  }
  return x;
}

}  // namespace

void DecodeFP8(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const std::uint8_t* codes = w.codes + (expert * w.n + row) * w.k;
  const std::int64_t columns = w.k / kBlock;
  const float* blocks = w.blocks + (expert * (w.n / kBlock) + row / kBlock) * columns;
  for (std::int64_t block = 0; block < columns; ++block) {
    DecodeE4M3(codes + block * kBlock, kBlock, blocks[block], out + block * kBlock);
  }
}

void DecodeFP4(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) {
  const bool mxfp4 = w.format == Format::kMXFP4;
  const std::int64_t columns = w.k / ScaleGroup(w.format);
  const std::uint8_t* groups = w.groups + (expert * w.n + row) * columns;
  const float half = w.global != nullptr ? 0.5f * w.global[expert] : 0.5f;
  const float* table = mxfp4 ? ScaleTable<ue8m0>() : ScaleTable<e4m3>();
  thread_local std::vector<float> scales;
  scales.resize(static_cast<std::size_t>(columns));
  for (std::int64_t g = 0; g < columns; ++g) {
    scales[static_cast<std::size_t>(g)] = half * table[groups[g]];
  }
  ExpandE2M1(w.codes + (expert * w.n + row) * (w.k / 2), w.k / 2, out, out + w.k / 2);
  ScaleGroups(scales.data(), columns, mxfp4, out, out + w.k / 2);
}

void RunCpu(const Args& args, int threads) {
  const Plan plan(args);
  const std::vector<float> x = WidenRows(args);
  std::vector<float> activated(static_cast<std::size_t>(plan.count * args.inter));
  std::vector<bf16> outputs(static_cast<std::size_t>(plan.count * args.hidden));
  const auto widest = static_cast<std::size_t>(std::max(args.hidden, args.inter));

  ForTiles(plan, args.inter, threads,
           [&](const Plan::Group& group, std::int64_t row0, std::int64_t row1) {
             thread_local std::vector<float> gate, up;
             gate.resize(widest);
             up.resize(widest);
             for (std::int64_t i = row0; i < row1; ++i) {
               args.gate.decode(args.gate, group.expert, i, gate.data());
               args.up.decode(args.up, group.expert, i, up.data());
               const std::int64_t place = PlaceOf(args.down.format, i, args.inter);
               for (std::size_t r = 0; r < group.rows.size(); ++r) {
                 const float* row = x.data() + group.rows[r] * args.hidden;
                 const std::int64_t pair = group.first + static_cast<std::int64_t>(r);
                 activated[static_cast<std::size_t>(pair * args.inter + place)] =
                     Activate(Dot(gate.data(), row, args.hidden), Dot(up.data(), row, args.hidden),
                              args.limit);
               }
             }
           });
  ForTiles(plan, args.hidden, threads,
           [&](const Plan::Group& group, std::int64_t row0, std::int64_t row1) {
             thread_local std::vector<float> down;
             down.resize(widest);
             for (std::int64_t n = row0; n < row1; ++n) {
               args.down.decode(args.down, group.expert, n, down.data());
               for (std::size_t r = 0; r < group.rows.size(); ++r) {
                 const std::int64_t pair = group.first + static_cast<std::int64_t>(r);
                 outputs[static_cast<std::size_t>(pair * args.hidden + n)] =
                     ToBF16(Dot(down.data(), activated.data() + pair * args.inter, args.inter));
               }
             }
           });
  ParallelFor(args.m, threads, [&](std::int64_t row) {
    for (std::int64_t n = 0; n < args.hidden; ++n) {
      float sum = 0;
      for (const auto& [pair, weight] : plan.pairs[static_cast<std::size_t>(row)]) {
        sum = __builtin_fmaf(
            weight, ToFloat(outputs[static_cast<std::size_t>(pair * args.hidden + n)]), sum);
      }
      args.y[row * args.hidden + n] = ToBF16(sum);
    }
  });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "weight rows decoded once in L1, fp32 multiply-adds, all rows of an expert";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::moe_decode
