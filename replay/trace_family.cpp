#include "replay/trace_family.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "io/axis_expression.h"
#include "replay/protocol.h"
#include "replay/suite_reader.h"
#include "replay/verify.h"
#include "replay/worker_process.h"
#include "replay/workload_json.h"

namespace assay {
namespace {

constexpr const char* kIndependent = "independent";

std::vector<TensorSpec> SpecsOf(const std::vector<TraceTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const TraceTensor& tensor : tensors) {
    TensorSpec spec{tensor.name, tensor.dtype, tensor.shape, tensor.optional};
    spec.row_rank = tensor.shape.empty() ? 0 : 1;
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::vector<TensorLayout> RequiredLayouts(const std::vector<TensorSpec>& specs,
                                          const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : specs) {
    if (!spec.optional) layouts.push_back(Resolve(spec, problem));
  }
  return layouts;
}

// One element of a unit normal, or a fair coin. Integers mean something that nobody can guess.
void GenerateElement(Tensor& tensor, std::uint64_t key, std::uint64_t number, std::int64_t i) {
  const auto index = static_cast<std::uint64_t>(i);
  const float x = UnitNormal(key, number, index);
  switch (tensor.dtype) {
    case DType::kF32:
      tensor.as<float>()[i] = x;
      return;
    case DType::kF64:
      tensor.as<double>()[i] = x;
      return;
    case DType::kBF16:
      tensor.as<bf16>()[i] = ToBF16(x);
      return;
    case DType::kF16:
      tensor.as<f16>()[i] = ToF16(x);
      return;
    case DType::kE4M3:
      tensor.as<e4m3>()[i] = ToE4M3(x);
      return;
    case DType::kE5M2:
      tensor.as<e5m2>()[i] = ToE5M2(x);
      return;
    case DType::kBool:
      tensor.data[i] = static_cast<std::byte>(Mix64(key, number, index) & 1);
      return;
    default:
      BadInput("input '" + tensor.name + "' is random and " + std::string(DTypeName(tensor.dtype)) +
               ": such values cannot be guessed, store them in the dataset");
  }
}

void Generate(const std::vector<TensorSpec>& specs, std::uint64_t key, Bundle& inputs) {
  for (std::size_t number = 0; number < specs.size(); ++number) {
    Tensor* tensor = inputs.find(specs[number].name);
    if (tensor == nullptr) continue;
    ParallelRanges(tensor->elements(), 1 << 16, 0, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) GenerateElement(*tensor, key, number, i);
    });
  }
}

RowLists EveryRow(const std::vector<TensorSpec>& outputs, const Problem& problem) {
  RowLists lists;
  for (const TensorSpec& spec : outputs) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(RowCount(spec, problem)));
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<std::int64_t>(r);
    lists.push_back(std::move(rows));
  }
  return lists;
}

// The recorded tolerances of bf16 and fp32; those of the other formats in proportion to their
// spacing at 1 (bf16 2^-7): f16 2^-10, e4m3 2^-3, e5m2 2^-2. The norm limit stays above what the
// rounding of an output alone gives (half a spacing, uniform: 0.29 of it).
OutputPolicy PolicyOf(DType dtype) {
  OutputPolicy policy;
  const auto grade = [&](double atol, double rtol, double rel_l2) {
    policy.grades = {{"captured", atol, rtol, 0, 0}};
    policy.slice_rel_l2 = rel_l2;
  };
  switch (dtype) {
    case DType::kBF16:
      grade(0.005, 0.016, 5e-3);
      break;
    case DType::kF16:
      grade(0.005 / 8, 0.016 / 8, 5e-3 / 8);
      break;
    case DType::kE4M3:
      grade(0.005 * 16, 0.016 * 16, 5e-3 * 16);
      break;
    case DType::kE5M2:
      grade(0.005 * 32, 0.016 * 32, 5e-3 * 32);
      break;
    case DType::kF32:
    case DType::kF64:
      grade(2e-5, 1e-4, 1e-4);
      break;
    default:  // bit equality
      policy.slice_rel_l2 = 0;
  }
  return policy;
}

