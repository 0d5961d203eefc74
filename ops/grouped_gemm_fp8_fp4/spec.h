// grouped_gemm_fp8_fp4: the expert layers of a mixture of experts. Row m of D is row m of A times
// the transposed weights of the expert that owns it; e4m3 activations, e2m1 weights, a ue8m0 scale
// for every 32 elements along K of both. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "cpu/isa.h"
#include "ops/family.h"

namespace assay::grouped_gemm_fp8_fp4 {

inline constexpr std::int64_t kGroup = 32;        // elements along K of one scale
inline constexpr std::int64_t kPackedGroups = 4;  // groups in one word of packed scales

// Idle experts that the variant `poison` fills with NaN scales.
inline constexpr std::int64_t kPoisonedExperts = 3;

// What a row with m_indices[m] = -1 means.
enum class PaddingRows {
  kRefused,
  kZero,  // nothing of A or SFA is read, row m of D becomes 0
};

// Groups g = 0 .. k/32 - 1. Exactly one of `sfa` and `sfa_packed` is given, likewise for W; at
// least one of m_indices, offsets32 and offsets64, and those given must agree.
struct Args {
  std::int64_t m = 0, n = 0, k = 0;  // n % 64 == 0, k % 32 == 0
  std::int64_t experts = 0;
  const e4m3* a = nullptr;  // [m, k], 16-byte aligned, row stride lda >= k, a multiple of 16
  std::int64_t lda = 0;
  const ue8m0* sfa = nullptr;  // [m, k/32], row stride sfa_stride >= k/32
  std::int64_t sfa_stride = 0;
  const std::int32_t* sfa_packed = nullptr;  // [k/128, rows], row stride a multiple of 4, >= m;
                                             // byte j of word (i, m) is group 4i + j of row m
  std::int64_t sfa_packed_stride = 0;
  const std::uint8_t* w = nullptr;  // [experts, n, k/2], 16-byte aligned; low nibble = even k
  const ue8m0* sfw = nullptr;       // [experts, n, k/32], row stride sfw_stride
  std::int64_t sfw_stride = 0;
  const std::int32_t* sfw_packed = nullptr;  // [experts, k/128, columns], as sfa_packed
  std::int64_t sfw_packed_stride = 0;
  const std::int32_t* m_indices = nullptr;  // [m], the expert of each row, in any order
  // [experts + 1]: expert e owns rows offsets[e] .. offsets[e + 1] - 1.
  const std::int32_t* offsets32 = nullptr;
  const std::int64_t* offsets64 = nullptr;
  PaddingRows padding = PaddingRows::kRefused;
  bf16* d = nullptr;  // [m, n], row stride ldd >= n; every element overwritten
  std::int64_t ldd = 0;

  std::int64_t offset(std::int64_t i) const {  // of the offsets that are given
    return offsets64 != nullptr ? offsets64[i] : offsets32[i];
  }
};

// Why a call is illegal, one sentence that names tensor, position and value; "" when it is legal.
// RoutingRefusal is its part about the row-to-expert tensors, the only ones whose contents are
// read.
std::string Refusal(const Args& args);
std::string RoutingRefusal(const Args& args);

// The fast CPU kernel. `threads` as in ParallelRanges; results depend neither on it nor on the
// order of rows. Weights of experts that own no row are not read. Throws kInput with the text of
// Refusal.
void RunCpu(const Args& args, int threads);
// With a chosen instruction set, for tests. `bf16_dots`: AVX512-BF16 besides kAvx512.
void RunCpu(const Args& args, int threads, cpu::Isa isa, bool bf16_dots);

// Whether m_indices of this problem may hold -1: its attribute padding_rows is "zero", or its
// variant makes such rows.
bool HasPaddingRows(const Problem& problem);
// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

Family MakeFamily();

// Parts of MakeFamily, one file each.
// checks.cpp
void ValidateAxes(const Problem& problem);
void ValidateInputs(const Problem& problem, const Bundle& inputs);
// inputs.cpp
struct Sizes {
  std::int64_t m, n, k, e, g;
  explicit Sizes(const Problem& problem);
  std::int64_t words() const { return k / (kGroup * kPackedGroups); }  // of packed scales in a row
};
// The expert of every row by the inputs of a bundle, -1 for padding rows; and which experts own
// rows.
std::vector<std::int64_t> ExpertsOfRows(const Problem& problem, const Bundle& inputs);
std::vector<bool> ActiveExperts(std::int64_t count, const std::vector<std::int64_t>& experts);
// generate.cpp
std::vector<std::string> Variants();
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
// routing.cpp
// The expert of every row, -1 for padding rows; sorted by expert unless the variant shuffles.
std::vector<std::int32_t> GenerateRouting(const Problem& problem, std::uint64_t key);
// reference.cpp
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<OutputPolicy> Policies(const Problem& problem);
std::vector<Finding> RowChecks(const Problem& problem, const Bundle& inputs, const Bundle& outputs,
                               const RowLists& rows, const std::vector<ExpectedRows>& expected);
// The expert that owns row m by the inputs of a bundle, -1 for a padding row.
std::int64_t ExpertOfRow(const Problem& problem, const Bundle& inputs, std::int64_t m);
// cpu.cpp
std::vector<Backend> Backends();
// mutants.cpp
std::vector<Mutant> Mutants();

}  // namespace assay::grouped_gemm_fp8_fp4
