#include "ops/mixed_mla_decode/batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/paged/pages.h"

namespace assay::mixed_mla_decode {
namespace {

constexpr std::uint64_t kLivePages = kAuxiliaryTensor + 260;
constexpr std::uint64_t kPicks = kAuxiliaryTensor + 261;  // and following: one per row

constexpr std::int64_t kRatio = 2;  // positions per compressed token
constexpr std::int64_t kCapturedPool8 = 234, kCapturedPool4 = 422126;

using List = std::vector<std::int64_t>;

[[noreturn]] void Refuse(const Problem& problem, const std::string& what) {
  BadInput(problem.definition->name + ": " + what);
}

std::string Text(std::int64_t number) { return std::to_string(number); }

std::int64_t PagesOf(std::int64_t tokens, std::int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

// All pages of the cache, by their own numbers.
PageMap AllPages(std::int64_t pages) {
  PageMap map;
  map.number.resize(static_cast<std::size_t>(pages));
  std::iota(map.number.begin(), map.number.end(), std::int64_t{0});
  return map;
}

Batch BatchFromAxes(const Problem& problem, std::uint64_t key) {
  const std::int64_t pages8 = problem.axis("N8"), pages4 = problem.axis("N4");
  Batch batch;
  for (std::int64_t b = 0; b < problem.axis("B"); ++b) {
    Row row;
    const std::int64_t tokens = pages8 * kPageTokens8;
    const auto starts = static_cast<std::uint64_t>(std::max<std::int64_t>(tokens - kWindow, 0) + 1);
    row.window_begin =
        static_cast<std::int64_t>(Mix64(key, kLivePages, static_cast<std::uint64_t>(b)) % starts);
    row.window_end = std::min(row.window_begin + kWindow, tokens);
    row.window_pages = AllPages(pages8);
    row.compressed = pages4 * kPageTokens4;
    row.picks = std::min(row.compressed, kExtra);
    row.compressed_pages = AllPages(pages4);
    batch.rows.push_back(std::move(row));
  }
  return batch;
}

List SequenceLengths(const Problem& problem) {
  const List& sequences = *problem.integers("sequence_lengths");
  if (static_cast<std::int64_t>(sequences.size()) != problem.axis("B")) {
    Refuse(problem, "sequence_lengths has " + Text(static_cast<std::int64_t>(sequences.size())) +
                        " entries, but B = " + Text(problem.axis("B")));
  }
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    if (sequences[b] >= 0) continue;
    Refuse(problem, "sequence_lengths[" + Text(static_cast<std::int64_t>(b)) +
                        "] = " + Text(sequences[b]) + " is negative");
  }
  return sequences;
}

void PlaceWindows(const Problem& problem, const List& sequences, Batch& batch) {
  std::int64_t pages = 0;
  for (std::int64_t sequence : sequences) {
    Row row;
    row.window_end = sequence;
    row.window_begin = std::max<std::int64_t>(sequence - kWindow, 0);
    row.window_pages.first = row.window_begin / kPageTokens8;
    const std::int64_t end = PagesOf(sequence, kPageTokens8);
    for (std::int64_t page = row.window_pages.first; page < end; ++page) {
      row.window_pages.number.push_back(pages++);
    }
    row.compressed = sequence / kRatio;
    row.picks = std::min(row.compressed, kExtra);
    batch.rows.push_back(std::move(row));
  }
  if (pages != problem.axis("N8")) {
    Refuse(problem, "N8 = " + Text(problem.axis("N8")) +
                        ", but the windows of sequence_lengths touch " + Text(pages) + " pages");
  }
}

// Which of the pages that the rows' compressed tokens fill are referenced. All rows share their
// first `shared` pages; the others follow row by row.
class PageChoice {
 public:
  PageChoice(const Problem& problem, std::uint64_t key, Batch& batch)
      : problem_(problem), key_(key), batch_(batch), wanted_(problem.axis("N4")) {}

