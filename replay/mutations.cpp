#include "replay/mutations.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "replay/verify.h"

namespace assay {
namespace {

void CopyOutputs(const Bundle& from, Bundle& to) {
  for (std::size_t t = 0; t < from.tensors().size(); ++t) {
    std::memcpy(to.tensors()[t].data, from.tensors()[t].data, from.tensors()[t].bytes());
  }
}

// One element of a floating-point output, replaced by f(value).
template <class F>
void MapElements(Bundle& outputs, const F& f) {
  for (Tensor& tensor : outputs.tensors()) {
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      if (tensor.dtype == DType::kBF16) {
        bf16& x = tensor.as<bf16>()[i];
        x = ToBF16(f(static_cast<double>(ToFloat(x))));
      } else if (tensor.dtype == DType::kF32) {
        float& x = tensor.as<float>()[i];
        x = static_cast<float>(f(static_cast<double>(x)));
      }
    }
  }
}

// Every row of the first output moves to the next row's place.
void RotateRows(const TensorSpec& spec, const Problem& problem, Tensor& tensor) {
  const auto row_bytes = DTypeBytes(tensor.dtype, RowElements(spec, problem));
  std::rotate(tensor.data, tensor.data + row_bytes, tensor.data + tensor.bytes());
}

struct Lab {
  const Family& family;
  const Workload& workload;
  Problem problem;
  Bundle inputs, right, outputs;
  Expected expected;

  MutantOutcome Judge(const std::string& name, const std::string& mistake) {
    const Verdict verdict = Verify(family, problem, inputs, outputs, expected, 1);
    return {workload.definition,
            workload.uuid,
            name,
            mistake,
            !verdict.passed(),
            verdict.reason,
            verdict.correctness.share_checked};
  }
};

Bundle MakeInputs(const Family& family, const Problem& problem, const std::string& id, int set) {
  Bundle inputs = Bundle::Allocate(family.input_layouts(problem));
  family.generate(problem, ContentKey(id, kGeneratorVersion, set), inputs);
  return inputs;
}

Lab MakeLab(const Family& family, const Workload& workload) {
  Problem problem = MakeProblem(family, workload.definition, workload.axes, workload.attributes,
                                workload.variant);
  Bundle inputs = MakeInputs(family, problem, workload.uuid, 0);
  Bundle right = Bundle::Allocate(OutputLayouts(family, problem));
  Bundle outputs = Bundle::Allocate(OutputLayouts(family, problem));
  Expected expected = ComputeExpected(family, problem, inputs, 1);
  return {family, workload, std::move(problem), inputs, right, outputs, std::move(expected)};
}

// A right output must pass first: a verification that rejects everything kills nothing.
void RequireRightOutputPasses(Lab& lab) {
  const Backend& backend = lab.family.backends.front();
  lab.right.Poison();
  backend.run(lab.problem, lab.inputs, lab.right, {});
  CopyOutputs(lab.right, lab.outputs);
  const MutantOutcome control = lab.Judge("control", "");
  if (!control.killed) return;
  BadInput(lab.workload.definition + ": the unmutated " + backend.name +
           " backend is rejected: " + control.reason);
}

// Mistakes that need no knowledge of the operator. All but the first start from a right output.
void TryGenericMutants(Lab& lab, std::vector<MutantOutcome>& outcomes) {
  MapElements(lab.outputs, [](double) { return 0.0; });
  outcomes.push_back(lab.Judge("zeros", "writes zeros"));
  CopyOutputs(lab.right, lab.outputs);
  MapElements(lab.outputs, [](double x) { return 1.01 * x; });
  outcomes.push_back(lab.Judge("scaled_by_1.01", "every output element is 1 % too large"));
  CopyOutputs(lab.right, lab.outputs);
  const TensorSpec& first = lab.family.outputs.front();
  if (RowCount(first, lab.problem) > 1) {
    RotateRows(first, lab.problem, lab.outputs.tensors()[0]);
    outcomes.push_back(lab.Judge("rows_rotated", "every row holds its successor's result"));
  }
  lab.outputs.Poison();
  lab.family.backends.front().run(
      lab.problem, MakeInputs(lab.family, lab.problem, lab.workload.uuid, 1), lab.outputs, {});
  outcomes.push_back(lab.Judge("previous_content", "returns the result of other input content"));
}

}  // namespace

std::vector<MutantOutcome> TryMutants(const Family& family,
                                      std::span<const Workload* const> workloads) {
  std::vector<MutantOutcome> outcomes;
  std::vector<const Mutant*> pending;
  for (const Mutant& mutant : family.mutants) pending.push_back(&mutant);
  for (const Workload* workload : workloads) {
    const bool first = workload == workloads.front();
    if (!first && pending.empty()) break;
    const Problem problem = MakeProblem(family, workload->definition, workload->axes,
                                        workload->attributes, workload->variant);
    const auto applies = [&](const Mutant* mutant) { return mutant->Applies(problem); };
    if (!first && std::none_of(pending.begin(), pending.end(), applies)) continue;
    Lab lab = MakeLab(family, *workload);
    RequireRightOutputPasses(lab);
    if (first) TryGenericMutants(lab, outcomes);
    for (const Mutant* mutant : pending) {
      if (!applies(mutant)) continue;
      lab.outputs.Poison();
      mutant->run(lab.problem, lab.inputs, lab.outputs);
      outcomes.push_back(lab.Judge(mutant->name, mutant->mistake));
    }
    std::erase_if(pending, applies);
  }
  return outcomes;
}

std::map<std::string, std::vector<const Workload*>> WorkloadsByDefinition(const Registry& registry,
                                                                          const Suite& suite) {
  const auto size = [](const Workload* workload) {
    std::int64_t sum = 0;
    for (const auto& [name, value] : workload->axes) sum += value;
    return sum;
  };
  std::map<std::string, std::vector<const Workload*>> found;
  for (const Workload& workload : suite.workloads) {
    if (registry.FindDefinition(workload.definition).family == nullptr) continue;
    found[workload.definition].push_back(&workload);
  }
  for (auto& [definition, workloads] : found) {
    std::stable_sort(workloads.begin(), workloads.end(),
                     [&](const Workload* a, const Workload* b) { return size(a) < size(b); });
  }
  return found;
}

}  // namespace assay
