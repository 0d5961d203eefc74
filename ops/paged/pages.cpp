#include "ops/paged/pages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/random.h"

namespace assay::paged {
namespace {

// Numbers of random values that belong to no input.
constexpr std::uint64_t kPlacement = kAuxiliaryTensor + 200;
constexpr std::uint64_t kPermutation = kAuxiliaryTensor + 201;
constexpr std::uint64_t kTableTail = kAuxiliaryTensor + 202;

constexpr std::int64_t kPageTokens = 64;  // in both page sizes: 64 tokens, or 16 groups of 4
constexpr std::int64_t kCapturedPool = 83743;

using List = std::vector<std::int64_t>;

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

std::string At(std::int64_t i) { return "[" + std::to_string(i) + "]"; }

List SequenceLengths(const Problem& problem) {
  const std::int64_t rows = problem.axis("B"), width = problem.axis("MP");
  if (const List* lengths = problem.integers("sequence_lengths")) {
    if (static_cast<std::int64_t>(lengths->size()) != rows) {
      BadInput(problem.definition->name + ": sequence_lengths has " +
               std::to_string(lengths->size()) + " entries, but B = " + std::to_string(rows));
    }
    return *lengths;
  }
  return List(static_cast<std::size_t>(rows), std::max<std::int64_t>(width * kPageTokens - 1, 0));
}

// Prefix tokens that each row of the batch found in the engine's cache; empty when not recorded. A
// member of the captured batch is alive while it has tokens left to decode.
List ReusableTokens(const Problem& problem) {
  const List* output = problem.integers("member_output_tokens");
  const List* reusable = problem.integers("member_reusable_tokens");
  const std::int64_t* step = problem.integer("step");
  if (output == nullptr || reusable == nullptr || step == nullptr) return {};
  List alive;
  for (std::size_t m = 0; m < std::min(output->size(), reusable->size()); ++m) {
    if ((*output)[m] - 1 > *step) alive.push_back((*reusable)[m]);
  }
  return alive;
}

// All rows that reused a prefix share the shortest of those prefixes, if that saves exactly
// `saved` pages.
bool ShareReusedPrefix(const List& reusable, std::int64_t saved, Batch& batch) {
  if (reusable.size() != batch.lengths.size()) return false;
  std::vector<std::size_t> sharing;
  std::int64_t prefix = std::numeric_limits<std::int64_t>::max();
  for (std::size_t row = 0; row < reusable.size(); ++row) {
    const std::int64_t pages = reusable[row] / kPageTokens;
    if (pages == 0 || pages >= batch.live[row]) continue;
    sharing.push_back(row);
    prefix = std::min(prefix, pages);
  }
  if (sharing.empty() || static_cast<std::int64_t>(sharing.size() - 1) * prefix != saved) {
    return false;
  }
  batch.leader = static_cast<std::int64_t>(sharing[0]);
  for (std::size_t row : sharing) batch.shared[row] = prefix;
  batch.shared[sharing[0]] = 0;
  return true;
}

// The longest row shares as much as it can with the next longest ones; returns what could not be
// saved. The last page of a row, to which decoding appends, is never shared.
std::int64_t ShareWithLongest(std::int64_t saved, Batch& batch) {
  std::vector<std::size_t> order(batch.lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return batch.live[a] > batch.live[b]; });
  batch.leader = static_cast<std::int64_t>(order[0]);
  for (std::size_t i = 1; i < order.size() && saved > 0; ++i) {
    const std::int64_t pages = std::min(saved, std::max<std::int64_t>(batch.live[order[i]] - 1, 0));
    batch.shared[order[i]] = pages;
    saved -= pages;
  }
  return saved;
}

}  // namespace

std::vector<std::int32_t> PlacePages(std::int64_t count, std::int64_t pool, std::uint64_t key) {
  if (count > pool - 1) {
    BadInput(std::to_string(count) + " live pages do not fit a pool of " + std::to_string(pool) +
             " pages whose page 0 is not used");
  }
  std::vector<std::int32_t> pages;
  std::vector<bool> taken(static_cast<std::size_t>(pool));
  const auto take = [&](std::int64_t page, std::int64_t limit) {
    if (static_cast<std::int64_t>(pages.size()) >= limit || page < 1 || page >= pool) return;
    if (taken[static_cast<std::size_t>(page)]) return;
    taken[static_cast<std::size_t>(page)] = true;
    pages.push_back(static_cast<std::int32_t>(page));
  };
  std::uint64_t draws = 0;
  const auto random_page = [&] {
    return static_cast<std::int64_t>(1 + Mix64(key, kPlacement, draws++) % Index(pool - 1));
  };
  for (std::int64_t page : {pool - 1, std::int64_t{65536}, std::int64_t{65535}}) take(page, count);
  const std::int64_t in_runs = count - count / 8;
  while (static_cast<std::int64_t>(pages.size()) < in_runs) {
    const std::int64_t first = random_page();
    const auto length = static_cast<std::int64_t>(64u << (Mix64(key, kPlacement, draws++) % 4));
    for (std::int64_t page = first; page < first + length; ++page) take(page, in_runs);
  }
  while (static_cast<std::int64_t>(pages.size()) < count) take(random_page(), count);
  return pages;
}

