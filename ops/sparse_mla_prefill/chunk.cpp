#include "ops/sparse_mla_prefill/chunk.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace assay::sparse_mla_prefill {
namespace {

constexpr std::int64_t kPrefixUnit = 256;  // cached prefixes are whole pages of 256 positions
constexpr std::uint64_t kPicks = kAuxiliaryTensor + 250;  // + number of the request

constexpr int kRun = 8;
constexpr int kRunSlots = 45;  // 360 of 512 picks: 70 %

using List = std::vector<std::int64_t>;

[[noreturn]] void Refuse(const Problem& problem, const std::string& what) {
  BadInput(problem.definition->name + ": " + what);
}

std::string Text(std::int64_t number) { return std::to_string(number); }

// Query rows of each request.
List ExtendLengths(const Problem& problem, const List& sequences) {
  const std::int64_t rows = problem.axis("M");
  const std::int64_t total = std::accumulate(sequences.begin(), sequences.end(), std::int64_t{0});
  if (const List* given = problem.integers("extend_lengths")) {
    if (given->size() != sequences.size()) {
      Refuse(problem, "extend_lengths has " + Text(static_cast<std::int64_t>(given->size())) +
                          " entries, sequence_lengths " +
                          Text(static_cast<std::int64_t>(sequences.size())));
    }
    return *given;
  }
  const auto requests = static_cast<std::int64_t>(sequences.size());
  const std::int64_t units = (total - rows) / kPrefixUnit;
  List extends;
  std::int64_t left = rows;
  for (std::int64_t r = 0; r < requests; ++r) {
    const std::int64_t prefix = kPrefixUnit * (units / requests + (r < units % requests ? 1 : 0));
    const bool last = r + 1 == requests;
    extends.push_back(last ? left : sequences[static_cast<std::size_t>(r)] - prefix);
    left -= extends.back();
  }
  return extends;
}

void CheckExtends(const Problem& problem, const List& sequences, const List& extends) {
  std::int64_t sum = 0;
  for (std::size_t r = 0; r < extends.size(); ++r) {
    if (extends[r] < 0 || extends[r] > sequences[r]) {
      Refuse(problem, "request " + Text(static_cast<std::int64_t>(r)) + " of " +
                          Text(sequences[r]) + " positions cannot have " + Text(extends[r]) +
                          " query rows in a chunk of M = " + Text(problem.axis("M")) +
                          " (attributes sequence_lengths, extend_lengths)");
    }
    sum += extends[r];
  }
  if (sum != problem.axis("M")) {
    Refuse(problem, "extend_lengths sum to " + Text(sum) + ", but M = " + Text(problem.axis("M")));
  }
}

std::int64_t RatioOf(const Problem& problem) {
  const std::int64_t* given = problem.integer("compression_ratio");
  const bool band = problem.axis("W") == kWindow;  // windows only
  const std::int64_t ratio = given != nullptr ? *given : (band ? 0 : 1);
  if (ratio < 0 || band != (ratio == 0)) {
    Refuse(problem, "compression_ratio = " + Text(ratio) + " does not belong to lists of " +
                        Text(problem.axis("W")) + " columns");
  }
  return ratio;
}

Chunk ChunkFromSequences(const Problem& problem, const List& sequences) {
  const List extends = ExtendLengths(problem, sequences);
  CheckExtends(problem, sequences, extends);
  Chunk chunk;
  chunk.ratio = RatioOf(problem);
  std::int64_t row = 0;
  for (std::size_t r = 0; r < sequences.size(); ++r) {
    Request request;
    request.first_row = row;
    request.rows = extends[r];
    request.first_position = sequences[r] - extends[r];
    request.compressed_base = chunk.window_base;
    request.compressed = chunk.ratio == 0 ? 0 : sequences[r] / chunk.ratio;
    request.window = std::min(sequences[r], extends[r] + kWindow - 1);
    request.window_position = sequences[r] - request.window;
    chunk.window_base += request.compressed;
    row += request.rows;
    chunk.requests.push_back(request);
  }
  std::int64_t end = chunk.window_base;
  for (Request& request : chunk.requests) {
    request.window_base = end;
    end += request.window;
  }
  if (end != problem.axis("Nkv")) {
    Refuse(problem, "Nkv = " + Text(problem.axis("Nkv")) + ", but sequence_lengths with " +
                        "compression_ratio " + Text(chunk.ratio) + " make " + Text(end) + " rows");
  }
  return chunk;
}

Chunk ChunkFromAxes(const Problem& problem) {
  const std::int64_t rows = problem.axis("M"), workspace = problem.axis("Nkv");
  Request request;
  request.rows = rows;
  request.window = std::min(workspace, rows + kWindow - 1);
  if (problem.axis("W") > kWindow) request.compressed = workspace - request.window;
  request.window_base = workspace - request.window;
  request.first_position = request.window - rows;
  return {0, {request}, request.window_base};
}

}  // namespace

