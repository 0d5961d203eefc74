// The definition, tensors, checks, generator, cost and verification policy of gdn_prefill.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "ops/gdn_decode/gate_checks.h"
#include "ops/gdn_decode/tokens.h"
#include "ops/gdn_prefill/partition.h"
#include "ops/gdn_prefill/spec.h"
#include "ops/room.h"

namespace assay::gdn_prefill {
namespace {

using gdn_decode::TokenSource;

// `scale` is a scalar of the captured interface, here a tensor of rank 0; absent or 0 =
// 1/sqrt(128).
std::vector<TensorSpec> InputSpecs() {
  return {
      {"q", DType::kBF16, {"total_seq_len", "4", "128"}},
      {"k", DType::kBF16, {"total_seq_len", "4", "128"}},
      {"v", DType::kBF16, {"total_seq_len", "8", "128"}},
      {"state", DType::kF32, {"num_seqs", "8", "128", "128"}, /*optional=*/true},
      {"A_log", DType::kF32, {"8"}},
      {"a", DType::kBF16, {"total_seq_len", "8"}},
      {"dt_bias", DType::kF32, {"8"}},
      {"b", DType::kBF16, {"total_seq_len", "8"}},
      {"cu_seqlens", DType::kI64, {"len_cu_seqlens"}},
      {"scale", DType::kF32, {}, /*optional=*/true},
  };
}

// Rows of the output are (t, h), numbered t * 8 + h; rows of the state are (s, h).
std::vector<TensorSpec> OutputSpecs() {
  TensorSpec output{"output", DType::kBF16, {"total_seq_len", "8", "128"}};
  output.row_rank = 2;
  TensorSpec new_state{"new_state", DType::kF32, {"num_seqs", "8", "128", "128"}};
  new_state.row_rank = 2;
  return {output, new_state};
}

void ValidateAxes(const Problem& problem) {
  const std::int64_t tokens = problem.axis("total_seq_len");
  const std::int64_t sequences = problem.axis("num_seqs");
  const std::int64_t length = problem.axis("len_cu_seqlens");
  if (length != sequences + 1) {
    BadInput(problem.definition->name + ": len_cu_seqlens = " + std::to_string(length) +
             " is not num_seqs + 1 = " + std::to_string(sequences + 1));
  }
  if (tokens > 0 && sequences == 0) {
    BadInput(problem.definition->name + ": total_seq_len = " + std::to_string(tokens) +
             " needs at least one sequence, num_seqs = 0");
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckInputLayouts(InputSpecs(), problem, inputs);
  const std::string cu_problem =
      CuSeqlensProblem(inputs["cu_seqlens"].as<std::int64_t>(), problem.axis("num_seqs"),
                       problem.axis("total_seq_len"));
  if (!cu_problem.empty()) BadInput(problem.definition->name + ": " + cu_problem);
  gdn_decode::CheckGates(inputs);
}

std::vector<TensorLayout> InputLayouts(const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : InputSpecs()) {
    if (spec.name == "state" && problem.variant == "state_null") continue;
    if (spec.name == "scale" && problem.variant == "scale_null") continue;
    layouts.push_back(Resolve(spec, problem));
  }
  return layouts;
}

// By default the first sequence is continued (its state comes from 64 earlier tokens) and the
// others start from zeros.
void GenerateState(const Problem& problem, std::uint64_t key, const TokenSource& source,
                   Tensor& state) {
  float* data = state.as<float>();
  const std::string& variant = problem.variant;
  ParallelFor(problem.axis("num_seqs") * kValueHeads, 0, [&](std::int64_t row) {
    float* head = data + row * kStateElements;
    if (variant == "state_noise") {
      for (std::int64_t i = 0; i < kStateElements; ++i) {
        head[i] = 0.1f * UnitNormal(key, gdn_decode::kState,
                                    static_cast<std::uint64_t>(row * kStateElements + i));
      }
    } else if (variant == "all_continued" || (row < kValueHeads && variant != "state_zeros")) {
      source.HistoryState(row / kValueHeads, row % kValueHeads, head);
    } else {
      std::memset(head, 0, kStateElements * sizeof(float));
    }
  });
}

// The `a` that gives ln g = log_decay in head h: softplus(a + dt_bias) = -log_decay / e^A_log.
bf16 DecayInputFor(double log_decay, float a_log, float dt_bias) {
  const double softplus = -log_decay / gdn_decode::Exp(a_log);
  const double x = softplus > 20 ? softplus : gdn_decode::Log(gdn_decode::Exp(softplus) - 1);
  return ToBF16(x - dt_bias);
}

// Tokens that stress a chunk algorithm, by variant name.
void MakeAdversarial(const Problem& problem, Bundle& inputs) {
  const std::string& variant = problem.variant;
  const float* a_log = inputs["A_log"].as<float>();
  const float* dt_bias = inputs["dt_bias"].as<float>();
  bf16* a = inputs["a"].as<bf16>();
  bf16* b = inputs["b"].as<bf16>();
  bf16* k = inputs["k"].as<bf16>();
  const bool repeated = variant == "repeated_key" || variant == "alternating_key";
  constexpr std::int64_t kKeyElements = kKeyHeads * kHeadSize;
  for (std::int64_t t = 0; t < problem.axis("total_seq_len"); ++t) {
    for (std::int64_t h = 0; h < kValueHeads; ++h) {
      bf16& a_th = a[t * kValueHeads + h];
      bf16& b_th = b[t * kValueHeads + h];
      // ln g = -1000 at token 37 of 64, -0.01 behind it: the tail must keep its accuracy.
      if (variant == "gate_spike" && t % 64 >= 37) {
        a_th = DecayInputFor(t % 64 == 37 ? -1000 : -0.01, a_log[h], dt_bias[h]);
      }
      // ln g = -2 in every token: e^(-prefix) of a 64-token chunk would overflow.
      if (variant == "strong_decay") a_th = DecayInputFor(-2, a_log[h], dt_bias[h]);
      if (variant == "beta_zero") b_th = ToBF16(-200.0f);
      if (repeated) {  // g = 1 and beta = 1: nothing is ever forgotten but by overwriting
        a_th = ToBF16(-200.0f);
        b_th = ToBF16(200.0f);
      }
    }
    for (std::int64_t i = 0; repeated && t > 0 && i < kKeyElements; ++i) {
      const bool flip = variant == "alternating_key" && t % 2 == 1;
      k[t * kKeyElements + i].bits = static_cast<std::uint16_t>(k[i].bits ^ (flip ? 0x8000u : 0u));
    }
  }
}

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const std::int64_t tokens = problem.axis("total_seq_len");
  const TokenSource source(key, gdn_decode::StyleOfVariant(problem.variant));
  bf16* q = inputs["q"].as<bf16>();
  bf16* k = inputs["k"].as<bf16>();
  bf16* v = inputs["v"].as<bf16>();
  bf16* a = inputs["a"].as<bf16>();
  bf16* b = inputs["b"].as<bf16>();
  ParallelRanges(tokens, 64, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      source.Queries(t, q + t * kKeyHeads * kHeadSize);
      source.Keys(t, k + t * kKeyHeads * kHeadSize);
      source.Values(t, v + t * kValueHeads * kHeadSize);
      source.DecayInputs(t, a + t * kValueHeads);
      source.BetaInputs(t, b + t * kValueHeads);
    }
  });
  source.HeadParameters(inputs["A_log"].as<float>(), inputs["dt_bias"].as<float>());
  const auto cu_seqlens = Partition(tokens, problem.axis("num_seqs"), problem.variant);
  std::copy(cu_seqlens.begin(), cu_seqlens.end(), inputs["cu_seqlens"].as<std::int64_t>());
  if (Tensor* scale = inputs.find("scale")) scale->as<float>()[0] = kDefaultScale;
  if (Tensor* state = inputs.find("state")) GenerateState(problem, key, source, *state);
  MakeAdversarial(problem, inputs);
}

