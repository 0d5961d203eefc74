// The definition, tensors, checks, cost and policy of mixed_mla_decode.
#include "ops/mla/inputs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "ops/mixed_mla_decode/batch.h"
#include "ops/mixed_mla_decode/lists.h"
#include "ops/mixed_mla_decode/spec.h"
#include "ops/mla/rows.h"
#include "ops/paged/pages.h"
#include "ops/room.h"

namespace assay::mixed_mla_decode {
namespace {

constexpr std::uint64_t kSampledTokens = kAuxiliaryTensor + 270;

// Caches are bytes: their last dimension counts the bytes of a token, but a page is planar.
std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kBF16, {"B", "H", "D"}},
      {"cache8", DType::kU8, {"N8", "P8", "1", "528"}},
      {"cache4", DType::kU8, {"N4", "P4", "1", "288"}},
      {"indices", DType::kI32, {"B", "1", "K8"}},
      {"topk_length", DType::kI32, {"B"}, /*optional=*/true},
      {"extra_indices", DType::kI32, {"B", "1", "K4"}},
      {"extra_topk_length", DType::kI32, {"B"}, /*optional=*/true},
      {"attn_sink", DType::kF32, {"H"}, /*optional=*/true},
      {"sm_scale", DType::kF32, {}, /*optional=*/true},
  };
}

[[noreturn]] void Refuse(const Problem& problem, const std::string& what) {
  BadInput(problem.definition->name + ": " + what);
}

bool IsVariant(const Problem& problem, std::string_view name) { return problem.variant == name; }