Request::Range Request::WindowOf(std::int64_t position) const {
  const std::int64_t end = position + 1 - window_position;
  const std::int64_t count = std::clamp<std::int64_t>(end, 0, kWindow);
  return {window_base + end - count, count};
}

const Request& Chunk::RequestOf(std::int64_t query_row) const {
  std::size_t r = 0;
  while (query_row >= requests[r].first_row + requests[r].rows) ++r;
  return requests[r];
}

std::int64_t Chunk::PickLimit(const Request& request, std::int64_t position) const {
  return ratio == 0 ? request.compressed : (position + 1) / ratio;
}

Chunk ChunkOf(const Problem& problem) {
  const List* sequences = problem.integers("sequence_lengths");
  return sequences != nullptr ? ChunkFromSequences(problem, *sequences) : ChunkFromAxes(problem);
}

void PickSource::Append(const Request& request, std::int64_t query, std::vector<bool>& seen,
                        std::vector<std::int32_t>& picks) const {
  const std::size_t first = picks.size();
  const auto limit_of = [&](std::int64_t row) {
    return chunk_.PickLimit(request, request.first_position + row);
  };
  const std::int64_t limit = limit_of(query), wanted = std::min(limit, kMostPicks);
  const auto count = [&] { return static_cast<std::int64_t>(picks.size() - first); };
  const auto take = [&](std::int64_t row) {
    if (count() == wanted || seen[static_cast<std::size_t>(row)]) return;
    seen[static_cast<std::size_t>(row)] = true;
    picks.push_back(static_cast<std::int32_t>(row));
  };
  if (limit == wanted) {
    for (std::int64_t row = 0; row < limit; ++row) take(row);
  }
  const std::uint64_t stream = kPicks + static_cast<std::uint64_t>(&request - &chunk_.requests[0]);
  for (std::uint64_t slot = 0; count() < wanted; ++slot) {
    const auto phase =
        static_cast<std::int64_t>(Mix64(key_, stream, slot) % static_cast<std::uint64_t>(keep_));
    const std::int64_t epoch = (query + phase) / keep_;
    // The choice was made when the epoch began and must be possible there.
    const std::int64_t rows = limit_of(std::max<std::int64_t>(epoch * keep_ - phase, 0));
    const std::uint64_t random =
        Mix64(key_, stream, (slot + 1) << 32 | static_cast<std::uint64_t>(epoch));
    const bool newest = random % 4 == 0;
    const int length = slot < kRunSlots ? kRun : 1;
    const std::int64_t begin = newest ? rows - std::max<std::int64_t>(rows / 20, kRun) : 0;
    const auto choices = static_cast<std::uint64_t>(rows - begin - length + 1);
    const auto start = begin + static_cast<std::int64_t>((random >> 2) % choices);
    for (std::int64_t row = start; row < start + length; ++row) take(row);
  }
  for (std::size_t n = first; n < picks.size(); ++n)
    seen[static_cast<std::size_t>(picks[n])] = false;
  std::sort(picks.begin() + static_cast<std::ptrdiff_t>(first), picks.end());
}

}  // namespace assay::sparse_mla_prefill