// Flops of the recurrence: decay 1, S k 2, rank-one update 2, S q 2 per state element and token.
Cost CostOf(const Problem& problem, const Bundle& inputs) {
  const auto tokens = static_cast<double>(problem.axis("total_seq_len"));
  const auto sequences = static_cast<double>(problem.axis("num_seqs"));
  const double states = inputs.has("state") ? 2 : 1;
  Cost cost;
  cost.flops = tokens * kValueHeads * kStateElements * 7;
  cost.bytes = tokens * (2 * kKeyHeads * kHeadSize * 2 + 2 * kValueHeads * kHeadSize * 2 +
                         2 * kValueHeads * 2) +
               sequences * states * kValueHeads * kStateElements * 4 + (sequences + 1) * 8;
  return cost;
}

// The recurrence has no cheap single row: the whole truth costs 0.92 MFLOP a token, so all rows are
// always checked.
RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t) {
  return {EveryRow(problem.axis("total_seq_len") * kValueHeads),
          EveryRow(problem.axis("num_seqs") * kValueHeads)};
}

std::int64_t OwnSlice(const Problem&, const Bundle&, std::int64_t row) { return row; }

// (sequence, head) of output row (t, h); the sequence is the last one that starts at or before t.
std::int64_t SequenceHead(const Problem& problem, const Bundle& inputs, std::int64_t row) {
  const std::int64_t* begin = inputs["cu_seqlens"].as<std::int64_t>();
  const std::int64_t* end = begin + problem.axis("len_cu_seqlens");
  const std::int64_t sequence = std::upper_bound(begin, end, row / kValueHeads) - begin - 1;
  return sequence * kValueHeads + row % kValueHeads;
}

