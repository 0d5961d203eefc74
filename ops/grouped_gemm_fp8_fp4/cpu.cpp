// The CPU backend: who owns which row, the split into tasks, the choice of the instruction set, and
// the wide path for scales that no single float can hold.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

#define ASSAY_LANES 4
#include "ops/grouped_gemm_fp8_fp4/cpu_tiles_lanes.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

// Decoded activations of a task: 640 KB leave a third of a 1 MB L2 cache to the rest.
constexpr std::int64_t kActivationBytes = 640 << 10;
constexpr std::int64_t kMostTaskColumns = 1024;
constexpr std::int64_t kColumnStep = 64;
// So that the last tasks to finish are short against the whole.
constexpr std::int64_t kTasksPerThread = 12;

// --- rows and tasks ---

// Rows in the order of their experts (stable), so that any order of m_indices is served.
struct Routing {
  std::vector<std::int64_t> begin;  // [experts + 1] into `rows`
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> padding;
};

Routing RouteRows(const Args& args) {
  Routing routing;
  routing.begin.resize(static_cast<std::size_t>(args.experts) + 1);
  if (args.m_indices == nullptr) {
    for (std::int64_t e = 0; e <= args.experts; ++e) {
      routing.begin[static_cast<std::size_t>(e)] = args.offset(e);
    }
    routing.rows.resize(static_cast<std::size_t>(args.m));
    std::iota(routing.rows.begin(), routing.rows.end(), 0);
    return routing;
  }
  for (std::int64_t m = 0; m < args.m; ++m) {
    const std::int32_t expert = args.m_indices[m];
    if (expert < 0) {
      routing.padding.push_back(m);
    } else {
      ++routing.begin[static_cast<std::size_t>(expert) + 1];
    }
  }
  std::partial_sum(routing.begin.begin(), routing.begin.end(), routing.begin.begin());
  routing.rows.resize(static_cast<std::size_t>(routing.begin.back()));
  std::vector<std::int64_t> next = routing.begin;
  for (std::int64_t m = 0; m < args.m; ++m) {
    const std::int32_t expert = args.m_indices[m];
    if (expert < 0) continue;
    routing.rows[static_cast<std::size_t>(next[static_cast<std::size_t>(expert)]++)] = m;
  }
  return routing;
}

struct Task {
  std::int64_t expert = 0;
  std::int64_t begin = 0, end = 0;  // in Routing::rows
  std::int64_t column = 0, columns = 0;
};

// Equal chunks of an expert's rows, each times blocks of columns. Chunks are the inner loop: they
// share a block of packed weights.
std::vector<Task> MakeTasks(const Args& args, const Routing& routing, std::int64_t columns) {
  const std::int64_t most_rows = std::clamp<std::int64_t>(
      kActivationBytes / (2 * std::max<std::int64_t>(args.k, 1)), 8, kMostTaskRows);
  std::vector<Task> tasks;
  for (std::int64_t e = 0; e < args.experts; ++e) {
    const std::int64_t begin = routing.begin[static_cast<std::size_t>(e)];
    const std::int64_t rows = routing.begin[static_cast<std::size_t>(e) + 1] - begin;
    const std::int64_t chunks = (rows + most_rows - 1) / most_rows;
    for (std::int64_t column = 0; column < args.n && rows > 0; column += columns) {
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        tasks.push_back({e, begin + rows * chunk / chunks, begin + rows * (chunk + 1) / chunks,
                         column, std::min(columns, args.n - column)});
      }
    }
  }
  return tasks;
}

std::vector<Task> MakeTasks(const Args& args, const Routing& routing, int threads) {
  const std::int64_t wanted = kTasksPerThread * (threads > 0 ? threads : HardwareThreads());
  for (std::int64_t columns = kMostTaskColumns;; columns /= 2) {
    std::vector<Task> tasks = MakeTasks(args, routing, columns);
    if (columns == kColumnStep || static_cast<std::int64_t>(tasks.size()) >= wanted) return tasks;
  }
}

