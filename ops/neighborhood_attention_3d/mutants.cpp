// Deliberately wrong kernels that verification must reject. Most are the right kernel with wrong
// windows or arguments; mistakes inside the softmax or the key loop are plain loops, and spoil the
// first time slice of one head only.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "ops/neighborhood_attention_3d/cpu_kernel.h"
#include "ops/neighborhood_attention_3d/spec.h"

namespace assay::neighborhood_attention_3d {
namespace {

struct Call {
  Args args;
  Windows windows;
  std::vector<bf16> copy;  // of a changed input
};

void Run(const Call& call) { RunWindows(call.args, call.windows, *RunnableLeaves().front(), 0); }

// The right kernel, called with what `change` makes of its arguments.
Mutant Changed(const char* name, const char* mistake, void (*change)(Call&),
               bool (*applies)(const Problem&) = nullptr) {
  return {name, mistake,
          [change](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            Call call{Bind(problem, inputs, outputs), {}, {}};
            call.windows = ShiftedWindows(call.args);
            change(call);
            Run(call);
          },
          applies};
}

// The right result, spoiled afterwards.
Mutant Spoiled(const char* name, const char* mistake, void (*spoil)(const Args&)) {
  return {name, mistake, [spoil](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            RunCpu(args, 0);
            spoil(args);
          }};
}

// --- wrong windows ---

// Windows that start `late` positions late, kept inside the axis.
std::vector<Span> Displaced(const std::vector<Span>& right, std::int64_t late) {
  std::vector<Span> spans = right;
  const auto length = static_cast<std::int64_t>(right.size());
  for (std::size_t q = 0; q < spans.size(); ++q) {
    const std::int64_t window = right[q].end - right[q].begin;
    const std::int64_t begin = static_cast<std::int64_t>(q) - (window - 1) / 2 + late;
    spans[q].begin = std::clamp<std::int64_t>(begin, 0, length - window);
    spans[q].end = spans[q].begin + window;
  }
  return spans;
}

std::vector<Span> Truncated(const std::vector<Span>& right) {
  std::vector<Span> spans = right;
  const auto length = static_cast<std::int64_t>(right.size());
  for (std::size_t q = 0; q < spans.size(); ++q) {
    const std::int64_t window = right[q].end - right[q].begin;
    const std::int64_t begin = static_cast<std::int64_t>(q) - (window - 1) / 2;
    spans[q] = {std::max<std::int64_t>(begin, 0), std::min(begin + window, length)};
  }
  return spans;
}

void TruncateAll(Call& call) {
  for (std::vector<Span>* spans : {&call.windows.t, &call.windows.y, &call.windows.x}) {
    *spans = Truncated(*spans);
  }
}

void LookBackInTime(Call& call) {
  for (std::int64_t t = 0; t < call.args.t; ++t) {
    call.windows.t[static_cast<std::size_t>(t)] = {std::max<std::int64_t>(t - call.args.kt + 1, 0),
                                                   t + 1};
  }
}

void OneKeyMore(Call& call) {
  for (Span& span : call.windows.x) span.end = std::min(span.end + 1, call.args.x);
}

void DropLastKey(Call& call) {
  for (Span& span : call.windows.x) --span.end;
}

void DropLastPlane(Call& call) {
  for (Span& span : call.windows.t) --span.end;
}

// --- wrong arguments ---

void SwapRowsAndColumns(Call& call) {
  Args& a = call.args;
  a.k_strides.y = a.v_strides.y = a.h * a.d;
  a.k_strides.x = a.v_strides.x = a.y * a.h * a.d;
}

void FlattenBatchIntoTime(Call& call) {
  Args& a = call.args;
  a.t *= a.b;
  a.b = 1;
  call.windows.t = ShiftedWindows(a.t, a.kt);
}

std::int64_t Elements(const Args& a) { return a.b * a.t * a.y * a.x * a.h * a.d; }

void ScaleTwice(Call& call) {
  Args& a = call.args;
  call.copy.assign(a.q, a.q + Elements(a));
  ParallelRanges(Elements(a), 1 << 16, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      bf16& x = call.copy[static_cast<std::size_t>(i)];
      x = ToBF16(0.125f * ToFloat(x));
    }
  });
  a.q = call.copy.data();
}

