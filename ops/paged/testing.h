// Sizes of small batches for the tests of the rooms of paged caches. Test code only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/family.h"

namespace assay::paged {

struct Spare {
  std::int64_t columns = 0;  // page-table entries beyond the longest row
  std::int64_t pages = 0;    // cache pages that nobody uses
};

// Axes B, MP and NP of rows with these lengths, each on pages of its own.
inline Axes AxesOf(const std::vector<std::int64_t>& lengths,
                   std::int64_t (*pages_of)(std::int64_t tokens), const Spare& spare = {}) {
  std::int64_t width = 0, pages = 0;
  for (const std::int64_t length : lengths) {
    width = std::max(width, pages_of(length));
    pages += pages_of(length);
  }
  return {{"B", static_cast<std::int64_t>(lengths.size())},
          {"MP", width + spare.columns},
          {"NP", pages + spare.pages}};
}

}  // namespace assay::paged