std::vector<OutputPolicy> Policies(const Problem&) {
  OutputPolicy output;
  output.grades = {{"strict", 0.005, 0.016, 0, 0}, {"chunk", 0.005, 0.016, 0x1p-7, 0}};
  output.slice_rel_l2 = 0.01;
  output.slice_of_row = SequenceHead;
  OutputPolicy state;
  state.grades = {{"fp32", 2e-5, 1e-4, 0, 0}};
  state.state = {0.01, 0.02, 0.015};
  state.slice_rel_l2 = 0;  // the state rule has its own limit per head
  state.slice_of_row = OwnSlice;
  return {output, state};
}

}  // namespace

bool ZeroEmptyStates(const Problem& problem) {
  const std::string* text = problem.text("empty_state");
  return text != nullptr && *text == "zero";
}

std::string CuSeqlensProblem(const std::int64_t* cu_seqlens, std::int64_t sequences,
                             std::int64_t tokens) {
  if (cu_seqlens[0] != 0) return "cu_seqlens[0] = " + std::to_string(cu_seqlens[0]) + " is not 0";
  for (std::int64_t s = 0; s < sequences; ++s) {
    if (cu_seqlens[s + 1] < cu_seqlens[s]) {
      return "cu_seqlens[" + std::to_string(s + 1) + "] = " + std::to_string(cu_seqlens[s + 1]) +
             " is below cu_seqlens[" + std::to_string(s) + "] = " + std::to_string(cu_seqlens[s]);
    }
  }
  if (cu_seqlens[sequences] == tokens) return "";
  return "cu_seqlens[" + std::to_string(sequences) +
         "] = " + std::to_string(cu_seqlens[sequences]) + " is not the number of tokens, " +
         std::to_string(tokens);
}

Args BindOnDevice(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.tokens = problem.axis("total_seq_len");
  args.sequences = problem.axis("num_seqs");
  args.q = inputs["q"].as<bf16>();
  args.k = inputs["k"].as<bf16>();
  args.v = inputs["v"].as<bf16>();
  if (const Tensor* state = inputs.find("state")) args.state = state->as<float>();
  args.a_log = inputs["A_log"].as<float>();
  args.a = inputs["a"].as<bf16>();
  args.dt_bias = inputs["dt_bias"].as<float>();
  args.b = inputs["b"].as<bf16>();
  args.cu_seqlens = inputs["cu_seqlens"].as<std::int64_t>();
  if (const Tensor* scale = inputs.find("scale")) args.scale_at = scale->as<float>();
  args.output = outputs["output"].as<bf16>();
  args.new_state = outputs["new_state"].as<float>();
  args.zero_empty_states = ZeroEmptyStates(problem);
  return args;
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args = BindOnDevice(problem, inputs, outputs);
  if (args.scale_at != nullptr) args.scale = *std::exchange(args.scale_at, nullptr);
  return args;
}

Family MakeFamily() {
  Family family;
  family.name = "gdn_prefill";
  family.summary = "gated delta-rule attention, packed sequences, k-last state";
  family.definitions = {
      {"gdn_prefill_qk4_v8_d128_k_last", {}, {"total_seq_len", "num_seqs", "len_cu_seqlens"}}};
  family.inputs = InputSpecs();
  family.outputs = OutputSpecs();
  family.attributes = {"empty_state"};
  family.variants = {"default",      "skewed",     "with_empty",   "equal",           "correlated",
                     "state_zeros",  "state_null", "state_noise",  "all_continued",   "gate_spike",
                     "strong_decay", "beta_zero",  "repeated_key", "alternating_key", "v10",
                     "v50",          "v1e4",       "scale_null"};
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

}  // namespace assay::gdn_prefill