void CheckConstraints(const TraceDefinition& definition, const Problem& problem) {
  for (const std::string& constraint : definition.constraints) {
    if (HoldsForAxes(constraint, problem.axes) == false) {
      BadInput(definition.name + ": the axes violate the constraint '" + constraint + "'");
    }
  }
}

double TotalBytes(const std::vector<TensorLayout>& layouts) {
  double bytes = 0;
  for (const TensorLayout& layout : layouts) {
    bytes += static_cast<double>(DTypeBytes(layout.dtype, ElementCount(layout.shape)));
  }
  return bytes;
}

Family MakeTraceFamily(const TraceDefinition& given) {
  Family family;
  const auto definition = std::make_shared<const TraceDefinition>(given);
  const std::vector<TensorSpec> inputs = SpecsOf(given.inputs), outputs = SpecsOf(given.outputs);
  family.name = given.name;
  family.summary = "from a dataset: " + given.op_type;
  Definition own{given.name, {}, {}};
  for (const TraceAxis& axis : given.axes) {
    if (axis.value)
      own.constants[axis.name] = *axis.value;
    else
      own.variables.push_back(axis.name);
  }
  family.definitions = {own};
  family.inputs = inputs;
  family.outputs = outputs;
  family.variants = {kIndependent};
  family.validate_axes = [definition](const Problem& p) { CheckConstraints(*definition, p); };
  family.validate_inputs = [inputs](const Problem& problem, const Bundle& bundle) {
    CheckInputLayouts(inputs, problem, bundle);
  };
  family.input_layouts = [inputs](const Problem& p) { return RequiredLayouts(inputs, p); };
  family.generate = [inputs](const Problem&, std::uint64_t key, Bundle& bundle) {
    Generate(inputs, key, bundle);
  };
  family.cost = [outputs](const Problem& problem, const Bundle& bundle) {
    return Cost{0, TotalBytes(bundle.layouts()) + TotalBytes(RequiredLayouts(outputs, problem)), 0};
  };
  family.sample_rows = [outputs](const Problem& problem, const Bundle&, std::uint64_t) {
    return EveryRow(outputs, problem);
  };
  family.policies = [outputs](const Problem&) {
    std::vector<OutputPolicy> policies;
    for (const TensorSpec& spec : outputs) policies.push_back(PolicyOf(spec.dtype));
    return policies;
  };
  for (const TensorSpec& spec : outputs) {
    if (spec.dtype == DType::kE2M1) {
      BadInput("definition " + given.name + ": output '" + spec.name +
               "' is float4_e2m1, which cannot be judged element by element");
    }
  }
  return family;
}

// Same bytes under another name, as datasets write them.
bool SameDType(DType ours, DType theirs) {
  return ours == theirs ||
         (theirs == DType::kU8 && (ours == DType::kUE8M0 || ours == DType::kE2M1));
}

void RequireSameTensors(const std::string& definition, const char* kind,
                        const std::vector<TensorSpec>& ours,
                        const std::vector<TraceTensor>& theirs) {
  const std::string where = "definition " + definition + " is built in; " + kind + " '";
  for (const TraceTensor& tensor : theirs) {
    const auto known = std::find_if(ours.begin(), ours.end(),
                                    [&](const TensorSpec& s) { return s.name == tensor.name; });
    if (known == ours.end()) BadInput(where + tensor.name + "' of the dataset is unknown there");
    if (!SameDType(known->dtype, tensor.dtype)) {
      BadInput(where + tensor.name + "' is " + std::string(DTypeName(known->dtype)) + " there, " +
               std::string(DTypeName(tensor.dtype)) + " in the dataset");
    }
  }
  for (const TensorSpec& spec : ours) {
    const bool found = std::any_of(theirs.begin(), theirs.end(),
                                   [&](const TraceTensor& t) { return t.name == spec.name; });
    if (!found && !spec.optional) BadInput(where + spec.name + "' is missing from the dataset");
  }
}