void ValuesOfNextHead(Call& call) {
  Args& a = call.args;
  call.copy.assign(a.v, a.v + Elements(a));
  std::rotate(call.copy.begin(), call.copy.begin() + a.d, call.copy.end());
  a.v = call.copy.data();
}

// --- spoiled results ---

void SwapFirstHeads(const Args& args) {
  ParallelFor(args.b * args.t * args.y * args.x, 0, [&](std::int64_t point) {
    bf16* row = args.o + point * args.h * args.d;
    std::swap_ranges(row, row + args.d, row + args.d);
  });
}

void RepeatLastSlice(const Args& args) {
  const std::int64_t slice = args.y * args.x * args.h * args.d;
  for (std::int64_t b = 0; b < args.b; ++b) {
    bf16* last = args.o + (b * args.t + args.t - 1) * slice;
    std::copy_n(last - slice, slice, last);
  }
}

void OnePercentLarge(const Args& args) {
  ParallelRanges(Elements(args), 1 << 16, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) args.o[i] = ToBF16(1.01f * ToFloat(args.o[i]));
  });
}

// --- mistakes in the key loop: one head, first time slice ---

enum class RowMistake {
  kReplicatedBorder,
  kWrapsAround,
  kPaddingScoredZero,
  kNoRescale,
  kSumOfLastPlane,
  kScoresInBF16,
};

// Position i of the window around q, by the mistake's idea of a border.
std::int64_t KeyPosition(RowMistake mistake, std::int64_t q, std::int64_t i, std::int64_t window,
                         std::int64_t length) {
  const std::int64_t position = q - (window - 1) / 2 + i;
  if (mistake == RowMistake::kReplicatedBorder) {
    return std::clamp<std::int64_t>(position, 0, length - 1);
  }
  if (mistake == RowMistake::kWrapsAround) return (position + length) % length;
  return std::clamp<std::int64_t>(q - (window - 1) / 2, 0, length - window) + i;
}

// A plain online softmax, one plane of the window at a time.
class WrongRow {
 public:
  WrongRow(const Args& args, RowMistake mistake, const bf16* q)
      : a_(args), mistake_(mistake), q_(q) {}

  void AddPlane(std::int64_t b, std::int64_t plane, std::int64_t y, std::int64_t x,
                std::int64_t head) {
    scores_.clear();
    values_.clear();
    for (std::int64_t i = 0; i < a_.ky * a_.kx; ++i) {
      const std::int64_t ky = KeyPosition(mistake_, y, i / a_.kx, a_.ky, a_.y);
      const std::int64_t kx = KeyPosition(mistake_, x, i % a_.kx, a_.kx, a_.x);
      const std::int64_t at = ((((b * a_.t + plane) * a_.y + ky) * a_.x + kx) * a_.h + head) * a_.d;
      AddKey(Score(a_.k + at), a_.v + at);
    }
    static constexpr bf16 kZeroRow[kHeadDim] = {};
    if (mistake_ == RowMistake::kPaddingScoredZero) {
      while (scores_.size() % 16 != 0) AddKey(0, kZeroRow);
    }
    Accumulate();
  }

  void Store(bf16* o) const {
    for (std::int64_t d = 0; d < a_.d; ++d) o[d] = ToBF16(value_[d] / sum_);
  }

 private:
  float Score(const bf16* k) const {
    float dot = 0;
    for (std::int64_t d = 0; d < a_.d; ++d) dot += ToFloat(q_[d]) * ToFloat(k[d]);
    return mistake_ == RowMistake::kScoresInBF16 ? ToFloat(ToBF16(dot)) : dot;
  }
  void AddKey(float score, const bf16* v) {
    scores_.push_back(score);
    values_.push_back(v);
  }

  void Accumulate() {
    const float old_largest = largest_;
    for (float s : scores_) largest_ = std::max(largest_, s);
    const float rescale = std::exp(old_largest - largest_);
    sum_ = mistake_ == RowMistake::kSumOfLastPlane ? 0 : sum_ * rescale;
    const bool forgets = mistake_ == RowMistake::kNoRescale && std::isfinite(old_largest);
    for (float& x : value_) x *= forgets ? 1 : rescale;
    for (std::size_t j = 0; j < scores_.size(); ++j) {
      const float p = std::exp(scores_[j] - largest_);
      sum_ += p;
      for (std::int64_t d = 0; d < a_.d; ++d) value_[d] += p * ToFloat(values_[j][d]);
    }
  }

