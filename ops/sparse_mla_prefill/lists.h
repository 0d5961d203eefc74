// The index lists of a bundle: which workspace rows each query row attends to.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/family.h"

namespace assay::sparse_mla_prefill {

struct Lists {
  std::int64_t m = 0, nkv = 0, width = 0;
  const std::int32_t* indices = nullptr;      // [m, width]
  const std::int32_t* topk_length = nullptr;  // [m] or null

  std::int64_t Length(std::int64_t row) const {
    return topk_length == nullptr ? width : topk_length[row];
  }
  bool Valid(std::int32_t index) const { return index >= 0 && index < nkv; }

  // Calls body(index) for every valid entry of a row, in column order.
  template <class Body>
  void ForEach(std::int64_t row, const Body& body) const {
    const std::int32_t* list = indices + row * width;
    for (std::int64_t j = 0; j < Length(row); ++j) {
      if (Valid(list[j])) body(list[j]);
    }
  }
};

inline Lists ListsOf(const Problem& problem, const Bundle& inputs) {
  Lists lists{problem.axis("M"), problem.axis("Nkv"), problem.axis("W"),
              inputs["indices"].as<std::int32_t>(), nullptr};
  if (const Tensor* lengths = inputs.find("topk_length")) {
    lists.topk_length = lengths->as<std::int32_t>();
  }
  return lists;
}

// [nkv], 1 where some list has the row.
inline std::vector<std::uint8_t> SelectedRows(const Lists& lists) {
  std::vector<std::uint8_t> selected(static_cast<std::size_t>(lists.nkv));
  for (std::int64_t row = 0; row < lists.m; ++row) {
    lists.ForEach(row, [&](std::int32_t index) { selected[static_cast<std::size_t>(index)] = 1; });
  }
  return selected;
}

}  // namespace assay::sparse_mla_prefill
