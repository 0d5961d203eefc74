#include "replay/mutations.h"

#include <algorithm>
#include <cstring>
#include <set>

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

Lab MakeLab(const Family& family, const Workload& workload, const Problem& problem) {
  Bundle inputs = MakeInputs(family, problem, workload.uuid, 0);
  Bundle right = Bundle::Allocate(OutputLayouts(family, problem));
  Bundle outputs = Bundle::Allocate(OutputLayouts(family, problem));
  Expected expected = ComputeExpected(family, problem, inputs, 1);
  return {family, workload, problem, inputs, right, outputs, std::move(expected)};
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

// A mistake that needs no knowledge of the operator. It starts from a right output, except
// "previous_content".
struct GenericMutant {
  const char* name;
  const char* mistake;
  bool (*applies)(const Family& family, const Problem& problem);
  void (*apply)(Lab& lab);
};

bool Always(const Family&, const Problem&) { return true; }

bool HasFloatOutput(const Family& family, const Problem&) {
  return std::any_of(family.outputs.begin(), family.outputs.end(),
                     [](const TensorSpec& spec) { return IsFloat(spec.dtype); });
}

bool HasTwoRows(const Family& family, const Problem& problem) {
  return RowCount(family.outputs.front(), problem) > 1;
}

constexpr GenericMutant kGenericMutants[] = {
    {"zeros", "writes zeros", Always,
     [](Lab& lab) {
       for (Tensor& tensor : lab.outputs.tensors()) std::memset(tensor.data, 0, tensor.bytes());
     }},
    {"scaled_by_1.01", "every output element is 1 % too large", HasFloatOutput,
     [](Lab& lab) { MapElements(lab.outputs, [](double x) { return 1.01 * x; }); }},
    {"rows_rotated", "every row holds its successor's result", HasTwoRows,
     [](Lab& lab) {
       RotateRows(lab.family.outputs.front(), lab.problem, lab.outputs.tensors()[0]);
     }},
    {"previous_content", "returns the result of other input content", Always,
     [](Lab& lab) {
       lab.outputs.Poison();
       lab.family.backends.front().run(
           lab.problem, MakeInputs(lab.family, lab.problem, lab.workload.uuid, 1), lab.outputs, {});
     }},
};

bool SameOutputs(const Bundle& a, const Bundle& b) {
  for (std::size_t t = 0; t < a.tensors().size(); ++t) {
    if (std::memcmp(a.tensors()[t].data, b.tensors()[t].data, a.tensors()[t].bytes()) != 0) {
      return false;
    }
  }
  return true;
}

// Judges the mistakes that change something here (the ids of a short list do not depend on the
// content) and takes them off `pending`.
void TryGenericMutants(Lab& lab, std::vector<const GenericMutant*>& pending,
                       std::vector<MutantOutcome>& outcomes) {
  std::erase_if(pending, [&](const GenericMutant* mutant) {
    if (!mutant->applies(lab.family, lab.problem)) return false;
    CopyOutputs(lab.right, lab.outputs);
    mutant->apply(lab);
    if (SameOutputs(lab.right, lab.outputs)) return false;
    outcomes.push_back(lab.Judge(mutant->name, mutant->mistake));
    return true;
  });
}

// The family's mutants that show on this workload, with the variant of inputs that they want.
void TryFamilyMutants(const Family& family, const Workload& workload, const std::string& variant,
                      std::vector<const GenericMutant*>& generic,
                      std::vector<const Mutant*>& pending, std::vector<MutantOutcome>& outcomes) {
  const Problem problem =
      MakeProblem(family, workload.definition, workload.axes, workload.attributes, variant);
  const auto applies = [&](const Mutant* mutant) { return mutant->Applies(problem); };
  const bool any_generic =
      std::any_of(generic.begin(), generic.end(),
                  [&](const GenericMutant* mutant) { return mutant->applies(family, problem); });
  if (!any_generic && std::none_of(pending.begin(), pending.end(), applies)) return;
  Lab lab = MakeLab(family, workload, problem);
  RequireRightOutputPasses(lab);
  TryGenericMutants(lab, generic, outcomes);
  for (const Mutant* mutant : pending) {
    if (!applies(mutant)) continue;
    lab.outputs.Poison();
    mutant->run(lab.problem, lab.inputs, lab.outputs);
    outcomes.push_back(lab.Judge(mutant->name, mutant->mistake));
  }
  std::erase_if(pending, applies);
}

}  // namespace

std::vector<MutantOutcome> TryMutants(const Family& family,
                                      std::span<const Workload* const> workloads) {
  std::vector<MutantOutcome> outcomes;
  std::vector<const GenericMutant*> generic;
  for (const GenericMutant& mutant : kGenericMutants) generic.push_back(&mutant);
  std::vector<const Mutant*> pending;
  std::set<std::string> variants = {""};
  for (const Mutant& mutant : family.mutants) {
    pending.push_back(&mutant);
    variants.insert(mutant.variant);
  }
  for (const Workload* workload : workloads) {
    for (const std::string& variant : variants) {  // the default, "", comes first
      const bool own = variant.empty();
      std::vector<const GenericMutant*> none;
      TryFamilyMutants(family, *workload, own ? workload->variant : variant, own ? generic : none,
                       pending, outcomes);
    }
    if (pending.empty() && generic.empty()) break;
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
