// The truth of qsa_sparse_gqa_decode: softmax attention in fp64 over the set of attended tokens.
#include <map>
#include <set>

#include "base/parallel.h"
#include "ops/attention/rows.h"
#include "ops/qsa_sparse_gqa_decode/spec.h"

namespace assay::qsa_sparse_gqa_decode {
namespace {

// Query heads of one row that read the same KV head, and where their results go.
struct HeadGroup {
  std::int64_t b = 0, kv_head = 0;
  std::vector<std::size_t> positions;  // in the list of rows
};

std::vector<HeadGroup> GroupRows(const std::vector<std::int64_t>& rows) {
  std::map<std::int64_t, HeadGroup> groups;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t b = rows[i] / kHeads, kv_head = rows[i] % kHeads / kGroupHeads;
    HeadGroup& group = groups[b * kKvHeads + kv_head];
    group.b = b;
    group.kv_head = kv_head;
    group.positions.push_back(i);
  }
  std::vector<HeadGroup> list;
  for (auto& [number, group] : groups) list.push_back(std::move(group));
  return list;
}

}  // namespace

std::vector<std::int64_t> AttendedTokens(const Args& args, std::int64_t b) {
  std::set<std::int64_t> tokens;
  const std::int64_t length = args.seq_lens[b];
  for (std::int64_t i = 0; i < args.list_width; ++i) {
    if (args.token_ids != nullptr) {
      const std::int64_t token = args.token_ids[b * args.list_width + i];
      if (token >= 0 && token < length) tokens.insert(token);
      continue;
    }
    const std::int64_t group = args.block_ids[b * args.list_width + i];
    for (std::int64_t r = 0; r < kGroupTokens && group >= 0; ++r) {
      if (kGroupTokens * group + r < length) tokens.insert(kGroupTokens * group + r);
    }
  }
  if (args.block_ids != nullptr) {
    for (std::int64_t t = length / kGroupTokens * kGroupTokens; t < length; ++t) tokens.insert(t);
  }
  return {tokens.begin(), tokens.end()};
}

std::vector<ExpectedRows> Reference(const Problem& problem, const Bundle& inputs,
                                    const RowLists& rows, SumOrder order) {
  const Args args = BindInputs(problem, inputs);
  ExpectedRows out;
  out.value.resize(rows[0].size() * static_cast<std::size_t>(kHeadSize));
  out.scale.resize(out.value.size());
  const std::vector<HeadGroup> groups = GroupRows(rows[0]);
  ParallelFor(static_cast<std::int64_t>(groups.size()), 0, [&](std::int64_t i) {
    const HeadGroup& group = groups[static_cast<std::size_t>(i)];
    attention::RowGroup attend;
    attend.dim = kHeadSize;
    attend.scale = args.scale;
    for (std::int64_t token : AttendedTokens(args, group.b)) {
      const std::int64_t page = args.page_table[group.b * args.table_width + token / kPageTokens];
      const std::int64_t at =
          ((page * kPageTokens + token % kPageTokens) * kKvHeads + group.kv_head) * kHeadSize;
      attend.keys.push_back({args.k_cache + at, args.v_cache + at});
    }
    for (std::size_t position : group.positions) {
      attend.q.push_back(args.q + rows[0][position] * kHeadSize);
      attend.value.push_back(out.value.data() + position * static_cast<std::size_t>(kHeadSize));
      attend.weight.push_back(out.scale.data() + position * static_cast<std::size_t>(kHeadSize));
    }
    attention::AttendRows(attend, order);
  });
  return {std::move(out)};
}

}  // namespace assay::qsa_sparse_gqa_decode
