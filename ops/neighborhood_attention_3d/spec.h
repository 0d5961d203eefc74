// neighborhood_attention_3d: every point of a (time, height, width) grid attends to the window of
// points around it; at the borders the window is shifted inwards. Room page: README.md.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "ops/family.h"

namespace assay::neighborhood_attention_3d {

inline constexpr std::int64_t kHeadDim = 64;

// Distances in elements between neighbours of one axis of [b, t, y, x, h, 64].
struct Strides {
  std::int64_t batch = 0, t = 0, y = 0, x = 0, head = 0, channel = 1;
};

struct Args {
  std::int64_t b = 0, t = 0, y = 0, x = 0, h = 0;
  std::int64_t d = kHeadDim;
  std::int64_t kt = 0, ky = 0, kx = 0;  // window: odd, no longer than its axis
  const bf16* q = nullptr;              // [b, t, y, x, h, d]; holds the factor 1/sqrt(d) already
  Strides q_strides;
  const bf16* k = nullptr;  // [b, t, y, x, h, d]
  Strides k_strides;
  const bf16* v = nullptr;  // [b, t, y, x, h, d]
  Strides v_strides;
  bf16* o = nullptr;  // [b, t, y, x, h, d], overwritten
  Strides o_strides;
};

// Row-major tensors.
Strides ContiguousStrides(std::int64_t t, std::int64_t y, std::int64_t x, std::int64_t h);

// Throws kInput, naming the axis or the tensor, when d, a window, a stride or an overlap of O with
// an input is not supported.
void Check(const Args& args);

// Arguments from named tensors Q, K, V and O, windows as EffectiveWindow says. Unchecked.
Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs);

// Window length on axis "T", "Y" or "X": the definition's, or at most the axis where the attribute
// `clamp_window` is set (it may then be even, and covers the whole axis).
std::int64_t EffectiveWindow(const Problem& problem, const char* axis);

// fp32 inside (weights bf16 where the processor multiplies those), one rounding to bf16; bitwise
// reproducible and independent of `threads`. Throws as Check.
void RunCpu(const Args& args, int threads);

// The parts of the family; MakeFamily joins them.
void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs);
RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed);
std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order);
std::vector<OutputPolicy> Policies(const Problem& problem);
std::vector<Mutant> Mutants();
Backend CpuBackend();

Family MakeFamily();

}  // namespace assay::neighborhood_attention_3d
