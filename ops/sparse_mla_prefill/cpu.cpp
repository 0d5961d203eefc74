// The CPU backend of sparse_mla_prefill: the legal calls, the lists, the split over threads. The
// arithmetic is in cpu/latent_attention.h.
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/sparse_mla_prefill/spec.h"

namespace assay::sparse_mla_prefill {
namespace {

bool Overlaps(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto* first = static_cast<const char*>(a);
  const auto* second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

bool Misaligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes != 0;
}

std::string AlignmentProblem(const Args& args) {
  const std::pair<const char*, const void*> rows[] = {
      {"q", args.q}, {"kv", args.kv}, {"out", args.out}};
  for (const auto& [name, pointer] : rows) {
    if (Misaligned(pointer, 16)) return std::string(name) + " is not aligned to 16 bytes";
  }
  const std::pair<const char*, const void*> words[] = {{"indices", args.indices},
                                                       {"topk_length", args.topk_length},
                                                       {"attn_sink", args.attn_sink},
                                                       {"max_logits", args.max_logits},
                                                       {"lse", args.lse}};
  for (const auto& [name, pointer] : words) {
    if (Misaligned(pointer, 4)) return std::string(name) + " is not aligned to 4 bytes";
  }
  return "";
}

float ScaleOf(const Args& args) { return args.sm_scale == 0 ? mla::kDefaultScale : args.sm_scale; }

// The list of one query row as pointers; the address of an invalid column is never formed.
void CollectRows(const Args& args, std::int64_t row, std::vector<const bf16*>& rows) {
  rows.clear();
  const std::int32_t* list = args.indices + row * args.width;
  const std::int64_t length = args.topk_length == nullptr ? args.width : args.topk_length[row];
  for (std::int64_t j = 0; j < length; ++j) {
    const std::int64_t index = list[j];
    if (index >= 0 && index < args.nkv) rows.push_back(args.kv + index * args.kv_stride);
  }
}

void RunTask(const Args& args, std::int64_t row, int first_head, int heads,
             const cpu::LatentLeaf& leaf) {
  thread_local std::vector<const bf16*> rows;
  CollectRows(args, row, rows);
  const std::int64_t head = row * kHeads + first_head;
  cpu::LatentQuery query;
  query.heads = heads;
  query.q = args.q + head * kDim;
  query.rows = rows;
  query.scale = ScaleOf(args);
  if (args.attn_sink != nullptr) query.sink = args.attn_sink + first_head;
  query.out = args.out + head * kDim;
  if (args.max_logits != nullptr) query.max_logits = args.max_logits + head;
  if (args.lse != nullptr) query.lse = args.lse + head;
  cpu::Attend(leaf, query);
}

}  // namespace

std::string Refusal(const Args& args) {
  if (args.width < 0 || args.width % 64 != 0) {
    return "indices has " + std::to_string(args.width) + " columns, supported are multiples of 64";
  }
  if (args.kv_stride < kDim || args.kv_stride % 8 != 0) {
    return "kv has a row stride of " + std::to_string(args.kv_stride) +
           " elements, supported are multiples of 8 from 512 on";
  }
  if (!(ScaleOf(args) > 0 && ScaleOf(args) < INFINITY)) {
    return "sm_scale = " + std::to_string(args.sm_scale) + " is not a positive finite number";
  }
  const std::string alignment = AlignmentProblem(args);
  if (!alignment.empty()) return alignment;
  for (std::int64_t row = 0; args.topk_length != nullptr && row < args.m; ++row) {
    const std::int32_t length = args.topk_length[row];
    if (length < 0 || length > args.width) {
      return "topk_length[" + std::to_string(row) + "] = " + std::to_string(length) +
             " is outside 0.." + std::to_string(args.width);
    }
  }
  const std::int64_t bytes = args.m * kHeads * kDim * 2;
  if (Overlaps(args.out, bytes, args.q, bytes)) return "out overlaps q";
  if (Overlaps(args.out, bytes, args.kv, args.nkv * args.kv_stride * 2)) return "out overlaps kv";
  return "";
}

void RunCpu(const Args& args, int threads, const cpu::LatentLeaf& leaf) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("sparse_mla_prefill: " + refusal);
  const int heads = cpu::LatentHeadsPerTask(args.m, kHeads, threads);
  const std::int64_t pieces = kHeads / heads;
  // Neighbouring rows share most of their lists: claimed one by one, in order, they find the rows
  // of their neighbours in the shared cache.
  ParallelFor(args.m * pieces, threads, [&](std::int64_t task) {
    RunTask(args, task / pieces, static_cast<int>(task % pieces) * heads, heads, leaf);
  });
}

void RunCpu(const Args& args, int threads) {
  static const cpu::LatentLeaf& best = *cpu::RunnableLatentLeaves().front();
  RunCpu(args, threads, best);
}

std::vector<Backend> Backends() {
  Backend backend;
  backend.name = "cpu";
  backend.summary =
      "lists read in place, heads along the lanes; AVX512-BF16, AVX-512, AVX2 or plain";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::sparse_mla_prefill
