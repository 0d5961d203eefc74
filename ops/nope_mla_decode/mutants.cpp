// Wrong kernels that verification must reject: the right arithmetic on wrong tokens, or a mistake
// in the softmax.
#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "cpu/latent_attention.h"
#include "ops/nope_mla_decode/spec.h"

namespace assay::nope_mla_decode {
namespace {

using Tokens = std::vector<std::int64_t>;

// How one row goes wrong; the defaults are right.
struct Recipe {
  // Replaces the tokens of a row.
  Tokens (*tokens)(const Args& args, std::int64_t row) = AttendedTokens;
  // Replaces where a token lies, in tokens of the cache.
  std::int64_t (*place)(const Args& args, std::int64_t request, std::int64_t token) =
      [](const Args& args, std::int64_t request, std::int64_t token) {
        const std::int64_t page = args.page_table[request * args.table_width + token / kPageTokens];
        return page * kPageTokens + token % kPageTokens;
      };
  float scale = kDefaultScale;
  std::int64_t chunk = 0;  // > 0: softmaxes of chunks of so many tokens, averaged
};

void Attend(const Recipe& recipe, const Args& args, std::int64_t row, const Tokens& tokens,
            bf16* out) {
  std::vector<const bf16*> latents;
  for (const std::int64_t token : tokens) {
    latents.push_back(args.latents + recipe.place(args, row / args.rows, token) * kDim);
  }
  cpu::LatentQuery query;
  query.heads = kHeads;
  query.q = args.q + row * kHeads * kDim;
  query.rows = latents;
  query.scale = recipe.scale;
  query.out = out;
  cpu::Attend(*cpu::RunnableLatentLeaves().front(), query);
}

void RunRow(const Recipe& recipe, const Args& args, std::int64_t row) {
  const Tokens tokens = recipe.tokens(args, row);
  bf16* out = args.out + row * kHeads * kDim;
  if (recipe.chunk == 0) return Attend(recipe, args, row, tokens, out);
  std::vector<float> sum(static_cast<std::size_t>(kHeads * kDim));
  float chunks = 0;
  for (std::size_t first = 0; first < tokens.size();
       first += static_cast<std::size_t>(recipe.chunk)) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
    const auto left = tokens.end() - begin;
    Attend(recipe, args, row, {begin, begin + std::min<std::ptrdiff_t>(recipe.chunk, left)}, out);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += ToFloat(out[i]);
    ++chunks;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) out[i] = ToBF16(chunks > 0 ? sum[i] / chunks : 0);
}

Mutant Make(const char* name, const char* mistake, const Recipe& recipe,
            bool (*applies)(const Problem&) = nullptr) {
  return {name, mistake,
          [recipe](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            ParallelFor(args.total_rows(), 0, [&](std::int64_t row) { RunRow(recipe, args, row); });
          },
          applies};
}

// Tokens of the open tail of the request's last row: none are lost when its pools are all closed.
bool Selects(const Problem& problem) { return problem.axis("T") > 0; }
bool HasTail(const Problem& problem) {
  if (!Selects(problem)) return false;
  for (const std::int64_t length : paged::MakeBatch(problem, PagesOfTokens).lengths) {
    if (length < problem.axis("V") || length % kPoolTokens == 0) return false;
  }
  return true;
}
bool Verifies(const Problem& problem) { return problem.axis("V") > 1; }
bool HasTwoRequests(const Problem& problem) { return problem.axis("B") > 1; }
bool HasManyPages(const Problem& problem) { return problem.axis("MP") > 2; }
bool HasManyTokens(const Problem& problem) { return problem.axis("MP") > 8; }

Tokens Without(Tokens tokens, std::size_t at) {
  if (at < tokens.size()) tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at));
  return tokens;
}

Tokens WithoutTail(const Args& args, std::int64_t row) {
  Tokens tokens = AttendedTokens(args, row);
  const auto tail = static_cast<std::size_t>(args.TokensOf(row) % kPoolTokens);
  tokens.resize(tokens.size() - std::min(tail, tokens.size()));
  return tokens;
}

Tokens WithoutItself(const Args& args, std::int64_t row) {
  const Tokens tokens = AttendedTokens(args, row);
  const auto own = std::find(tokens.begin(), tokens.end(), args.TokensOf(row) - 1);
  return Without(tokens, static_cast<std::size_t>(own - tokens.begin()));
}

