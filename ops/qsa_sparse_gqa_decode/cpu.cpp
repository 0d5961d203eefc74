// The CPU backend of qsa_sparse_gqa_decode: the legal calls, the split over threads and the choice
// of the instruction set.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "cpu/isa.h"
#include "ops/qsa_sparse_gqa_decode/cpu_leaf.h"

#define ASSAY_LANES 4
#include "ops/qsa_sparse_gqa_decode/cpu_leaf_lanes.h"

namespace assay::qsa_sparse_gqa_decode {

const Leaf kLeafBaseline = {"baseline", Attend<ProductsF32>, Merge<ProductsF32>};

namespace {

constexpr const char* kOperation = "qsa_sparse_gqa_decode: ";
constexpr float kLog2E = 1.44269504f;

// A row of 2051 tokens is 8 parts for as many threads. The parts of a row depend on its own tokens
// only.
constexpr std::int64_t kPartTokens = 256;

std::string At(const char* name, std::int64_t row, std::int64_t column, std::int64_t value) {
  return kOperation + std::string(name) + "[" + std::to_string(row) + "," + std::to_string(column) +
         "] = " + std::to_string(value);
}

const char* ListName(const Args& args) {
  return args.block_ids != nullptr ? "block_ids" : "token_ids";
}
const std::int32_t* ListOf(const Args& args, std::int64_t b) {
  return (args.block_ids != nullptr ? args.block_ids : args.token_ids) + b * args.list_width;
}

void CheckLayout(const Args& args) {
  const std::pair<const char*, const bf16*> caches[] = {{"k_cache", args.k_cache},
                                                        {"v_cache", args.v_cache}};
  for (const auto& [name, cache] : caches) {
    if (reinterpret_cast<std::uintptr_t>(cache) % 16 != 0) {
      BadInput(kOperation + std::string(name) + " is not aligned to 16 bytes");
    }
  }
  if (args.page_stride_bytes < kPageBytes || args.page_stride_bytes % 16 != 0) {
    BadInput(kOperation + std::string("a page stride of ") +
             std::to_string(args.page_stride_bytes) +
             " bytes is less than 65536 or not a multiple of 16");
  }
  if ((args.block_ids == nullptr) == (args.token_ids == nullptr)) {
    BadInput(kOperation + std::string("give exactly one of block_ids and token_ids, not ") +
             (args.block_ids == nullptr ? "none" : "both"));
  }
}

// The tokens of every row, as element offsets into the caches, and how they are cut into parts.
struct Plan {
  struct Part {
    std::int64_t row = 0, first = 0, count = 0;  // tokens of `tokens`
  };
  std::vector<std::int64_t> tokens;
  std::vector<Part> parts;
  std::vector<std::int64_t> first_part;  // [batch + 1]
};

void AddTokens(const Args& args, std::int64_t b, std::vector<std::int64_t>& tokens) {
  const std::int64_t length = args.seq_lens[b], stride = args.page_stride_bytes / 2;
  const std::int32_t* pages = args.page_table + b * args.table_width;
  const std::int32_t* list = ListOf(args, b);
  const auto add = [&](std::int64_t token) {
    tokens.push_back(pages[token / kPageTokens] * stride + token % kPageTokens * kTokenElements);
  };
  const std::int64_t tail = length / kGroupTokens;  // number of the incomplete group
  bool tail_listed = false;
  for (std::int64_t i = 0; i < args.list_width; ++i) {
    const std::int64_t id = list[i];
    if (id < 0) continue;
    if (args.token_ids != nullptr) {
      if (id < length) add(id);
      continue;
    }
    tail_listed = tail_listed || id == tail;
    const std::int64_t end = std::min(kGroupTokens * (id + 1), length);
    for (std::int64_t token = kGroupTokens * id; token < end; ++token) add(token);
  }
  if (args.block_ids == nullptr || tail_listed) return;
  for (std::int64_t token = kGroupTokens * tail; token < length; ++token) add(token);
}

Plan MakePlan(const Args& args) {
  Plan plan;
  plan.tokens.reserve(static_cast<std::size_t>(args.batch * kMostTokens));
  plan.first_part.push_back(0);
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const auto first = static_cast<std::int64_t>(plan.tokens.size());
    AddTokens(args, b, plan.tokens);
    const std::int64_t count = static_cast<std::int64_t>(plan.tokens.size()) - first;
    const std::int64_t parts = count == 0 ? 0 : std::max<std::int64_t>(count / kPartTokens, 1);
    for (std::int64_t i = 0; i < parts; ++i) {
      // Parts begin with whole groups.
      const std::int64_t begin = count * i / parts / kGroupTokens * kGroupTokens;
      const std::int64_t next = count * (i + 1) / parts / kGroupTokens * kGroupTokens;
      plan.parts.push_back({b, first + begin, (i + 1 == parts ? count : next) - begin});
    }
    plan.first_part.push_back(static_cast<std::int64_t>(plan.parts.size()));
  }
  plan.tokens.resize(plan.tokens.size() + 2 * kTokensAhead, 0);
  return plan;
}

}  // namespace

