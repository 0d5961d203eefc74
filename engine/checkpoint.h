// Published checkpoints: config.json beside safetensors files, in one file or in shards with an
// index. The format of each tensor is what its file holds, never what a global method says.
#pragma once

#include <string>
#include <vector>

#include "engine/model.h"

namespace assay::engine {

// Everything that does not fit between a checkpoint and the architecture.
struct CheckpointReport {
  std::vector<std::string> missing;     // names
  std::vector<std::string> extra;       // names; model.visual.* and input scales are not counted
  std::vector<std::string> unreadable;  // sentences: shape, dtype, scales, non-finite values
  bool ok() const { return missing.empty() && extra.empty() && unreadable.empty(); }
  std::string Text() const;  // at most ten entries of each kind
};

// Loads `folder`; weights stay mapped. Throws kInput with the whole report when anything does not
// fit, or naming the file when it cannot be read.
Model LoadCheckpoint(const std::string& folder);

}  // namespace assay::engine
