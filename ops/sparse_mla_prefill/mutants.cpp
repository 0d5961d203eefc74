// Wrong prefill kernels that verification must reject: the right kernel with wrong arguments, the
// right result spoiled afterwards, or a plain loop with a mistake in its softmax.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/parallel.h"
#include "ops/sparse_mla_prefill/chunk.h"
#include "ops/sparse_mla_prefill/spec.h"

namespace assay::sparse_mla_prefill {
namespace {

// A call whose small arguments may be changed: they are copies.
struct Draft {
  const Problem& problem;
  Chunk chunk;
  Args args;
  std::vector<std::int32_t> indices, lengths;
  std::vector<float> sinks;

  std::int32_t* List(std::int64_t row) {
    return indices.data() + static_cast<std::ptrdiff_t>(row * args.width);
  }
  std::int32_t& Length(std::int64_t row) { return lengths[static_cast<std::size_t>(row)]; }
};

Draft DraftOf(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Draft draft{problem, ChunkOf(problem), Bind(problem, inputs, outputs), {}, {}, {}};
  Args& args = draft.args;
  draft.indices.assign(args.indices, args.indices + args.m * args.width);
  draft.lengths.assign(static_cast<std::size_t>(args.m), static_cast<std::int32_t>(args.width));
  if (args.topk_length != nullptr) {
    draft.lengths.assign(args.topk_length, args.topk_length + args.m);
  }
  draft.sinks.assign(static_cast<std::size_t>(kHeads), -INFINITY);
  if (args.attn_sink != nullptr) draft.sinks.assign(args.attn_sink, args.attn_sink + kHeads);
  args.indices = draft.indices.data();
  args.topk_length = draft.lengths.data();
  args.attn_sink = draft.sinks.data();
  return draft;
}

Mutant Changed(const char* name, const char* mistake, void (*change)(Draft&),
               bool (*applies)(const Problem&) = nullptr, const char* variant = "") {
  return {name, mistake,
          [change](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            Draft draft = DraftOf(problem, inputs, outputs);
            change(draft);
            RunCpu(draft.args, 0);
          },
          applies, variant};
}

// Every index is replaced; the result may be -1, "none".
void MapIndices(Draft& draft,
                std::int64_t (*map)(const Draft&, std::int64_t row, std::int64_t index)) {
  for (std::int64_t row = 0; row < draft.args.m; ++row) {
    std::int32_t* list = draft.List(row);
    for (std::int32_t j = 0; j < draft.Length(row); ++j) {
      if (list[j] >= 0) list[j] = static_cast<std::int32_t>(map(draft, row, list[j]));
    }
  }
}

bool HasPicks(const Problem& problem) { return problem.axis("W") > kWindow; }
bool HasSinks(const Problem& problem) { return problem.variant != "no_sink"; }
bool HasTwoRequests(const Problem& problem) { return ChunkOf(problem).requests.size() > 1; }

// Some list does not fill its columns.
bool HasShortLists(const Problem& problem) {
  const Chunk chunk = ChunkOf(problem);
  return std::any_of(chunk.requests.begin(), chunk.requests.end(), [&](const Request& request) {
    if (request.rows == 0) return false;
    const std::int64_t picks =
        std::min(chunk.PickLimit(request, request.first_position), kMostPicks);
    return picks + request.WindowOf(request.first_position).count < problem.axis("W");
  });
}

// --- mistakes in the list ---

void OmitWindow(Draft& draft) {
  MapIndices(draft, [](const Draft& d, std::int64_t, std::int64_t index) {
    return index < d.chunk.window_base ? index : -1;
  });
}

void OmitPicks(Draft& draft) {
  MapIndices(draft, [](const Draft& d, std::int64_t, std::int64_t index) {
    return index < d.chunk.window_base ? -1 : index;
  });
}

void ReadNoneAsFirst(Draft& draft) {
  for (std::int32_t& index : draft.indices) index = std::max(index, 0);
  std::fill(draft.lengths.begin(), draft.lengths.end(),
            static_cast<std::int32_t>(draft.args.width));
}

void DropLastKey(Draft& draft) {
  for (std::int32_t& length : draft.lengths) length = std::max(length - 1, 0);
}

void DropTailBlock(Draft& draft) {
  for (std::int32_t& length : draft.lengths) length = length / 64 * 64;
}

void ShareListsOfPairs(Draft& draft) {
  for (std::int64_t row = 1; row < draft.args.m; row += 2) {
    std::copy_n(draft.List(row - 1), draft.args.width, draft.List(row));
    draft.Length(row) = draft.Length(row - 1);
  }
}

void WindowOneLate(Draft& draft) {
  MapIndices(draft, [](const Draft& d, std::int64_t, std::int64_t index) {
    const bool window = index >= d.chunk.window_base;
    return window ? std::max(index - 1, d.chunk.window_base) : index;
  });
}

void SecondReadsFirst(Draft& draft) {
  MapIndices(draft, [](const Draft& d, std::int64_t row, std::int64_t index) {
    const Request& own = d.chunk.RequestOf(row);
    const Request& first = d.chunk.requests.front();
    return index < d.chunk.window_base ? index - own.compressed_base + first.compressed_base
                                       : index - own.window_base + first.window_base;
  });
}

void CountDuplicatesOnce(Draft& draft) {
  for (std::int64_t row = 0; row < draft.args.m; ++row) {
    std::int32_t* list = draft.List(row);
    std::sort(list, list + draft.Length(row));
    const std::int32_t* end = std::unique(list, list + draft.Length(row));
    draft.Length(row) = static_cast<std::int32_t>(end - list);
  }
}

// --- mistakes in the output ---

void SwapHeads(bf16* token) { std::swap_ranges(token, token + kDim, token + kDim); }

// The order of 4 ranks with 16 heads each, taken for 16 groups of 4.
void TransposeHeads(bf16* token) {
  const std::vector<bf16> copy(token, token + kHeads * kDim);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::int64_t from = head % 4 * 16 + head / 4;
    std::copy_n(copy.data() + from * kDim, kDim, token + head * kDim);
  }
}

Mutant Spoiled(const char* name, const char* mistake, void (*spoil)(bf16* token)) {
  return {name, mistake, [spoil](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            RunCpu(args, 0);
            for (std::int64_t row = 0; row < args.m; ++row) spoil(args.out + row * kHeads * kDim);
          }};
}

// --- a mistake in the softmax ---

float Dot(const bf16* q, const bf16* k) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t d = 0; d < kDim; ++d) sum += ToFloat(q[d]) * ToFloat(k[d]);
  return sum;
}

