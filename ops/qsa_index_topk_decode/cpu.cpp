// The CPU backend of qsa_index_topk_decode: the legal calls, the split over threads and the choice
// of the instruction set.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/qsa_index_topk_decode/cpu_leaf.h"
#include "ops/qsa_index_topk_decode/spec.h"

#define ASSAY_LANES 4
#include "ops/qsa_index_topk_decode/cpu_leaf_lanes.h"

namespace assay::qsa_index_topk_decode {

const Leaf kLeafBaseline = kThisLeaf;

namespace {

constexpr const char* kOperation = "qsa_index_topk_decode: ";
constexpr float kInverseDivisor = 0.08838834764831845f;  // 1 / sqrt(128)

// 256 KB of keys: long rows give work to all threads, short ones are one piece.
constexpr std::int64_t kGroupsPerTask = 1024;

const Leaf& LeafFor(cpu::Isa isa) {
#if defined(__x86_64__)
  if (isa == cpu::Isa::kAvx512) return kLeafAvx512;
  if (isa == cpu::Isa::kAvx2) return kLeafAvx2;
#endif
  (void)isa;
  return kLeafBaseline;
}

std::string At(const char* name, std::int64_t i, std::int64_t value) {
  return kOperation + std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(value);
}

void CheckLayout(const Args& args) {
  const auto address = reinterpret_cast<std::uintptr_t>(args.index_k_cache);
  if (address % 16 != 0) {
    BadInput(kOperation + std::string("index_k_cache is not aligned to 16 bytes"));
  }
  if (args.page_stride_bytes < kPageBytes || args.page_stride_bytes % 16 != 0) {
    BadInput(kOperation + std::string("a page stride of ") +
             std::to_string(args.page_stride_bytes) +
             " bytes is less than 4096 or not a multiple of 16");
  }
  if (args.q_heads != kHeads && args.q_heads != 2 * kHeads) {
    BadInput(kOperation + std::string("q has ") + std::to_string(args.q_heads) +
             " heads, expected 4, or 8 of which the last 4 are zero");
  }
  if (args.top_k < 1 || args.group_tokens < 1) {
    BadInput(kOperation + std::string("top_k = ") + std::to_string(args.top_k) +
             " and group_tokens = " + std::to_string(args.group_tokens) + " must be positive");
  }
  if ((args.seq_lens != nullptr) == (args.group_lens != nullptr)) {
    BadInput(kOperation + std::string("give exactly one of seq_lens and group_lens, not ") +
             (args.seq_lens != nullptr ? "both" : "none"));
  }
}

void CheckPadding(const Args& args) {
  for (std::int64_t b = 0; b < args.batch && args.q_heads > kHeads; ++b) {
    const bf16* heads = args.q + b * args.q_heads * kHeadSize;
    for (std::int64_t i = kHeads * kHeadSize; i < args.q_heads * kHeadSize; ++i) {
      if ((heads[i].bits & 0x7FFFu) == 0) continue;
      BadInput(kOperation + std::string("q[") + std::to_string(b) + "," +
               std::to_string(i / kHeadSize) + "," + std::to_string(i % kHeadSize) +
               "] is not zero: heads 4..7 can only be padding");
    }
  }
}

}  // namespace

std::vector<std::int64_t> GroupCounts(const Args& args) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(args.batch));
  for (std::size_t b = 0; b < counts.size(); ++b) {
    counts[b] =
        args.seq_lens != nullptr ? args.seq_lens[b] / args.group_tokens : args.group_lens[b];
  }
  return counts;
}

void Check(const Args& args) {
  CheckLayout(args);
  if (args.batch == 0) return;
  CheckPadding(args);
  const std::int32_t* lengths = args.seq_lens != nullptr ? args.seq_lens : args.group_lens;
  const char* name = args.seq_lens != nullptr ? "seq_lens" : "group_lens";
  std::vector<std::int64_t> live = GroupCounts(args);
  for (std::size_t b = 0; b < live.size(); ++b) {
    const std::string where = At(name, static_cast<std::int64_t>(b), lengths[b]);
    if (lengths[b] < 0) BadInput(where + " is negative");
    if (live[b] > args.table_width * kPageGroups) {
      BadInput(where + " means " + std::to_string(live[b]) + " groups, but the page table covers " +
               std::to_string(args.table_width) +
               " pages of 16 groups (it may be in KV pages of "
               "64 tokens or in scheduler pages)");
    }
    live[b] = (live[b] + kPageGroups - 1) / kPageGroups;
  }
  paged::CheckPageTable("qsa_index_topk_decode", args.page_table, args.table_width, live,
                        args.pages);
}