// --- scales ---

void UnpackScales(const std::int32_t* words, std::int64_t stride, std::int64_t row,
                  std::int64_t groups, std::uint8_t* out) {
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto word = static_cast<std::uint32_t>(words[g / kPackedGroups * stride + row]);
    out[g] = static_cast<std::uint8_t>(word >> (8 * (g % kPackedGroups)));
  }
}

struct ByteRange {
  int least = 255, most = 0;
};

ASSAY_VECTOR_CLONES ByteRange RangeOf(const std::uint8_t* bytes, std::int64_t rows,
                                      std::int64_t stride, std::int64_t count) {
  std::uint8_t least = 255, most = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint8_t* p = bytes + row * stride;
    for (std::int64_t i = 0; i < count; ++i) {
      least = std::min(least, p[i]);
      most = std::max(most, p[i]);
    }
  }
  return {least, most};
}

bool OrdinaryScales(const TileTask& task) {
  const std::int64_t groups = task.k / kGroup;
  const ByteRange a = RangeOf(task.a_scales, 1, 0, task.rows * groups);
  const ByteRange w = RangeOf(task.w_scales, task.columns, task.w_scale_stride, groups);
  return a.least >= kLeastActivationScale && a.most <= kMostActivationScale &&
         w.least >= kLeastWeightScale && w.most <= kMostWeightScale &&
         a.least + w.least >= kLeastScaleSum;
}

// --- the wide path: codes as they are, exponents added as integers, sums in fp64 ---

double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

double WideDot(const TileTask& task, const double* a, const std::uint8_t* a_scales,
               std::int64_t column) {
  const std::uint8_t* w = task.w + column * task.k / 2;
  const std::uint8_t* w_scales = task.w_scales + column * task.w_scale_stride;
  double sum = 0;
  for (std::int64_t g = 0; g < task.k / kGroup; ++g) {
    double of_group = 0;
    for (std::int64_t i = g * kGroup; i < (g + 1) * kGroup; i += 2) {
      of_group += a[i] * E2M1ToFloat(w[i / 2] & 15u) + a[i + 1] * E2M1ToFloat(w[i / 2] >> 4);
    }
    const bool nan = a_scales[g] == 255 || w_scales[g] == 255;
    sum += nan ? std::nan("") : of_group * PowerOfTwo(a_scales[g] + w_scales[g] - 254);
  }
  return sum;
}

void RunTilesWide(const TileTask& task) {
  std::vector<double> a(static_cast<std::size_t>(task.k));
  for (std::int64_t r = 0; r < task.rows; ++r) {
    for (std::int64_t i = 0; i < task.k; ++i)
      a[static_cast<std::size_t>(i)] = ToFloat(task.a[r][i]);
    for (std::int64_t c = 0; c < task.columns; ++c) {
      task.d[r][c] = ToBF16(WideDot(task, a.data(), task.a_scales + r * (task.k / kGroup), c));
    }
  }
}

// --- one task ---

// Without vectors: both codes of a byte from the table.
struct Baseline : cpu::WidenedPairs {
  static constexpr bool kDecodesInRegisters = false;
  static void DecodeGroup(const std::uint8_t* bytes, std::uint8_t scale, Pairs* out) {
    const std::uint16_t* code = scaled_codes.bits[scale];
    std::uint32_t pairs[kGroup / 2];
    for (int i = 0; i < kGroup / 2; ++i) {
      pairs[i] = code[bytes[i] & 15] | static_cast<std::uint32_t>(code[bytes[i] >> 4]) << 16;
    }
    std::memcpy(static_cast<void*>(out), pairs, sizeof pairs);
  }
};

using RunTilesFunction = void (*)(const TileTask&, TileScratch&);

RunTilesFunction RunTilesFor(cpu::Isa isa, bool bf16_dots) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return bf16_dots ? RunTilesAvx512Bf16 : RunTilesAvx512;
  if (isa == cpu::Isa::kAvx2) return RunTilesAvx2;
