// The definition, tensors, checks, cost and policy of qsa_index_topk_decode. Content: content.cpp.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "ops/qsa_index_topk_decode/spec.h"
#include "ops/room.h"

namespace assay::qsa_index_topk_decode {
namespace {

constexpr const char* kOperation = "qsa_index_topk_decode";

std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kBF16, {"B", "4", "128"}},
      {"index_k_cache", DType::kBF16, {"NP", "16", "1", "128"}},
      {"page_table", DType::kI32, {"B", "MP"}},
      {"seq_lens", DType::kI32, {"B"}, /*optional=*/true},
      {"group_lens", DType::kI32, {"B"}, /*optional=*/true},
  };
}

std::vector<TensorSpec> OutputSpecs() { return {{"block_ids", DType::kI32, {"B", "512"}}}; }

void ValidateAxes(const Problem& problem) {
  if (problem.axis("P") != kPageGroups) {
    BadInput(problem.definition->name + ": axis P = " + std::to_string(problem.axis("P")) +
             ", but a page holds 16 group keys (the page table may be in KV pages of 64 tokens or "
             "in scheduler pages)");
  }
  paged::MakeBatch(problem, PagesOfTokens);
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  const std::int64_t batch = problem.axis("B");
  const std::int64_t heads = problem.variant == "padded_query" ? 2 * kHeads : kHeads;
  return {
      {"q", DType::kBF16, {batch, heads, kHeadSize}},
      {"index_k_cache", DType::kBF16, {paged::CachePages(problem), kPageGroups, 1, kHeadSize}},
      {"page_table", DType::kI32, {batch, problem.axis("MP")}},
      {problem.variant == "group_lens" ? "group_lens" : "seq_lens", DType::kI32, {batch}},
  };
}

std::size_t ResidentBytes(const Problem& problem) {
  const std::vector<TensorLayout> layouts = InputLayouts(problem);
  const auto holes =
      static_cast<std::size_t>((paged::CachePages(problem) - problem.axis("NP")) * kPageBytes);
  return Bundle::ArenaBytes(layouts) - holes;
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  Check(BindInputs(problem, inputs));
}

// Scores: 2 flops a channel and head. Bytes: every distinct live key, q, lengths, live page-table
// entries, ids.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  std::map<std::int32_t, std::int64_t> keys_of_page;  // most keys that a row reads of it
  double groups = 0, entries = 0, keys = 0;
  const std::vector<std::int64_t> counts = GroupCounts(args);
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t n = counts[static_cast<std::size_t>(b)];
    groups += static_cast<double>(n);
    for (std::int64_t first = 0; first < n; first += kPageGroups, ++entries) {
      std::int64_t& most =
          keys_of_page[args.page_table[b * args.table_width + first / kPageGroups]];
      most = std::max(most, std::min(n - first, kPageGroups));
    }
  }
  for (const auto& [page, count] : keys_of_page) keys += static_cast<double>(count);
  Cost cost;
  cost.flops = 2 * kHeads * kHeadSize * groups;
  cost.bytes = kKeyBytes * keys + 4 * entries +
               static_cast<double>(args.batch) * (kHeads * kKeyBytes + 4 + 4 * kTopK);
  return cost;
}

// The reference of the longest captured batch takes 30 ms: always all rows.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t) {
  return {EveryRow(problem.axis("B"))};
}

std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy ids;
  ids.judged_by_checks = true;
  return {ids};
}

[[noreturn]] void WrongTensor(const Tensor& tensor, const std::string& wanted) {
  BadInput(std::string(kOperation) + ": " + tensor.name + " is " +
           std::string(DTypeName(tensor.dtype)) + ShapeText(tensor.shape) + ", expected " + wanted);
}

const Tensor& Required(const Bundle& inputs, const char* name) {
  const Tensor* tensor = inputs.find(name);
  if (tensor == nullptr) BadInput(std::string(kOperation) + ": input '" + name + "' is missing");
  return *tensor;
}

const bf16* BindCache(const Bundle& inputs, Args& args) {
  const Tensor& cache = Required(inputs, "index_k_cache");
  const bool paged = cache.shape.size() == 4;
  if (paged && cache.shape[1] != kPageGroups) {
    WrongTensor(cache,
                "pages of 16 group keys (the page table may be in KV pages of 64 tokens or "
                "in scheduler pages)");
  }
  if (cache.dtype == DType::kE4M3) {
    WrongTensor(cache, "bfloat16 (the FP8 cache is another operator)");
  }
  if (!paged || cache.dtype != DType::kBF16 || cache.shape[2] != 1 || cache.shape[3] != kHeadSize) {
    WrongTensor(cache, "bfloat16[NP,16,1,128]");
  }
  args.pages = cache.shape[0];
  return cache.as<bf16>();
}

const std::int32_t* BindLengths(const Bundle& inputs, const char* name, std::int64_t batch) {
  const Tensor* lengths = inputs.find(name);
  if (lengths == nullptr) return nullptr;
  if (lengths->dtype != DType::kI32 || lengths->shape != Shape{batch}) {
    WrongTensor(*lengths, "int32[" + std::to_string(batch) + "]");
  }
  return lengths->as<std::int32_t>();
}

}  // namespace

std::int64_t PagesOfTokens(std::int64_t tokens) {
  return (tokens / kGroupTokens + kPageGroups - 1) / kPageGroups;
}

Args BindInputs(const Problem& problem, const Bundle& inputs) {
  Args args;
  args.batch = problem.axis("B");
  args.table_width = problem.axis("MP");
  const Tensor& q = Required(inputs, "q");
  const bool shaped = q.shape.size() == 3 && q.shape[0] == args.batch && q.shape[2] == kHeadSize &&
                      (q.shape[1] == kHeads || q.shape[1] == 2 * kHeads);
  if (!shaped || q.dtype != DType::kBF16) {
    WrongTensor(q, "bfloat16[" + std::to_string(args.batch) +
                       ",4,128] or 8 heads of which the "
                       "last 4 are zero");
  }
  args.q_heads = q.shape[1];
  args.q = q.as<bf16>();
  args.index_k_cache = BindCache(inputs, args);
  const Tensor& table = Required(inputs, "page_table");
  if (table.dtype != DType::kI32 || table.shape != Shape{args.batch, args.table_width}) {
    WrongTensor(table, "int32" + ShapeText({args.batch, args.table_width}));
  }
  args.page_table = table.as<std::int32_t>();
  args.seq_lens = BindLengths(inputs, "seq_lens", args.batch);
  args.group_lens = BindLengths(inputs, "group_lens", args.batch);
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindInputs(problem, inputs);
  args.block_ids = outputs["block_ids"].as<std::int32_t>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = kOperation;
  family.summary = "index attention over groups of 4 tokens and the exact top 512 of each row";
  family.definitions = {
      {"qsa_index_topk_decode_qwen38_h4_d128_topk512_c4", {}, {"B", "MP", "NP", "P"}}};
  family.inputs = InputSpecs();
  family.outputs = OutputSpecs();
  family.attributes = paged::AttributesRead();
  family.variants = {"natural",       "iid",          "heads_independent",
                     "heads_alike",   "one_top_byte", "monotone_up",
                     "monotone_down", "all_equal",    "ties",
                     "few_winners",   "denormal",     "padded_query",
                     "group_lens",    "nan_poison",   std::string(paged::kOriginalAddress)};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = InputLayouts;
  family.resident_bytes = ResidentBytes;
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.row_checks = RowChecks;
  family.backends = Backends();
  family.mutants = Mutants();
  return family;
}

}  // namespace assay::qsa_index_topk_decode
