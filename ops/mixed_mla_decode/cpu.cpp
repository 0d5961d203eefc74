// The CPU backend of mixed_mla_decode: the legal calls, decoding of a row's tokens, the split over
// threads. The arithmetic is in cpu/latent_attention.h.
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/mixed_mla_decode/lists.h"
#include "ops/mixed_mla_decode/spec.h"

namespace assay::mixed_mla_decode {
namespace {

bool Misaligned(const void* p, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes != 0;
}

bool Overlaps(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto* first = static_cast<const char*>(a);
  const auto* second = static_cast<const char*>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

std::string CacheProblem(const char* name, const Cache& cache, std::int64_t page_bytes) {
  if (Misaligned(cache.bytes, 16)) return std::string(name) + " is not aligned to 16 bytes";
  if (cache.page_stride < page_bytes || cache.page_stride % 16 != 0) {
    return std::string(name) + " has a page stride of " + std::to_string(cache.page_stride) +
           " bytes, supported are multiples of 16 from " + std::to_string(page_bytes) + " on";
  }
  return "";
}

std::string ListProblem(const char* indices_name, const char* length_name, const TokenLists& lists,
                        std::int64_t width, std::int64_t rows, std::int64_t tokens) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t length = lists.length == nullptr ? width : lists.length[row];
    if (length < 0 || length > width) {
      return std::string(length_name) + "[" + std::to_string(row) +
             "] = " + std::to_string(length) + " is outside 0.." + std::to_string(width);
    }
    for (std::int64_t j = 0; j < length; ++j) {
      const std::int32_t index = lists.indices[row * width + j];
      if (index < tokens) continue;
      return std::string(indices_name) + "[" + std::to_string(row) + "," + std::to_string(j) +
             "] = " + std::to_string(index) + " is outside the cache of " + std::to_string(tokens) +
             " tokens";
    }
  }
  return "";
}

float ScaleOf(const Args& args) { return args.sm_scale == 0 ? mla::kDefaultScale : args.sm_scale; }

std::string PointerProblem(const Args& args) {
  if (Misaligned(args.q, 16)) return "q is not aligned to 16 bytes";
  if (args.out == nullptr) return "";  // inputs alone are checked
  if (Misaligned(args.out, 16)) return "out is not aligned to 16 bytes";
  const std::int64_t bytes = args.b * kHeads * kDim * 2;
  const auto overlaps = [&](const Cache& cache) {
    return Overlaps(args.out, bytes, cache.bytes, cache.pages * cache.page_stride);
  };
  if (Overlaps(args.out, bytes, args.q, bytes)) return "out overlaps q";
  if (overlaps(args.cache8)) return "out overlaps cache8";
  return overlaps(args.cache4) ? "out overlaps cache4" : "";
}

// The tokens of one row, decoded; kept by each thread between rows.
struct DecodedRow {
  std::vector<bf16> narrow;
  std::vector<float> wide;
  std::vector<const bf16*> rows;
  std::vector<const float*> wide_rows;
};

// Codes of the 8-bit tokens that bf16 cannot hold (or holds as subnormals) ask for fp32.
bool NeedsWide(const std::vector<TokenBytes>& window) {
  for (const TokenBytes& token : window) {
    if (!mla::FitsBF16(token.scales)) return true;
  }
  return false;
}

// Tokens lie scattered over gigabytes: their bytes are on the way while earlier ones are decoded.
void Prefetch(const std::vector<TokenBytes>& tokens, std::size_t at, const mla::RowFormat& format) {
  constexpr std::size_t kAhead = 16;
  if (at + kAhead >= tokens.size()) return;
  const TokenBytes& token = tokens[at + kAhead];
  for (std::int64_t line = 0; line < format.data_bytes; line += 64) {
    __builtin_prefetch(token.data + line);
  }
  __builtin_prefetch(token.scales);
}

void DecodeNarrow(const std::vector<TokenBytes>& window, const std::vector<TokenBytes>& extra,
                  DecodedRow& row) {
  row.narrow.resize((window.size() + extra.size()) * static_cast<std::size_t>(kDim));
  bf16* to = row.narrow.data();
  for (std::size_t i = 0; i < window.size(); ++i, to += kDim) {
    Prefetch(window, i, mla::kV41);
    mla::DecodeV41(window[i].data, window[i].scales, to);
    row.rows.push_back(to);
  }
  for (std::size_t i = 0; i < extra.size(); ++i, to += kDim) {
    Prefetch(extra, i, mla::kV41Fp4);
    mla::DecodeV41Fp4(extra[i].data, extra[i].scales, to);
    row.rows.push_back(to);
  }
}

void DecodeWide(const std::vector<TokenBytes>& window, const std::vector<TokenBytes>& extra,
                DecodedRow& row) {
  row.wide.resize((window.size() + extra.size()) * static_cast<std::size_t>(kDim));
  float* to = row.wide.data();
  for (const TokenBytes& token : window) {
    mla::DecodeV41(token.data, token.scales, to);
    row.wide_rows.push_back(to);
    to += kDim;
  }
  for (const TokenBytes& token : extra) {
    bf16 narrow[kDim];
    mla::DecodeV41Fp4(token.data, token.scales, narrow);
    for (std::int64_t d = 0; d < kDim; ++d) to[d] = ToFloat(narrow[d]);
    row.wide_rows.push_back(to);
    to += kDim;
  }
}

// Only tokens that the lists have are looked at: nothing else is ever read, let alone multiplied.
void Decode(const Args& args, std::int64_t b, DecodedRow& row) {
  thread_local std::vector<TokenBytes> window, extra;
  window.clear();
  extra.clear();
  row.rows.clear();
  row.wide_rows.clear();
  ForEachToken(args.window, kWindow, b, [&](std::int64_t index) {
    window.push_back(Locate(args.cache8, mla::kV41, kPageTokens8, index));
  });
  ForEachToken(args.extra, kExtra, b, [&](std::int64_t index) {
    extra.push_back(Locate(args.cache4, mla::kV41Fp4, kPageTokens4, index));
  });
  if (NeedsWide(window)) {
    DecodeWide(window, extra, row);
  } else {
    DecodeNarrow(window, extra, row);
  }
}

void RunTask(const Args& args, std::int64_t b, int first_head, int heads,
             const cpu::LatentLeaf& leaf) {
  thread_local DecodedRow row;
  Decode(args, b, row);
  const std::int64_t head = b * kHeads + first_head;
  cpu::LatentQuery query;
  query.heads = heads;
  query.q = args.q + head * kDim;
  query.rows = row.rows;
  query.wide_rows = row.wide_rows;
  query.scale = ScaleOf(args);
  if (args.attn_sink != nullptr) query.sink = args.attn_sink + first_head;
  query.out = args.out + head * kDim;
  if (args.lse != nullptr) query.lse = args.lse + head;
  cpu::Attend(leaf, query);
}

}  // namespace

