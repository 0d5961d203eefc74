// What every implementation takes: checks of the arguments, and their binding to named tensors.
#include <string>

#include "base/error.h"
#include "ops/dense_gemm_bf16_nt/spec.h"

namespace assay::dense_gemm_bf16_nt {
namespace {

// One operand as bytes in memory.
struct Span {
  std::uintptr_t begin = 0, end = 0;
};

// Checks one operand [rows, columns]; `stride_name` is lda, ldb or ldc.
Span CheckOperand(const char* name, const char* stride_name, const bf16* data, std::int64_t rows,
                  std::int64_t columns, std::int64_t stride) {
  const std::string where = "dense_gemm_bf16_nt: ";
  if (stride < columns) {
    BadInput(where + stride_name + " = " + std::to_string(stride) + " is below the row length " +
             std::to_string(columns) + " of " + name);
  }
  if (rows == 0 || columns == 0) return {};
  if (data == nullptr) {
    BadInput(where + name + " is null, but has shape [" + std::to_string(rows) + "," +
             std::to_string(columns) + "]");
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  if (begin % alignof(bf16) != 0) BadInput(where + name + " starts at an odd address");
  std::int64_t elements = 0;
  if (__builtin_mul_overflow(rows - 1, stride, &elements) ||
      __builtin_add_overflow(elements, columns, &elements) || elements > (1LL << 61)) {
    BadInput(where + name + " with " + std::to_string(rows) + " rows of stride " +
             std::to_string(stride) + " passes the address space");
  }
  return {begin, begin + static_cast<std::uintptr_t>(elements) * sizeof(bf16)};
}

void CheckDisjoint(const Span& c, const Span& other, const char* name) {
  if (c.begin < other.end && other.begin < c.end) {
    BadInput(std::string("dense_gemm_bf16_nt: C overlaps ") + name + " in memory");
  }
}

void CheckSize(const char* name, std::int64_t value) {
  if (value < 0) {
    BadInput(std::string("dense_gemm_bf16_nt: ") + name + " = " + std::to_string(value) +
             " is negative");
  }
}

}  // namespace

void Validate(const Args& args) {
  CheckSize("M", args.m);
  CheckSize("N", args.n);
  CheckSize("K", args.k);
  const Span a = CheckOperand("A", "lda", args.a, args.m, args.k, args.lda);
  const Span b = CheckOperand("B", "ldb", args.b, args.n, args.k, args.ldb);
  const Span c = CheckOperand("C", "ldc", args.c, args.m, args.n, args.ldc);
  CheckDisjoint(c, a, "A");
  CheckDisjoint(c, b, "B");
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.m = problem.axis("M");
  args.n = problem.axis("N");
  args.k = problem.axis("K");
  args.a = inputs["A"].as<bf16>();
  args.lda = args.k;
  args.b = inputs["B"].as<bf16>();
  args.ldb = args.k;
  args.c = outputs["C"].as<bf16>();
  args.ldc = args.n;
  return args;
}

}  // namespace assay::dense_gemm_bf16_nt
