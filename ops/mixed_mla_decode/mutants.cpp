// Wrong decode kernels that verification must reject: tokens listed, found or decoded wrongly, then
// the right attention; or the right tokens and a mistake around the softmax.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "ops/mixed_mla_decode/lists.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/paged/pages.h"

namespace assay::mixed_mla_decode {
namespace {

using Bytes = const std::uint8_t*;

// --- how a token of a page becomes 512 numbers ---

using Decoder = void (*)(Bytes page, std::int64_t token, float* x);

float Code8(std::uint8_t code, std::uint8_t scale) {
  return ToFloat(e4m3{code}) * ToFloat(ue8m0{scale});
}

template <class GroupOf>
void Decode8With(Bytes data, Bytes scales, float* x, const GroupOf& group_of) {
  for (std::int64_t d = 0; d < kDim; ++d) x[d] = Code8(data[d], scales[group_of(d)]);
}

Bytes Scales8(Bytes page, std::int64_t token) {
  return page + mla::kV41.scale_at(token, kPageTokens8);
}

void Right8(Bytes page, std::int64_t token, float* x) {
  Decode8With(page + token * 512, Scales8(page, token), x, [](std::int64_t d) { return d / 32; });
}
void Records8(Bytes page, std::int64_t token, float* x) {
  Bytes record = page + token * 528;
  Decode8With(record, record + 512, x, [](std::int64_t d) { return d / 32; });
}
void NeighbourScales8(Bytes page, std::int64_t token, float* x) {
  Decode8With(page + token * 512, Scales8(page, token ^ 1), x,
              [](std::int64_t d) { return d / 32; });
}
void GroupsOf64(Bytes page, std::int64_t token, float* x) {
  Decode8With(page + token * 512, Scales8(page, token), x, [](std::int64_t d) { return d / 64; });
}

template <class Value>
void Decode4With(Bytes data, float* x, const Value& value) {
  for (std::int64_t d = 0; d < kDim; ++d) {
    const unsigned code = d % 2 == 0 ? data[d / 2] & 15u : data[d / 2] >> 4;
    x[d] = value(code, d);
  }
}

float Scale4(Bytes page, std::int64_t token, std::int64_t group) {
  return ToFloat(e4m3{page[mla::kV41Fp4.scale_at(token, kPageTokens4) + group]});
}

void Right4(Bytes page, std::int64_t token, float* x) {
  Decode4With(page + token * 256, x, [&](unsigned code, std::int64_t d) {
    return E2M1ToFloat(code) * Scale4(page, token, d / 16);
  });
}
void Records4(Bytes page, std::int64_t token, float* x) {
  Bytes record = page + token * 288;
  Decode4With(record, x, [&](unsigned code, std::int64_t d) {
    return E2M1ToFloat(code) * ToFloat(e4m3{record[256 + d / 16]});
  });
}
void NibblesSwapped(Bytes page, std::int64_t token, float* x) {
  Right4(page, token, x);
  for (std::int64_t d = 0; d < kDim; d += 2) std::swap(x[d], x[d + 1]);
}
void PowerOfTwoScales4(Bytes page, std::int64_t token, float* x) {
  Decode4With(page + token * 256, x, [&](unsigned code, std::int64_t d) {
    const std::uint8_t byte = page[mla::kV41Fp4.scale_at(token, kPageTokens4) + d / 16];
    return E2M1ToFloat(code) * ToFloat(ue8m0{byte});
  });
}
void NeighbourScales4(Bytes page, std::int64_t token, float* x) {
  Decode4With(page + token * 256, x, [&](unsigned code, std::int64_t d) {
    return E2M1ToFloat(code) * Scale4(page, token ^ 1, d / 16);
  });
}
void GroupsOf32(Bytes page, std::int64_t token, float* x) {  // as in expert weights
  Decode4With(page + token * 256, x, [&](unsigned code, std::int64_t d) {
    return E2M1ToFloat(code) * Scale4(page, token, d / 32);
  });
}
void SubnormalAsNormal(Bytes page, std::int64_t token, float* x) {
  Decode4With(page + token * 256, x, [&](unsigned code, std::int64_t d) {
    float value = E2M1ToFloat(code);
    if ((code & 7u) < 2) value = (1 + 0.5f * static_cast<float>(code & 1u)) / 2;
    return (code & 8u ? -std::abs(value) : value) * Scale4(page, token, d / 16);
  });
}
void TwosComplement(Bytes page, std::int64_t token, float* x) {
  Decode4With(page + token * 256, x, [&](unsigned code, std::int64_t d) {
    const int value = code < 8 ? static_cast<int>(code) : static_cast<int>(code) - 16;
    return static_cast<float>(value) * Scale4(page, token, d / 16);
  });
}

// --- a kernel that is right unless told otherwise ---

// Where the page of a token of cache4 begins.
std::int64_t PageOffset(const Cache& cache, std::int64_t page) { return page * cache.page_stride; }
std::int64_t PageOffset32(const Cache& cache, std::int64_t page) {
  return static_cast<std::uint32_t>(page) * static_cast<std::uint32_t>(cache.page_stride);
}

struct Recipe {
  Decoder decode8 = Right8, decode4 = Right4;
  std::int64_t page_tokens8 = kPageTokens8;
  std::int64_t (*page_offset4)(const Cache&, std::int64_t page) = PageOffset;
  bool window = true, extra = true;
  bool ignores_length = false;  // and reads -1 as token 0
  bool drops_last = false;      // the last used column of both lists
  bool averages = false;        // a softmax for each cache, results averaged
  bool rounds_sum = false;      // the row sum adds weights rounded to e4m3
  void (*change_sink)(float& sink) = nullptr;
};

template <class Body>
void WalkList(const Recipe& recipe, const TokenLists& lists, std::int64_t width, std::int64_t row,
              const Body& body) {
  std::int64_t length = lists.length == nullptr ? width : lists.length[row];
  if (recipe.ignores_length) length = width;
  if (recipe.drops_last) length = std::max<std::int64_t>(length - 1, 0);
  for (std::int64_t j = 0; j < length; ++j) {
    const std::int64_t index = lists.indices[row * width + j];
    if (index >= 0 || recipe.ignores_length) body(std::max<std::int64_t>(index, 0));
  }
}

// Rows of bf16 numbers for one query row.
struct Keys {
  std::vector<bf16> numbers;
  void Add(Decoder decode, Bytes page, std::int64_t token) {
    float x[kDim];
    decode(page, token, x);
    for (float each : x) numbers.push_back(ToBF16(each));
  }
};

Keys DecodeRow(const Recipe& recipe, const Args& args, std::int64_t row, bool window, bool extra) {
  Keys keys;
  if (window) {
    WalkList(recipe, args.window, kWindow, row, [&](std::int64_t index) {
      const std::int64_t page = std::min(index / recipe.page_tokens8, args.cache8.pages - 1);
      keys.Add(recipe.decode8, args.cache8.bytes + PageOffset(args.cache8, page),
               index % recipe.page_tokens8);
    });
  }
  if (extra) {
    WalkList(recipe, args.extra, kExtra, row, [&](std::int64_t index) {
      keys.Add(recipe.decode4,
               args.cache4.bytes + recipe.page_offset4(args.cache4, index / kPageTokens4),
               index % kPageTokens4);
    });
  }
  return keys;
}

// The row sums with rounded weights, put right into the finished outputs.
void RoundSums(const cpu::LatentQuery& query, const float* largest, const float* lse) {
  for (int head = 0; head < query.heads; ++head) {
    float rounded = 0;
    for (const bf16* key : query.rows) {
      float x = 0;
      for (std::int64_t d = 0; d < kDim; ++d)
        x += ToFloat(query.q[head * kDim + d]) * ToFloat(key[d]);
      rounded += ToFloat(ToE4M3(std::exp(x * query.scale - largest[head])));
    }
    const float sink = query.sink == nullptr ? 0 : std::exp(query.sink[head] - largest[head]);
    if (rounded == 0 || std::isinf(sink)) continue;
    const float sum = std::exp(lse[head] - largest[head]);
    for (std::int64_t d = 0; d < kDim; ++d) {
      bf16& x = query.out[head * kDim + d];
      x = ToBF16(ToFloat(x) * (sum + sink) / (rounded + sink));
    }
  }
}

void AttendRow(const Recipe& recipe, const Args& args, std::int64_t row, const Keys& keys,
               bf16* out) {
  std::vector<const bf16*> rows;
  for (std::size_t at = 0; at < keys.numbers.size(); at += kDim) rows.push_back(&keys.numbers[at]);
  std::vector<float> sinks, largest(kHeads), lse(kHeads);
  cpu::LatentQuery query;
  query.heads = kHeads;
  query.q = args.q + row * kHeads * kDim;
  query.rows = rows;
  query.scale = args.sm_scale;
  query.sink = args.attn_sink;
  query.out = out;
  query.max_logits = largest.data();
  query.lse = lse.data();
  if (recipe.change_sink != nullptr && args.attn_sink != nullptr) {
    sinks.assign(args.attn_sink, args.attn_sink + kHeads);
    for (float& sink : sinks) recipe.change_sink(sink);
    query.sink = sinks.data();
  }
  cpu::Attend(*cpu::RunnableLatentLeaves().front(), query);
  if (recipe.rounds_sum) RoundSums(query, largest.data(), lse.data());
}

void RunRow(const Recipe& recipe, const Args& args, std::int64_t row) {
  bf16* out = args.out + row * kHeads * kDim;
  if (!recipe.averages) {
    return AttendRow(recipe, args, row, DecodeRow(recipe, args, row, recipe.window, recipe.extra),
                     out);
  }
  std::vector<bf16> other(static_cast<std::size_t>(kHeads * kDim));
  AttendRow(recipe, args, row, DecodeRow(recipe, args, row, true, false), out);
  AttendRow(recipe, args, row, DecodeRow(recipe, args, row, false, true), other.data());
  for (std::size_t i = 0; i < other.size(); ++i) {
    out[i] = ToBF16(0.5f * (ToFloat(out[i]) + ToFloat(other[i])));
  }
}

Mutant Make(const char* name, const char* mistake, void (*change)(Recipe&),
            bool (*applies)(const Problem&) = nullptr, std::string variant = "") {
  Recipe recipe;
  change(recipe);
  return {name, mistake,
          [recipe](const Problem& problem, const Bundle& inputs, Bundle& outputs) {
            const Args args = Bind(problem, inputs, outputs);
            ParallelFor(args.b, 0, [&](std::int64_t row) { RunRow(recipe, args, row); });
          },
          applies, std::move(variant)};
}

// Some list does not fill its columns.
bool HasShortLists(const Problem& problem) {
  const std::vector<std::int64_t>* lengths = problem.integers("sequence_lengths");
  if (lengths == nullptr) return false;
  return std::any_of(lengths->begin(), lengths->end(),
                     [](std::int64_t length) { return length < 2 * kExtra; });
}

bool HasSinks(const Problem& problem) { return problem.variant != "no_sink"; }

bool PassesFourGigabytes(const Problem& problem) {
  const std::vector<std::int64_t>* pool = problem.integers("allocated_cache_4");
  return pool == nullptr || pool->front() * kPageBytes4 > std::int64_t{1} << 32;
}

bool HasSecondPageHalf(const Problem& problem) { return problem.axis("N8") > 0; }

std::vector<Mutant> DecoderMutants() {
  return {
      Make("records8", "reads cache8 as records of 512 codes and 16 scales",
           [](Recipe& r) { r.decode8 = Records8; }),
      Make("records4", "reads cache4 as records of 256 bytes of codes and 32 scales",
           [](Recipe& r) { r.decode4 = Records4; }),
      Make("nibbles_swapped", "takes the high nibble for the even dim",
           [](Recipe& r) { r.decode4 = NibblesSwapped; }),
      Make("ue8m0_scales4", "decodes the e4m3 scales of cache4 as powers of two",
           [](Recipe& r) { r.decode4 = PowerOfTwoScales4; }),
      Make("neighbour_scales8", "uses the scales of the neighbouring token of cache8",
           [](Recipe& r) { r.decode8 = NeighbourScales8; }),
      Make("neighbour_scales4", "uses the scales of the neighbouring token of cache4",
           [](Recipe& r) { r.decode4 = NeighbourScales4; }),
      Make("groups_of_64", "scales of cache8 cover 64 dims instead of 32",
           [](Recipe& r) { r.decode8 = GroupsOf64; }),
      Make("groups_of_32", "scales of cache4 cover 32 dims, as in expert weights",
           [](Recipe& r) { r.decode4 = GroupsOf32; }),
      Make("subnormal_as_normal", "decodes 4-bit codes 0, 1, 8, 9 with an implicit bit",
           [](Recipe& r) { r.decode4 = SubnormalAsNormal; }),
      Make("codes_as_integers", "decodes 4-bit codes as two's complement integers",
           [](Recipe& r) { r.decode4 = TwosComplement; }),
  };
}

std::vector<Mutant> ListMutants() {
  return {
      Make("window_omitted", "attends to the 4-bit cache only",
           [](Recipe& r) { r.window = false; }),
      Make("extra_omitted", "attends to the 8-bit cache only", [](Recipe& r) { r.extra = false; }),
      Make(
          "none_as_token_0", "ignores the lengths and reads -1 as token 0",
          [](Recipe& r) { r.ignores_length = true; }, HasShortLists),
      Make("last_key_dropped", "both lists end one column early",
           [](Recipe& r) { r.drops_last = true; }),
      Make(
          "pages_of_128", "splits indices of cache8 by the page size of cache4",
          [](Recipe& r) { r.page_tokens8 = kPageTokens4; }, HasSecondPageHalf),
      Make(
          "page_offset_32_bits", "multiplies page number and page bytes in 32 bits",
          [](Recipe& r) { r.page_offset4 = PageOffset32; }, PassesFourGigabytes,
          std::string(paged::kOriginalAddress)),
  };
}

std::vector<Mutant> SoftmaxMutants() {
  return {
      Make(
          "sink_omitted", "the sink does not enlarge the denominator",
          [](Recipe& r) { r.change_sink = [](float& sink) { sink = -INFINITY; }; }, HasSinks),
      Make(
          "sink_scaled", "the sink is multiplied by sm_scale, as if it came before scaling",
          [](Recipe& r) { r.change_sink = [](float& sink) { sink *= mla::kDefaultScale; }; },
          HasSinks),
      Make(
          "sink_twice", "the sink is added once per cache",
          [](Recipe& r) { r.change_sink = [](float& sink) { sink += std::log(2.0f); }; }, HasSinks),
      Make("two_softmaxes", "averages the results of the two caches",
           [](Recipe& r) { r.averages = true; }),
      Make("row_sum_from_rounded_p", "the row sum adds weights rounded to e4m3",
           [](Recipe& r) { r.rounds_sum = true; }),
  };
}

}  // namespace

std::vector<Mutant> Mutants() {
  std::vector<Mutant> mutants = DecoderMutants();
  for (Mutant& mutant : ListMutants()) mutants.push_back(std::move(mutant));
  for (Mutant& mutant : SoftmaxMutants()) mutants.push_back(std::move(mutant));
  return mutants;
}

}  // namespace assay::mixed_mla_decode
