// What a dataset stores of one workload: input tensors in safetensors files, scalars, and the
// outputs that the engine computed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "replay/suite.h"

namespace assay {

struct EngineError;

class StoredInputs {
 public:
  // Null when the record says nothing about its inputs: then all of them are generated. Throws
  // kInput naming the input: not declared, missing, of an unknown type, a scalar where a tensor is
  // declared (or out of its dtype's range), a file that leaves the folder, has another SHA-256 than
  // its name says, or lacks the tensor. Shapes are left to Family::validate_inputs, which knows
  // alternatives.
  static std::unique_ptr<StoredInputs> Open(const Workload& workload, const Family& family,
                                            const Problem& problem);

  const std::vector<TensorLayout>& layouts() const { return layouts_; }
  bool any_blob() const { return any_blob_; }

  // Variation 0 is what was stored. Others rotate the elements of its floating-point tensors, each
  // by another distance: new content from the same distribution, and indices, lengths and packed
  // bytes stay what they were. Inputs of type random come from the family's generator with `key`.
  void Fill(std::uint64_t key, int variation, Bundle& inputs) const;

  // The recorded outputs against `outputs` of variation 0; empty where none were recorded or where
  // an input is not the engine's (random). Throws kInput when a recorded tensor has another shape.
  std::vector<EngineError> CompareWithEngine(const Bundle& outputs) const;

 private:
  struct Blob {
    std::string name, key;  // input or output; tensor inside the file
    const SafetensorsFile* file = nullptr;
  };

  StoredInputs(const Family& family, const Problem& problem) : family_(family), problem_(problem) {}
  const SafetensorsFile& OpenFile(const std::string& path);
  void FillRandom(std::uint64_t key, Bundle& inputs) const;

  friend class StoredInputsReader;

  const Family& family_;
  const Problem& problem_;
  std::string root_;
  std::vector<TensorLayout> layouts_;
  std::map<std::string, SafetensorsFile> files_;  // by path; several tensors may share one
  std::vector<Blob> inputs_, outputs_;
  std::map<std::string, double> scalars_;
  std::vector<std::string> random_;
  bool any_blob_ = false;
};

}  // namespace assay