std::vector<std::int32_t> PermutePages(std::int64_t count, std::uint64_t key) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::uint64_t i = Index(count); i > 1; --i) {  // Fisher-Yates
    std::swap(pages[i - 1], pages[Mix64(key, kPermutation, i) % i]);
  }
  return pages;
}

std::int64_t Batch::PageNumber(std::int64_t row, std::int64_t page) const {
  const auto r = static_cast<std::size_t>(row);
  if (page < shared[r]) return first_own[static_cast<std::size_t>(leader)] + page;
  return first_own[r] + page - shared[r];
}

Batch MakeBatch(const Problem& problem, std::int64_t (*pages_of)(std::int64_t tokens)) {
  const std::int64_t width = problem.axis("MP"), given = problem.axis("NP");
  const std::string& name = problem.definition->name;
  Batch batch;
  batch.lengths = SequenceLengths(problem);
  std::int64_t needed = 0;
  for (std::size_t row = 0; row < batch.lengths.size(); ++row) {
    const std::int64_t length = batch.lengths[row];
    const std::string where = name + ": sequence_lengths" + At(static_cast<std::int64_t>(row)) +
                              " = " + std::to_string(length);
    if (length < 0) BadInput(where + " is negative");
    const std::int64_t pages = pages_of(length);
    if (pages > width) {
      BadInput(where + " needs " + std::to_string(pages) +
               " pages, but the page table has MP = " + std::to_string(width));
    }
    batch.live.push_back(pages);
    needed += pages;
  }
  batch.shared.assign(batch.lengths.size(), 0);
  if (needed > given && !ShareReusedPrefix(ReusableTokens(problem), needed - given, batch) &&
      ShareWithLongest(needed - given, batch) > 0) {
    BadInput(name + ": NP = " + std::to_string(given) + " pages cannot hold rows that need " +
             std::to_string(needed) + ", whatever prefixes they share");
  }
  for (std::size_t row = 0; row < batch.lengths.size(); ++row) {
    batch.first_own.push_back(batch.distinct);
    batch.distinct += batch.live[row] - batch.shared[row];
  }
  return batch;
}

std::vector<std::string> AttributesRead() {
  return {"sequence_lengths", "member_output_tokens", "member_reusable_tokens", "step",
          "allocated_cache_shape"};
}

std::int64_t CachePages(const Problem& problem) {
  if (problem.variant != kOriginalAddress) return problem.axis("NP");
  const List* shape = problem.integers("allocated_cache_shape");
  return shape != nullptr && !shape->empty() ? shape->front() : kCapturedPool;
}

std::vector<std::int32_t> PhysicalPages(const Problem& problem, const Batch& batch,
                                        std::uint64_t key) {
  if (problem.variant != kOriginalAddress) return PermutePages(problem.axis("NP"), key);
  return PlacePages(batch.distinct, CachePages(problem), key);
}

void FillPageTable(const Batch& batch, const std::vector<std::int32_t>& physical, std::uint64_t key,
                   Tensor& page_table) {
  const std::int64_t width = page_table.shape[1];
  auto* table = page_table.as<std::int32_t>();
  for (std::int64_t row = 0; row < batch.rows(); ++row) {
    const std::int64_t live = batch.live[static_cast<std::size_t>(row)];
    for (std::int64_t page = 0; page < width; ++page) {
      const std::uint64_t random = Mix64(key, kTableTail, Index(row * width + page));
      std::int32_t& entry = table[row * width + page];
      if (page < live) {
        entry = physical[static_cast<std::size_t>(batch.PageNumber(row, page))];
      } else if (physical.empty() || random % 4 == 0) {
        entry = -1;
      } else if (random % 4 == 1) {
        entry = 0;
      } else if (random % 4 == 2) {
        entry = std::numeric_limits<std::int32_t>::max();
      } else {
        entry = physical[random / 4 % physical.size()];
      }
    }
  }
}

void CheckPageTable(std::string_view operation, const std::int32_t* page_table, std::int64_t width,
                    const std::vector<std::int64_t>& live, std::int64_t pages) {
  for (std::size_t row = 0; row < live.size(); ++row) {
    const std::int32_t* entries = page_table + static_cast<std::int64_t>(row) * width;
    for (std::int64_t page = 0; page < live[row]; ++page) {
      if (entries[page] >= 0 && entries[page] < pages) continue;
      BadInput(std::string(operation) + ": page_table[" + std::to_string(row) + "," +
               std::to_string(page) + "] = " + std::to_string(entries[page]) +
               " is outside the cache of " + std::to_string(pages) + " pages");
    }
  }
}

}  // namespace assay::paged
