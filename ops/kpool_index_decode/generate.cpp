// Generated inputs of kpool_index_decode, made in the rotated domain: only + - * / and the bf16 and
// e4m3 roundings, so that a key gives the same bits on every machine.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "base/random.h"
#include "ops/kpool_index_decode/spec.h"
#include "ops/paged/pages.h"

namespace assay::kpool_index_decode {
namespace {

enum TensorNumber : std::uint64_t { kQ, kWeights, kKeys };
constexpr std::uint64_t kRequestTopic = kAuxiliaryTensor + 240;
constexpr std::uint64_t kRowTopic = kAuxiliaryTensor + 241;
constexpr std::uint64_t kSegmentTopic = kAuxiliaryTensor + 242;
constexpr std::uint64_t kAlignment = kAuxiliaryTensor + 243;
constexpr std::uint64_t kChoice = kAuxiliaryTensor + 244;  // and 245
constexpr std::uint64_t kLength = kAuxiliaryTensor + 246;

constexpr std::int64_t kSegmentPools = 64;  // neighbouring pools share a topic
constexpr std::int64_t kDistinctKeys = 48;  // of the variant `ties`

constexpr std::uint8_t kNaNByte = 0x7F;

using Row = float[kHeadSize];

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }
float Normal(std::uint64_t key, std::uint64_t tensor, std::int64_t i) {
  return UnitNormal(key, tensor, Index(i));
}

// e4m3 codes of a row and their scale, a power of two.
float Quantise(const Row& x, std::uint8_t* codes) {
  float amax = 0;
  for (const float value : x) amax = std::max(amax, std::abs(ToFloat(ToBF16(value))));
  const float scale = ToFloat(ScaleForE4M3(amax));
  for (std::int64_t d = 0; d < kHeadSize; ++d) {
    codes[d] = ToE4M3(ToFloat(ToBF16(x[d])) / scale).bits;
  }
  return scale;
}

class Content {
 public:
  Content(const Problem& problem, std::uint64_t key, Bundle& inputs)
      : variant_(problem.variant),
        key_(key),
        rows_(problem.axis("V")),
        batch_(paged::MakeBatch(problem, PagesOfTokens)),
        physical_(paged::PhysicalPages(problem, batch_, key)),
        q_(inputs["q"].as<e4m3>()),
        weights_(inputs["weights"].as<float>()),
        cache_(inputs["pool_cache"].as<std::uint8_t>()) {
    paged::FillPageTable(batch_, physical_, key, inputs["page_table"]);
    for (std::size_t b = 0; b < batch_.lengths.size(); ++b) {
      inputs["seq_lens"].as<std::int32_t>()[b] = static_cast<std::int32_t>(batch_.lengths[b]);
    }
  }

