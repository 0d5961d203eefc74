// Generated batches of qsa_sparse_gqa_decode: pages shared as in the record, selected groups in
// clusters as the index operator picks them, and poison wherever nothing may be read. Only + - * /,
// so that a key gives the same bits on every machine.
#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

// Positions in the declared order: tensor numbers of the element source.
constexpr std::uint64_t kQ = 0, kK = 1, kV = 2;
constexpr std::uint64_t kScore = kAuxiliaryTensor + 250;
constexpr std::uint64_t kOutlier = kAuxiliaryTensor + 251;
constexpr std::uint64_t kDirection = kAuxiliaryTensor + 252;
constexpr std::uint64_t kRare = kAuxiliaryTensor + 253;
constexpr std::uint64_t kOrder = kAuxiliaryTensor + 254;

constexpr float kQuery = 2.0f;    // scores then have a standard deviation of about 2.4
constexpr float kCommon = 0.25f;  // of the direction, in every query
constexpr float kSink = 2.0f;     // of the direction, in the key of token 0: score + 8
constexpr float kRecent = 1.0f;   // likewise in the newest 8 tokens: score + 4
constexpr std::int64_t kRecentTokens = 8;
constexpr double kRareShare = 1.0 / 32;  // tokens whose values are 6 times as large
constexpr bf16 kQuietNaN{0x7FC0};
constexpr bf16 kInfinity{0x7F80};

using Ids = std::vector<std::int32_t>;

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

// A number of position `token` of `row`, for element sources.
std::uint64_t Place(std::int64_t row, std::int64_t token) {
  return Index(row) << 32 | Index(token);
}

// --- which groups a row selects ---

// What the index operator's score might be: neighbours in a segment of 64 groups, in 4 groups, and
// the group itself count alike. The first and the newest group always win.
std::int64_t ClusteredScore(std::uint64_t key, std::int64_t row, std::int64_t group,
                            std::int64_t n) {
  if (group == 0 || group == n - 1) return 1 << 20;
  const auto part = [&](std::int64_t level, std::int64_t number) {
    return static_cast<std::int64_t>(Mix64(key, kScore + Index(level), Place(row, number)) >> 48);
  };
  return part(10, group / 64) + part(11, group / 4) + part(12, group);
}