namespace {

// What all threads work on: the rows that need scores, their place in one list of scores, and
// pieces of them.
struct Plan {
  struct Piece {
    std::int64_t row = 0, begin = 0, end = 0;
  };
  std::vector<std::int64_t> counts, first_score;  // [batch]
  std::vector<Piece> pieces;
  std::int64_t scores = 0;
};

Plan MakePlan(const Args& args) {
  Plan plan;
  plan.counts = GroupCounts(args);
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t n = plan.counts[static_cast<std::size_t>(b)];
    plan.first_score.push_back(plan.scores);
    if (n <= args.top_k && args.scores == nullptr) continue;  // all groups, whatever they score
    plan.scores += n;
    for (std::int64_t begin = 0; begin < n; begin += kGroupsPerTask) {
      plan.pieces.push_back({b, begin, std::min(begin + kGroupsPerTask, n)});
    }
  }
  return plan;
}

void ScorePiece(const Args& args, const Leaf& leaf, const Plan::Piece& piece, float* scores) {
  ScoreTask task;
  task.q = args.q + piece.row * args.q_heads * kHeadSize;
  task.cache = reinterpret_cast<const std::byte*>(args.index_k_cache);
  task.page_stride_bytes = args.page_stride_bytes;
  task.pages = args.page_table + piece.row * args.table_width;
  task.begin = piece.begin;
  task.end = piece.end;
  task.scores = scores + piece.begin;
  leaf.score(task);
  if (args.scores == nullptr) return;
  float* to = args.scores + piece.row * args.scores_stride;
  for (std::int64_t j = piece.begin; j < piece.end; ++j) to[j] = scores[j] * kInverseDivisor;
}

void Select(const Leaf& leaf, const float* scores, std::int64_t n, std::int64_t top_k,
            std::int32_t* ids) {
  // Kept from call to call, so that fresh memory is not paid for each time.
  thread_local std::vector<std::int32_t> scratch;
  const std::int64_t columns = SelectColumns(top_k), list = n + kSelectSlack;
  const auto needed = static_cast<std::size_t>(columns + 2 * list);
  if (scratch.size() < needed) scratch.resize(needed);
  std::int32_t* start = scratch.data();
  leaf.select({scores, n, top_k, ids, start, start + columns, start + columns + list});
}

void SelectRow(const Args& args, const Leaf& leaf, const float* scores, std::int64_t n,
               std::int32_t* ids) {
  const std::int64_t count = std::min(n, args.top_k);
  if (n > args.top_k) {
    Select(leaf, scores, n, args.top_k, ids);
  } else {
    for (std::int64_t i = 0; i < count; ++i) ids[i] = static_cast<std::int32_t>(i);
  }
  std::fill(ids + count, ids + args.top_k, -1);
}

}  // namespace

void RunCpu(const Args& args, int threads, cpu::Isa isa) {
  Check(args);
  const Leaf& leaf = LeafFor(isa);
  const Plan plan = MakePlan(args);
  std::vector<float> scores(static_cast<std::size_t>(plan.scores));
  const auto scores_of = [&](std::int64_t row) {
    return scores.data() + plan.first_score[static_cast<std::size_t>(row)];
  };
  ParallelFor(static_cast<std::int64_t>(plan.pieces.size()), threads, [&](std::int64_t i) {
    const Plan::Piece& piece = plan.pieces[static_cast<std::size_t>(i)];
    ScorePiece(args, leaf, piece, scores_of(piece.row));
  });
  ParallelFor(args.batch, threads, [&](std::int64_t b) {
    SelectRow(args, leaf, scores_of(b), plan.counts[static_cast<std::size_t>(b)],
              args.block_ids + b * args.top_k);
  });
}

void RunCpu(const Args& args, int threads) { RunCpu(args, threads, cpu::BestIsa()); }

void SelectCpu(const float* scores, std::int64_t n, std::int64_t top_k, std::int32_t* ids) {
  Args args;
  args.top_k = top_k;
  SelectRow(args, LeafFor(cpu::BestIsa()), scores, n, ids);
}

void ExpandToTokens(const std::int32_t* block_ids, std::int64_t count, std::int64_t length,
                    std::int32_t* token_ids) {
  std::int32_t* next = token_ids;
  for (std::int64_t i = 0; i < count; ++i) {
    if (block_ids[i] < 0) continue;
    for (std::int32_t r = 0; r < kGroupTokens; ++r) *next++ = 4 * block_ids[i] + r;
  }
  for (std::int64_t t = length / kGroupTokens * kGroupTokens; t < length; ++t) {
    *next++ = static_cast<std::int32_t>(t);
  }
  std::fill(next, token_ids + kGroupTokens * count + kGroupTokens - 1, -1);
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "fp32 dot products of 4 heads at once, exact selection by bisection";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::qsa_index_topk_decode