std::string Refusal(const Args& args) {
  if (!(ScaleOf(args) > 0 && ScaleOf(args) < INFINITY)) {
    return "sm_scale = " + std::to_string(args.sm_scale) + " is not a positive finite number";
  }
  for (const std::string& problem :
       {CacheProblem("cache8", args.cache8, kPageBytes8),
        CacheProblem("cache4", args.cache4, kPageBytes4), PointerProblem(args),
        ListProblem("indices", "topk_length", args.window, kWindow, args.b,
                    args.cache8.pages * kPageTokens8),
        ListProblem("extra_indices", "extra_topk_length", args.extra, kExtra, args.b,
                    args.cache4.pages * kPageTokens4)}) {
    if (!problem.empty()) return problem;
  }
  return "";
}

void RunCpu(const Args& args, int threads, const cpu::LatentLeaf& leaf) {
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) BadInput("mixed_mla_decode: " + refusal);
  const int heads = cpu::LatentHeadsPerTask(args.b, kHeads, threads);
  const std::int64_t pieces = kHeads / heads;
  ParallelFor(args.b * pieces, threads, [&](std::int64_t task) {
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
  backend.summary = "decodes a row's tokens to bf16, then heads along the lanes; fp32 beyond bf16";
  backend.supports = [](const Problem&, const Bundle&) { return std::string(); };
  backend.run = [](const Problem& problem, const Bundle& inputs, Bundle& outputs,
                   const RunContext& context) {
    RunCpu(Bind(problem, inputs, outputs), context.threads);
  };
  return {backend};
}

}  // namespace assay::mixed_mla_decode
