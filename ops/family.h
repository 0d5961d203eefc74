// The operator's contract: what a family declares as data, so that generation, verification, timing
// and reports need no code per operator. A folder under ops/ holds one `Family`, or two that share
// their code: the list is ops/registry.cpp. ARCHITECTURE.md shows the way of a case through it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/tensor.h"
#include "cuda/stream.h"

namespace assay {

using Axes = std::map<std::string, std::int64_t, std::less<>>;

// Facts of a workload beyond its axes: prefix_segments, kv_format, module_path, ... Nested integer
// lists are flattened row-major (prefix_segments: start, end, is_image per segment).
using AttributeValue = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>>;
using Attributes = std::map<std::string, AttributeValue, std::less<>>;

// A family with its constants fixed; `name` is the name of the captured records.
struct Definition {
  std::string name;
  Axes constants;                      // e.g. {"N", 12288}, {"K", 4096}
  std::vector<std::string> variables;  // axes that every workload must give, e.g. {"M"}
};

// What one case computes: a definition, concrete axes, and how its inputs are made.
struct Problem {
  const Definition* definition = nullptr;
  Axes axes;  // constants and variables together
  Attributes attributes;
  std::string variant;  // generator variant; empty = the family's first

  std::int64_t axis(std::string_view name) const;  // throws kInternal when absent
  const std::string* text(std::string_view name) const;
  const std::vector<std::int64_t>* integers(std::string_view name) const;
  const std::int64_t* integer(std::string_view name) const;
  // A real or an integer, `otherwise` when absent; throws kInput for anything else.
  float number(std::string_view name, float otherwise) const;
};

// A declared tensor. Each dimension is an axis name or a decimal number.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::string> shape;
  bool optional = false;  // inputs only: the generator's variant decides whether it exists
  int row_rank = 1;       // outputs only: the first row_rank dimensions number the rows that the
                          // reference computes one at a time; the rest is one row's content
};

TensorLayout Resolve(const TensorSpec& spec, const Problem& problem);
std::int64_t RowCount(const TensorSpec& spec, const Problem& problem);
std::int64_t RowElements(const TensorSpec& spec, const Problem& problem);

// The work that any implementation must do. `flops` of matrix form run at the matrix rate.
struct Cost {
  double flops = 0;
  double bytes = 0;  // least memory traffic: every input read once, every output written once
  double exponentials = 0;  // softmax-like work; 0 = negligible
};

// Rows to be checked, one sorted list of row numbers per output, in output order.
using RowLists = std::vector<std::vector<std::int64_t>>;

// The fp64 truth of some rows of one output.
struct ExpectedRows {
  std::vector<double> value;  // [rows, row elements]
  std::vector<double> scale;  // same shape or empty: the magnitude B that a grade's `scale_factor`
                              // multiplies, e.g. sum_j p_j |v_j|
};

// The order of sums in the reference. Verification compares both orders first: a reference that
// disagrees with itself judges nobody (`invalid_reference`).
enum class SumOrder { kForward, kReverse };

// |x - r| <= atol + rtol |r| + scale_factor * B + ulps_bf16 * ulp_bf16(r), every element.
struct Grade {
  std::string name;  // "captured", "flash", "chunk", "strict"
  double atol = 0, rtol = 0, scale_factor = 0, ulps_bf16 = 0;
};

// Relative-RMS rule of recurrent states ("gdn_state" in the captured records); zeros = not used.
struct StateRule {
  double relative_rms = 0;           // whole tensor
  double max_head_relative_rms = 0;  // per slice
  double relative_max = 0;           // max|x - r| / max|r|, whole tensor
};

// How an output is judged. It passes when it meets any grade or the state rule, and the relative L2
// limit of every slice; the verdict names the first grade met.
struct OutputPolicy {
  std::vector<Grade> grades;  // strictest first; empty = bit equality (`exact`)
  StateRule state;
  // No element rule: Family::row_checks alone judges this output (selections with near ties).
  bool judged_by_checks = false;
  double slice_rel_l2 = 5e-3;  // norm2(x - r) / norm2(r) per slice; 0 = not checked
  int min_slice_rows = 16;     // slices with fewer sampled rows are pooled (not in full checks)
  // Slice of a row, e.g. (batch, head) or (sequence, head). Null = the whole tensor is one slice.
  std::int64_t (*slice_of_row)(const Problem& problem, const Bundle& inputs,
                               std::int64_t row) = nullptr;
};

// The result of a check that needs the whole output (Freivalds, constant V, ...).
struct Finding {
  std::string name;
  bool passed = false;
  double measured = 0, limit = 0;
  std::string detail;  // which element, both values
};

struct RunContext {
  int threads = 0;  // 0 = all cores of the process
};

// A device computation that is ready to go: enqueues the work on the stream and returns. It is
// captured in CUDA graphs and replayed, so it may neither allocate nor synchronise, and work that
// it forks to other streams must join the given one.
using DeviceCall = std::function<void(Stream)>;

// The exact bits that a backend must give, for kernels that document the order of their sums.
// Models of the hardware's arithmetic: base/tensor_core.h.
struct BitwiseOrder {
  std::string order;  // "k in steps of 16, one chain of fp32 accumulators, one rounding to bf16"
  // The storage bits, zero-extended, that `elements` (flat, row-major) of output number `output`
  // must have. Null = the order is not documented.
  std::function<std::vector<std::uint64_t>(const Problem&, const Bundle& inputs, std::size_t output,
                                           const std::vector<std::int64_t>& elements)>
      expected_bits;
};

