// Definitions, tensors, checks, cost, rows and policy of nope_mla_decode. Content: content.cpp.
#include "ops/mla/inputs.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "ops/mla/rows.h"
#include "ops/nope_mla_decode/spec.h"
#include "ops/room.h"

namespace assay::nope_mla_decode {
namespace {

constexpr std::uint64_t kSampledRows = kAuxiliaryTensor + 290;

bool Selects(const Problem& problem) { return problem.axis("T") > 0; }

// T = pools that a row selects; 0 = it attends all tokens.
std::vector<Definition> Definitions() {
  const auto definition = [](const char* name, std::int64_t top) {
    return Definition{name, {{"T", top}}, {"B", "V", "MP", "NP"}};
  };
  return {definition("nope_mla_decode_h64_d512_top512_c4", kTopPools),
          definition("nope_mla_decode_h64_d512_all", 0)};
}

std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kBF16, {"B", "V", "64", "512"}},
      {"latents", DType::kBF16, {"NP", "64", "512"}},
      {"page_table", DType::kI32, {"B", "MP"}},
      {"seq_lens", DType::kI32, {"B"}},
      {"pool_ids", DType::kI32, {"B", "V", "512"}, /*optional=*/true},
  };
}

// Rows are (request, row, head).
std::vector<TensorSpec> OutputSpecs() {
  TensorSpec out{"out", DType::kBF16, {"B", "V", "64", "512"}};
  out.row_rank = 3;
  return {out};
}

void ValidateAxes(const Problem& problem) {
  const std::int64_t rows = problem.axis("V");
  if (rows < 1 || rows > 16) {
    BadInput(problem.definition->name + ": axis V = " + std::to_string(rows) +
             ", a step has 1 to 16 rows per request");
  }
  paged::MakeBatch(problem, PagesOfTokens);
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : InputSpecs()) {
    if (spec.name == "pool_ids" && !Selects(problem)) continue;
    layouts.push_back(Resolve(spec, problem));
  }
  layouts[1].shape[0] = paged::CachePages(problem);
  return layouts;
}

// At original addresses the pool is a hole around the live pages, which begin anywhere in a page of
// memory.
std::size_t ResidentBytes(const Problem& problem) {
  const std::size_t all = Bundle::ArenaBytes(InputLayouts(problem));
  const std::int64_t idle = paged::CachePages(problem) - problem.axis("NP");
  return all - static_cast<std::size_t>(idle * kPageTokens * kDim * 2);
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  Check(BindInputs(problem, inputs));
  mla::CheckQueries(problem, inputs["q"]);
}

// Q C^T and P C: 2 flops a dimension, head and token each. Bytes: every distinct attended latent
// once, q, out, lists, lengths, live page-table entries.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Args args = BindInputs(problem, inputs);
  std::set<std::int64_t> distinct;
  double tokens = 0, entries = 0;
  for (std::int64_t row = 0; row < args.total_rows(); ++row) {
    const std::int64_t request = row / args.rows;
    for (const std::int64_t t : AttendedTokens(args, row)) {
      const std::int64_t page = args.page_table[request * args.table_width + t / kPageTokens];
      distinct.insert(page * kPageTokens + t % kPageTokens);
      ++tokens;
    }
    if (row % args.rows == 0) entries += static_cast<double>(PagesOfTokens(args.seq_lens[request]));
  }
  const auto rows = static_cast<double>(args.total_rows());
  Cost cost;
  cost.exponentials = kHeads * tokens;
  cost.flops = 4 * kDim * cost.exponentials;
  cost.bytes = 2 * kDim * static_cast<double>(distinct.size()) + 4 * entries +
               4 * static_cast<double>(args.requests) + rows * 2 * 2 * kHeads * kDim +
               (args.pool_ids != nullptr ? rows * 4 * kTopPools : 0);
  return cost;
}

// A row of 2,051 tokens costs the reference 0.4 GFLOP: 8 rows in full, else the first and the last
// row of the first and the last request, and random ones.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  constexpr std::size_t kAllUpTo = 8;
  const std::int64_t v = problem.axis("V"), total = problem.axis("B") * v;
  if (total == 0) return {{}};
  std::set<std::int64_t> rows = {0, v - 1, total - v, total - 1};
  const std::size_t wanted = std::min(kAllUpTo, static_cast<std::size_t>(total));
  for (std::uint64_t n = 0; rows.size() < wanted; ++n) {
    rows.insert(static_cast<std::int64_t>(Mix64(seed, kSampledRows, n) %
                                          static_cast<std::uint64_t>(total)));
  }
  return {mla::RowsOfTokens({rows.begin(), rows.end()})};
}

std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy policy = mla::Policy();
  policy.grades.resize(1);  // "strict": nothing of this operator was captured
  return {policy};
}

const Tensor& Required(const Problem& problem, const Bundle& inputs, const char* name, DType dtype,
                       const Shape& shape) {
  return *RequireTensor(problem, inputs, name, dtype, {shape});
}

}  // namespace

std::int64_t PagesOfTokens(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

Args BindInputs(const Problem& problem, const Bundle& inputs) {
  Args args;
  args.requests = problem.axis("B");
  args.rows = problem.axis("V");
  args.table_width = problem.axis("MP");
  args.pages = paged::CachePages(problem);
  const auto bind = [&](const char* name, DType dtype, const Shape& shape) -> const Tensor& {
    return Required(problem, inputs, name, dtype, shape);
  };
  args.q = bind("q", DType::kBF16, {args.requests, args.rows, kHeads, kDim}).as<bf16>();
  args.latents = bind("latents", DType::kBF16, {args.pages, kPageTokens, kDim}).as<bf16>();
  args.page_table =
      bind("page_table", DType::kI32, {args.requests, args.table_width}).as<std::int32_t>();
  args.seq_lens = bind("seq_lens", DType::kI32, {args.requests}).as<std::int32_t>();
  if (Selects(problem)) {
    args.pool_ids =
        bind("pool_ids", DType::kI32, {args.requests, args.rows, kTopPools}).as<std::int32_t>();
  }
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindInputs(problem, inputs);
  args.out = outputs["out"].as<bf16>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "nope_mla_decode";
  family.summary = "latent attention without positions over selected pools, or over all tokens";
  family.definitions = Definitions();
  family.inputs = InputSpecs();
  family.outputs = OutputSpecs();
  family.attributes = paged::AttributesRead();
  family.variants = {"clustered", "uniform", "newest",
                     "holes",     "large",   std::string(paged::kOriginalAddress)};
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

}  // namespace assay::nope_mla_decode
