// The definition, tensors, checks, cost, rows and policy of qsa_sparse_gqa_decode. Content:
// content.cpp.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"
#include "ops/room.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

constexpr const char* kOperation = "qsa_sparse_gqa_decode";

std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kBF16, {"B", "24", "256"}},
      {"k_cache", DType::kBF16, {"NP", "64", "2", "256"}},
      {"v_cache", DType::kBF16, {"NP", "64", "2", "256"}},
      {"page_table", DType::kI32, {"B", "MP"}},
      {"seq_lens", DType::kI32, {"B"}},
      {"block_ids", DType::kI32, {"B", "512"}, /*optional=*/true},
      {"token_ids", DType::kI32, {"B", "2051"}, /*optional=*/true},
      {"scale", DType::kF32, {}, /*optional=*/true},
  };
}

// Rows are (b, h), numbered b * 24 + h.
std::vector<TensorSpec> OutputSpecs() {
  TensorSpec out{"out", DType::kBF16, {"B", "24", "256"}};
  out.row_rank = 2;
  return {out};
}

void ValidateAxes(const Problem& problem) {
  if (problem.axis("P") != kPageTokens) {
    BadInput(problem.definition->name + ": axis P = " + std::to_string(problem.axis("P")) +
             ", but a page holds 64 tokens (16 is the page size of the index cache)");
  }
  paged::MakeBatch(problem, PagesOfTokens);
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  const std::int64_t batch = problem.axis("B"), pages = paged::CachePages(problem);
  const bool tokens = problem.variant == "token_ids";
  std::vector<TensorLayout> layouts = {
      {"q", DType::kBF16, {batch, kHeads, kHeadSize}},
      {"k_cache", DType::kBF16, {pages, kPageTokens, kKvHeads, kHeadSize}},
      {"v_cache", DType::kBF16, {pages, kPageTokens, kKvHeads, kHeadSize}},
      {"page_table", DType::kI32, {batch, problem.axis("MP")}},
      {"seq_lens", DType::kI32, {batch}},
      {tokens ? "token_ids" : "block_ids", DType::kI32, {batch, tokens ? kMostTokens : kTopK}},
  };
  if (problem.variant == "other_scale") layouts.push_back({"scale", DType::kF32, {}});
  return layouts;
}

// At original addresses pages without a selected token stay holes: a row selects from 513 pages at
// most.
std::size_t ResidentBytes(const Problem& problem) {
  const std::size_t all = Bundle::ArenaBytes(InputLayouts(problem));
  if (problem.variant != paged::kOriginalAddress) return all;
  const std::int64_t touched = std::min(problem.axis("NP"), (kTopK + 1) * problem.axis("B"));
  return all - static_cast<std::size_t>(2 * (paged::CachePages(problem) - touched) * kPageBytes);
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  Check(args);
  CheckLists(args);
}

// Q K and P V: 2 flops a channel, head and token each. Bytes: K and V of every distinct attended
// token, q, out, lengths, lists, live page-table entries.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  std::set<std::int64_t> distinct;
  double tokens = 0, entries = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    for (std::int64_t t : AttendedTokens(args, b)) {
      const std::int64_t page = args.page_table[b * args.table_width + t / kPageTokens];
      distinct.insert(page * kPageTokens + t % kPageTokens);
      ++tokens;
    }
    entries += static_cast<double>(PagesOfTokens(args.seq_lens[b]));
  }
  Cost cost;
  cost.flops = 4 * kHeads * kHeadSize * tokens;
  cost.bytes =
      2 * kTokenElements * 2 * static_cast<double>(distinct.size()) + 4 * entries +
      static_cast<double>(args.batch * (2 * kHeads * kHeadSize * 2 + 4 + 4 * args.list_width));
  cost.exponentials = kHeads * tokens;
  return cost;
}

// Batches of up to 4 rows in full; of larger ones the first and last head of both KV heads in every
// row, and 96 random heads.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  const std::int64_t batch = problem.axis("B"), total = batch * kHeads;
  std::set<std::int64_t> rows;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const bool edge = h % kGroupHeads == 0 || h % kGroupHeads == kGroupHeads - 1;
      if (batch <= 4 || edge) rows.insert(b * kHeads + h);
    }
  }
  for (std::uint64_t n = 0; n < 96 && total > 0; ++n) {
    rows.insert(static_cast<std::int64_t>(Mix64(seed, kAuxiliaryTensor + 240, n) %
                                          static_cast<std::uint64_t>(total)));
  }
  return {{rows.begin(), rows.end()}};
}

std::int64_t SliceOfRow(const Problem&, const Bundle&, std::int64_t row) { return row / kHeads; }