// Rows of a verify step see the drafts behind them.
Tokens WithLaterRows(const Args& args, std::int64_t row) {
  Tokens tokens = AttendedTokens(args, row);
  for (std::int64_t t = args.TokensOf(row); t < args.seq_lens[row / args.rows]; ++t) {
    tokens.push_back(t);
  }
  return tokens;
}

Tokens WithoutLastPool(const Args& args, std::int64_t row) {
  Tokens tokens = AttendedTokens(args, row);
  const std::size_t tail = static_cast<std::size_t>(args.TokensOf(row) % kPoolTokens);
  const std::size_t end = tokens.size() - std::min(tail, tokens.size());
  const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(end);
  tokens.erase(last - std::min<std::ptrdiff_t>(kPoolTokens, last - tokens.begin()), last);
  return tokens;
}

Tokens FirstTokenOfEachPool(const Args& args, std::int64_t row) {
  Tokens tokens = AttendedTokens(args, row);
  const std::size_t tail = static_cast<std::size_t>(args.TokensOf(row) % kPoolTokens);
  for (std::size_t i = 0; i + tail < tokens.size(); ++i) tokens[i] -= tokens[i] % kPoolTokens;
  return tokens;
}

Tokens PoolsOfFirstRow(const Args& args, std::int64_t row) {
  Args first = args;
  const std::int64_t leader = row / args.rows * args.rows;
  Tokens tokens = AttendedTokens(first, leader);
  for (std::int64_t t = args.TokensOf(leader); t < args.TokensOf(row); ++t) tokens.push_back(t);
  return tokens;
}

std::int64_t InFirstTable(const Args& args, std::int64_t, std::int64_t token) {
  return args.page_table[token / kPageTokens] * kPageTokens + token % kPageTokens;
}

// Pages of 32 tokens; where that leads past the row's pages, the last one.
std::int64_t InHalfPages(const Args& args, std::int64_t request, std::int64_t token) {
  const std::int64_t live = PagesOfTokens(args.seq_lens[request]);
  const std::int64_t page = std::min(token / 32, live - 1);
  return args.page_table[request * args.table_width + page] * kPageTokens + token % 32;
}

std::int64_t WithoutTable(const Args& args, std::int64_t, std::int64_t token) {
  return token % (args.pages * kPageTokens);
}

Recipe WithTokens(Tokens (*tokens)(const Args&, std::int64_t)) {
  Recipe recipe;
  recipe.tokens = tokens;
  return recipe;
}

Recipe WithPlace(std::int64_t (*place)(const Args&, std::int64_t, std::int64_t)) {
  Recipe recipe;
  recipe.place = place;
  return recipe;
}

}  // namespace

std::vector<Mutant> Mutants() {
  Recipe scaled, chunked, flat;
  scaled.scale = 0.044194173f;  // 1 / sqrt(512)
  chunked.chunk = 256;
  flat.scale = 1e-6f;
  return {
      Make("tail_omitted", "attends the selected pools only", WithTokens(WithoutTail), HasTail),
      Make("itself_omitted", "a row does not attend its own token", WithTokens(WithoutItself)),
      Make("later_rows_seen", "rows of a verify step attend the drafts behind them",
           WithTokens(WithLaterRows), Verifies),
      Make("last_pool_dropped", "the last list entry is not read", WithTokens(WithoutLastPool),
           Selects),
      Make("first_token_of_pool", "reads the first token of a pool four times",
           WithTokens(FirstTokenOfEachPool), Selects),
      Make("pools_of_first_row", "all rows of a request use the pools of its first row",
           WithTokens(PoolsOfFirstRow),
           [](const Problem& problem) {
             return Verifies(problem) && Selects(problem) && HasManyTokens(problem) &&
                    problem.axis("MP") * kPageTokens > 2 * kPoolTokens * kTopPools &&
                    problem.variant != "newest";
           }),
      Make("first_page_table", "every request uses the page table of the first one",
           WithPlace(InFirstTable), HasTwoRequests),
      Make("half_pages", "splits tokens by pages of 32", WithPlace(InHalfPages), HasManyPages),
      Make("no_page_table", "takes tokens as places in the cache", WithPlace(WithoutTable),
           HasManyPages),
      Make("scale_of_latents", "scales by 1 / sqrt(512) instead of 1 / sqrt(256)", scaled),
      Make("chunks_averaged", "combines chunks of 256 tokens without their maxima and sums",
           chunked, HasManyTokens),
      Make("flat_weights", "averages the latents", flat),
  };
}

}  // namespace assay::nope_mla_decode
