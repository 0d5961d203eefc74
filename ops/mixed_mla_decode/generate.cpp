// Generated contents of mixed_mla_decode: lists, then the pages that they reference.
#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "ops/mixed_mla_decode/batch.h"
#include "ops/mixed_mla_decode/lists.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/mla/inputs.h"
#include "ops/paged/pages.h"

namespace assay::mixed_mla_decode {
namespace {

// Positions in the declared order: the tensor numbers of the element source.
enum TensorNumber : std::uint64_t { kQ = 0, kCache8 = 1, kCache4 = 2, kAttnSink = 7 };

constexpr float kSpecialScale = 0.0625f;

using Places = std::vector<std::int32_t>;

// Where the referenced pages lie in the cache.
Places PlaceOf(const Problem& problem, std::int64_t count, std::int64_t pages, std::uint64_t key) {
  if (problem.variant == paged::kOriginalAddress) return paged::PlacePages(count, pages, key);
  return paged::PermutePages(count, key);
}

// --- lists ---

std::int32_t IndexOf(const PageMap& map, const Places& places, std::int64_t page_tokens,
                     std::int64_t position) {
  const std::int64_t page = position / page_tokens - map.first;
  const std::int64_t number = map.number[static_cast<std::size_t>(page)];
  const std::int64_t place = places[static_cast<std::size_t>(number)];
  return static_cast<std::int32_t>(place * page_tokens + position % page_tokens);
}

// The window newest first, the picks ascending; padding of -1 at the tail only, junk in `poison`.
struct ListWriter {
  std::int32_t* list;
  std::int64_t width, length = 0;

  void Add(std::int32_t index) { list[length++] = index; }
  std::int32_t Finish(bool junk) {
    constexpr std::int32_t kJunk[] = {INT32_MAX, -1, 0, INT32_MIN};
    for (std::int64_t j = length; j < width; ++j) list[j] = junk ? kJunk[j % 4] : -1;
    return static_cast<std::int32_t>(length);
  }
};

void GenerateLists(const Problem& problem, const Batch& batch, const Places& places8,
                   const Places& places4, std::uint64_t key, Bundle& inputs) {
  const bool junk = problem.variant == "poison";
  for (std::size_t b = 0; b < batch.rows.size(); ++b) {
    const Row& row = batch.rows[b];
    ListWriter window{inputs["indices"].as<std::int32_t>() + b * kWindow, kWindow};
    for (std::int64_t p = row.window_end; p-- > row.window_begin;) {
      window.Add(IndexOf(row.window_pages, places8, kPageTokens8, p));
    }
    ListWriter extra{inputs["extra_indices"].as<std::int32_t>() + b * kExtra, kExtra};
    for (std::int64_t p : Picks(row, b, key)) {
      extra.Add(IndexOf(row.compressed_pages, places4, kPageTokens4, p));
    }
    if (extra.length == 0) extra.Add(-1);  // the engine's length is at least 1
    const std::int32_t lengths[] = {window.Finish(junk), extra.Finish(junk)};
    if (Tensor* length = inputs.find("topk_length")) length->as<std::int32_t>()[b] = lengths[0];
    if (Tensor* length = inputs.find("extra_topk_length")) {
      length->as<std::int32_t>()[b] = lengths[1];
    }
  }
}

// Row b of the variant `special` is of kind b % 12. The last kinds are ordinary lists whose tokens
// have special bytes.
enum SpecialRow {
  kTinyScales,
  kEmpty,
  kOneKeyEach,
  kOneIndex,
  kHoles,
  kLateStart,
  kWindowOnly,
  kExtraOnly,
  kFlat,
  kLarge,
  kHugeScale8,
  kHugeScale4
};
constexpr std::size_t kSpecialRows = kHugeScale4 + 1;

void Keep(std::int32_t* list, std::int64_t width, std::int64_t from, std::int64_t step) {
  for (std::int64_t j = 0; j < width; ++j) {
    if (j < from || (j - from) % step != 0) list[j] = -1;
  }
}

void SpecialLists(std::size_t kind, std::int32_t* window, std::int32_t* extra) {
  const std::int32_t first = window[0];
  switch (kind) {
    case kEmpty:
      std::fill_n(window, kWindow, -1);
      std::fill_n(extra, kExtra, -1);
      break;
    case kOneKeyEach:
      std::fill_n(window + 1, kWindow - 1, -1);
      std::fill_n(extra + 1, kExtra - 1, -1);
      break;
    case kOneIndex:
      std::fill_n(window, kWindow, first);
      break;
    case kHoles:
      Keep(window, kWindow, 0, 3);
      Keep(extra, kExtra, 1, 2);
      break;
    case kLateStart:  // whole leading blocks without a key, in both lists
      Keep(window, kWindow, 64, 1);
      Keep(extra, kExtra, 128, 1);
      break;
    case kWindowOnly:
      std::fill_n(extra, kExtra, -1);
      break;
    case kExtraOnly:
      std::fill_n(window, kWindow, -1);
      break;
    default:
      break;
  }
}

void SpecialQueries(std::size_t kind, bf16* q) {
  if (kind != kFlat && kind != kLarge) return;
  for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
    q[i] = kind == kFlat ? bf16{} : ToBF16(50 * ToFloat(q[i]));
  }
}

// --- pages ---

void FillToken(std::uint64_t key, std::uint64_t tensor, std::int64_t number, std::uint8_t* data,
               std::uint8_t* scales) {
  float x[kDim];
  mla::LatentRow(key, tensor, number, x);
  if (tensor == kCache8) {
    mla::EncodeV41(x, data, scales);
  } else {
    mla::EncodeV41Fp4(x, data, scales);
  }
}

// The referenced pages, every token of them; a token's content depends on its page's number, not on
// the page's place. In `poison` tokens that no list has hold NaN codes instead.
struct PageFiller {
  const mla::RowFormat& format;
  std::int64_t page_tokens;
  std::uint64_t key, tensor;
  std::uint8_t* bytes;

