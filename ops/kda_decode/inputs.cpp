// The definitions, tensors, checks, cost and verification policy of kda_decode and kda_verify.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "ops/gdn_decode/gate_checks.h"
#include "ops/kda_decode/spec.h"
#include "ops/room.h"

namespace assay::kda_decode {
namespace {

// Heads per GPU at tensor parallel 1, 2, 4, 8 of GLM-5.3-Flash; 12 is Kimi-K3 at 8.
constexpr std::int64_t kHeadCounts[] = {64, 32, 16, 12, 8};

std::vector<Definition> Definitions() {
  std::vector<Definition> definitions;
  for (const std::int64_t heads : kHeadCounts) {
    definitions.push_back(
        {"kda_decode_h" + std::to_string(heads) + "_d128", {{"H", heads}}, {"batch_size"}});
  }
  for (const char* gate : {"_unbounded", "_plain"}) {
    definitions.push_back({std::string("kda_decode_h64_d128") + gate, {{"H", 64}}, {"batch_size"}});
  }
  return definitions;
}

std::vector<Definition> VerifyDefinitions() {
  std::vector<Definition> definitions;
  for (const std::int64_t heads : kHeadCounts) {
    definitions.push_back(
        {"kda_verify_h" + std::to_string(heads) + "_d128", {{"H", heads}}, {"batch_size", "rows"}});
  }
  return definitions;
}

// `rows`: "1" or the axis.
std::vector<TensorSpec> InputSpecs(const std::string& rows) {
  return {
      {"q", DType::kBF16, {"batch_size", rows, "H", "128"}},
      {"k", DType::kBF16, {"batch_size", rows, "H", "128"}},
      {"v", DType::kBF16, {"batch_size", rows, "H", "128"}},
      {"a", DType::kBF16, {"batch_size", rows, "H", "128"}},
      {"b", DType::kBF16, {"batch_size", rows, "H"}},
      {"A_log", DType::kF32, {"H"}, /*optional=*/true},
      {"dt_bias", DType::kF32, {"H", "128"}},
      {"state", DType::kF32, {"batch_size", "H", "128", "128"}, /*optional=*/true},
  };
}

// Rows of both outputs are (n, h), numbered n * H + h.
std::vector<TensorSpec> OutputSpecs() {
  TensorSpec output{"output", DType::kBF16, {"batch_size", "1", "H", "128"}};
  output.row_rank = 3;
  TensorSpec new_state{"new_state", DType::kF32, {"batch_size", "H", "128", "128"}};
  new_state.row_rank = 2;
  return {output, new_state};
}

// Rows of both outputs are (n, row, h), numbered (n * rows + row) * H + h.
std::vector<TensorSpec> VerifyOutputSpecs() {
  TensorSpec output{"output", DType::kBF16, {"batch_size", "rows", "H", "128"}};
  output.row_rank = 3;
  TensorSpec scratch{"scratch", DType::kF32, {"batch_size", "rows", "H", "128", "128"}};
  scratch.row_rank = 3;
  return {output, scratch};
}

std::vector<TensorSpec> InputSpecs(const Problem& problem) {
  return InputSpecs(problem.axes.contains("rows") ? "rows" : "1");
}

const char* GateName(Gate gate) {
  switch (gate) {
    case Gate::kBounded:
      return "bounded";
    case Gate::kUnbounded:
      return "unbounded";
    case Gate::kPlain:
      return "plain";
  }
  return "";
}

// A workload that was captured with another gate gives plausible wrong outputs: refused here.
void ValidateAxes(const Problem& problem) {
  const std::string name = problem.definition->name + ": ";
  const std::string gate = GateName(GateOf(problem));
  const std::string* recorded = problem.text("gate_kind");
  if (recorded != nullptr && *recorded != gate) {
    BadInput(name + "gate_kind = '" + *recorded + "', but the definition has the " + gate +
             " gate");
  }
  if (RowsOf(problem) < 1) BadInput(name + "axis rows = 0 is no number of rows");
  if (!problem.attributes.contains("lower_bound")) return;
  if (GateOf(problem) == Gate::kUnbounded) BadInput(name + "the unbounded gate has no lower_bound");
  const float bound = LowerBoundOf(problem);
  if (!(bound < 0 && std::isfinite(bound))) {
    BadInput(name + "lower_bound = " + std::to_string(bound) + " is not a negative number");
  }
}

// dt_bias is [H, 128] or flat; both are told apart by rank.
std::vector<TensorSpec> SpecsFor(const Problem& problem, const Bundle& inputs) {
  std::vector<TensorSpec> specs = InputSpecs(problem);
  const Tensor* dt_bias = inputs.find("dt_bias");
  for (TensorSpec& spec : specs) {
    if (spec.name == "dt_bias" && dt_bias != nullptr && dt_bias->shape.size() == 1) {
      spec.shape = {std::to_string(problem.axis("H") * kHeadSize)};
    }
    if (spec.name == "A_log") spec.optional = GateOf(problem) == Gate::kPlain;
  }
  return specs;
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(SpecsFor(problem, inputs), problem, inputs);
  const Tensor* a_log = inputs.find("A_log");
  if (a_log != nullptr && GateOf(problem) == Gate::kPlain) {
    BadInput(problem.definition->name + ": the plain gate has no A_log");
  }
  if (a_log != nullptr) gdn_decode::CheckDecayRates(*a_log);
  const Tensor& dt_bias = inputs["dt_bias"];
  for (std::int64_t i = 0; i < dt_bias.elements(); ++i) {
    const float value = dt_bias.as<float>()[i];
    if (!std::isfinite(value)) {
      BadInput("dt_bias[" + std::to_string(i / kHeadSize) + "," + std::to_string(i % kHeadSize) +
               "] = " + std::to_string(value) + " is not finite");
    }
  }
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : InputSpecs(problem)) {
    if (spec.name == "state" && problem.variant == "state_null") continue;
    if (spec.name == "A_log" && GateOf(problem) == Gate::kPlain) continue;
    layouts.push_back(Resolve(spec, problem));
  }
  return layouts;
}

// Multiply-adds of the recurrence: decay 1, S k 2, rank-one update 2, S q 2 flops per element.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const auto batch = static_cast<double>(problem.axis("batch_size"));
  const auto heads = static_cast<double>(problem.axis("H"));
  const auto rows = static_cast<double>(RowsOf(problem));
  const double states = rows + (inputs.has("state") ? 1 : 0);
  Cost cost;
  cost.flops = batch * rows * heads * kStateElements * 7;
  cost.bytes = batch * heads * (states * kStateElements * 4 + rows * (5 * kHeadSize * 2 + 2));
  if (batch > 0) cost.bytes += heads * ((inputs.has("A_log") ? 4 : 0) + kHeadSize * 4);
  return cost;
}