void RequireSameMeaning(const DefinitionRef& ours, const TraceDefinition& theirs) {
  RequireSameTensors(theirs.name, "input", ours.family->inputs, theirs.inputs);
  RequireSameTensors(theirs.name, "output", ours.family->outputs, theirs.outputs);
  for (const TraceAxis& axis : theirs.axes) {
    const auto constant = ours.definition->constants.find(axis.name);
    if (constant == ours.definition->constants.end() || !axis.value) continue;
    if (constant->second != *axis.value) {
      BadInput("definition " + theirs.name + " is built in; axis " + axis.name + " is " +
               std::to_string(constant->second) + " there, " + std::to_string(*axis.value) +
               " in the dataset");
    }
  }
}

// The truth of one dataset definition, computed by a plugin in a worker.
class PluginReference {
 public:
  PluginReference(std::string kernel, std::vector<std::string> command)
      : kernel_(std::move(kernel)), command_(std::move(command)) {}

  std::vector<ExpectedRows> Rows(const Family& family, const Problem& problem, const Bundle& inputs,
                                 const RowLists& rows) {
    const std::scoped_lock lock(mutex_);
    std::vector<TensorLayout> layouts = OutputLayouts(family, problem);
    for (TensorLayout& layout : layouts) {
      if (IsFloat(layout.dtype)) layout.dtype = DType::kF64;
    }
    Bundle outputs = Bundle::AllocateShared(layouts);
    outputs.Poison();
    Compute(problem, inputs, outputs);
    std::vector<ExpectedRows> expected;
    for (std::size_t o = 0; o < rows.size(); ++o) {
      const Tensor& tensor = outputs.tensors()[o];
      const std::int64_t elements = RowElements(family.outputs[o], problem);
      ExpectedRows& one = expected.emplace_back();
      one.value.reserve(rows[o].size() * static_cast<std::size_t>(elements));
      for (const std::int64_t row : rows[o]) {
        for (std::int64_t e = 0; e < elements; ++e) {
          one.value.push_back(ElementAsDouble(tensor, row * elements + e));
        }
      }
    }
    return expected;
  }

 private:
  static constexpr double kTimeoutS = 300;

  void Compute(const Problem& problem, const Bundle& inputs, const Bundle& outputs) {
    if (worker_ == nullptr || worker_->dead()) {
      worker_ = std::make_unique<WorkerProcess>(command_, never_stop_);
    }
    Workload workload;
    workload.uuid = "reference";
    workload.definition = problem.definition->name;
    workload.attributes = problem.attributes;
    for (const std::string& axis : problem.definition->variables) {
      workload.axes[axis] = problem.axis(axis);
    }
    nlohmann::json open = {{"op", "open"}, {"backend", kernel_}, {"threads", 0}};
    open["workload"] = ToJson(workload);
    nlohmann::json slot = {{"op", "slot"}, {"slot", 0}, {"run", true}};
    LayoutsToJson(inputs.layouts(), slot["inputs"]);
    LayoutsToJson(outputs.layouts(), slot["outputs"]);
    const int fds[] = {inputs.fd(), outputs.fd()};
    worker_->Post(open, {}, "reference");
    worker_->Post(slot, fds, "reference");
    worker_->Post({{"op", "close"}}, {}, "reference");
    for (const Reply& reply : worker_->Collect(kTimeoutS)) {
      if (reply.status == Status::kPassed) continue;
      throw Error(Fault::kIncomplete,
                  "the reference plugin " + kernel_ + " failed: " + reply.reason);
    }
  }

  const std::string kernel_;
  const std::vector<std::string> command_;
  const std::atomic<bool> never_stop_{false};
  std::mutex mutex_;
  std::unique_ptr<WorkerProcess> worker_;
};

