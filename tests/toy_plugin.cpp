// A plugin for the tests of dataset definitions: toy_scale, out[b, d] = alpha * x[b, d] + bias[d].
// Built twice: as the fp64 reference (TOY_REFERENCE) and as a kernel.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "include/assay_plugin.h"

namespace {

const AssayTensor* Find(const AssayNamedTensor* tensors, std::size_t count, const char* name) {
  for (std::size_t t = 0; t < count; ++t) {
    if (std::strcmp(tensors[t].name, name) == 0) return &tensors[t].tensor;
  }
  return nullptr;
}

const float* Input(const AssayCall* call, const char* name) {
  const AssayTensor* tensor = Find(call->inputs, call->input_count, name);
  return tensor != nullptr ? static_cast<const float*>(tensor->data) : nullptr;
}

template <class T>
int Scale(const AssayCall* call) {
  const AssayTensor& x = *Find(call->inputs, call->input_count, "x");
  const AssayTensor& out = *Find(call->outputs, call->output_count, "out");
  const std::int64_t rows = x.shape[0], width = x.shape[1];
  const float* from = Input(call, "x");
  const float* bias = Input(call, "bias");
  const double alpha = *Input(call, "alpha");
  for (std::int64_t i = 0; i < rows * width; ++i) {
    const double shift = bias != nullptr ? bias[i % width] : 0;
    static_cast<T*>(out.data)[i] = static_cast<T>(alpha * from[i] + shift);
  }
  return 0;
}

#ifdef TOY_REFERENCE
int Reference(const AssayCall* call) {
  if (std::getenv("TOY_REFERENCE_CRASHES") != nullptr) std::abort();
  return Scale<double>(call);
}
const AssayBackend kKernels[] = {
    {"toy_truth", "toy_scale", "reference", nullptr, nullptr, Reference, nullptr}};
#else
// Right for the first content that it meets, and only for that.
int Memo(const AssayCall* call) {
  static float* kept = nullptr;
  const AssayTensor& out = *Find(call->outputs, call->output_count, "out");
  const auto bytes = static_cast<std::size_t>(out.shape[0] * out.shape[1]) * sizeof(float);
  if (kept == nullptr) {
    Scale<float>(call);
    kept = static_cast<float*>(std::malloc(bytes));
    std::memcpy(kept, out.data, bytes);
  }
  std::memcpy(out.data, kept, bytes);
  return 0;
}
int WithoutBias(const AssayCall* call) {
  AssayCall less = *call;
  less.input_count = 1;
  while (std::strcmp(less.inputs[less.input_count - 1].name, "alpha") != 0) ++less.input_count;
  return Scale<float>(&less);
}
const AssayBackend kKernels[] = {
    {"toy_good", "toy_scale", "right", nullptr, nullptr, Scale<float>, nullptr},
    {"toy_memo", "toy_scale", "keeps its first answer", nullptr, nullptr, Memo, nullptr},
    {"toy_biasless", "toy_scale", "forgets the bias", nullptr, nullptr, WithoutBias, nullptr}};
#endif

}  // namespace

extern "C" ASSAY_PLUGIN_EXPORT const AssayBackend* assay_plugin_backends(std::uint32_t abi,
                                                                         std::size_t* count) {
  *count = sizeof kKernels / sizeof kKernels[0];
  return abi == ASSAY_PLUGIN_ABI ? kKernels : nullptr;
}
