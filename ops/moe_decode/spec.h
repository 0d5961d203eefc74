// moe_w8_decode and moe_w4_decode: the experts of one decode step. Each row goes through its chosen
// experts and the shared one, with bf16 activations and 8- or 4-bit weights. See README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::moe_decode {

// How the numbers of a weight row are stored.
enum class Format : std::uint8_t {
  kFP8,    // e4m3, one fp32 scale per 128 x 128 block
  kMXFP4,  // e2m1, low nibble = even k; one ue8m0 scale per 32 along k
  kNVFP4,  // e2m1 likewise; one e4m3 scale per 16, and one fp32 scale per matrix
};
inline constexpr std::int64_t kBlock = 128;
constexpr bool FourBits(Format format) { return format != Format::kFP8; }
constexpr std::int64_t ScaleGroup(Format format) {  // elements along k of one scale
  return format == Format::kFP8 ? kBlock : format == Format::kMXFP4 ? 32 : 16;
}

// W [n, k] of every expert, the shared one last; a value is code * scale (* global).
struct Matrix {
  Format format = Format::kFP8;
  std::int64_t n = 0, k = 0;
  const std::uint8_t* codes = nullptr;   // [experts, n, k] or, 4-bit, [experts, n, k / 2]
  const float* blocks = nullptr;         // FP8: [experts, n / 128, k / 128]
  const std::uint8_t* groups = nullptr;  // 4-bit: [experts, n, k / group]
  const float* global = nullptr;         // NVFP4: [experts]
  // Values of row `row` of expert `expert`: in order, or, for 4-bit formats, those of even k and
  // then those of odd k.
  void (*decode)(const Matrix& w, std::int64_t expert, std::int64_t row, float* out) = nullptr;
};

struct Args {
  std::int64_t m = 0, hidden = 0, inter = 0;
  std::int64_t experts = 0;  // routed ones; number `experts` is the shared one
  std::int64_t top_k = 0;
  const bf16* x = nullptr;            // [m, hidden]
  const std::int32_t* ids = nullptr;  // [m, top_k], distinct in a row, any order
  const float* weights = nullptr;     // [m, top_k]; the shared expert has weight 1
  Matrix gate, up;                    // [inter, hidden]
  Matrix down;                        // [hidden, inter]
  float limit = 10;                   // silu(min(gate, limit)) * clip(up, -limit, limit)
  bool shared = true;                 // false: the shared expert is left out
  bf16* y = nullptr;                  // [m, hidden]
};

// The fast CPU kernel. Gate, up, activation and each expert's output are rounded to bf16, sums are
// fp32, experts are added by ascending id and the shared one last. `threads` as in ParallelRanges;
// results depend neither on it nor on the other rows. Weights of experts without rows are not read.
void RunCpu(const Args& args, int threads);

Format FormatOf(const Problem& problem);
// Pointers of a named bundle.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);
Args BindInputs(const Problem& problem, const Bundle& inputs);
// Which experts have rows, the shared one among them.
std::vector<bool> ActiveExperts(const Args& args);

Family MakeW8Family();
Family MakeW4Family();
// For tests: other sizes. `routed` experts; hidden and inter are multiples of 128.
Definition DefinitionOf(std::string name, Format format, std::int64_t routed, std::int64_t hidden,
                        std::int64_t inter, std::int64_t top_k);

// Parts of the families, one file each.
// checks.cpp
void ValidateAxes(const Problem& problem);
void ValidateInputs(const Problem& problem, const Bundle& inputs);
// generate.cpp
inline constexpr std::int64_t kPoisonedExperts = 3;  // of the variant `poison`
std::vector<std::string> Variants();
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
// reference.cpp
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<OutputPolicy> Policies(const Problem& problem);
// cpu.cpp
void DecodeFP8(const Matrix& w, std::int64_t expert, std::int64_t row, float* out);
void DecodeFP4(const Matrix& w, std::int64_t expert, std::int64_t row, float* out);
std::vector<Backend> Backends();
// mutants.cpp
std::vector<Mutant> Mutants(bool four_bits);

}  // namespace assay::moe_decode