// "strict" is a sound bound for kernels that round P to bf16: 2^-9 of every summand's magnitude for
// the rounding and as much for the sum that does not share it, and half an ulp of the result.
std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy policy;
  policy.grades = {{"strict", 0, 0, 0x1.0p-8, 0.5}, {"captured", 0.005, 0.016, 0, 0}};
  policy.slice_of_row = SliceOfRow;
  return {policy};
}

// --- binding ---

[[noreturn]] void WrongTensor(const Tensor& tensor, const std::string& wanted) {
  BadInput(std::string(kOperation) + ": " + tensor.name + " is " +
           std::string(DTypeName(tensor.dtype)) + ShapeText(tensor.shape) + ", expected " + wanted);
}

const bf16* BindCache(const Bundle& inputs, const char* name, Args& args) {
  const Tensor* cache = inputs.find(name);
  if (cache == nullptr) BadInput(std::string(kOperation) + ": input '" + name + "' is missing");
  if (cache->dtype == DType::kE4M3) {
    WrongTensor(*cache, "bfloat16 (an FP8 cache is another definition)");
  }
  if (cache->shape.size() == 4 && cache->shape[1] != kPageTokens) {
    WrongTensor(*cache, "pages of 64 tokens");
  }
  const std::int64_t pages = cache->shape.size() == 4 ? cache->shape[0] : 0;
  if (cache->dtype != DType::kBF16 ||
      cache->shape != Shape{pages, kPageTokens, kKvHeads, kHeadSize}) {
    WrongTensor(*cache, "bfloat16[NP,64,2,256]");
  }
  args.pages = pages;
  return cache->as<bf16>();
}

void BindLists(const Problem& problem, const Bundle& inputs, Args& args) {
  const auto list = [&](const char* name, std::int64_t width) {
    return RequireTensor(problem, inputs, name, DType::kI32, {{args.batch, width}},
                         /*optional=*/true);
  };
  const Tensor* blocks = list("block_ids", kTopK);
  const Tensor* tokens = list("token_ids", kMostTokens);
  if ((blocks == nullptr) == (tokens == nullptr)) {
    BadInput(std::string(kOperation) + ": give exactly one of block_ids and token_ids, not " +
             (blocks == nullptr ? "none" : "both"));
  }
  if (blocks != nullptr) args.block_ids = blocks->as<std::int32_t>();
  if (tokens != nullptr) args.token_ids = tokens->as<std::int32_t>();
  args.list_width = blocks != nullptr ? kTopK : kMostTokens;
}

}  // namespace

std::int64_t PagesOfTokens(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

Args BindInputs(const Problem& problem, const Bundle& inputs) {
  Args args;
  args.batch = problem.axis("B");
  args.table_width = problem.axis("MP");
  const auto required = [&](const char* name, DType dtype, const Shape& shape) -> const Tensor& {
    return *RequireTensor(problem, inputs, name, dtype, {shape});
  };
  args.q = required("q", DType::kBF16, {args.batch, kHeads, kHeadSize}).as<bf16>();
  args.k_cache = BindCache(inputs, "k_cache", args);
  const std::int64_t pages = args.pages;
  args.v_cache = BindCache(inputs, "v_cache", args);
  if (args.pages != pages) {
    BadInput(std::string(kOperation) + ": k_cache has " + std::to_string(pages) +
             " pages, v_cache has " + std::to_string(args.pages));
  }
  args.page_table =
      required("page_table", DType::kI32, {args.batch, args.table_width}).as<std::int32_t>();
  args.seq_lens = required("seq_lens", DType::kI32, {args.batch}).as<std::int32_t>();
  BindLists(problem, inputs, args);
  const Tensor* scale =
      RequireTensor(problem, inputs, "scale", DType::kF32, {Shape{}}, /*optional=*/true);
  if (scale != nullptr) args.scale = scale->as<float>()[0];
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindInputs(problem, inputs);
  args.out = outputs["out"].as<bf16>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = kOperation;
  family.summary = "grouped-query attention of one token over selected groups of 4 tokens";
  family.definitions = {
      {"qsa_sparse_gqa_decode_qwen38_h24_kv2_d256_topk512_c4", {}, {"B", "MP", "NP", "P"}}};
  family.inputs = InputSpecs();
  family.outputs = OutputSpecs();
  family.attributes = paged::AttributesRead();
  family.variants = {"clustered",
                     "uniform",
                     "contiguous",
                     "newest",
                     "token_ids",
                     "shuffled",
                     "beyond_length",
                     "dominant",
                     "equal_scores",
                     "other_scale",
                     std::string(paged::kOriginalAddress)};
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

}  // namespace assay::qsa_sparse_gqa_decode
