// The definition, tensors, checks, cost and policy of kpool_index_decode. Content: generate.cpp.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "ops/kpool_index_decode/spec.h"
#include "ops/paged/pages.h"
#include "ops/room.h"

namespace assay::kpool_index_decode {
namespace {

constexpr const char* kOperation = "kpool_index_decode";

std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kE4M3, {"B", "V", "32", "128"}},
      {"weights", DType::kF32, {"B", "V", "32"}},
      {"pool_cache", DType::kU8, {"NP", "8448"}},
      {"page_table", DType::kI32, {"B", "MP"}},
      {"seq_lens", DType::kI32, {"B"}},
  };
}

std::vector<TensorSpec> OutputSpecs() {
  TensorSpec ids{"pool_ids", DType::kI32, {"B", "V", "512"}};
  ids.row_rank = 2;
  return {ids};
}

void ValidateAxes(const Problem& problem) {
  const std::int64_t rows = problem.axis("V");
  const std::string name = problem.definition->name;
  if (rows < 1) BadInput(name + ": axis V = " + std::to_string(rows) + " is no number of rows");
  const paged::Batch batch = paged::MakeBatch(problem, PagesOfTokens);
  for (std::size_t b = 0; b < batch.lengths.size(); ++b) {
    if (batch.lengths[b] == 0 || batch.lengths[b] >= rows) continue;
    BadInput(name + ": sequence_lengths[" + std::to_string(b) +
             "] = " + std::to_string(batch.lengths[b]) + " is shorter than the " +
             std::to_string(rows) + " rows of the step");
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
  Check(BindInputs(problem, inputs));
}

// Scores: 2 flops a channel and head. Bytes: every distinct live page's keys and scales, queries,
// weights, live page-table entries, lengths, ids.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  Cost cost;
  std::set<std::pair<std::int32_t, std::int64_t>> keys;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t last = VisiblePools(args, (b + 1) * args.rows - 1);
    for (std::int64_t pool = 0; pool < last; ++pool) {
      keys.insert({args.page_table[b * args.table_width + pool / kPagePools], pool % kPagePools});
    }
    cost.bytes += 4 * static_cast<double>((last + kPagePools - 1) / kPagePools) + 4;
    for (std::int64_t v = 0; v < args.rows; ++v) {
      const auto visible = static_cast<double>(VisiblePools(args, b * args.rows + v));
      cost.flops += 2 * kHeads * kHeadSize * visible;
      cost.bytes += kHeads * (kHeadSize + 4) + 4 * kTopK;
    }
  }
  cost.bytes += static_cast<double>(keys.size()) * (kHeadSize + 4);
  return cost;
}

RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t) {
  return {EveryRow(problem.axis("B") * problem.axis("V"))};
}

std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy ids;
  ids.judged_by_checks = true;
  return {ids};
}

std::string At(const char* name, std::int64_t i, std::int64_t value) {
  return std::string(kOperation) + ": " + name + "[" + std::to_string(i) +
         "] = " + std::to_string(value);
}

}  // namespace

std::int64_t PagesOfTokens(std::int64_t tokens) {
  return (tokens / kPoolTokens + kPagePools - 1) / kPagePools;
}

std::int64_t VisiblePools(const Args& args, std::int64_t row) {
  const std::int64_t length = args.seq_lens[row / args.rows];
  const std::int64_t behind = args.rows - 1 - row % args.rows;  // rows of the request after it
  return std::max<std::int64_t>(length - behind, 0) / kPoolTokens;
}

const std::uint8_t* KeyOf(const Args& args, std::int64_t b, std::int64_t pool) {
  const std::int64_t page = args.page_table[b * args.table_width + pool / kPagePools];
  return args.pool_cache + page * kPageBytes + pool % kPagePools * kHeadSize;
}

float ScaleOf(const Args& args, std::int64_t b, std::int64_t pool) {
  const std::int64_t page = args.page_table[b * args.table_width + pool / kPagePools];
  float scale = 0;
  std::memcpy(&scale, args.pool_cache + page * kPageBytes + kScalesOffset + pool % kPagePools * 4,
              4);
  return scale;
}

void Check(const Args& args) {
  const std::string name = std::string(kOperation) + ": ";
  if (args.rows < 1 || args.top_k < 1) {
    BadInput(name + "rows = " + std::to_string(args.rows) +
             " and top_k = " + std::to_string(args.top_k) + " must be positive");
  }
  if (reinterpret_cast<std::uintptr_t>(args.pool_cache) % 16 != 0) {
    BadInput(name + "pool_cache is not aligned to 16 bytes");
  }
  std::vector<std::int64_t> live;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t length = args.seq_lens[b];
    if (length < 0) BadInput(At("seq_lens", b, length) + " is negative");
    if (length > 0 && length < args.rows) {
      BadInput(At("seq_lens", b, length) + " is shorter than the " + std::to_string(args.rows) +
               " rows of the step");
    }
    live.push_back(PagesOfTokens(length));
    if (live.back() > args.table_width) {
      BadInput(At("seq_lens", b, length) + " needs " + std::to_string(live.back()) +
               " pages of 64 pools, but the page table has " + std::to_string(args.table_width));
    }
  }
  paged::CheckPageTable(kOperation, args.page_table, args.table_width, live, args.pages);
}

Args BindInputs(const Problem& problem, const Bundle& inputs) {
  Args args;
  args.batch = problem.axis("B");
  args.rows = problem.axis("V");
  args.table_width = problem.axis("MP");
  args.pages = problem.axis("NP");
  args.q = inputs["q"].as<e4m3>();
  args.weights = inputs["weights"].as<float>();
  args.pool_cache = inputs["pool_cache"].as<std::uint8_t>();
  args.page_table = inputs["page_table"].as<std::int32_t>();
  args.seq_lens = inputs["seq_lens"].as<std::int32_t>();
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindInputs(problem, inputs);
  args.pool_ids = outputs["pool_ids"].as<std::int32_t>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = kOperation;
  family.summary = "index attention over e4m3 keys of pools of 4 tokens, exact top 512 of each row";
  family.definitions = {{"kpool_index_decode_h32_d128_topk512_c4", {}, {"B", "V", "MP", "NP"}}};
  family.inputs = InputSpecs();
  family.outputs = OutputSpecs();
  family.attributes = paged::AttributesRead();
  family.variants = {"natural", "ties", "all_equal", "negative_weights", "nan_keys"};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = [](const Problem& problem) { return LayoutsOf(InputSpecs(), problem); };
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

}  // namespace assay::kpool_index_decode