#endif
  (void)isa;
  (void)bf16_dots;
  return RunTilesBaseline;
}

// Scales of the task's rows, plain: [rows, k/32].
const std::uint8_t* ActivationScales(const Args& args, const std::int64_t* rows, std::int64_t count,
                                     TileScratch& scratch) {
  const std::int64_t groups = args.k / kGroup;
  std::uint8_t* scales = scratch.a_scales(count * groups);
  for (std::int64_t r = 0; r < count; ++r) {
    std::uint8_t* row = scales + r * groups;
    if (args.sfa_packed != nullptr) {
      UnpackScales(args.sfa_packed, args.sfa_packed_stride, rows[r], groups, row);
    } else {
      std::memcpy(row, args.sfa + rows[r] * args.sfa_stride, static_cast<std::size_t>(groups));
    }
  }
  return scales;
}

// Packed weight scales of the task's columns, unpacked: [columns, k/32].
const std::uint8_t* UnpackedWeightScales(const Args& args, const Task& task, TileScratch& scratch) {
  const std::int64_t groups = args.k / kGroup;
  std::uint8_t* scales = scratch.w_scales(task.columns * groups);
  const std::int64_t words = groups / kPackedGroups * args.sfw_packed_stride;
  for (std::int64_t c = 0; c < task.columns; ++c) {
    UnpackScales(args.sfw_packed + task.expert * words, args.sfw_packed_stride, task.column + c,
                 groups, scales + c * groups);
  }
  return scales;
}

void RunTask(const Args& args, const Routing& routing, const Task& task, RunTilesFunction run) {
  thread_local TileScratch scratch;
  TileTask tiles;
  tiles.k = args.k;
  tiles.rows = task.end - task.begin;
  tiles.columns = task.columns;
  const std::int64_t* rows = routing.rows.data() + task.begin;
  for (std::int64_t r = 0; r < tiles.rows; ++r) {
    tiles.a[r] = args.a + rows[r] * args.lda;
    tiles.d[r] = args.d + rows[r] * args.ldd + task.column;
  }
  tiles.a_scales = ActivationScales(args, rows, tiles.rows, scratch);
  const std::int64_t column = task.expert * args.n + task.column;
  tiles.w = args.w + column * (args.k / 2);
  if (args.sfw_packed != nullptr) {
    tiles.w_scales = UnpackedWeightScales(args, task, scratch);
    tiles.w_scale_stride = args.k / kGroup;
  } else {
    tiles.w_scales = reinterpret_cast<const std::uint8_t*>(args.sfw) + column * args.sfw_stride;
    tiles.w_scale_stride = args.sfw_stride;
  }
  if (OrdinaryScales(tiles)) {
    run(tiles, scratch);
  } else {
    RunTilesWide(tiles);
  }
}

}  // namespace

void RunTilesBaseline(const TileTask& task, TileScratch& scratch) {
  RunTiles<Baseline>(task, scratch);
}

void RunCpu(const Args& args, int threads, cpu::Isa isa, bool bf16_dots) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("grouped_gemm_fp8_fp4: " + refusal);
  if (args.m == 0 || args.n == 0) return;
  const Routing routing = RouteRows(args);
  for (const std::int64_t m : routing.padding) std::fill_n(args.d + m * args.ldd, args.n, bf16{});
  const std::vector<Task> tasks = MakeTasks(args, routing, threads);
  const RunTilesFunction run = RunTilesFor(isa, bf16_dots);
  ParallelFor(static_cast<std::int64_t>(tasks.size()), threads, [&](std::int64_t task) {
    RunTask(args, routing, tasks[static_cast<std::size_t>(task)], run);
  });
}

void RunCpu(const Args& args, int threads) {
  RunCpu(args, threads, cpu::BestIsa(), cpu::HasAvx512Bf16());
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary =
      "weights decoded to bf16 in registers or L1, dots along K, threads over experts";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::grouped_gemm_fp8_fp4
