// The fp64 truth, one output row at a time, and which rows a verdict looks at.
#include "base/parallel.h"
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
  const auto [mask, mask_strides] = BindMask(problem, inputs);

  ExpectedRows expected;
  expected.value.resize(rows[0].size() * static_cast<std::size_t>(dim));
  expected.scale.resize(expected.value.size());
  ParallelFor(static_cast<std::int64_t>(rows[0].size()), 0, [&](std::int64_t n) {
    const std::int64_t row = rows[0][static_cast<std::size_t>(n)];
    const std::int64_t batch = row / (nq * heads), query = row / heads % nq, head = row % heads;
    std::vector<attention::VisibleKey> keys;
    keys.reserve(static_cast<std::size_t>(nk));
    for (std::int64_t j = 0; j < nk; ++j) {
      if (mask != nullptr && mask[batch * mask_strides.batch + head * mask_strides.head +
                                  query * mask_strides.query + j * mask_strides.key] == 0) {
        continue;
      }
      const std::int64_t at = ((batch * buffer + j) * heads + head) * dim;
      keys.push_back({k + at, v + at});
    }
    attention::AttendRow(q + row * dim, keys, dim, order, expected.value.data() + n * dim,
                         expected.scale.data() + n * dim);
  });
  return {std::move(expected)};
}

}  // namespace assay::noncausal_dense_attention
