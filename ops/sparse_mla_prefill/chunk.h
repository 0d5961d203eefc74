// The structure of a prefill chunk: which requests its query rows belong to, where their rows lie
// in the workspace, and which compressed rows a query picks. Generator, row sample and tests read
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/family.h"

namespace assay::sparse_mla_prefill {

inline constexpr std::int64_t kWindow = 128;     // newest positions, uncompressed
inline constexpr std::int64_t kMostPicks = 512;  // compressed rows of one query

// One request. The workspace holds the compressed rows of all requests, request by request, then
// their window rows.
struct Request {
  std::int64_t first_row = 0, rows = 0;  // its query rows
  std::int64_t first_position = 0;       // of its first query row; negative: before the window
  std::int64_t compressed_base = 0, compressed = 0;  // workspace rows
  std::int64_t window_base = 0, window = 0;          // likewise
  std::int64_t window_position = 0;                  // the position of its first window row

  // Window rows of the query at `position`, as [first, first + count) of the workspace.
  struct Range {
    std::int64_t first = 0, count = 0;
  };
  Range WindowOf(std::int64_t position) const;
};

struct Chunk {
  std::int64_t ratio =
      0;  // positions per compressed row; 0 = no compressed rows are tied to positions
  std::vector<Request> requests;
  std::int64_t window_base = 0;  // workspace rows before it are compressed

  const Request& RequestOf(std::int64_t query_row) const;
  // Compressed rows that the query at `position` may pick from: [0, limit) of the request.
  std::int64_t PickLimit(const Request& request, std::int64_t position) const;
};

// From the attributes sequence_lengths (length of each request after this chunk), compression_ratio
// and, for several requests, extend_lengths (query rows of each). Without extend_lengths the cached
// prefixes are as equal as multiples of 256 allow, earlier requests having the longer one: that
// gives both captured chunks of two requests. Without sequence_lengths: one request whose window is
// the last min(Nkv, M + 127) workspace rows and which may pick any row before it.
// Throws kInput when the attributes contradict the axes.
Chunk ChunkOf(const Problem& problem);

// The compressed rows that queries pick: mostly runs of 8, some single rows, a quarter of both from
// the newest 5 %. Each of a query's slots keeps its choice for `keep` queries, at its own phase, so
// that neighbouring queries share (keep - 1) / keep of their picks.
class PickSource {
 public:
  PickSource(const Chunk& chunk, std::uint64_t key, std::int64_t keep)
      : chunk_(chunk), key_(key), keep_(keep) {}

  // Appends the picks of query row `query` of the request, ascending, as rows of the request:
  // min(limit, 512) distinct ones. `seen` is scratch, all false before and after.
  void Append(const Request& request, std::int64_t query, std::vector<bool>& seen,
              std::vector<std::int32_t>& picks) const;

 private:
  const Chunk& chunk_;
  std::uint64_t key_;
  std::int64_t keep_;
};

}  // namespace assay::sparse_mla_prefill
