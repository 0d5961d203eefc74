// Page placement, sharing and page tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "ops/paged/pages.h"

namespace assay::paged {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using List = std::vector<std::int64_t>;

constexpr std::int64_t kPool = 83743;  // of the captured engine

std::int64_t KvPages(std::int64_t tokens) { return (tokens + 63) / 64; }

// A problem with axes B, MP and NP.
struct Case {
  Definition definition{"paged_test", {}, {"B", "MP", "NP"}};
  Problem problem;

  Case(List lengths, std::int64_t width, std::int64_t pages, std::string variant = "") {
    problem.definition = &definition;
    problem.axes = {{"B", static_cast<std::int64_t>(lengths.size())}, {"MP", width}, {"NP", pages}};
    problem.attributes["sequence_lengths"] = std::move(lengths);
    problem.variant = std::move(variant);
  }
  Batch Make() const { return MakeBatch(problem, KvPages); }
  std::string Refusal() const {
    try {
      Make();
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
      return error.what();
    }
    return "";
  }
};

TEST(PlacePages, DistinctInsideThePoolInRunsAndTails) {
  for (std::int64_t count : {0, 1, 3, 100, 3893, 83742}) {
    const auto pages = PlacePages(count, kPool, 5);
    ASSERT_EQ(static_cast<std::int64_t>(pages.size()), count);
    const std::set<std::int32_t> distinct(pages.begin(), pages.end());
    ASSERT_EQ(static_cast<std::int64_t>(distinct.size()), count);
    if (count == 0) continue;
    EXPECT_GE(*distinct.begin(), 1) << "page 0 belongs to the engine";
    EXPECT_EQ(*distinct.rbegin(), kPool - 1);
    EXPECT_EQ(distinct.contains(65536), count >= 2);
    EXPECT_EQ(distinct.contains(65535), count >= 3);
  }
  const auto pages = PlacePages(4000, kPool, 5);
  std::int64_t followers = 0, high = 0;
  for (std::size_t i = 1; i < pages.size(); ++i) followers += pages[i] == pages[i - 1] + 1;
  for (std::int32_t page : pages) high += page >= 65536;
  EXPECT_GT(followers, 4000 * 7 / 8 - 60) << "prompts lie in long runs";
  EXPECT_LT(followers, 4000 * 7 / 8 + 60) << "the rest is scattered";
  EXPECT_GT(high, 400) << "a fifth of the pool lies beyond 16-bit page numbers";
  EXPECT_NE(PlacePages(100, kPool, 6), PlacePages(100, kPool, 5));
}

TEST(PlacePages, SmallPools) {
  EXPECT_THAT(PlacePages(1, 234, 1), ElementsAre(233));
  EXPECT_THAT(PlacePages(2, 3, 1), ElementsAre(2, 1));
  EXPECT_THAT([] { PlacePages(3, 3, 1); },
              ::testing::ThrowsMessage<Error>(HasSubstr("3 live pages do not fit a pool of 3")));
}

TEST(PermutePages, IsAPermutation) {
  const auto pages = PermutePages(1000, 3);
  EXPECT_EQ(std::set<std::int32_t>(pages.begin(), pages.end()).size(), 1000u);
  EXPECT_EQ(*std::max_element(pages.begin(), pages.end()), 999);
  EXPECT_FALSE(std::is_sorted(pages.begin(), pages.end()));
}

TEST(Batch, RowsOwnTheirPagesUnlessNpIsShort) {
  const Batch own = Case({129, 0, 64}, 3, 4).Make();
  EXPECT_THAT(own.live, ElementsAre(3, 0, 1));
  EXPECT_EQ(own.distinct, 4);
  EXPECT_EQ(own.PageNumber(0, 2), 2);
  EXPECT_EQ(own.PageNumber(2, 0), 3);

  // One page too few: the two longest rows share their first page.
  const Batch shared = Case({129, 0, 200}, 4, 6).Make();
  EXPECT_EQ(shared.distinct, 6);
  EXPECT_EQ(shared.leader, 2);
  EXPECT_EQ(shared.PageNumber(0, 0), shared.PageNumber(2, 0));
  EXPECT_NE(shared.PageNumber(0, 1), shared.PageNumber(2, 1));

  const Batch spare = Case({129}, 3, 10).Make();
  EXPECT_EQ(spare.distinct, 3) << "pages that nobody uses are legal";
  EXPECT_EQ(Case({}, 0, 0).Make().distinct, 0);
}

// Three requests of one session, as captured: all of them begin with the shortest cached prefix.
TEST(Batch, CapturedPrefixesAreSharedByAllThatReusedThem) {
  Case one({35009, 35393, 35457}, 555, 583);
  one.problem.attributes["member_output_tokens"] = List{120, 108, 126};
  one.problem.attributes["member_reusable_tokens"] = List{34368, 35008, 35008};
  one.problem.attributes["step"] = std::int64_t{0};
  const Batch batch = one.Make();
  EXPECT_THAT(batch.shared, ElementsAre(0, 537, 537));
  EXPECT_EQ(batch.distinct, 583);
  EXPECT_EQ(batch.PageNumber(1, 536), batch.PageNumber(0, 536));
  EXPECT_EQ(batch.PageNumber(2, 536), batch.PageNumber(0, 536));
  EXPECT_NE(batch.PageNumber(2, 537), batch.PageNumber(1, 537));
}

TEST(Batch, NoLengthsMeansFullTables) {
  Case one({0, 0}, 5, 10);
  one.problem.attributes.clear();
  EXPECT_THAT(one.Make().lengths, ElementsAre(319, 319));
}

TEST(Batch, Refusals) {
  EXPECT_THAT(Case({129, -1}, 3, 4).Refusal(), HasSubstr("sequence_lengths[1] = -1 is negative"));
  EXPECT_THAT(Case({129, 193}, 3, 7).Refusal(),
              HasSubstr("sequence_lengths[1] = 193 needs 4 pages, but the page table has MP = 3"));
  EXPECT_THAT(Case({129, 129}, 3, 3).Refusal(), HasSubstr("NP = 3 pages cannot hold rows"));
  Case two({129, 129}, 3, 6);
  two.problem.axes["B"] = 3;
  EXPECT_THAT(two.Refusal(), HasSubstr("sequence_lengths has 2 entries, but B = 3"));
}

TEST(PageTable, LiveEntriesAndGarbageBehindThem) {
  const Case one({129, 40000, 1}, 700, 640);
  const Batch batch = one.Make();
  const auto physical = PhysicalPages(one.problem, batch, 9);
  EXPECT_EQ(physical.size(), 640u);
  Bundle bundle = Bundle::Allocate({{"page_table", DType::kI32, {3, 700}}});
  Tensor& table = bundle["page_table"];
  FillPageTable(batch, physical, 9, table);
  const auto* entries = table.as<std::int32_t>();
  std::set<std::int32_t> used, tails;
  for (std::int64_t row = 0; row < 3; ++row) {
    const std::int64_t live = batch.live[static_cast<std::size_t>(row)];
    for (std::int64_t page = 0; page < 700; ++page) {
      (page < live ? used : tails).insert(entries[row * 700 + page]);
    }
  }
  EXPECT_EQ(used.size(), 629u);
  EXPECT_THAT(tails, ::testing::IsSupersetOf({-1, 0, std::numeric_limits<std::int32_t>::max()}));
  EXPECT_GT(tails.size(), 100u) << "pages of other rows";

  CheckPageTable("op", entries, 700, batch.live, 640);
  const auto refuse = [&](std::int64_t pages, List live) {
    CheckPageTable("op", entries, 700, live, pages);
  };
  table.as<std::int32_t>()[702] = -1;
  EXPECT_THAT([&] { refuse(640, batch.live); },
              ::testing::ThrowsMessage<Error>(
                  "op: page_table[1,2] = -1 is outside the cache of 640 pages"));
  EXPECT_NO_THROW(refuse(640, {3, 2, 1}));
}

TEST(PageTable, OriginalAddressesKeepThePool) {
  Case one({129, 40000}, 700, 628, "original_address");
  EXPECT_EQ(CachePages(one.problem), kPool);
  one.problem.attributes["allocated_cache_shape"] = List{100000, 64, 2, 256};
  EXPECT_EQ(CachePages(one.problem), 100000);
  const auto physical = PhysicalPages(one.problem, one.Make(), 9);
  EXPECT_EQ(physical.size(), 628u);
  EXPECT_EQ(physical[0], 99999);
}

}  // namespace
}  // namespace assay::paged
