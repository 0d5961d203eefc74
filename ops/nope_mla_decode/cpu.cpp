// The CPU backend of nope_mla_decode: the legal calls, the tokens of a row, the split over threads.
// The arithmetic is in cpu/latent_attention.h.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "cpu/latent_attention.h"
#include "ops/nope_mla_decode/spec.h"

namespace assay::nope_mla_decode {
namespace {

constexpr const char* kOperation = "nope_mla_decode";

void CheckLengths(const Args& args) {
  std::vector<std::int64_t> live;
  for (std::int64_t request = 0; request < args.requests; ++request) {
    const std::int32_t length = args.seq_lens[request];
    if (length < 0 || length > args.table_width * kPageTokens) {
      BadInput(std::string(kOperation) + ": seq_lens[" + std::to_string(request) +
               "] = " + std::to_string(length) + ", but the page table has room for 0 to " +
               std::to_string(args.table_width * kPageTokens) + " tokens");
    }
    live.push_back(PagesOfTokens(length));
  }
  paged::CheckPageTable(kOperation, args.page_table, args.table_width, live, args.pages);
}

void CheckPools(const Args& args, std::int64_t row) {
  const std::int32_t* list = args.pool_ids + row * kTopPools;
  const std::int64_t closed = args.TokensOf(row) / kPoolTokens;
  const auto where = [&](std::int64_t j) {
    return std::string(kOperation) + ": pool_ids[" + std::to_string(row / args.rows) + "," +
           std::to_string(row % args.rows) + "," + std::to_string(j) +
           "] = " + std::to_string(list[j]);
  };
  for (std::int64_t j = 0; j < kTopPools; ++j) {
    if (list[j] >= -1 && list[j] < closed) continue;
    BadInput(where(j) + "; the row has " + std::to_string(closed) +
             " closed pools, and -1 is none");
  }
  std::vector<std::int32_t> sorted(list, list + kTopPools);
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(sorted.begin(), std::upper_bound(sorted.begin(), sorted.end(), -1));
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return;
  const std::int32_t* first = std::find(list, list + kTopPools, *twice);
  BadInput(where(std::find(first + 1, list + kTopPools, *twice) - list) + " comes twice");
}

// One row, `heads` heads from `first_head` on.
void RunTask(const Args& args, std::int64_t row, int first_head, int heads,
             const cpu::LatentLeaf& leaf) {
  thread_local std::vector<const bf16*> latents;
  latents.clear();
  const std::int32_t* table = args.page_table + row / args.rows * args.table_width;
  for (const std::int64_t token : AttendedTokens(args, row)) {
    const std::int64_t page = table[token / kPageTokens];
    latents.push_back(args.latents + (page * kPageTokens + token % kPageTokens) * kDim);
  }
  const std::int64_t head = row * kHeads + first_head;
  cpu::LatentQuery query;
  query.heads = heads;
  query.q = args.q + head * kDim;
  query.rows = latents;
  query.scale = kDefaultScale;
  query.out = args.out + head * kDim;
  cpu::Attend(leaf, query);
}

}  // namespace

std::vector<std::int64_t> AttendedTokens(const Args& args, std::int64_t row) {
  const std::int64_t count = args.TokensOf(row);
  std::vector<std::int64_t> tokens;
  for (std::int64_t j = 0; j < kTopPools && args.pool_ids != nullptr; ++j) {
    const std::int64_t pool = args.pool_ids[row * kTopPools + j];
    for (std::int64_t t = 0; t < kPoolTokens && pool >= 0; ++t) {
      tokens.push_back(pool * kPoolTokens + t);
    }
  }
  std::int64_t token = args.pool_ids != nullptr ? count / kPoolTokens * kPoolTokens : 0;
  for (; token < count; ++token) tokens.push_back(token);
  return tokens;
}

void Check(const Args& args) {
  const std::pair<const char*, const void*> rows[] = {
      {"q", args.q}, {"latents", args.latents}, {"out", args.out}};
  for (const auto& [name, pointer] : rows) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) {
      BadInput(std::string(kOperation) + ": " + name + " is not aligned to 16 bytes");
    }
  }
  CheckLengths(args);
  for (std::int64_t row = 0; row < args.total_rows() && args.pool_ids != nullptr; ++row) {
    CheckPools(args, row);
  }
}

void RunCpu(const Args& args, int threads) {
  static const cpu::LatentLeaf& leaf = *cpu::RunnableLatentLeaves().front();
  Check(args);
  const int heads = cpu::LatentHeadsPerTask(args.total_rows(), kHeads, threads);
  const std::int64_t pieces = kHeads / heads;
  ParallelFor(args.total_rows() * pieces, threads, [&](std::int64_t task) {
    RunTask(args, task / pieces, static_cast<int>(task % pieces) * heads, heads, leaf);
  });
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary = "heads along the lanes, latents where they lie, one softmax in fp32";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::nope_mla_decode
