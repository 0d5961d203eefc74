// Definitions that come with a dataset, as operator families: their reference is a plugin.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "io/trace_dataset.h"
#include "replay/plugin.h"
#include "replay/suite.h"

namespace assay {

// `base` and a family for each definition that it does not have. Throws kInput when a definition
// has a name of `base` and means something else (another tensor, dtype or constant), or an output
// that cannot be judged element by element.
Registry WithTraceDefinitions(const Registry& base,
                              const std::vector<TraceDefinition>& definitions);

// True for those families: any subset of the inputs can be generated, every element by itself.
bool MakesIndependentInputs(const Family& family);

// Gives those families their reference: the kernel of the plugin worker `command` that computes the
// definition. It runs in a process of its own, on outputs of float64, so that a reference that
// crashes is an `invalid_reference`. Throws kInput when a kernel computes a definition of `base`
// that is not of a dataset: those have references.
Registry WithPluginReferences(const Registry& base, const std::vector<PluginBackend>& kernels,
                              const std::vector<std::string>& command);
// "" or the name of the first workload's definition that has no reference.
std::string DefinitionWithoutReference(const Registry& registry, const Suite& suite);

// The workloads of a dataset's workloads/ folder. What cannot be read becomes `problems`. A const
// axis of the dataset's definition that is a variable here is added to the axes.
Suite LoadTraceSuite(const std::string& root, const std::vector<TraceDefinition>& definitions,
                     const Registry& registry);

}  // namespace assay
