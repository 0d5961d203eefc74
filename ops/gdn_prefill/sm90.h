// The H200 kernels of this room: which exist, which one a batch gets, and calls prepared for
// replay.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/stream.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {

struct Plan {
  // sm90_recurrent.h, one launch; else the chunk path, two.
  bool recurrent = false;
  // Of V that a CTA of the chunk path's second kernel has: one of kChainRows.
  int chain_rows = 16;
  // With 64 rows: two CTAs on a multiprocessor.
  bool paired = false;
  // With paired: sequences are cut into pieces of so many chunks, four launches; 0 = they are not.
  // All tokens fill kMostPieces of them at most.
  int piece_chunks = 0;
  // The recurrence in chunks of 16 tokens on tensor cores.
  bool recurrent16 = false;
};
inline constexpr int kChainRows[] = {16, 32, 64};
// A piece's effect on the state before it is rounded to fp16. At worst (one key throughout) that
// costs the state 1.2e-4 a piece, relatively, of the 0.01 that verification allows.
inline constexpr std::int64_t kMostPieces = 32;

// plan_sm90.cpp. By the lengths of the sequences; `cu_seqlens` [sequences + 1] in host memory.
Plan ChoosePlan(const std::int64_t* cu_seqlens, std::int64_t sequences);

// Which CTA of the wide chain walks what, in which order: item (sequence * 8 + head) * 2 + half of
// V. CTA c has items[first_item[c]] .. items[first_item[c + 1] - 1], at least one.
struct WideSchedule {
  std::vector<std::int32_t> items;
  std::vector<std::int32_t> first_item{0};
};
// plan_sm90.cpp. For at most `places` CTAs, balanced by the lengths of the sequences.
WideSchedule ScheduleWide(const std::int64_t* cu_seqlens, std::int64_t sequences, int places);

// The call of this room on the current CUDA device. Allocates the workspace and builds tensor maps
// once; the result only enqueues, any number of times, one at a time (calls share the workspace).
// Pointers of `args` are device memory, cu_seqlens included: the kernels read the lengths there, so
// the result may be replayed after they changed, as long as tokens and sequences stay what they
// are. `host_cu_seqlens` is a copy in host memory of what they are now: legality is checked on it,
// and the order of work (longest first) comes from it. A (sequence, head) whose numbers fp16 cannot
// hold is computed by the recurrence within the same call. Throws kInput with the text of Refusal,
// for a chain that does not exist, and on the chunk path for tensors that are not aligned to 16
// bytes; kDevice when the device fails.
std::function<void(Stream)> PrepareCuda(const Args& args, const std::int64_t* host_cu_seqlens,
                                        const Plan& plan);

}  // namespace assay::gdn_prefill