  // Heads share half of their content with the row, rows most of theirs with the request; weights
  // of either sign, with a mean.
  void Queries() {
    for (std::int64_t row = 0; row < batch_.rows() * rows_; ++row) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::int64_t head = row * kHeads + h;
        Row x;
        for (std::int64_t d = 0; d < kHeadSize; ++d) {
          const float topic = 0.8f * Normal(key_, kRequestTopic, row / rows_ * kHeadSize + d) +
                              0.6f * Normal(key_, kRowTopic, row * kHeadSize + d);
          x[d] = 0.5f * topic + 0.87f * Normal(key_, kQ, head * kHeadSize + d);
        }
        const float scale = Quantise(x, &q_[head * kHeadSize].bits);
        float weight = (0.5f + Normal(key_, kWeights, head)) / 64;  // 32^-1/2 128^-1/2
        if (variant_ == "negative_weights") weight = -std::abs(weight) - 1e-3f;
        weights_[head] = weight * scale;
      }
    }
  }

  void Keys() {
    std::vector<std::pair<std::int64_t, std::int64_t>> pages;  // (request, logical page), owned
    for (std::int64_t b = 0; b < batch_.rows(); ++b) {
      const auto at = static_cast<std::size_t>(b);
      for (std::int64_t page = batch_.shared[at]; page < batch_.live[at]; ++page) {
        pages.emplace_back(b, page);
      }
    }
    ParallelFor(static_cast<std::int64_t>(pages.size()), 0, [&](std::int64_t i) {
      const auto [b, page] = pages[static_cast<std::size_t>(i)];
      const std::int64_t closed = batch_.lengths[static_cast<std::size_t>(b)] / kPoolTokens;
      const std::int64_t place = physical_[static_cast<std::size_t>(batch_.PageNumber(b, page))];
      for (std::int64_t slot = 0; slot < kPagePools; ++slot) {
        const std::int64_t pool = page * kPagePools + slot;
        if (pool < closed) {
          PutKey(b, pool, place, slot);
        } else {
          PutPoison(b, place, slot);
        }
      }
    });
    for (auto page = static_cast<std::size_t>(batch_.distinct); page < physical_.size(); ++page) {
      for (std::int64_t slot = 0; slot < kPagePools && batch_.rows() > 0; ++slot) {
        PutPoison(0, physical_[page], slot);
      }
    }
  }

 private:
  std::uint8_t* KeyAt(std::int64_t page, std::int64_t slot) {
    return cache_ + page * kPageBytes + slot * kHeadSize;
  }
  void PutScale(std::int64_t page, std::int64_t slot, float scale) {
    std::memcpy(cache_ + page * kPageBytes + kScalesOffset + slot * 4, &scale, 4);
  }

  // How far a key lies along the request's topic: around 0, one in 32 far, as needles are.
  float Alignment(std::int64_t b, std::int64_t pool) const {
    const std::uint64_t place = Index(b) << 32 | Index(pool);
    const float z = UnitNormal(key_, kAlignment, place);
    if (variant_ == "negative_weights") return z < 0 ? -1.5f : 0.3f * z;  // half score exactly 0
    return Mix64(key_, kChoice, place) % 32 == 0 ? 1.0f + 0.2f * z : 0.25f * z;
  }

  void PutKey(std::int64_t b, std::int64_t pool, std::int64_t page, std::int64_t slot) {
    std::int64_t source = pool;  // the pool whose random numbers make the key
    if (variant_ == "ties") {
      source = static_cast<std::int64_t>(Mix64(key_, kChoice, Index(pool)) % kDistinctKeys);
    }
    if (variant_ == "all_equal") source = 0;
    const std::int64_t segment = source / kSegmentPools, place = (b << 24) + source;
    const float along = Alignment(b, source);
    const auto length =
        static_cast<float>(0.5 + 1.5 * Uniform(key_, kLength, Index((b << 24) + source)));
    Row x;
    for (std::int64_t d = 0; d < kHeadSize; ++d) {
      x[d] = along * Normal(key_, kRequestTopic, b * kHeadSize + d) +
             0.5f * Normal(key_, kSegmentTopic, ((b << 24) + segment) * kHeadSize + d) +
             0.7f * Normal(key_, kKeys, place * kHeadSize + d);
      x[d] *= length;
    }
    PutScale(page, slot, Quantise(x, KeyAt(page, slot)));
    if (variant_ == "nan_keys" && Mix64(key_, kChoice + 1, Index(pool)) % 16 == 0) {
      KeyAt(page, slot)[pool % kHeadSize] = kNaNByte;
    }
  }

  // What nobody may read: along the weighted sum of the last row's heads, far too long.
  void PutPoison(std::int64_t b, std::int64_t page, std::int64_t slot) {
    const std::int64_t row = (b + 1) * rows_ - 1;
    Row x = {};
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t d = 0; d < kHeadSize; ++d) {
        x[d] += weights_[row * kHeads + h] * ToFloat(q_[(row * kHeads + h) * kHeadSize + d]);
      }
    }
    PutScale(page, slot, 1024 * Quantise(x, KeyAt(page, slot)));
  }

  const std::string variant_;
  const std::uint64_t key_;
  const std::int64_t rows_;
  const paged::Batch batch_;
  const std::vector<std::int32_t> physical_;
  e4m3* const q_;
  float* const weights_;
  std::uint8_t* const cache_;
};

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  Content content(problem, key, inputs);
  content.Queries();
  content.Keys();
}

}  // namespace assay::kpool_index_decode
