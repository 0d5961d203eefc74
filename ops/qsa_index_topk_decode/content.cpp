// Generated batches of qsa_index_topk_decode: pages shared as in the record, keys that look like
// means of four neighbouring tokens, or scores of a chosen distribution. Only + - * / and sqrt, so
// that a key gives the same bits on every machine.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "base/simd.h"
#include "ops/qsa_index_topk_decode/spec.h"

namespace assay::qsa_index_topk_decode {
namespace {

// Positions in the declared order: tensor numbers of the element source.
constexpr std::uint64_t kQ = 0, kKeys = 1;
constexpr std::uint64_t kDirection = kAuxiliaryTensor + 220;
constexpr std::uint64_t kCommonQuery = kAuxiliaryTensor + 221;
constexpr std::uint64_t kSegmentSize = kAuxiliaryTensor + 222;
constexpr std::uint64_t kSegmentMean = kAuxiliaryTensor + 223;
constexpr std::uint64_t kSegmentTopic = kAuxiliaryTensor + 224;
constexpr std::uint64_t kKeyLength = kAuxiliaryTensor + 225;
constexpr std::uint64_t kNeedle = kAuxiliaryTensor + 226;
constexpr std::uint64_t kLevel = kAuxiliaryTensor + 227;

constexpr auto kSize = static_cast<std::size_t>(kHeadSize);
constexpr std::size_t kRotated = 64;  // channels 0..63 are rotated, pairs (i, i + 32)
constexpr std::size_t kPairs = kRotated / 2;
constexpr bf16 kQuietNaN{0x7FC0};

using Row = float[kSize];

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

// A number of position `group` of `row`, for element sources; rows have fewer than 2^32 groups.
std::uint64_t Place(std::int64_t row, std::int64_t group) {
  return Index(row) << 32 | Index(group);
}

ASSAY_VECTOR_CLONES
void NormalRow(std::uint64_t key, std::uint64_t tensor, std::uint64_t place, float* x) {
  for (std::uint64_t d = 0; d < kSize; ++d) x[d] = UnitNormal(key, tensor, place * kSize + d);
}

// Scales x to norm `length`.
void Normalise(float length, float* x) {
  float sum[8] = {};
  for (std::size_t d = 0; d < kSize; ++d) sum[d % 8] += x[d] * x[d];
  const float squares =
      ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  const float factor = length / std::sqrt(squares);
  for (std::size_t d = 0; d < kSize; ++d) x[d] *= factor;
}

constexpr float kNorm = 11.313708498984761f;  // sqrt(128)

void Round(const float* x, bf16* to) {
  for (std::size_t d = 0; d < kSize; ++d) to[d] = ToBF16(x[d]);
}

// sin and cos of angles up to 2^20: Taylor series around the nearest multiple of pi / 2.
struct Turn {
  float cosine = 1, sine = 0;
};

Turn TurnBy(double angle) {
  const double quarter = std::floor(angle * 0.6366197723675814 + 0.5);
  const double x = angle - quarter * 1.5707963267948966, x2 = x * x;
  const double s = x * (1 - x2 / 6 * (1 - x2 / 20 * (1 - x2 / 42 * (1 - x2 / 72))));
  const double c = 1 - x2 / 2 * (1 - x2 / 12 * (1 - x2 / 30 * (1 - x2 / 56 * (1 - x2 / 90))));
  const auto cosine = static_cast<float>(c), sine = static_cast<float>(s);
  switch (static_cast<std::int64_t>(quarter) & 3) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

// Rotary embedding, theta 1e7, of one key after the other: position 4j of group j.
class Rotation {
 public:
  explicit Rotation(std::int64_t group) {
    double frequency = 1;
    for (Pair& pair : pairs_) {
      pair.now = TurnBy(static_cast<double>(kGroupTokens * group) * frequency);
      pair.step = TurnBy(kGroupTokens * frequency);
      frequency *= 0.6042963902381329;  // 1e7^(-1/32)
    }
  }
  // Rotates the key of the current group and moves on to the next.
  void Apply(float* x) {
    for (std::size_t i = 0; i < kPairs; ++i) {
      Turn& now = pairs_[i].now;
      const Turn step = pairs_[i].step;
      const float first = x[i], second = x[i + kPairs];
      x[i] = first * now.cosine - second * now.sine;
      x[i + kPairs] = first * now.sine + second * now.cosine;
      now = {now.cosine * step.cosine - now.sine * step.sine,
             now.cosine * step.sine + now.sine * step.cosine};
    }
  }

 private:
  struct Pair {
    Turn now, step;
  };
  Pair pairs_[kPairs];
};

// Keys of a page of `row`, natural text: a mean and a topic per segment of 64 to 4096 tokens, and
// noise that neighbours share. (Means of four consecutive values of an autoregressive sequence with
// coefficient 0.7 correlate by 0.41; 0.883 e_j + 0.469 e_(j-1) has that correlation.)
void NaturalPage(std::uint64_t key, std::int64_t row, std::int64_t page, bf16* keys) {
  Row before, noise, mean, direction;
  const std::int64_t first = page * kPageGroups;
  NormalRow(key, kDirection, 0, direction);
  NormalRow(key, kKeys, Place(row, first) + (1ULL << 31) - 1, before);
  Rotation rotation(first);
  for (std::int64_t j = first; j < first + kPageGroups; ++j) {
    // 1024 groups are cut into 1 to 64 equal segments.
    const std::int64_t cuts = 1LL << (Mix64(key, kSegmentSize, Place(row, j / 1024)) % 7);
    const std::int64_t size = 1024 / cuts;
    if (j == first || j % size == 0) {
      const std::uint64_t segment = Place(row, j / size * size);
      NormalRow(key, kSegmentMean, segment, mean);
      const float topic = 0.5f + 0.5f * UnitNormal(key, kSegmentTopic, segment);
      for (std::size_t d = 0; d < kSize; ++d) mean[d] = 0.7f * mean[d] + topic * direction[d];
    }
    NormalRow(key, kKeys, Place(row, j) + (1ULL << 31), noise);
    Row x;
    for (std::size_t d = 0; d < kSize; ++d) {
      x[d] = mean[d] + 0.883f * noise[d] + 0.469f * before[d];
      before[d] = noise[d];
    }
    const auto spread = static_cast<float>(0.7 + 0.6 * Uniform(key, kKeyLength, Place(row, j)));
    Normalise(kNorm * spread, x);
    rotation.Apply(x);
    Round(x, keys + (j - first) * kHeadSize);
  }
}

void IidPage(std::uint64_t key, std::int64_t row, std::int64_t page, bf16* keys) {
  for (std::int64_t slot = 0; slot < kPageGroups; ++slot) {
    Row x;
    NormalRow(key, kKeys, Place(row, page * kPageGroups + slot), x);
    Round(x, keys + slot * kHeadSize);
  }
}

// The queries of a row: four heads of norm sqrt(128) whose pairwise correlation is `alike`, drawn
// to the direction that topics have.
void NaturalQuery(std::uint64_t key, std::int64_t row, float alike, bf16* q) {
  Row direction, common;
  NormalRow(key, kDirection, 0, direction);
  NormalRow(key, kCommonQuery, Index(row), common);
  const float of_common = std::sqrt(alike), of_own = std::sqrt(1 - alike);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    Row x;
    NormalRow(key, kQ, Index(row * kHeads + h), x);
    for (std::size_t d = 0; d < kSize; ++d) {
      x[d] = of_own * x[d] + of_common * (0.5f * direction[d] + 0.866f * common[d]);
    }
    Normalise(kNorm, x);
    Round(x, q + h * kHeadSize);
  }
}

// --- scores of a chosen distribution ---

// The score of group j of n in units of 2^-16, below 2^24, as a variant asks for; -1: no head has a
// positive product.
std::int64_t Level(const Problem& problem, std::uint64_t key, std::int64_t j, std::int64_t n) {
  const std::uint64_t random = Mix64(key, kLevel, Index(j));
  const std::string& variant = problem.variant;
  if (variant == "one_top_byte") return 65536 + static_cast<std::int64_t>(random % 16384);
  if (variant == "monotone_up" || variant == "denormal") return 1 + j;
  if (variant == "monotone_down") return 1 + n - j;
  if (variant == "all_equal") return 77;
  if (variant == "ties") return 1 + static_cast<std::int64_t>(random % 16);
  // few_winners: one group in a hundred scores at all.
  return random % 100 == 0 ? static_cast<std::int64_t>(random / 100 % (1 << 24)) : -1;
}

bool HasChosenScores(const Problem& problem) {
  for (const char* variant : {"one_top_byte", "monotone_up", "monotone_down", "all_equal", "ties",
                              "few_winners", "denormal"}) {
    if (problem.variant == variant) return true;
  }
  return false;
}

// Head 0 holds 1, 2^-8 and 2^-16 against the three bytes of the level; every sum of the products
// is exact in fp32. The other heads have negative products only. Denormal scores: both sides are
// small, and their products are multiples of 2^-149.
struct ChosenScale {
  float query = 1, key = 1;
};

ChosenScale ScaleOf(const Problem& problem) {
  return problem.variant == "denormal" ? ChosenScale{0x1.0p-70f, 0x1.0p-63f} : ChosenScale{};
}

void ChosenQuery(const Problem& problem, bf16* q) {
  std::fill(q, q + kHeads * kHeadSize, bf16{});
  const float scale = ScaleOf(problem).query;
  q[0] = ToBF16(scale);
  q[1] = ToBF16(0x1.0p-8f * scale);
  q[2] = ToBF16(0x1.0p-16f * scale);
  for (std::int64_t h = 1; h < kHeads; ++h) q[h * kHeadSize + 100] = ToBF16(-scale);
}

void ChosenPage(const Problem& problem, std::uint64_t key, std::int64_t page, std::int64_t n,
                bf16* keys) {
  const float scale = ScaleOf(problem).key;
  std::fill(keys, keys + kPageGroups * kHeadSize, bf16{});
  for (std::int64_t slot = 0; slot < kPageGroups; ++slot) {
    const std::int64_t level = Level(problem, key, page * kPageGroups + slot, n);
    bf16* x = keys + slot * kHeadSize;
    x[0] = ToBF16(level < 0 ? -scale : static_cast<float>(level >> 16) * scale);
    x[1] = ToBF16(level < 0 ? 0 : static_cast<float>(level >> 8 & 255) * scale);
    x[2] = ToBF16(level < 0 ? 0 : static_cast<float>(level & 255) * scale);
    x[100] = ToBF16(scale);
  }
}

// --- the batch ---

// A key that would win if a kernel read it: along the sum of the row's queries, far too long.
void PoisonKey(const Problem& problem, const bf16* q, bf16* key) {
  if (problem.variant == "nan_poison") {
    std::fill(key, key + kHeadSize, kQuietNaN);
    return;
  }
  const float length = problem.variant == "denormal" ? 0x1.0p100f : 1024.0f;
  for (std::int64_t d = 0; d < kHeadSize; ++d) {
    float sum = 0;
    for (std::int64_t h = 0; h < kHeads; ++h) sum += ToFloat(q[h * kHeadSize + d]);
    key[d] = ToBF16(length * sum);
  }
}

// 3 to 30 groups that the row looks for, among them the first and the newest: their keys lie along
// its queries. Groups of a shared prefix are left alone unless the row owns them.
void PlaceNeedles(std::uint64_t key, std::int64_t row, std::int64_t n, std::int64_t first_own,
                  const bf16* q, const std::function<bf16*(std::int64_t group)>& slot) {
  const auto count = static_cast<std::int64_t>(3 + Mix64(key, kNeedle, Place(row, 0)) % 28);
  for (std::int64_t needle = 0; needle < count && n > 0; ++needle) {
    std::int64_t group = needle == 0 ? 0 : n - 1;
    if (needle > 1) {
      group = static_cast<std::int64_t>(Mix64(key, kNeedle, Place(row, needle)) % Index(n));
    }
    if (group < first_own) continue;
    Row x;
    NormalRow(key, kNeedle, Place(row, needle) + (1ULL << 31), x);
    for (std::size_t d = 0; d < kSize; ++d) {
      for (std::size_t h = 0; h < kHeads; ++h) x[d] += ToFloat(q[h * kSize + d]);
    }
    Normalise(kNorm, x);
    Round(x, slot(group));
  }
}

float Alikeness(const Problem& problem) {
  if (problem.variant == "heads_independent") return 0;
  return problem.variant == "heads_alike" ? 0.9f : 0.5f;
}

// One batch being generated.
class Content {
 public:
  Content(const Problem& problem, std::uint64_t key, Bundle& inputs)
      : problem_(problem),
        key_(key),
        batch_(paged::MakeBatch(problem, PagesOfTokens)),
        physical_(paged::PhysicalPages(problem, batch_, key)),
        chosen_(HasChosenScores(problem)),
        q_heads_(inputs["q"].shape[1]),
        q_(inputs["q"].as<bf16>()),
        cache_(inputs["index_k_cache"].as<bf16>()) {}

