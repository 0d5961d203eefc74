// What both families refuse: axes, ids, and numbers that are none in experts that have rows.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/moe_decode/spec.h"

namespace assay::moe_decode {
namespace {

[[noreturn]] void Refuse(const Problem& problem, const std::string& what) {
  BadInput(problem.definition->name + ": " + what);
}

std::string At(const char* name, std::int64_t i, std::int64_t j) {
  return std::string(name) + "[" + std::to_string(i) + "," + std::to_string(j) + "]";
}

void CheckRoutes(const Problem& problem, const Args& args) {
  for (std::int64_t row = 0; row < args.m; ++row) {
    const std::int32_t* ids = args.ids + row * args.top_k;
    for (std::int64_t j = 0; j < args.top_k; ++j) {
      const std::string where = At("topk_ids", row, j) + " = " + std::to_string(ids[j]);
      if (ids[j] < 0 || ids[j] >= args.experts) {
        Refuse(problem,
               where + " is outside the " + std::to_string(args.experts) + " routed experts");
      }
      if (std::find(ids, ids + j, ids[j]) != ids + j) Refuse(problem, where + " comes twice");
      if (!std::isfinite(args.weights[row * args.top_k + j])) {
        Refuse(problem, At("topk_weights", row, j) + " is not finite");
      }
    }
    for (std::int64_t i = 0; i < args.hidden; ++i) {
      if (std::isfinite(ToFloat(args.x[row * args.hidden + i]))) continue;
      Refuse(problem, At("x", row, i) + " is not finite");
    }
  }
}

// Index of the first byte that `bad` names, or -1.
template <class Bad>
std::int64_t FirstBad(const std::uint8_t* bytes, std::int64_t count, const Bad& bad) {
  unsigned any = 0;
  for (std::int64_t i = 0; i < count; ++i) any |= bad(bytes[i]);
  if (any == 0) return -1;
  return std::find_if(bytes, bytes + count, bad) - bytes;
}

bool IsNaNE4M3(std::uint8_t bits) { return (bits & 0x7Fu) == 0x7Fu; }
bool IsNaNUE8M0(std::uint8_t bits) { return bits == 255; }

void CheckMatrix(const Problem& problem, const char* name, const Matrix& w, std::int64_t expert) {
  const std::string of = " of expert " + std::to_string(expert);
  const auto refuse = [&](const std::string& tensor, std::int64_t at, std::int64_t columns) {
    if (at < 0) return;
    Refuse(problem, tensor + name + of + ", row " + std::to_string(at / columns) + ", column " +
                        std::to_string(at % columns) + " is not a number");
  };
  if (w.format == Format::kFP8) {
    const std::int64_t rows = w.n / kBlock, columns = w.k / kBlock;
    refuse("w_", FirstBad(w.codes + expert * w.n * w.k, w.n * w.k, IsNaNE4M3), w.k);
    const float* blocks = w.blocks + expert * rows * columns;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      if (!std::isfinite(blocks[i])) refuse("s_", i, columns);
    }
    return;
  }
  const std::int64_t columns = w.k / ScaleGroup(w.format), count = w.n * columns;
  refuse("s_",
         FirstBad(w.groups + expert * count, count,
                  w.format == Format::kMXFP4 ? IsNaNUE8M0 : IsNaNE4M3),
         columns);
  if (w.global != nullptr && !std::isfinite(w.global[expert])) {
    Refuse(problem, std::string("global scale of ") + name + of + " is not finite");
  }
}

}  // namespace

void ValidateAxes(const Problem& problem) {
  const std::int64_t m = problem.axis("M");
  if (m > 256) {
    Refuse(problem, "axis M = " + std::to_string(m) +
                        ", a decode step has at most 256 rows (more: grouped_gemm_fp8_fp4)");
  }
  for (const char* axis : {"H", "I"}) {
    if (problem.axis(axis) % kBlock == 0) continue;
    Refuse(problem, std::string("axis ") + axis + " = " + std::to_string(problem.axis(axis)) +
                        ", wanted a multiple of 128");
  }
  if (problem.axis("K") > problem.axis("E")) {
    Refuse(problem, "axis K = " + std::to_string(problem.axis("K")) +
                        " of E = " + std::to_string(problem.axis("E")) + " experts");
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  CheckRoutes(problem, args);
  const std::vector<bool> active = ActiveExperts(args);
  for (std::size_t e = 0; e < active.size(); ++e) {
    if (!active[e]) continue;
    CheckMatrix(problem, "gate", args.gate, static_cast<std::int64_t>(e));
    CheckMatrix(problem, "up", args.up, static_cast<std::int64_t>(e));
    CheckMatrix(problem, "down", args.down, static_cast<std::int64_t>(e));
  }
}

}  // namespace assay::moe_decode