  void Run() {
    CountPages();
    Rank();
    Number();
    ShareOut();
  }

 private:
  std::int64_t pages_of(const Row& row) const { return PagesOf(row.compressed, kPageTokens4); }

  void CountPages() {
    std::int64_t sum = 0, least = INT64_MAX;
    for (const Row& row : batch_.rows) {
      sum += pages_of(row);
      least = std::min(least, pages_of(row));
    }
    if (sum < wanted_) {
      Refuse(problem_, "N4 = " + Text(wanted_) + ", but sequence_lengths fill only " + Text(sum) +
                           " compressed pages");
    }
    const auto rows = static_cast<std::int64_t>(batch_.rows.size());
    shared_ = rows < 2 ? 0 : std::min((sum - wanted_) / (rows - 1), least);
    pages_ = sum - std::max<std::int64_t>(rows - 1, 0) * shared_;
  }

  // The page of the batch that is logical page `page` of a row.
  std::int64_t Page(std::size_t row, std::int64_t page) const {
    if (page < shared_) return page;
    std::int64_t before = shared_;
    for (std::size_t r = 0; r < row; ++r) before += pages_of(batch_.rows[r]) - shared_;
    return before + page - shared_;
  }

  // All pages of the batch, the most needed first: those of rows that pick all they have, then the
  // newest of every row, then any.
  void Rank() {
    std::vector<int> need(static_cast<std::size_t>(pages_), 0);
    const auto raise = [&](std::size_t row, std::int64_t page, int to) {
      int& known = need[static_cast<std::size_t>(Page(row, page))];
      known = std::max(known, to);
    };
    for (std::size_t r = 0; r < batch_.rows.size(); ++r) {
      const Row& row = batch_.rows[r];
      if (row.picks == 0) continue;
      raise(r, pages_of(row) - 1, 1);
      for (std::int64_t p = 0; row.picks == row.compressed && p < pages_of(row); ++p) {
        raise(r, p, 2);
      }
    }
    for (std::int32_t page : paged::PermutePages(pages_, key_ ^ kLivePages)) order_.push_back(page);
    std::stable_sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
      return need[static_cast<std::size_t>(a)] > need[static_cast<std::size_t>(b)];
    });
    const auto forced = std::count(need.begin(), need.end(), 2);
    if (forced > wanted_) {
      Refuse(problem_, "N4 = " + Text(wanted_) + ", but rows of at most " + Text(kExtra) +
                           " compressed tokens pick from " + Text(forced) + " pages");
    }
  }

  // Referenced pages are numbered in the order of the batch's pages.
  void Number() {
    List number(static_cast<std::size_t>(pages_), -1);
    for (std::int64_t n = 0; n < wanted_; ++n) {
      number[static_cast<std::size_t>(order_[static_cast<std::size_t>(n)])] = 0;
    }
    std::int64_t next = 0;
    for (std::int64_t& each : number) {
      if (each == 0) each = next++;
    }
    for (std::size_t r = 0; r < batch_.rows.size(); ++r) {
      Row& row = batch_.rows[r];
      for (std::int64_t p = 0; p < pages_of(row); ++p) {
        row.compressed_pages.number.push_back(number[static_cast<std::size_t>(Page(r, p))]);
      }
    }
  }

  // Every referenced page gets a row that must pick from it: shared ones in turn.
  void ShareOut() {
    for (std::size_t r = 0; r < batch_.rows.size(); ++r) {
      Row& row = batch_.rows[r];
      std::int64_t tokens = 0;
      for (std::int64_t p = 0; p < pages_of(row); ++p) {
        if (row.compressed_pages.number[static_cast<std::size_t>(p)] < 0) continue;
        tokens += std::min(row.compressed - p * kPageTokens4, kPageTokens4);
        const bool own = p >= shared_ || static_cast<std::size_t>(p) % batch_.rows.size() == r;
        if (own) row.owned.push_back(p);
      }
      if (tokens < row.picks || static_cast<std::int64_t>(row.owned.size()) > row.picks) {
        Refuse(problem_,
               "row " + Text(static_cast<std::int64_t>(r)) + " cannot pick " + Text(row.picks) +
                   " compressed tokens from its share of N4 = " + Text(wanted_) + " pages");
      }
    }
  }