  const paged::Batch& batch() const { return batch_; }
  const std::vector<std::int32_t>& physical() const { return physical_; }

  void Queries() {
    for (std::int64_t row = 0; row < batch_.rows(); ++row) {
      bf16* q = QueryOf(row);
      std::fill(q, q + q_heads_ * kHeadSize, bf16{});
      if (chosen_) {
        ChosenQuery(problem_, q);
      } else {
        NaturalQuery(key_, row, Alikeness(problem_), q);
      }
    }
  }

  void Keys() {
    std::vector<std::pair<std::int64_t, std::int64_t>> pages;  // (row, logical page) of its owner
    for (std::int64_t row = 0; row < batch_.rows(); ++row) {
      for (std::int64_t page = FirstOwn(row); page < Live(row); ++page)
        pages.emplace_back(row, page);
    }
    ParallelRanges(static_cast<std::int64_t>(pages.size()), 16, 0,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const auto [row, page] = pages[static_cast<std::size_t>(i)];
                       Page(row, page);
                     }
                   });
    const bool natural = !chosen_ && problem_.variant != "iid";
    for (std::int64_t row = 0; row < batch_.rows() && natural; ++row) {
      PlaceNeedles(key_, row, Groups(row), FirstOwn(row) * kPageGroups, QueryOf(row),
                   [&](std::int64_t group) { return Slot(row, group); });
    }
    for (auto page = static_cast<std::size_t>(batch_.distinct); page < physical_.size(); ++page) {
      for (std::int64_t slot = 0; slot < kPageGroups && batch_.rows() > 0; ++slot) {
        PoisonKey(problem_, QueryOf(0),
                  cache_ + (physical_[page] * kPageGroups + slot) * kHeadSize);
      }
    }
  }