Ids SelectGroups(const Problem& problem, std::uint64_t key, std::int64_t row, std::int64_t n,
                 std::int64_t wanted) {
  const std::string& variant = problem.variant;
  const std::int64_t count = std::min(n, wanted);
  Ids ids(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  if (n > count && (variant == "contiguous" || variant == "newest")) {
    const auto random =
        static_cast<std::int64_t>(Mix64(key, kScore, Index(row)) % Index(n - count + 1));
    const std::int64_t first = variant == "newest" ? n - count : random;
    ids.erase(ids.begin(), ids.begin() + first);
  } else if (n > count) {
    std::vector<std::int64_t> score(ids.size());
    for (std::int64_t group = 0; group < n; ++group) {
      score[static_cast<std::size_t>(group)] =
          variant == "uniform"
              ? static_cast<std::int64_t>(Mix64(key, kScore, Place(row, group)) >> 24)
              : ClusteredScore(key, row, group, n);
    }
    std::nth_element(ids.begin(), ids.begin() + count, ids.end(),
                     [&](std::int32_t i, std::int32_t j) {
                       const std::int64_t x = score[static_cast<std::size_t>(i)];
                       const std::int64_t y = score[static_cast<std::size_t>(j)];
                       return x != y ? x > y : i < j;
                     });
  }
  ids.resize(static_cast<std::size_t>(count));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Any order, with holes, the first 64 entries among them.
void ShuffleWithHoles(std::uint64_t key, std::int64_t row, Ids& ids) {
  constexpr std::size_t kLeading = 64;
  ids.resize(static_cast<std::size_t>(kTopK) - kLeading, -1);
  for (std::size_t i = ids.size(); i > 1; --i) {
    std::swap(ids[i - 1], ids[Mix64(key, kOrder + Index(row), i) % i]);
  }
  ids.insert(ids.begin(), kLeading, -1);
}

// Padded graph rows name groups behind the end: the incomplete group, whose tokens then come from
// two sides, and groups without any token, as far as the page table reaches.
void AddGroupsBeyondEnd(std::int64_t length, std::int64_t table_groups, Ids& ids) {
  constexpr std::int64_t kBeyond = 12;
  const std::int64_t first = length / kGroupTokens;
  const std::int64_t last = std::min(first + kBeyond, table_groups);
  const std::int64_t room = std::max<std::int64_t>(kTopK - (last - first), 0);
  if (static_cast<std::int64_t>(ids.size()) > room) ids.resize(static_cast<std::size_t>(room));
  for (std::int64_t group = first; group < last; ++group) {
    ids.push_back(static_cast<std::int32_t>(group));
  }
}

Ids ListOf(const Problem& problem, std::uint64_t key, std::int64_t row, std::int64_t length) {
  const bool shuffled = problem.variant == "shuffled";
  Ids ids =
      SelectGroups(problem, key, row, length / kGroupTokens, shuffled ? kTopK - 64 - 32 : kTopK);
  if (shuffled) ShuffleWithHoles(key, row, ids);
  if (problem.variant == "beyond_length") {
    AddGroupsBeyondEnd(length, problem.axis("MP") * kPageTokens / kGroupTokens, ids);
  }
  ids.resize(static_cast<std::size_t>(kTopK), -1);
  return ids;
}

// --- elements ---

// gain * z over one head.
ASSAY_VECTOR_CLONES
void NormalHead(std::uint64_t key, std::uint64_t tensor, std::uint64_t place, float gain,
                float* x) {
  for (std::uint64_t d = 0; d < kHeadSize; ++d) {
    x[d] = gain * UnitNormal(key, tensor, place * kHeadSize + d);
  }
}

// +-1 per channel of a KV head.
float Direction(std::uint64_t key, std::int64_t kv_head, std::int64_t channel) {
  return Mix64(key, kDirection, Index(kv_head * kHeadSize + channel)) >> 63 != 0 ? 1.0f : -1.0f;
}

void Round(const float* x, bf16* to) {
  for (std::int64_t d = 0; d < kHeadSize; ++d) to[d] = ToBF16(x[d]);
}

// One batch being generated.
class Content {
 public:
  Content(const Problem& problem, std::uint64_t key, Bundle& inputs)
      : problem_(problem),
        key_(key),
        batch_(paged::MakeBatch(problem, PagesOfTokens)),
        physical_(paged::PhysicalPages(problem, batch_, key)),
        inputs_(inputs),
        k_cache_(inputs["k_cache"].as<bf16>()),
        v_cache_(inputs["v_cache"].as<bf16>()),
        selected_(static_cast<std::size_t>(batch_.distinct), 0) {
    for (std::int64_t i = 0; i < kTokenElements; ++i) {
      direction_[i] = Direction(key, i / kHeadSize, i % kHeadSize);
      key_gain_[i] = 1;
    }
    for (std::int64_t g = 0; g < kKvHeads; ++g) {  // 1 or 2 outlier channels
      for (std::int64_t o = 0; o < 1 + g; ++o) {
        key_gain_[g * kHeadSize + static_cast<std::int64_t>(Mix64(key, kOutlier, Index(2 * g + o)) %
                                                            kHeadSize)] = 8;
      }
    }
  }

  void Fill() {
    paged::FillPageTable(batch_, physical_, key_, inputs_["page_table"]);
    auto* lengths = inputs_["seq_lens"].as<std::int32_t>();
    for (std::int64_t row = 0; row < batch_.rows(); ++row) {
      lengths[row] = static_cast<std::int32_t>(Length(row));
      FillList(row);
      FillQueries(row);
    }
    if (Tensor* scale = inputs_.find("scale")) scale->as<float>()[0] = 0.05f;
    const Args args = BindInputs(problem_, inputs_);
    for (std::int64_t row = 0; row < batch_.rows(); ++row) {
      for (std::int64_t token : AttendedTokens(args, row)) {
        selected_[static_cast<std::size_t>(batch_.PageNumber(row, token / kPageTokens))] |=
            1ULL << (token % kPageTokens);
      }
    }
    FillCaches();
  }

 private:
  std::int64_t Length(std::int64_t row) const {
    return batch_.lengths[static_cast<std::size_t>(row)];
  }

  void FillList(std::int64_t row) {
    const Ids ids = ListOf(problem_, key_, row, Length(row));
    if (Tensor* blocks = inputs_.find("block_ids")) {
      std::copy(ids.begin(), ids.end(), blocks->as<std::int32_t>() + row * kTopK);
    } else {
      qsa_index_topk_decode::ExpandToTokens(
          ids.data(), kTopK, Length(row),
          inputs_["token_ids"].as<std::int32_t>() + row * kMostTokens);
    }
  }

  // "dominant": queries three hundred times as large; "equal_scores": queries that are zero.
  void FillQueries(std::int64_t row) {
    bf16* q = inputs_["q"].as<bf16>() + row * kHeads * kHeadSize;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      float x[kHeadSize];
      NormalHead(key_, kQ, Index(row * kHeads + h), kQuery, x);
      for (std::int64_t d = 0; d < kHeadSize; ++d) {
        x[d] += kCommon * direction_[h / kGroupHeads * kHeadSize + d];
        if (problem_.variant == "dominant") x[d] *= 300;
        if (problem_.variant == "equal_scores") x[d] = 0;
      }
      Round(x, q + h * kHeadSize);
    }
  }

  void FillToken(std::int64_t row, std::int64_t token, bf16* k, bf16* v) const {
    const std::uint64_t place = Place(row, token);
    const bool recent = token >= Length(row) - kRecentTokens;
    const float drawn = token == 0 ? kSink : recent ? kRecent : 0;
    const float gain = Uniform(key_, kRare, place) < kRareShare ? 6.0f : 1.0f;
    for (std::int64_t g = 0; g < kKvHeads; ++g) {
      float x[kHeadSize];
      NormalHead(key_, kK, place * kKvHeads + Index(g), 1, x);
      for (std::int64_t d = 0; d < kHeadSize; ++d) {
        const std::int64_t i = g * kHeadSize + d;
        x[d] = x[d] * key_gain_[i] + drawn * direction_[i];
      }
      Round(x, k + g * kHeadSize);
      NormalHead(key_, kV, place * kKvHeads + Index(g), gain, x);
      Round(x, v + g * kHeadSize);
    }
  }

  // Page `page` of its owner `row`: content where a row of the batch attends, else NaN and Inf.
  void FillPage(std::int64_t row, std::int64_t page) const {
    const auto number = static_cast<std::size_t>(batch_.PageNumber(row, page));
    const std::uint64_t selected = selected_[number];
    if (selected == 0 && problem_.variant == paged::kOriginalAddress) return;  // stays a hole
    const std::int64_t at = physical_[number] * kPageTokens * kTokenElements;
    for (std::int64_t slot = 0; slot < kPageTokens; ++slot) {
      bf16* k = k_cache_ + at + slot * kTokenElements;
      bf16* v = v_cache_ + at + slot * kTokenElements;
      if ((selected >> slot & 1) != 0) {
        FillToken(row, page * kPageTokens + slot, k, v);
      } else {
        std::fill(k, k + kTokenElements, kQuietNaN);
        std::fill(v, v + kTokenElements, kInfinity);
      }
    }
  }

  void FillCaches() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> pages;  // (row, logical page) of its owner
    for (std::int64_t row = 0; row < batch_.rows(); ++row) {
      const auto r = static_cast<std::size_t>(row);
      for (std::int64_t page = batch_.shared[r]; page < batch_.live[r]; ++page) {
        pages.emplace_back(row, page);
      }
    }
    ParallelFor(static_cast<std::int64_t>(pages.size()), 0, [&](std::int64_t i) {
      const auto [row, page] = pages[static_cast<std::size_t>(i)];
      FillPage(row, page);
    });
    for (auto i = static_cast<std::size_t>(batch_.distinct); i < physical_.size(); ++i) {
      const std::int64_t at = physical_[i] * kPageTokens * kTokenElements;
      std::fill_n(k_cache_ + at, kPageTokens * kTokenElements, kQuietNaN);
      std::fill_n(v_cache_ + at, kPageTokens * kTokenElements, kInfinity);
    }
  }

  const Problem& problem_;
  const std::uint64_t key_;
  const paged::Batch batch_;
  const std::vector<std::int32_t> physical_;
  Bundle& inputs_;
  bf16* const k_cache_;
  bf16* const v_cache_;
  std::vector<std::uint64_t> selected_;  // [distinct pages]: bit of every slot that is attended
  float direction_[kTokenElements];
  float key_gain_[kTokenElements];
};

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  Content(problem, key, inputs).Fill();
}

}  // namespace assay::qsa_sparse_gqa_decode