// All (n, row, h) up to 512 (32 MB of state); else the first and the last 64, and a sample.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  constexpr std::int64_t kMostRows = 512, kEdgeRows = 64;
  const std::int64_t count = problem.axis("batch_size") * RowsOf(problem) * problem.axis("H");
  if (count <= kMostRows) return {EveryRow(count), EveryRow(count)};
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < kEdgeRows; ++i) {
    rows.push_back(i);
    rows.push_back(count - 1 - i);
  }
  for (std::uint64_t i = 0; rows.size() < kMostRows; ++i) {
    rows.push_back(static_cast<std::int64_t>(Mix64(seed, kAuxiliaryTensor, i) %
                                             static_cast<std::uint64_t>(count)));
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return {rows, rows};
}

std::int64_t OwnSlice(const Problem&, const Bundle&, std::int64_t row) { return row; }

std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy output;
  output.grades = {{"captured", 0.005, 0.016, 0, 0}};
  output.slice_rel_l2 = 0.01;
  output.min_slice_rows = 1;  // 128 elements are enough
  output.slice_of_row = OwnSlice;
  OutputPolicy state;
  state.grades = {{"captured", 2e-5, 1e-4, 0, 0}};
  state.slice_rel_l2 = 0;
  return {output, state};
}

}  // namespace

Gate GateOf(const Problem& problem) {
  const std::string& name = problem.definition->name;
  if (name.ends_with("_unbounded")) return Gate::kUnbounded;
  return name.ends_with("_plain") ? Gate::kPlain : Gate::kBounded;
}

float LowerBoundOf(const Problem& problem) {
  return problem.number("lower_bound", kDefaultLowerBound);
}

std::int64_t RowsOf(const Problem& problem) {
  return problem.axes.contains("rows") ? problem.axis("rows") : 1;
}

bool QkNormOf(const Problem& problem) {
  const std::int64_t* flag = problem.integer("qk_norm");
  return flag == nullptr || *flag != 0;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.gate = GateOf(problem);
  args.lower_bound = LowerBoundOf(problem);
  args.qk_norm = QkNormOf(problem);
  args.batch = problem.axis("batch_size");
  args.rows = RowsOf(problem);
  args.heads = problem.axis("H");
  args.q = inputs["q"].as<bf16>();
  args.k = inputs["k"].as<bf16>();
  args.v = inputs["v"].as<bf16>();
  args.a = inputs["a"].as<bf16>();
  args.b = inputs["b"].as<bf16>();
  if (const Tensor* a_log = inputs.find("A_log")) args.a_log = a_log->as<float>();
  args.dt_bias = inputs["dt_bias"].as<float>();
  if (const Tensor* state = inputs.find("state")) args.state = state->as<float>();
  args.output = outputs["output"].as<bf16>();
  if (Tensor* new_state = outputs.find("new_state")) args.new_state = new_state->as<float>();
  if (Tensor* scratch = outputs.find("scratch")) args.scratch = scratch->as<float>();
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "kda_decode";
  family.summary = "delta attention with one decay per key channel, one token, k-last state";
  family.definitions = Definitions();
  family.inputs = InputSpecs("1");
  family.outputs = OutputSpecs();
  family.attributes = {"gate_kind", "lower_bound", "qk_norm"};
  family.variants = {"default",       "state_zeros", "state_null", "state_noise",
                     "extreme_gates", "zero_rows",   "v10",        "v50"};
  family.validate_axes = ValidateAxes;
  family.validate_inputs = ValidateInputs;
  family.input_layouts = InputLayouts;
  family.generate = Generate;
  family.cost = CostOf;
  family.sample_rows = SampleRows;
  family.reference = Reference;
  family.policies = Policies;
  family.backends = Backends();
  family.mutants = Mutants();
  return family;
}

Family MakeVerifyFamily() {
  Family family = MakeFamily();
  family.name = "kda_verify";
  family.summary = "kda_decode for several rows of each request, the state after every row";
  family.definitions = VerifyDefinitions();
  family.inputs = InputSpecs("rows");
  family.outputs = VerifyOutputSpecs();
  return family;
}

}  // namespace assay::kda_decode
