#include "ops/attention/views.h"

#include <functional>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace assay::attention {
namespace {

// 16 bytes: what TMA and vector loads need, and what the page allows.
constexpr std::int64_t kStrideQuantum = 16 / static_cast<std::int64_t>(sizeof(bf16));

std::string Start(std::string_view operation, std::string_view tensor) {
  return std::string(operation) + ": " + std::string(tensor);
}

bool Empty(const View& view) { return view.batch * view.tokens * view.heads * view.dim == 0; }

// One past the last element.
const bf16* End(const View& view) {
  return view.data + (view.batch - 1) * view.strides.batch +
         (view.tokens - 1) * view.strides.token + (view.heads - 1) * view.strides.head + view.dim;
}

}  // namespace

void CheckHeadDim(std::string_view operation, std::int64_t dim) {
  if (dim != 64 && dim != 128) {
    BadInput(Start(operation, "Q") + " has head dimension " + std::to_string(dim) +
             ", supported are 64 and 128");
  }
}

void CheckView(std::string_view operation, const View& view) {
  if (Empty(view)) return;
  if (view.data == nullptr) BadInput(Start(operation, view.name) + " is null");
  if (view.strides.channel != 1) {
    BadInput(Start(operation, view.name) + " has channel stride " +
             std::to_string(view.strides.channel) + ", supported is 1");
  }
  for (const auto& [axis, stride] : {std::pair{"batch", view.strides.batch},
                                     {"token", view.strides.token},
                                     {"head", view.strides.head}}) {
    if (stride < 0 || stride % kStrideQuantum != 0) {
      BadInput(Start(operation, view.name) + " has " + axis + " stride " + std::to_string(stride) +
               " elements, supported are multiples of " + std::to_string(kStrideQuantum) +
               " (16 bytes)");
    }
  }
}

void CheckOutputStrides(std::string_view operation, const View& output) {
  if (Empty(output)) return;
  for (const auto& [axis, stride, count] : {std::tuple{"batch", output.strides.batch, output.batch},
                                            {"token", output.strides.token, output.tokens},
                                            {"head", output.strides.head, output.heads}}) {
    if (count > 1 && stride < output.dim) {
      BadInput(Start(operation, output.name) + " has " + axis + " stride " +
               std::to_string(stride) + ", so that its elements share memory");
    }
  }
}

void CheckNoOverlap(std::string_view operation, const View& output, const View& input) {
  if (Empty(output) || Empty(input)) return;
  const std::less<const bf16*> before;
  if (before(output.data, End(input)) && before(input.data, End(output))) {
    BadInput(Start(operation, output.name) + " overlaps input " + std::string(input.name));
  }
}

const Tensor& RequireTokens(std::string_view operation, const Bundle& bundle, std::string_view name,
                            const Shape& shape) {
  const Tensor* tensor = bundle.find(name);
  if (tensor == nullptr) BadInput(Start(operation, name) + " is missing");
  if (tensor->dtype != DType::kBF16) {
    BadInput(Start(operation, name) + " is " + std::string(DTypeName(tensor->dtype)) +
             ", supported is bfloat16");
  }
  if (tensor->shape != shape) {
    BadInput(Start(operation, name) + " has shape " + ShapeText(tensor->shape) + ", expected " +
             ShapeText(shape));
  }
  return *tensor;
}

}  // namespace assay::attention