void ValidateAxes(const Problem& problem) {
  BatchOf(problem, 0);
  const std::pair<const char*, const char*> tags[] = {{"kv_format", mla::kV41.tag},
                                                      {"extra_format", mla::kV41Fp4.tag}};
  for (const auto& [name, supported] : tags) {
    const std::string* tag = problem.text(name);
    if (tag != nullptr && *tag != supported) {
      Refuse(problem, std::string(name) + " = '" + *tag + "', supported is '" + supported + "'");
    }
  }
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  const bool no_length = IsVariant(problem, "no_length") || IsVariant(problem, "special");
  for (const TensorSpec& spec : InputSpecs()) {
    if (spec.name.ends_with("topk_length") && no_length) continue;
    if (spec.name == "attn_sink" && IsVariant(problem, "no_sink")) continue;
    if (spec.name == "sm_scale" && !IsVariant(problem, "special")) continue;
    TensorLayout layout = Resolve(spec, problem);
    if (spec.name == "cache8") layout.shape[0] = CachePages8(problem);
    if (spec.name == "cache4") layout.shape[0] = CachePages4(problem);
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

// At original addresses the pools are holes around the referenced pages. A page of a pool begins
// anywhere in a page of memory, hence one more of those for each.
std::size_t ResidentBytes(const Problem& problem) {
  const std::size_t all = Bundle::ArenaBytes(InputLayouts(problem));
  const std::int64_t pool = CachePages8(problem) * kPageBytes8 + CachePages4(problem) * kPageBytes4;
  const std::int64_t used =
      problem.axis("N8") * (kPageBytes8 + 8192) + problem.axis("N4") * (kPageBytes4 + 8192);
  return all - static_cast<std::size_t>(std::max<std::int64_t>(pool - used, 0));
}

// --- caches ---

struct CacheKind {
  const char* name;
  const mla::RowFormat& format;
  std::int64_t page_tokens;
  bool takes_e4m3;  // as a dtype of the bytes
};
constexpr CacheKind kCache8{"cache8", mla::kV41, kPageTokens8, true};
constexpr CacheKind kCache4{"cache4", mla::kV41Fp4, kPageTokens4, false};

// What a number of bytes per token probably means.
std::string ProbableLayout(std::int64_t token_bytes) {
  switch (token_bytes) {
    case 656:
      return ": probably V3.2 records (512 e4m3, 4 fp32 scales, 64 bf16)";
    case 584:
      return ": probably V4 pages (448 e4m3 and 64 bf16, 8 scale bytes)";
    case 368:
      return ": probably an MXFP4 latent";
    case 512:
      return ": probably an 8-bit latent with one scale for the tensor";
    default:
      return "";
  }
}

[[noreturn]] void RefuseShape(const Problem& problem, const CacheKind& kind, const Tensor& tensor,
                              std::int64_t pages) {
  const Shape declared = {pages, kind.page_tokens, 1, kind.format.token_bytes()};
  const bool tokens = tensor.shape.size() == 4;
  Refuse(problem, std::string(kind.name) + " is " + std::string(DTypeName(tensor.dtype)) +
                      ShapeText(tensor.shape) + ", expected uint8" + ShapeText(declared) +
                      " or uint8[" + std::to_string(pages) + ",page stride], the layout " +
                      kind.format.tag + (tokens ? ProbableLayout(tensor.shape[3]) : ""));
}

Cache BindCache(const Problem& problem, const Bundle& inputs, const CacheKind& kind,
                std::int64_t pages) {
  const Tensor* tensor = inputs.find(kind.name);
  if (tensor == nullptr) Refuse(problem, "input '" + std::string(kind.name) + "' is missing");
  const bool bytes = tensor->dtype == DType::kU8;
  const bool declared =
      tensor->shape == Shape{pages, kind.page_tokens, 1, kind.format.token_bytes()};
  const bool padded = tensor->shape.size() == 2 && tensor->shape[0] == pages && bytes;
  if ((!declared && !padded) || (!bytes && !(kind.takes_e4m3 && tensor->dtype == DType::kE4M3))) {
    RefuseShape(problem, kind, *tensor, pages);
  }
  const std::int64_t page_bytes = kind.page_tokens * kind.format.token_bytes();
  Cache cache{reinterpret_cast<const std::uint8_t*>(tensor->data), pages, page_bytes};
  if (padded) cache.page_stride = tensor->shape[1];
  return cache;
}

// Ruling 13: codes and scales of attended tokens must decode to finite bf16 numbers.
void CheckTokens8(const Problem& problem, const Args& args, std::int64_t row) {
  ForEachToken(args.window, kWindow, row, [&](std::int64_t index) {
    const TokenBytes token = Locate(args.cache8, mla::kV41, kPageTokens8, index);
    for (std::int64_t d = 0; d < kDim; ++d) {
      const float value = ToFloat(e4m3{token.data[d]}) * ToFloat(ue8m0{token.scales[d / 32]});
      if (std::isfinite(ToFloat(ToBF16(value)))) continue;
      Refuse(problem, "indices[" + std::to_string(row) + "] has token " + std::to_string(index) +
                          " of cache8, whose dim " + std::to_string(d) + " is code " +
                          std::to_string(token.data[d]) + " with scale byte " +
                          std::to_string(token.scales[d / 32]) + ", not a finite number");
    }
  });
}

void CheckTokens4(const Problem& problem, const Args& args, std::int64_t row) {
  ForEachToken(args.extra, kExtra, row, [&](std::int64_t index) {
    const TokenBytes token = Locate(args.cache4, mla::kV41Fp4, kPageTokens4, index);
    for (std::int64_t group = 0; group < mla::kV41Fp4.scale_bytes; ++group) {
      if ((token.scales[group] & 0x7Fu) != 0x7Fu) continue;
      Refuse(problem, "extra_indices[" + std::to_string(row) + "] has token " +
                          std::to_string(index) + " of cache4, whose scale " +
                          std::to_string(group) + " is byte " +
                          std::to_string(token.scales[group]) + ", NaN");
    }
  });
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  mla::CheckLengths(problem, inputs.find("topk_length"), kWindow);
  mla::CheckLengths(problem, inputs.find("extra_topk_length"), kExtra);
  const std::string refusal = Refusal(args);
  if (!refusal.empty()) Refuse(problem, refusal);
  mla::CheckSinks(problem, inputs.find("attn_sink"));
  mla::CheckQueries(problem, inputs["q"]);
  for (std::int64_t row = 0; row < args.b; ++row) {
    CheckTokens8(problem, args, row);
    CheckTokens4(problem, args, row);
  }
}

// --- cost and policy ---

// Tokens of all rows of one cache; `distinct` counts each once.
struct TokenCount {
  std::int64_t all = 0, distinct = 0, columns = 0;
};

TokenCount CountTokens(const TokenLists& lists, std::int64_t width, std::int64_t rows) {
  TokenCount count;
  std::vector<std::int64_t> tokens;
  for (std::int64_t row = 0; row < rows; ++row) {
    count.columns += lists.length == nullptr ? width : lists.length[row];
    ForEachToken(lists, width, row, [&](std::int64_t index) { tokens.push_back(index); });
  }
  count.all = static_cast<std::int64_t>(tokens.size());
  std::sort(tokens.begin(), tokens.end());
  count.distinct = std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  return count;
}

Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  const TokenCount window = CountTokens(args.window, kWindow, args.b);
  const TokenCount extra = CountTokens(args.extra, kExtra, args.b);
  Cost cost;
  cost.exponentials = static_cast<double>(kHeads * (window.all + extra.all));
  cost.flops = 4 * static_cast<double>(kDim) * cost.exponentials;
  cost.bytes = static_cast<double>(
      window.distinct * mla::kV41.token_bytes() + extra.distinct * mla::kV41Fp4.token_bytes() +
      2 * 2 * kHeads * kDim * args.b + 4 * (window.columns + extra.columns));
  return cost;
}

// A full check costs 84 MFLOP a row; batches beyond what engines capture are sampled.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  constexpr std::int64_t kAllUpTo = 64;
  const std::int64_t rows = problem.axis("B");
  std::vector<std::int64_t> tokens;
  for (std::int64_t n = 0; n < std::min(rows, kAllUpTo); ++n) tokens.push_back(n);
  for (std::uint64_t n = 0; n < kAllUpTo && rows > kAllUpTo; ++n) {
    tokens.push_back(static_cast<std::int64_t>(Mix64(seed, kSampledTokens, n) %
                                               static_cast<std::uint64_t>(rows)));
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return {mla::RowsOfTokens(tokens)};
}

std::vector<OutputPolicy> Policies(const Problem&) { return {mla::Policy()}; }

const std::int32_t* Optional32(const Problem& problem, const Bundle& inputs, const char* name,
                               std::int64_t rows) {
  const Tensor* tensor =
      RequireTensor(problem, inputs, name, DType::kI32, {{rows}}, /*optional=*/true);
  return tensor == nullptr ? nullptr : tensor->as<std::int32_t>();
}

}  // namespace