 private:
  std::int64_t Live(std::int64_t row) const { return batch_.live[static_cast<std::size_t>(row)]; }
  std::int64_t FirstOwn(std::int64_t row) const {
    return batch_.shared[static_cast<std::size_t>(row)];
  }
  std::int64_t Groups(std::int64_t row) const {
    return batch_.lengths[static_cast<std::size_t>(row)] / kGroupTokens;
  }
  bf16* QueryOf(std::int64_t row) const { return q_ + row * q_heads_ * kHeadSize; }

  bf16* Slot(std::int64_t row, std::int64_t group) const {
    const std::int64_t number = batch_.PageNumber(row, group / kPageGroups);
    const std::int64_t page = physical_[static_cast<std::size_t>(number)];
    return cache_ + (page * kPageGroups + group % kPageGroups) * kHeadSize;
  }

  void Page(std::int64_t row, std::int64_t page) const {
    bf16* keys = Slot(row, page * kPageGroups);
    if (chosen_) {
      ChosenPage(problem_, key_, page, Groups(row), keys);
    } else if (problem_.variant == "iid") {
      IidPage(key_, row, page, keys);
    } else {
      NaturalPage(key_, row, page, keys);
    }
    const std::int64_t end = std::min(Groups(row) - page * kPageGroups, kPageGroups);
    for (std::int64_t slot = end; slot < kPageGroups; ++slot) {
      PoisonKey(problem_, QueryOf(row), keys + slot * kHeadSize);
    }
  }

  const Problem& problem_;
  const std::uint64_t key_;
  const paged::Batch batch_;
  const std::vector<std::int32_t> physical_;
  const bool chosen_;
  const std::int64_t q_heads_;
  bf16* const q_;
  bf16* const cache_;
};

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  Content content(problem, key, inputs);
  content.Queries();
  content.Keys();
  paged::FillPageTable(content.batch(), content.physical(), key, inputs["page_table"]);
  for (const char* name : {"seq_lens", "group_lens"}) {
    Tensor* lengths = inputs.find(name);
    if (lengths == nullptr) continue;
    const std::int64_t divisor = lengths->name == "group_lens" ? kGroupTokens : 1;
    for (std::size_t row = 0; row < content.batch().lengths.size(); ++row) {
      lengths->as<std::int32_t>()[row] =
          static_cast<std::int32_t>(content.batch().lengths[row] / divisor);
    }
  }
}

}  // namespace assay::qsa_index_topk_decode
