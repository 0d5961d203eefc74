// The fp64 truth, one output row at a time, and which rows a verdict looks at.
#include "ops/attention/rows.h"
#include "ops/prefix_cached_block_causal/spec.h"

namespace assay::prefix_cached_block_causal {
namespace {

constexpr std::int64_t kAllRowsUpTo = 64;  // queries
constexpr std::int64_t kRandomRows = 1024;

// Number of the image block of every token, -1 for text: the definition's second form,
// visible(i, j) iff j <= i or both are in the same block. (The kernel uses limits.)
std::vector<std::int64_t> BlockOfToken(const std::vector<Segment>& segments) {
  std::vector<std::int64_t> blocks;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    blocks.insert(blocks.end(), static_cast<std::size_t>(segments[s].end - segments[s].start),
                  segments[s].is_image ? static_cast<std::int64_t>(s) : -1);
  }
  return blocks;
}

}  // namespace

RowLists SampleRows(const Problem& problem, const Bundle& inputs, std::uint64_t seed) {
  const std::int64_t b = problem.axis("B"), h = problem.axis("H"), nq = problem.axis("Nq");
  if (nq <= kAllRowsUpTo) return {attention::AllOutputRows(b, nq, h)};
  std::vector<std::int64_t> borders;
  if (!IsPrefixForm(problem)) {
    for (const Segment& segment : SegmentsOf(problem, inputs)) borders.push_back(segment.start);
  }
  return {attention::SampleRows(b, nq, h, attention::EdgeQueries(nq, borders), kRandomRows, seed)};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const std::int64_t nq = problem.axis("Nq"), np = problem.axis("Np");
  const std::int64_t heads = problem.axis("H"), dim = problem.axis("D");
  const bool prefix = IsPrefixForm(problem);
  std::vector<std::int64_t> blocks;
  if (!prefix) blocks = BlockOfToken(SegmentsOf(problem, inputs));

  ExpectedRows expected;
  expected.value.resize(rows[0].size() * static_cast<std::size_t>(dim));
  expected.scale.resize(expected.value.size());
  attention::ForEachHead(
      rows[0], nq, heads,
      [&](std::int64_t batch, std::int64_t head, const std::vector<std::size_t>& positions) {
        attention::RowGroup group;
        group.dim = dim;
        for (std::int64_t j = 0; prefix && j < np; ++j) {
          const std::int64_t at = ((batch * np + j) * heads + head) * dim;
          group.keys.push_back(
              {inputs["K_prefix"].as<bf16>() + at, inputs["V_prefix"].as<bf16>() + at});
        }
        for (std::int64_t j = 0; j < nq; ++j) {
          const std::int64_t at = ((batch * nq + j) * heads + head) * dim;
          group.keys.push_back({inputs["K"].as<bf16>() + at, inputs["V"].as<bf16>() + at});
        }
        std::vector<std::size_t> queries;
        for (std::size_t position : positions) {
          const std::int64_t row = rows[0][position];
          queries.push_back(static_cast<std::size_t>(row / heads % nq));
          group.q.push_back(inputs["Q"].as<bf16>() + row * dim);
          group.value.push_back(expected.value.data() + position * static_cast<std::size_t>(dim));
          group.weight.push_back(expected.scale.data() + position * static_cast<std::size_t>(dim));
        }
        if (!prefix) {
          group.visible = [&](std::size_t row, std::size_t key) {
            const std::size_t query = queries[row];
            return key <= query || (blocks[query] >= 0 && blocks[key] == blocks[query]);
          };
        }
        attention::AttendRows(group, order);
      });
  return {std::move(expected)};
}

}  // namespace assay::prefix_cached_block_causal