  const Args& a_;
  const RowMistake mistake_;
  const bf16* const q_;
  float largest_ = -std::numeric_limits<float>::infinity(), sum_ = 0;
  float value_[kHeadDim] = {};
  std::vector<float> scores_;
  std::vector<const bf16*> values_;
};

template <RowMistake kMistake>
void SpoilFirstSlice(const Args& args) {
  const std::int64_t head = args.h > 1 ? 1 : 0;  // 1: its logits are around -16
  ParallelFor(args.b * args.y * args.x, 0, [&](std::int64_t index) {
    const std::int64_t b = index / (args.y * args.x), y = index / args.x % args.y,
                       x = index % args.x;
    const std::int64_t at = (((b * args.t * args.y + y) * args.x + x) * args.h + head) * args.d;
    WrongRow row(args, kMistake, args.q + at);
    for (std::int64_t i = 0; i < args.kt; ++i) {
      row.AddPlane(b, KeyPosition(kMistake, 0, i, args.kt, args.t), y, x, head);
    }
    row.Store(args.o + at);
  });
}

std::vector<Mutant> WindowMutants() {
  return {
      Changed("window_one_late_x", "windows along x start one point late",
              [](Call& call) { call.windows.x = Displaced(call.windows.x, 1); }),
      Changed("window_one_early_y", "windows along y start one point early",
              [](Call& call) { call.windows.y = Displaced(call.windows.y, -1); }),
      Changed("window_one_early_t", "windows along t start one point early",
              [](Call& call) { call.windows.t = Displaced(call.windows.t, -1); }),
      Changed("border_truncated", "windows are cut at the border instead of shifted inwards",
              TruncateAll),
      Changed("last_key_dropped", "the last column of every window is left out", DropLastKey),
      Changed("one_key_more", "windows end one column too far", OneKeyMore),
      Changed("last_plane_dropped", "the last plane of every window is left out", DropLastPlane),
      Changed("causal_in_time", "windows along t end at the query", LookBackInTime),
  };
}

std::vector<Mutant> ArgumentMutants() {
  return {
      Changed("rows_and_columns_swapped", "K and V are read as [.., X, Y, ..]", SwapRowsAndColumns,
              [](const Problem& problem) { return problem.axis("Y") != problem.axis("X"); }),
      Changed("wraps_across_batch", "windows along t reach into the next batch element",
              FlattenBatchIntoTime, [](const Problem& problem) { return problem.axis("B") > 1; }),
      Changed("scaled_twice", "scores are multiplied by 1/sqrt(D) although Q holds it", ScaleTwice),
      Changed("values_of_next_head", "V of the next head is read", ValuesOfNextHead),
  };
}

}  // namespace

std::vector<Mutant> Mutants() {
  std::vector<Mutant> mutants = WindowMutants();
  for (Mutant& mutant : ArgumentMutants()) mutants.push_back(std::move(mutant));
  mutants.push_back(Spoiled("heads_swapped", "output heads 0 and 1 are exchanged", SwapFirstHeads));
  mutants.push_back(
      Spoiled("last_slice_stale", "the last time slice repeats the one before", RepeatLastSlice));
  mutants.push_back(
      Spoiled("one_percent_large", "the output is 1.01 times the truth", OnePercentLarge));
  mutants.push_back(Spoiled("border_replicated",
                            "keys outside the grid are the nearest border keys, counted again",
                            SpoilFirstSlice<RowMistake::kReplicatedBorder>));
  mutants.push_back(Spoiled("wraps_around", "keys outside the grid come from the other side",
                            SpoilFirstSlice<RowMistake::kWrapsAround>));
  mutants.push_back(Spoiled("padding_scored_zero",
                            "padding of a plane to 16 keys counts as keys of score 0",
                            SpoilFirstSlice<RowMistake::kPaddingScoredZero>));
  mutants.push_back(Spoiled("no_rescale", "sums are not rescaled when the maximum grows",
                            SpoilFirstSlice<RowMistake::kNoRescale>));
  mutants.push_back(Spoiled("sum_of_last_plane", "divides by the sum of the window's last plane",
                            SpoilFirstSlice<RowMistake::kSumOfLastPlane>));
  mutants.push_back(Spoiled("scores_in_bf16", "scores are rounded to bf16 before the softmax",
                            SpoilFirstSlice<RowMistake::kScoresInBF16>));
  return mutants;
}

}  // namespace assay::neighborhood_attention_3d