Args BindInputs(const Problem& problem, const Bundle& inputs) {
  const std::int64_t b = problem.axis("B");
  const auto indices = [&](const char* name, std::int64_t width) {
    return RequireTensor(problem, inputs, name, DType::kI32, {{b, 1, width}, {b, width}})
        ->as<std::int32_t>();
  };
  Args args;
  args.b = b;
  args.q =
      RequireTensor(problem, inputs, "q", DType::kBF16, {{b, kHeads, kDim}, {b, 1, kHeads, kDim}})
          ->as<bf16>();
  args.cache8 = BindCache(problem, inputs, kCache8, CachePages8(problem));
  args.cache4 = BindCache(problem, inputs, kCache4, CachePages4(problem));
  args.window = {indices("indices", kWindow), Optional32(problem, inputs, "topk_length", b)};
  args.extra = {indices("extra_indices", kExtra),
                Optional32(problem, inputs, "extra_topk_length", b)};
  const Tensor* sink = RequireTensor(problem, inputs, "attn_sink", DType::kF32, {{kHeads}},
                                     /*optional=*/true);
  if (sink != nullptr) args.attn_sink = sink->as<float>();
  args.sm_scale = mla::ScaleOf(problem, inputs);
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindInputs(problem, inputs);
  args.out = outputs["out"].as<bf16>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "mixed_mla_decode";
  family.summary = "one token per row over 8-bit window and 4-bit compressed latents, with a sink";
  family.definitions = {{"mixed_mla_decode_deepseek41_h64_d512_k8128_k4512",
                         {{"H", kHeads},
                          {"D", kDim},
                          {"K8", kWindow},
                          {"K4", kExtra},
                          {"P8", kPageTokens8},
                          {"P4", kPageTokens4}},
                         {"B", "N8", "N4"}}};
  family.inputs = InputSpecs();
  family.outputs = {{"out", DType::kBF16, {"B", "H", "D"}, false, 2}};
  family.attributes = paged::AttributesRead();
  for (const char* own : {"kv_format", "extra_format", "allocated_cache_8", "allocated_cache_4"}) {
    family.attributes.emplace_back(own);
  }
  family.variants = {"default", "no_length", "no_sink",
                     "special", "poison",    std::string(paged::kOriginalAddress)};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = InputLayouts;
  family.resident_bytes = ResidentBytes;
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.backends = Backends();
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::mixed_mla_decode