// Const axes of the dataset's definition that workloads here must give (page sizes: ruling 2).
void AddConstAxes(const TraceDefinition& given, const Registry& registry, Workload& workload) {
  const DefinitionRef ours = registry.FindDefinition(workload.definition);
  if (ours.definition == nullptr) return;
  const auto& variables = ours.definition->variables;
  for (const TraceAxis& axis : given.axes) {
    if (!axis.value) continue;
    if (std::find(variables.begin(), variables.end(), axis.name) == variables.end()) continue;
    const auto [known, added] = workload.axes.emplace(axis.name, *axis.value);
    if (!added && known->second != *axis.value) {
      BadInput("axis " + axis.name + " = " + std::to_string(known->second) +
               ", but the dataset's definition fixes it at " + std::to_string(*axis.value));
    }
  }
}

}  // namespace

bool MakesIndependentInputs(const Family& family) {
  return family.variants.size() == 1 && family.variants.front() == kIndependent;
}

Registry WithTraceDefinitions(const Registry& base,
                              const std::vector<TraceDefinition>& definitions) {
  std::vector<Family> families = base.families();
  for (const TraceDefinition& definition : definitions) {
    const DefinitionRef known = base.FindDefinition(definition.name);
    if (known.family == nullptr) {
      families.push_back(MakeTraceFamily(definition));
    } else {
      RequireSameMeaning(known, definition);
    }
  }
  return Registry(std::move(families));
}

Registry WithPluginReferences(const Registry& base, const std::vector<PluginBackend>& kernels,
                              const std::vector<std::string>& command) {
  std::vector<Family> families = base.families();
  for (const PluginBackend& kernel : kernels) {
    const auto family = std::find_if(families.begin(), families.end(), [&](const Family& f) {
      return MakesIndependentInputs(f) && f.name == kernel.definition;
    });
    if (family == families.end()) {
      BadInput("reference kernel '" + kernel.name + "' computes '" + kernel.definition +
               "', which is no definition of the dataset that needs a reference");
    }
    const auto reference = std::make_shared<PluginReference>(kernel.name, command);
    Family declared;  // what the reference needs of it; the closure outlives `families`
    declared.outputs = family->outputs;
    family->reference = [reference, declared](const Problem& problem, const Bundle& inputs,
                                              const RowLists& rows, SumOrder) {
      return reference->Rows(declared, problem, inputs, rows);
    };
  }
  return Registry(std::move(families));
}

std::string DefinitionWithoutReference(const Registry& registry, const Suite& suite) {
  for (const Workload& workload : suite.workloads) {
    const Family* family = registry.FindDefinition(workload.definition).family;
    if (family != nullptr && !family->reference) return workload.definition;
  }
  return "";
}

Suite LoadTraceSuite(const std::string& root, const std::vector<TraceDefinition>& definitions,
                     const Registry& registry) {
  std::map<std::string, const TraceDefinition*, std::less<>> by_name;
  for (const TraceDefinition& definition : definitions) by_name[definition.name] = &definition;
  Suite suite;
  suite.name = std::filesystem::path(root).lexically_normal().filename().string();
  std::map<std::string, std::string> file_of_uuid;
  for (const std::string& file : TraceFiles(root, "workloads", ".jsonl")) {
    Suite part = ReadRecords(root + "/" + file, registry, {}, [&](nlohmann::json& record) {
      Workload workload = KeepExtra(record);
      const auto definition = by_name.find(workload.definition);
      if (definition != by_name.end()) AddConstAxes(*definition->second, registry, workload);
      workload.dataset = root;
      return workload;
    });
    for (Workload& workload : part.workloads) {
      const auto [first, added] = file_of_uuid.emplace(workload.uuid, file);
      if (added) {
        suite.workloads.push_back(std::move(workload));
      } else {
        suite.problems.push_back(
            {file, 0, 0, "duplicate uuid " + workload.uuid + ", first in " + first->second});
      }
    }
    for (SuiteProblem& problem : part.problems) suite.problems.push_back(std::move(problem));
  }
  return suite;
}

}  // namespace assay