  void Fill(const Places& places, const std::vector<bool>& selected) const {
    const std::int64_t page_bytes = page_tokens * format.token_bytes();
    ParallelRanges(
        static_cast<std::int64_t>(places.size()), 1, 0, [&](std::int64_t number, std::int64_t) {
          const std::int64_t place = places[static_cast<std::size_t>(number)];
          std::uint8_t* page = bytes + place * page_bytes;
          for (std::int64_t t = 0; t < page_tokens; ++t) {
            std::uint8_t* data = page + format.data_at(t);
            std::uint8_t* scales = page + format.scale_at(t, page_tokens);
            if (selected.empty() || selected[static_cast<std::size_t>(place * page_tokens + t)]) {
              FillToken(key, tensor, number * page_tokens + t, data, scales);
            } else {
              std::memset(data, 0x7F, static_cast<std::size_t>(format.data_bytes));
              std::memset(scales, tensor == kCache8 ? 255 : 0x7F,
                          static_cast<std::size_t>(format.scale_bytes));
            }
          }
        });
  }
};

// Which tokens of a compact cache some list has; empty = do not care.
std::vector<bool> SelectedTokens(const Problem& problem, const TokenLists& lists,
                                 std::int64_t width, std::int64_t tokens) {
  std::vector<bool> selected;
  if (problem.variant != "poison") return selected;
  selected.resize(static_cast<std::size_t>(tokens));
  for (std::int64_t row = 0; row < problem.axis("B"); ++row) {
    ForEachToken(lists, width, row,
                 [&](std::int64_t index) { selected[static_cast<std::size_t>(index)] = true; });
  }
  return selected;
}

// Codes and scales at the ends of their ranges in the first tokens of some rows.
void SpecialTokens(const Args& args, std::size_t b, std::size_t kind) {
  const auto writable = [](const std::uint8_t* bytes) { return const_cast<std::uint8_t*>(bytes); };
  const auto token8 = [&](std::size_t column) {
    const std::int32_t index = args.window.indices[b * kWindow + column];
    return Locate(args.cache8, mla::kV41, kPageTokens8, std::max(index, 0));
  };
  const auto token4 = [&](std::size_t column) {
    const std::int32_t index = args.extra.indices[b * kExtra + column];
    return Locate(args.cache4, mla::kV41Fp4, kPageTokens4, std::max(index, 0));
  };
  if (kind == kTinyScales) {
    std::memset(writable(token8(1).scales), 3, 16);
    std::memset(writable(token4(1).scales), 1, 32);  // e4m3 subnormals
    std::memset(writable(token4(2).data), 0x88, 8);  // -0
    writable(token4(2).scales)[5] = 0xB8;            // -1: legal, decodes with the sign
  } else if (kind == kHugeScale8) {
    // One group of tiny codes at the largest scale: 2^110, so the logit is about 2^106.
    writable(token8(1).scales)[3] = 246;
    std::memset(writable(token8(1).data + 3 * 32), 0x01, 32);
  } else if (kind == kHugeScale4) {
    writable(token4(1).scales)[7] = 0x7E;
  }
}

void MakeSpecial(const Problem& problem, Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  for (std::size_t b = 0; b < static_cast<std::size_t>(args.b); ++b) {
    const std::size_t kind = b % kSpecialRows;
    SpecialLists(kind, inputs["indices"].as<std::int32_t>() + b * kWindow,
                 inputs["extra_indices"].as<std::int32_t>() + b * kExtra);
    SpecialQueries(kind, inputs["q"].as<bf16>() + static_cast<std::int64_t>(b) * kHeads * kDim);
    SpecialTokens(args, b, kind);
  }
}

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const Batch batch = BatchOf(problem, key);
  const std::int64_t pages8 = CachePages8(problem), pages4 = CachePages4(problem);
  const Places places8 = PlaceOf(problem, problem.axis("N8"), pages8, key ^ kCache8);
  const Places places4 = PlaceOf(problem, problem.axis("N4"), pages4, key ^ kCache4);
  mla::GenerateQueries(key, kQ, problem.axis("B"), inputs["q"].as<bf16>());
  GenerateLists(problem, batch, places8, places4, key, inputs);
  if (Tensor* sink = inputs.find("attn_sink")) {
    mla::GenerateSinks(key, kAttnSink, sink->as<float>());
  }
  if (Tensor* scale = inputs.find("sm_scale")) scale->as<float>()[0] = kSpecialScale;
  const Args args = BindInputs(problem, inputs);
  const PageFiller filler8{mla::kV41, kPageTokens8, key, kCache8,
                           inputs["cache8"].as<std::uint8_t>()};
  const PageFiller filler4{mla::kV41Fp4, kPageTokens4, key, kCache4,
                           inputs["cache4"].as<std::uint8_t>()};
  filler8.Fill(places8, SelectedTokens(problem, args.window, kWindow, pages8 * kPageTokens8));
  filler4.Fill(places4, SelectedTokens(problem, args.extra, kExtra, pages4 * kPageTokens4));
  if (problem.variant == "special") MakeSpecial(problem, inputs);
}

}  // namespace assay::mixed_mla_decode
