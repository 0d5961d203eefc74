#include "ops/room.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace assay {

std::vector<TensorLayout> LayoutsOf(const std::vector<TensorSpec>& specs, const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : specs) layouts.push_back(Resolve(spec, problem));
  return layouts;
}

std::vector<std::int64_t> EveryRow(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  return rows;
}

std::vector<std::int64_t> SpreadRows(std::int64_t count, std::int64_t most, std::uint64_t seed) {
  if (count <= most) return EveryRow(count);
  std::vector<std::int64_t> rows;
  for (std::int64_t part = 0; part < most; ++part) {
    const std::int64_t begin = part * count / most, end = (part + 1) * count / most;
    const auto offset = Mix64(seed, kAuxiliaryTensor, static_cast<std::uint64_t>(part)) %
                        static_cast<std::uint64_t>(end - begin);
    rows.push_back(begin + static_cast<std::int64_t>(offset));
  }
  rows.front() = 0;
  rows.back() = count - 1;
  return rows;
}

const Tensor* RequireTensor(const Problem& problem, const Bundle& inputs, const std::string& name,
                            DType dtype, const std::vector<Shape>& shapes, bool optional) {
  const Tensor* tensor = inputs.find(name);
  if (tensor == nullptr) {
    if (optional) return nullptr;
    BadInput(problem.definition->name + ": input '" + name + "' is missing");
  }
  const bool fits = std::find(shapes.begin(), shapes.end(), tensor->shape) != shapes.end();
  if (fits && tensor->dtype == dtype) return tensor;
  std::string expected;
  for (const Shape& shape : shapes) {
    expected += (expected.empty() ? "" : " or ") + std::string(DTypeName(dtype)) + ShapeText(shape);
  }
  BadInput(problem.definition->name + ": input '" + name + "' is " +
           std::string(DTypeName(tensor->dtype)) + ShapeText(tensor->shape) + ", expected " +
           expected);
}

}  // namespace assay
