// Cases of small size for the tests of this room.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ops/grouped_gemm_fp8_fp4/spec.h"
#include "replay/room_test.h"

namespace assay::grouped_gemm_fp8_fp4 {

using List = std::vector<std::int64_t>;

// The same family over a definition of small size.
inline Family SmallFamily(std::int64_t experts, std::int64_t n, std::int64_t k) {
  Family family = MakeFamily();
  family.definitions = {{"small", {{"E", experts}, {"N", n}, {"K", k}, {"G", k / kGroup}}, {"M"}}};
  return family;
}

struct Small {
  std::int64_t experts = 8, n = 64, k = 256, m = 24;
  std::string variant = {};
  Attributes attributes = {};
};

// Keeps its family alive.
struct SmallCase {
  std::unique_ptr<Family> family;
  TestCase test;
};

inline SmallCase MakeSmall(const Small& small, std::uint64_t key = 5) {
  SmallCase made;
  made.family = std::make_unique<Family>(SmallFamily(small.experts, small.n, small.k));
  made.test =
      MakeTestCase(*made.family, "small", {{"M", small.m}}, key, small.variant, small.attributes);
  return made;
}

inline Small WithRows(const List& rows, std::int64_t n = 64, std::int64_t k = 256) {
  Small small;
  small.experts = static_cast<std::int64_t>(rows.size());
  small.n = n;
  small.k = k;
  small.m = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  small.attributes = {{"expert_rows", rows}};
  return small;
}

inline Args ArgsOf(TestCase& test) { return Bind(test.problem, test.inputs, test.outputs); }

}  // namespace assay::grouped_gemm_fp8_fp4
