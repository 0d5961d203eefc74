// What rooms fill their `Family` with: layouts of declared tensors, rows to look at, tensors of a
// bundle that must fit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/family.h"

namespace assay {

// Of all these tensors, optional ones included.
std::vector<TensorLayout> LayoutsOf(const std::vector<TensorSpec>& specs, const Problem& problem);

// 0, 1, ..., count - 1.
std::vector<std::int64_t> EveryRow(std::int64_t count);
// All rows when there are no more than `most`; else a random one of each of `most` equal parts, the
// first and the last row among them.
std::vector<std::int64_t> SpreadRows(std::int64_t count, std::int64_t most, std::uint64_t seed);

// The input of this name, of that dtype and one of the shapes; null when it is absent and
// `optional`. Throws kInput naming definition, tensor, and both shapes.
const Tensor* RequireTensor(const Problem& problem, const Bundle& inputs, const std::string& name,
                            DType dtype, const std::vector<Shape>& shapes, bool optional = false);

}  // namespace assay
