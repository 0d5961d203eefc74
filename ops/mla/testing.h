// What the tests of both MLA rooms use beyond replay/room_test.h. Test code only.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/tensor.h"

namespace assay::mla {

inline double LargestDifference(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max<double>(largest, std::abs(ToFloat(a[i]) - ToFloat(b[i])));
  }
  return largest;
}

inline std::size_t TouchedBytes(const Bundle& bundle) {
  std::size_t touched = 0;
  for (const Tensor& tensor : bundle.tensors()) {
    for (const auto& [first, last] : bundle.TouchedParts(tensor)) touched += last - first;
  }
  return touched;
}

}  // namespace assay::mla
