// Generated steps of nope_mla_decode: pages shared as the axes ask, pools in clusters as an index
// picks them, NaN wherever nothing may be read.
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "ops/mla/inputs.h"
#include "ops/nope_mla_decode/spec.h"

namespace assay::nope_mla_decode {
namespace {

// Positions in the declared order: tensor numbers of the element source.
constexpr std::uint64_t kQ = 0, kLatents = 1;
constexpr std::uint64_t kScore = kAuxiliaryTensor + 291;
constexpr std::uint64_t kOrder = kAuxiliaryTensor + 294;

constexpr bf16 kQuietNaN{0x7FC0};

using Ids = std::vector<std::int32_t>;

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

// What an index might give a pool: its segment of 64 pools and itself count alike for all rows of a
// request, and a little for this row alone. The newest pool always wins: a row attends itself.
std::int64_t Score(const Problem& problem, std::uint64_t key, const Args& args, std::int64_t row,
                   std::int64_t pool) {
  const auto part = [&](std::uint64_t level, std::int64_t owner, std::int64_t number) {
    return static_cast<std::int64_t>(
        Mix64(key, kScore + level, Index(owner) << 32 | Index(number)) >> 48);
  };
  if (problem.variant == "newest") return pool;
  if (pool == args.TokensOf(row) / kPoolTokens - 1) return std::int64_t{1} << 32;
  if (problem.variant == "uniform") return part(1, row, pool);
  return 2 * part(0, row / args.rows, pool / 64) + 2 * part(1, row / args.rows, pool) +
         part(2, row, pool) / 2;
}

// The best pools that are closed for the row, ascending; with holes: shuffled, the first 64 entries
// and every entry behind them are none.
Ids SelectPools(const Problem& problem, std::uint64_t key, const Args& args, std::int64_t row) {
  const std::int64_t closed = args.TokensOf(row) / kPoolTokens;
  const bool holes = problem.variant == "holes";
  const std::int64_t count = std::min(closed, holes ? kTopPools - 96 : kTopPools);
  Ids ids(static_cast<std::size_t>(closed));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<std::int64_t> scores(ids.size());
  for (std::int64_t pool = 0; pool < closed && count < closed; ++pool) {
    scores[static_cast<std::size_t>(pool)] = Score(problem, key, args, row, pool);
  }
  std::nth_element(ids.begin(), ids.begin() + count, ids.end(),
                   [&](std::int32_t a, std::int32_t b) {
                     const std::int64_t x = scores[static_cast<std::size_t>(a)];
                     const std::int64_t y = scores[static_cast<std::size_t>(b)];
                     return x != y ? x > y : a < b;
                   });
  ids.resize(static_cast<std::size_t>(count));
  std::sort(ids.begin(), ids.end());
  if (holes) {
    for (std::size_t i = ids.size(); i > 1; --i) {
      std::swap(ids[i - 1], ids[Mix64(key, kOrder + Index(row), i) % i]);
    }
    ids.insert(ids.begin(), 64, -1);
  }
  ids.resize(static_cast<std::size_t>(kTopPools), -1);
  return ids;
}

// Tokens of every page: latents as far as some request that has the page is long, NaN behind.
void FillPages(const paged::Batch& batch, const std::vector<std::int32_t>& physical,
               std::uint64_t key, bf16* latents) {
  std::vector<std::int64_t> filled(physical.size(), 0);  // tokens, by number of the page
  for (std::int64_t request = 0; request < batch.rows(); ++request) {
    const auto r = static_cast<std::size_t>(request);
    for (std::int64_t page = 0; page < batch.live[r]; ++page) {
      const std::int64_t tokens = std::min(batch.lengths[r] - page * kPageTokens, kPageTokens);
      std::int64_t& most = filled[static_cast<std::size_t>(batch.PageNumber(request, page))];
      most = std::max(most, tokens);
    }
  }
  ParallelFor(static_cast<std::int64_t>(physical.size()), 0, [&](std::int64_t number) {
    const auto n = static_cast<std::size_t>(number);
    bf16* page = latents + physical[n] * kPageTokens * kDim;
    float x[kDim];
    for (std::int64_t t = 0; t < kPageTokens; ++t) {
      if (t >= filled[n]) {
        std::fill_n(page + t * kDim, kDim, kQuietNaN);
        continue;
      }
      mla::LatentRow(key, kLatents, number * kPageTokens + t, x);
      for (std::int64_t d = 0; d < kDim; ++d) page[t * kDim + d] = ToBF16(x[d]);
    }
  });
}

// Gives a token a logit of kPull more: a twentieth of the weight or more beside 2,000 tokens of
// ordinary logits.
constexpr float kPull = 8;
void Pull(const bf16* latent, bf16* q) {
  float squares = 0;
  for (std::int64_t d = 0; d < kDim; ++d) squares += ToFloat(latent[d]) * ToFloat(latent[d]);
  const float factor = kPull / (kDefaultScale * squares);
  for (std::int64_t d = 0; d < kDim; ++d) {
    q[d] = ToBF16(ToFloat(q[d]) + factor * ToFloat(latent[d]));
  }
}

// One token among thousands would not be missed. Of every four heads one looks at the row's own
// token, one at the token behind it, which must not be seen, and one at the last pool of the list.
void PullHeads(const Args& args, std::int64_t row, bf16* q) {
  const std::int64_t request = row / args.rows, tokens = args.TokensOf(row);
  const auto latent_of = [&](std::int64_t token) {
    const std::int64_t page = args.page_table[request * args.table_width + token / kPageTokens];
    return args.latents + (page * kPageTokens + token % kPageTokens) * kDim;
  };
  const std::int32_t* list = args.pool_ids != nullptr ? args.pool_ids + row * kTopPools : nullptr;
  const std::int32_t last_pool = list != nullptr ? *std::max_element(list, list + kTopPools) : -1;
  for (std::int64_t head = 0; head < kHeads; head += 4) {
    bf16* four = q + (row * kHeads + head) * kDim;
    if (tokens > 0) Pull(latent_of(tokens - 1), four);
    if (tokens < args.seq_lens[request]) Pull(latent_of(tokens), four + kDim);
    if (last_pool >= 0) Pull(latent_of(last_pool * kPoolTokens), four + 2 * kDim);
  }
}

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  const std::vector<std::int32_t> physical = paged::PhysicalPages(problem, batch, key);
  std::copy(batch.lengths.begin(), batch.lengths.end(), inputs["seq_lens"].as<std::int32_t>());
  paged::FillPageTable(batch, physical, key, inputs["page_table"]);
  FillPages(batch, physical, key, inputs["latents"].as<bf16>());
  const Args args = BindInputs(problem, inputs);
  Tensor& q = inputs["q"];
  mla::GenerateQueries(key, kQ, args.total_rows(), q.as<bf16>());
  auto* pools = args.pool_ids != nullptr ? inputs["pool_ids"].as<std::int32_t>() : nullptr;
  ParallelFor(args.total_rows(), 0, [&](std::int64_t row) {
    if (pools != nullptr) {
      const Ids ids = SelectPools(problem, key, args, row);
      std::copy(ids.begin(), ids.end(), pools + row * kTopPools);
    }
    PullHeads(args, row, q.as<bf16>());
  });
  if (problem.variant == "large") {  // logits beyond 100: only the largest few weights remain
    for (std::int64_t i = 0; i < q.elements(); ++i) {
      q.as<bf16>()[i] = ToBF16(32 * ToFloat(q.as<bf16>()[i]));
    }
  }
}

}  // namespace assay::nope_mla_decode