// Weights in e4m3, the operand format of an FP8 product, in the row sum; the products keep the
// unrounded ones. (Rounding to bf16 instead moves the sum by less than the output's own rounding.)
void SumRoundedWeights(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Draft draft = DraftOf(problem, inputs, outputs);
  const Args& args = draft.args;
  std::vector<float> largest(static_cast<std::size_t>(args.m * kHeads)), lse(largest.size());
  draft.args.max_logits = largest.data();
  draft.args.lse = lse.data();
  RunCpu(args, 0);
  ParallelFor(args.m * kHeads, 0, [&](std::int64_t head) {
    const float top = largest[static_cast<std::size_t>(head)];
    float rounded = 0;
    for (std::int32_t j = 0; j < draft.Length(head / kHeads); ++j) {
      const std::int64_t index = draft.List(head / kHeads)[j];
      if (index < 0 || index >= args.nkv) continue;
      const float x = Dot(args.q + head * kDim, args.kv + index * args.kv_stride);
      rounded += ToFloat(ToE4M3(std::exp(x * args.sm_scale - top)));
    }
    const float sink = std::exp(args.attn_sink[head % kHeads] - top);
    if (rounded == 0 || std::isinf(sink)) return;  // zeros stay zeros
    const float sum = std::exp(lse[static_cast<std::size_t>(head)] - top);
    bf16* out = args.out + head * kDim;
    for (std::int64_t d = 0; d < kDim; ++d) {
      out[d] = ToBF16(ToFloat(out[d]) * (sum + sink) / (rounded + sink));
    }
  });
}

std::vector<Mutant> ListMutants() {
  return {
      Changed("window_omitted", "attends to the picked compressed rows only", OmitWindow),
      Changed("picks_omitted", "attends to the window only", OmitPicks, HasPicks),
      Changed("none_as_index_0", "ignores the length and reads -1 as row 0", ReadNoneAsFirst,
              HasShortLists),
      Changed("last_key_dropped", "the list ends one column early", DropLastKey),
      Changed("tail_block_dropped", "columns after the last full block of 64 are skipped",
              DropTailBlock, HasShortLists),
      Changed("lists_of_pairs_shared", "odd rows use the list of the row before",
              ShareListsOfPairs),
      Changed("window_one_late", "window rows are one position too old", WindowOneLate),
      Changed("second_reads_first", "later requests read the workspace of the first",
              SecondReadsFirst, HasTwoRequests),
      Changed("duplicates_once", "an index that occurs twice counts once", CountDuplicatesOnce,
              nullptr, "special"),
  };
}

std::vector<Mutant> ScaleAndSinkMutants() {
  return {
      Changed(
          "sink_omitted", "the sink does not enlarge the denominator",
          [](Draft& d) { d.args.attn_sink = nullptr; }, HasSinks),
      Changed(
          "sink_scaled", "the sink is multiplied by sm_scale, as if it came before scaling",
          [](Draft& d) {
            for (float& sink : d.sinks) sink *= d.args.sm_scale;
          },
          HasSinks),
      Changed(
          "sink_in_base_2", "the sink is used as a power of two",
          [](Draft& d) {
            for (float& sink : d.sinks) sink *= std::log(2.0f);
          },
          HasSinks),
      Changed(
          "sink_per_block", "the sink is added once per block of 64 columns",
          [](Draft& d) {
            for (float& sink : d.sinks) {
              sink += std::log(static_cast<float>(d.args.width / 64));
            }
          },
          HasSinks),
      Changed("exp2_without_log2e", "exp2 of the logits, without the factor log2(e)",
              [](Draft& d) { d.args.sm_scale *= std::log(2.0f); }),
      Changed("scale_of_576", "sm_scale of 576 dims, where the rotary dims are extra",
              [](Draft& d) { d.args.sm_scale = 1 / std::sqrt(576.0f); }),
  };
}

}  // namespace

std::vector<Mutant> Mutants() {
  std::vector<Mutant> mutants = ListMutants();
  for (Mutant& mutant : ScaleAndSinkMutants()) mutants.push_back(std::move(mutant));
  mutants.push_back(Spoiled("heads_swapped", "output heads 0 and 1 are exchanged", SwapHeads));
  mutants.push_back(
      Spoiled("heads_by_rank", "heads of the 4 ranks are interleaved", TransposeHeads));
  mutants.push_back(
      {"row_sum_from_rounded_p", "the row sum adds weights rounded to e4m3", SumRoundedWeights});
  return mutants;
}

}  // namespace assay::sparse_mla_prefill
