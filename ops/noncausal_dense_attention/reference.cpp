// The fp64 truth, one output row at a time, and which rows a verdict looks at.
#include "ops/attention/rows.h"
#include "ops/noncausal_dense_attention/spec.h"

namespace assay::noncausal_dense_attention {
namespace {

constexpr double kAllRowsUpTo = 0x1.0p26;  // B H Nq Nk: below it every row is checked
constexpr std::int64_t kRandomRows = 1024;

}  // namespace

RowLists SampleRows(const Problem& problem, const Bundle&, std::uint64_t seed) {
  const std::int64_t b = problem.axis("B"), h = problem.axis("H"), nq = problem.axis("Nq");
  const auto pairs = static_cast<double>(b * h * nq) * static_cast<double>(problem.axis("Nk"));
  if (pairs <= kAllRowsUpTo) {
    return {attention::AllOutputRows(b, nq, h)};
  }
  return {attention::SampleRows(b, nq, h, attention::EdgeQueries(nq), kRandomRows, seed)};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const std::int64_t nq = problem.axis("Nq"), nk = problem.axis("Nk");
  const std::int64_t heads = problem.axis("H"), dim = problem.axis("D");
  const std::int64_t buffer = KeyBufferRows(problem);
  const bf16* q = inputs["Q"].as<bf16>();
  const bf16* k = inputs["K"].as<bf16>();
  const bf16* v = inputs["V"].as<bf16>();
  const std::pair bound_mask = BindMask(problem, inputs);
  const std::uint8_t* mask = bound_mask.first;
  const MaskStrides mask_strides = bound_mask.second;

  ExpectedRows expected;
  expected.value.resize(rows[0].size() * static_cast<std::size_t>(dim));
  expected.scale.resize(expected.value.size());
  attention::ForEachHead(
      rows[0], nq, heads,
      [&](std::int64_t batch, std::int64_t head, const std::vector<std::size_t>& positions) {
        attention::RowGroup group;
        group.dim = dim;
        for (std::int64_t j = 0; j < nk; ++j) {
          const std::int64_t at = ((batch * buffer + j) * heads + head) * dim;
          group.keys.push_back({k + at, v + at});
        }
        std::vector<const std::uint8_t*> mask_rows;
        for (std::size_t position : positions) {
          const std::int64_t row = rows[0][position], query = row / heads % nq;
          group.q.push_back(q + row * dim);
          group.value.push_back(expected.value.data() + position * static_cast<std::size_t>(dim));
          group.weight.push_back(expected.scale.data() + position * static_cast<std::size_t>(dim));
          if (mask == nullptr) continue;
          mask_rows.push_back(mask + batch * mask_strides.batch + head * mask_strides.head +
                              query * mask_strides.query);
        }
        if (mask != nullptr) {
          group.visible = [&](std::size_t row, std::size_t key) {
            return mask_rows[row][key] != 0;
          };
        }
        attention::AttendRows(group, order);
      });
  return {std::move(expected)};
}

}  // namespace assay::noncausal_dense_attention
