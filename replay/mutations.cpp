#include "replay/mutations.h"

#include <algorithm>
#include <cstring>
#include <map>

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
}

}  // namespace

std::vector<MutantOutcome> TryMutants(const Family& family, const Workload& workload) {
  Lab lab = MakeLab(family, workload);
  const Backend& backend = family.backends.front();
  std::vector<MutantOutcome> outcomes;
  // A right output must pass first: a verification that rejects everything kills nothing.
  lab.right.Poison();
  backend.run(lab.problem, lab.inputs, lab.right, {});
  CopyOutputs(lab.right, lab.outputs);
  const MutantOutcome control = lab.Judge("control", "");
  if (control.killed) {
    BadInput(workload.definition + ": the unmutated " + backend.name +
             " backend is rejected: " + control.reason);
  }
  TryGenericMutants(lab, outcomes);
  lab.outputs.Poison();
  backend.run(lab.problem, MakeInputs(family, lab.problem, workload.uuid, 1), lab.outputs, {});
  outcomes.push_back(lab.Judge("previous_content", "returns the result of other input content"));
  for (const Mutant& mutant : family.mutants) {
    if (!mutant.Applies(lab.problem)) continue;
    lab.outputs.Poison();
    mutant.run(lab.problem, lab.inputs, lab.outputs);
    outcomes.push_back(lab.Judge(mutant.name, mutant.mistake));
  }
  return outcomes;
}

std::vector<const Workload*> CheapestPerDefinition(const Registry& registry, const Suite& suite) {
  std::map<std::string, std::pair<std::int64_t, const Workload*>> cheapest;
  for (const Workload& workload : suite.workloads) {
    if (registry.FindDefinition(workload.definition).family == nullptr) continue;
    std::int64_t size = 0;
    for (const auto& [name, value] : workload.axes) size += value;
    auto& best = cheapest[workload.definition];
    if (best.second == nullptr || size < best.first) best = {size, &workload};
  }
  std::vector<const Workload*> chosen;
  for (const auto& [definition, best] : cheapest) chosen.push_back(best.second);
  return chosen;
}

}  // namespace assay
