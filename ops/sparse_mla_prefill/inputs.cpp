// The definitions, tensors, checks, cost and policy of sparse_mla_prefill.
#include "ops/mla/inputs.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/mla/rows.h"
#include "ops/room.h"
#include "ops/sparse_mla_prefill/chunk.h"
#include "ops/sparse_mla_prefill/lists.h"
#include "ops/sparse_mla_prefill/spec.h"

namespace assay::sparse_mla_prefill {
namespace {

constexpr const char* kOperation = "sparse_mla_prefill";

Definition Row(const std::string& name, std::int64_t width) {
  return {"sparse_mla_prefill_h64_d512_" + name,
          {{"H", kHeads}, {"D", kDim}, {"W", width}},
          {"M", "Nkv"}};
}

// `sm_scale` is a scalar of the captured interface, here a tensor of rank 0.
std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kBF16, {"M", "H", "D"}},
      {"kv", DType::kBF16, {"Nkv", "1", "D"}},
      {"indices", DType::kI32, {"M", "1", "W"}},
      {"topk_length", DType::kI32, {"M"}, /*optional=*/true},
      {"attn_sink", DType::kF32, {"H"}, /*optional=*/true},
      {"sm_scale", DType::kF32, {}, /*optional=*/true},
  };
}

bool IsVariant(const Problem& problem, std::string_view name) { return problem.variant == name; }

void ValidateAxes(const Problem& problem) { ChunkOf(problem); }

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : InputSpecs()) {
    const bool no_length = IsVariant(problem, "no_length") || IsVariant(problem, "special");
    if (spec.name == "topk_length" && no_length) continue;
    if (spec.name == "attn_sink" && IsVariant(problem, "no_sink")) continue;
    if (spec.name == "sm_scale" && !IsVariant(problem, "special")) continue;
    layouts.push_back(Resolve(spec, problem));
  }
  return layouts;
}

// Memory pages of kv that generation touches: rows that nobody picks stay holes (see Generate).
std::size_t ResidentBytes(const Problem& problem) {
  const std::size_t all = Bundle::ArenaBytes(InputLayouts(problem));
  if (IsVariant(problem, "poison")) return all;
  // A pick touches a page, a run of 8 rows of 1 KB at most three; a query has 45 runs and 152
  // single picks, perhaps 100 more where picks collide, and shares four fifths of them with its
  // neighbour.
  constexpr std::int64_t kFirst = 45 * 3 + 252, kNext = kFirst / 5 + 1, kPageRows = 4;
  std::int64_t unused = 0;
  for (const Request& request : ChunkOf(problem).requests) {
    const std::int64_t pages = request.compressed / kPageRows;
    const std::int64_t touched =
        kFirst + request.rows * (IsVariant(problem, "unshared") ? kFirst : kNext);
    unused += std::max<std::int64_t>(pages - touched, 0) * kPageRows * kDim * 2;
  }
  return all - static_cast<std::size_t>(unused);
}

// Ruling 12: below a given length an index beyond the workspace is an error, without lengths it
// means "none".
void CheckIndices(const Problem& problem, const Lists& lists) {
  if (lists.topk_length == nullptr) return;
  for (std::int64_t row = 0; row < lists.m; ++row) {
    const std::int32_t* list = lists.indices + row * lists.width;
    for (std::int64_t j = 0; j < lists.Length(row); ++j) {
      if (list[j] < lists.nkv) continue;
      BadInput(problem.definition->name + ": indices[" + std::to_string(row) + "," +
               std::to_string(j) + "] = " + std::to_string(list[j]) +
               " is beyond the workspace of Nkv = " + std::to_string(lists.nkv) +
               " rows, below topk_length = " + std::to_string(lists.Length(row)));
    }
  }
}

void CheckSelectedRows(const Problem& problem, const Lists& lists, const bf16* kv) {
  const std::vector<std::uint8_t> selected = SelectedRows(lists);
  ParallelRanges(lists.nkv, 256, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (selected[static_cast<std::size_t>(row)] == 0) continue;
      const std::int64_t at = mla::FirstNonFinite(kv + row * kDim, kDim);
      if (at < 0) continue;
      BadInput(problem.definition->name + ": kv[" + std::to_string(row) + "," + std::to_string(at) +
               "] = " + std::to_string(ToFloat(kv[row * kDim + at])) +
               " is not finite, and some list has this row");
    }
  });
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  const std::int64_t m = problem.axis("M"), nkv = problem.axis("Nkv"), width = problem.axis("W");
  const auto optional = [&](const char* name, DType dtype, const Shape& shape) {
    return RequireTensor(problem, inputs, name, dtype, {shape}, /*optional=*/true);
  };
  const Tensor& q = *RequireTensor(problem, inputs, "q", DType::kBF16, {{m, kHeads, kDim}});
  const Tensor& kv =
      *RequireTensor(problem, inputs, "kv", DType::kBF16, {{nkv, 1, kDim}, {nkv, kDim}});
  RequireTensor(problem, inputs, "indices", DType::kI32, {{m, 1, width}, {m, width}});
  mla::CheckLengths(problem, optional("topk_length", DType::kI32, {m}), width);
  mla::CheckSinks(problem, optional("attn_sink", DType::kF32, {kHeads}));
  mla::ScaleOf(problem, inputs);
  const Lists lists = ListsOf(problem, inputs);
  CheckIndices(problem, lists);
  mla::CheckQueries(problem, q);
  CheckSelectedRows(problem, lists, kv.as<bf16>());
}

// Both products over the rows that are really attended to.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const Lists lists = ListsOf(problem, inputs);
  std::int64_t pairs = 0, entries = 0;
  for (std::int64_t row = 0; row < lists.m; ++row) {
    entries += lists.Length(row);
    lists.ForEach(row, [&](std::int32_t) { ++pairs; });
  }
  const std::vector<std::uint8_t> selected = SelectedRows(lists);
  const auto distinct =
      static_cast<double>(std::accumulate(selected.begin(), selected.end(), std::int64_t{0}));
  Cost cost;
  cost.exponentials = static_cast<double>(kHeads * pairs);
  cost.flops = 4 * static_cast<double>(kDim) * cost.exponentials;
  cost.bytes = static_cast<double>(2 * 2 * kHeads * kDim * lists.m + 4 * entries) +
               static_cast<double>(2 * kDim) * distinct;
  return cost;
}

std::vector<OutputPolicy> Policies(const Problem&) { return {mla::Policy()}; }

}  // namespace

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  const Lists lists = ListsOf(problem, inputs);
  Args args;
  args.m = lists.m;
  args.nkv = lists.nkv;
  args.width = lists.width;
  args.q = inputs["q"].as<bf16>();
  args.kv = inputs["kv"].as<bf16>();
  args.indices = lists.indices;
  args.topk_length = lists.topk_length;
  if (const Tensor* sink = inputs.find("attn_sink")) args.attn_sink = sink->as<float>();
  args.sm_scale = mla::ScaleOf(problem, inputs);
  args.out = outputs["out"].as<bf16>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = kOperation;
  family.summary = "attention of 64 heads to a list of latent rows per query, with a sink";
  family.definitions = {Row("k640", 640), Row("k128", 128)};
  family.inputs = InputSpecs();
  family.outputs = {{"out", DType::kBF16, {"M", "H", "D"}, false, 2}};
  family.attributes = {"sequence_lengths", "extend_lengths", "compression_ratio"};
  family.variants = {"default", "no_length", "no_sink", "special", "poison", "unshared"};
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

}  // namespace assay::sparse_mla_prefill
