// Which kernel and order of tiles a shape gets: measured for the captured shapes, estimated for all
// others. Depends on nothing but the shape, so that runs can be repeated.
#include <algorithm>
#include <limits>

#include "ops/dense_gemm_bf16_nt/sm90.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

struct Measured {
  std::int64_t m, n, k;
  Plan plan;
};

// The fastest plans of `dense_gemm_sm90_bench tune 7 M,.. 2` on an H200: bursts with 2 ms of rest
// before each sample, the clock of a step that does other things in between
// (results/h200/dense_gemm/tune_rest_2ms.txt).
constexpr Measured kMeasured[] = {
    {4096, 12288, 4096, {"ping_128x176_2x1", 8, false}},
    {4125, 12288, 4096, {"coop_128x256_1x2", 4, true}},
    {6144, 12288, 4096, {"ping_128x160_2x1", 8, false}},
    {8192, 12288, 4096, {"ping_128x176_2x1", 8, false}},
    {12288, 12288, 4096, {"coop_128x256_2x1", 8, false}},
    {16384, 12288, 4096, {"ping_128x192_2x1", 8, false}},
    {24576, 12288, 4096, {"coop_256x192_2x1", 4, false}},
    {4096, 4096, 4096, {"coop_128x256_2x1", 8, false}},
    {4125, 4096, 4096, {"coop_128x256_1x2", 4, true}},
    {6144, 4096, 4096, {"coop_256x192_2x1", 16, true}},
    {8192, 4096, 4096, {"coop_128x256_2x1", 8, false}},
    {12288, 4096, 4096, {"coop_256x192_2x1", 4, false}},
    {16384, 4096, 4096, {"coop_128x256_2x1", 8, false}},
    {24576, 4096, 4096, {"coop_256x192_2x1", 4, false}},
    {4096, 4096, 12288, {"coop_128x256_2x1", 8, false}},
    {4125, 4096, 12288, {"coop_128x256_1x2", 4, true}},
    {6144, 4096, 12288, {"coop_256x192_2x1", 8, false}},
    {8192, 4096, 12288, {"coop_128x256_2x1", 8, false}},
    {12288, 4096, 12288, {"coop_256x192_2x1", 4, false}},
    {16384, 4096, 12288, {"coop_128x256_2x1", 8, false}},
    {24576, 4096, 12288, {"coop_256x192_2x1", 4, false}},
};

// What the estimate knows of a kernel: the tile of a CTA and the CTAs of a cluster.
struct Shape {
  Plan plan;
  std::int64_t tile_m, tile_n, cluster_m, cluster_n;
};
constexpr Shape kShapes[] = {
    {{"coop_128x256_2x1", 8, false}, 128, 256, 2, 1},
    {{"coop_128x256_1x2", 8, true}, 128, 256, 1, 2},
    {{"ping_128x128_2x1", 8, false}, 128, 128, 2, 1},
};

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rounds of 66 clusters of two (132 multiprocessors) times the work of a tile. Products in double:
// sizes may be large.
double EstimatedCost(const Shape& shape, const Args& args) {
  const double clusters = static_cast<double>(CeilDiv(args.m, shape.tile_m * shape.cluster_m)) *
                          static_cast<double>(CeilDiv(args.n, shape.tile_n * shape.cluster_n));
  const double rounds = static_cast<double>(static_cast<std::int64_t>((clusters + 65) / 66));
  return rounds * static_cast<double>(shape.tile_m * shape.tile_n);
}

}  // namespace

Plan ChoosePlan(const Args& args) {
  if (!WhyNotTma(args).empty()) return {};
  for (const Measured& row : kMeasured) {
    if (row.m == args.m && row.n == args.n && row.k == args.k) return row.plan;
  }
  const Shape* best = nullptr;
  for (const Shape& shape : kShapes) {
    if (best == nullptr || EstimatedCost(shape, args) < EstimatedCost(*best, args)) best = &shape;
  }
  return best->plan;
}

std::string WhyNotTma(const Args& args) {
  const auto check = [](const char* name, const void* base, const char* stride_name,
                        std::int64_t stride) -> std::string {
    if (const auto past = reinterpret_cast<std::uintptr_t>(base) % 16; past != 0) {
      return std::string(name) + " starts " + std::to_string(past) + " bytes past a multiple of 16";
    }
    if (stride % 8 != 0) {
      return std::string(stride_name) + " = " + std::to_string(stride) + " is not a multiple of 8";
    }
    if (stride >= (std::int64_t{1} << 39)) {
      return std::string(stride_name) + " = " + std::to_string(stride) + " passes 2^39 elements";
    }
    return {};
  };
  constexpr std::int64_t kLimit = (std::int64_t{1} << 31) - 1024;  // coordinates are 32 bits
  for (const std::int64_t size : {args.m, args.n, args.k}) {
    if (size > kLimit) return "size " + std::to_string(size) + " passes 2^31";
  }
  if (args.k == 0) return "K = 0 has nothing to load";
  // Loads stop at any element, stores only at multiples of 16 bytes.
  if (args.n % 8 != 0) return "N = " + std::to_string(args.n) + " is not a multiple of 8";
  std::string reason = check("A", args.a, "lda", args.lda);
  if (reason.empty()) reason = check("B", args.b, "ldb", args.ldb);
  if (reason.empty()) reason = check("C", args.c, "ldc", args.ldc);
  return reason;
}

}  // namespace assay::dense_gemm_bf16_nt