  const Problem& problem_;
  const std::uint64_t key_;
  Batch& batch_;
  const std::int64_t wanted_;
  std::int64_t shared_ = 0, pages_ = 0;
  List order_;
};

std::int64_t PoolPages(const Problem& problem, const char* axis, const char* attribute,
                       std::int64_t captured) {
  if (problem.variant != paged::kOriginalAddress) return problem.axis(axis);
  const List* shape = problem.integers(attribute);
  return shape != nullptr && !shape->empty() ? shape->front() : captured;
}

}  // namespace

Batch BatchOf(const Problem& problem, std::uint64_t key) {
  if (problem.integers("sequence_lengths") == nullptr) return BatchFromAxes(problem, key);
  Batch batch;
  PlaceWindows(problem, SequenceLengths(problem), batch);
  PageChoice(problem, key, batch).Run();
  return batch;
}

std::vector<std::int64_t> Picks(const Row& row, std::uint64_t number, std::uint64_t key) {
  std::vector<bool> taken(static_cast<std::size_t>(row.compressed));
  List pages;  // that the row may pick from
  for (std::size_t p = 0; p < row.compressed_pages.number.size(); ++p) {
    if (row.compressed_pages.number[p] >= 0) pages.push_back(static_cast<std::int64_t>(p));
  }
  std::int64_t left = row.picks;
  std::uint64_t draws = 0;
  const auto random = [&](std::size_t below) {
    return static_cast<std::int64_t>(Mix64(key, kPicks + number, draws++) % below);
  };
  const auto end_of = [&](std::int64_t page) {
    return std::min((page + 1) * kPageTokens4, row.compressed);
  };
  const auto take = [&](std::int64_t position) {
    if (left == 0 || taken[static_cast<std::size_t>(position)]) return;
    taken[static_cast<std::size_t>(position)] = true;
    --left;
  };
  const auto take_run = [&](std::int64_t page, std::int64_t length) {
    const std::int64_t begin = page * kPageTokens4, end = end_of(page);
    const std::int64_t start = begin + random(static_cast<std::size_t>(end - begin));
    for (std::int64_t p = start; p < std::min(start + length, end); ++p) take(p);
  };
  for (std::int64_t page : row.owned) take_run(page, 1);
  const std::size_t newest = std::max<std::size_t>(pages.size() / 20, 1);
  // Of 100 picks 70 are single, 25 in about 4.2 runs of 6 and 5 new: of 79.2 draws as many of each.
  constexpr std::size_t kDraws = 792, kSingle = 700, kRuns = 42;
  while (left > 0) {
    const auto kind = static_cast<std::size_t>(random(kDraws));
    const bool is_new = kind >= kSingle + kRuns;
    const std::size_t choices = is_new ? newest : pages.size();
    const std::size_t page = pages.size() - 1 - static_cast<std::size_t>(random(choices));
    take_run(pages[page], kind >= kSingle && !is_new ? 4 + random(5) : 1);
  }
  List picks;
  for (std::size_t p = 0; p < taken.size(); ++p) {
    if (taken[p]) picks.push_back(static_cast<std::int64_t>(p));
  }
  return picks;
}

std::int64_t CachePages8(const Problem& problem) {
  return PoolPages(problem, "N8", "allocated_cache_8", kCapturedPool8);
}
std::int64_t CachePages4(const Problem& problem) {
  return PoolPages(problem, "N4", "allocated_cache_4", kCapturedPool4);
}

}  // namespace assay::mixed_mla_decode