// A named implementation. It must write every output element and may not touch the inputs.
struct Backend {
  std::string name;
  std::string summary;
  // Empty when it can run this problem, else the reason. `inputs` are in host memory.
  std::function<std::string(const Problem&, const Bundle& inputs)> supports;
  // Host backends: computes before it returns.
  std::function<void(const Problem&, const Bundle& inputs, Bundle& outputs, const RunContext&)> run;
  // Device backends ("cuda"), instead of `run`: plans, allocates, chooses; its time is reported as
  // set-up. `inputs` and `outputs` are device memory, `host_inputs` the same content. A plan may
  // depend on addresses and on integer tensors (lengths, page tables), never on the values of
  // floating-point tensors: those change without a new plan.
  std::string device = "cpu";
  std::function<DeviceCall(const Problem&, const Bundle& host_inputs, const Bundle& inputs,
                           Bundle& outputs)>
      prepare = nullptr;
  // Optional: what `assay run --bitwise` holds the backend to. `inputs` are in host memory.
  BitwiseOrder bitwise = {};

  bool on_device() const { return device != "cpu"; }
};

// A deliberately wrong kernel that verification must reject.
struct Mutant {
  std::string name;     // "last_key_dropped"
  std::string mistake;  // one sentence: what it does wrong
  std::function<void(const Problem&, const Bundle& inputs, Bundle& outputs)> run;
  // False where the mistake changes nothing (no image block, no prefix, ...). Null = always wrong.
  bool (*applies)(const Problem&) = nullptr;
  // The generator variant whose content shows the mistake (exact ties, addresses past 2^32, ...);
  // empty = any content does.
  std::string variant = "";

  bool Applies(const Problem& problem) const {
    return (variant.empty() || variant == problem.variant) &&
           (applies == nullptr || applies(problem));
  }
};

struct Family {
  std::string name;
  std::string summary;  // one line for `assay list`
  std::vector<Definition> definitions;
  std::vector<TensorSpec> inputs, outputs;
  std::vector<std::string> variants;  // generator variants; the first is the default
  // What the operator reads of a workload's attributes. Problems have no others: those say where a
  // capture comes from.
  std::vector<std::string> attributes;

  // Rooms fill these with plain functions; definitions that come with a dataset, with closures.
  // Axes and attributes only, before any memory exists; throws kInput naming axis and value.
  std::function<void(const Problem&)> validate_axes;
  // Contents of the inputs (cu_seqlens monotone, A_log finite, ...); throws kInput naming the
  // tensor.
  std::function<void(const Problem&, const Bundle& inputs)> validate_inputs;
  // Layouts of the inputs that this problem's variant has (optional ones left out when absent).
  std::function<std::vector<TensorLayout>(const Problem&)> input_layouts;
  // Memory that the inputs really take: tensors start as holes that read as zeros, and a generator
  // need not touch what no kernel may read (weights of idle experts, a pool around the live pages).
  // Null = all of them.
  std::function<std::size_t(const Problem&)> resident_bytes;
  // Fills every tensor of `inputs`; the same key gives the same bits on every machine.
  std::function<void(const Problem&, std::uint64_t key, Bundle& inputs)> generate;
  std::function<Cost(const Problem&, const Bundle& inputs)> cost;

  // The rows that a verdict looks at by default: all when small, else edges plus a seeded sample.
  std::function<RowLists(const Problem&, const Bundle& inputs, std::uint64_t seed)> sample_rows;
  // fp64, boring, shares nothing with kernels. One ExpectedRows per output.
  std::function<std::vector<ExpectedRows>(const Problem&, const Bundle& inputs,
                                          const RowLists& rows, SumOrder order)>
      reference;
  std::function<std::vector<OutputPolicy>(const Problem&)> policies;  // one per output
  // Optional checks of the sampled rows that no element rule can express, e.g. ids that form a set
  // with a near-tie band; may be null. `expected` is what `reference` gave for `rows`.
  std::vector<Finding> (*row_checks)(const Problem&, const Bundle& inputs, const Bundle& outputs,
                                     const RowLists& rows,
                                     const std::vector<ExpectedRows>& expected) = nullptr;
  // Optional whole-output checks beyond rows; may be null.
  std::vector<Finding> (*whole_checks)(const Problem&, const Bundle& inputs, const Bundle& outputs,
                                       std::uint64_t seed) = nullptr;

  std::vector<Backend> backends;
  std::vector<Mutant> mutants;

  const Definition* FindDefinition(std::string_view definition_name) const;
  const Backend* FindBackend(std::string_view backend_name) const;
};

// Layouts of the outputs of a problem.
std::vector<TensorLayout> OutputLayouts(const Family& family, const Problem& problem);

// Throws kInput naming the first input that is missing or whose dtype or shape differs from its
// declaration (both shapes in the message). What validate_inputs starts with.
void CheckInputLayouts(const std::vector<TensorSpec>& specs, const Problem& problem,
                       const Bundle& inputs);

// Builds a Problem, of the family's attributes only, after checking the axes against the
// definition: unknown, missing, negative and absurdly large (> 2^40) axes throw kInput naming the
// axis and its value; validate_axes runs last.
Problem MakeProblem(const Family& family, std::string_view definition_name, const Axes& variables,
                    const Attributes& attributes = {}, std::string variant = "");

}  // namespace assay