void Check(const Args& args) {
  CheckLayout(args);
  std::vector<std::int64_t> live;
  const std::int64_t tokens = args.table_width * kPageTokens;
  const std::int64_t entries = args.block_ids != nullptr ? tokens / kGroupTokens : tokens;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::string where =
        kOperation + ("seq_lens[" + std::to_string(b)) + "] = " + std::to_string(args.seq_lens[b]);
    if (args.seq_lens[b] < 0) BadInput(where + " is negative");
    if (args.seq_lens[b] > tokens) {
      BadInput(where + ", but the page table covers " + std::to_string(args.table_width) +
               " pages of 64 tokens");
    }
    live.push_back(PagesOfTokens(args.seq_lens[b]));
    const std::int32_t* list = ListOf(args, b);
    const std::int32_t* most = std::max_element(list, list + args.list_width);
    if (args.list_width > 0 && *most >= entries) {
      BadInput(At(ListName(args), b, most - list, *most) + " lies behind the page table of " +
               std::to_string(args.table_width) + " pages");
    }
  }
  paged::CheckPageTable("qsa_sparse_gqa_decode", args.page_table, args.table_width, live,
                        args.pages);
}

void CheckLists(const Args& args) {
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int32_t* list = ListOf(args, b);
    std::vector<std::int32_t> sorted(list, list + args.list_width);
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      const bool twice = i > 0 && sorted[i] == sorted[i - 1] && sorted[i] >= 0;
      if (sorted[i] >= -1 && !twice) continue;
      const std::int64_t at = std::find(list, list + args.list_width, sorted[i]) - list;
      BadInput(At(ListName(args), b, at, sorted[i]) +
               (twice ? " is listed twice" : " is negative, but not -1"));
    }
  }
}

std::vector<const Leaf*> RunnableLeaves() {
  std::vector<const Leaf*> leaves;
#if defined(__x86_64__)
  if (cpu::Supports(cpu::Isa::kAvx512)) {
    if (cpu::HasAvx512Bf16()) leaves.push_back(&kLeafAvx512BF16);
    leaves.push_back(&kLeafAvx512);
  }
  if (cpu::Supports(cpu::Isa::kAvx2)) leaves.push_back(&kLeafAvx2);
#endif
  leaves.push_back(&kLeafBaseline);
  return leaves;
}

void RunWith(const Leaf& leaf, const Args& args, int threads) {
  Check(args);
  const Plan plan = MakePlan(args);
  const auto parts = static_cast<std::int64_t>(plan.parts.size());
  // Kept from call to call, so that fresh memory is not paid for each time.
  thread_local std::vector<Partial> scratch;
  if (scratch.size() < plan.parts.size()) scratch.resize(plan.parts.size());
  Partial* const partials = scratch.data();
  const float scale = (args.scale == 0 ? kDefaultScale : args.scale) * kLog2E;
  ParallelFor(parts, threads, [&](std::int64_t i) {
    const Plan::Part& part = plan.parts[static_cast<std::size_t>(i)];
    leaf.attend({args.q + part.row * kHeads * kHeadSize, args.k_cache, args.v_cache,
                 plan.tokens.data() + part.first, part.count, scale, partials + i});
  });
  ParallelRanges(args.batch * kHeads, kGroupHeads, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const auto b = static_cast<std::size_t>(i / kHeads);
                     const std::int64_t first = plan.first_part[b];
                     leaf.merge({partials + first, plan.first_part[b + 1] - first,
                                 static_cast<int>(i % kHeads), args.out + i * kHeadSize,
                                 args.lse == nullptr ? nullptr : args.lse + i});
                   }
                 });
}

void RunCpu(const Args& args, int threads) { RunWith(*RunnableLeaves().front(), args, threads); }

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "tokens in place, 12 heads at once, online softmax, parts of 256 tokens";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::qsa_sparse_gqa_decode
