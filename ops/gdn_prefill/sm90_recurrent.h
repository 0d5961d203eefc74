// The recurrent H200 kernel of this room: the short-sequence path, and the answer to everything
// that another path cannot do.
#pragma once

#include <cstdint>
#include <limits>

#include "cuda/stream.h"
#include "ops/gdn_prefill/spec.h"

namespace assay::gdn_prefill {

struct RecurrentOptions {
  // [sequences, 8] on the device: (s, h) is computed where this is not 0; of others neither outputs
  // nor inputs are touched. Null = all.
  const std::int32_t* selected = nullptr;

  // Sequences of other lengths are left alone likewise (mixed batches; no flags needed).
  std::int64_t min_tokens = 0;
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();

  // Programmatic dependent launch: the kernel may start while the one before it in the stream still
  // runs, and waits inside before it touches global memory.
  bool overlap_launch = false;

  // Rows of V that a CTA advances: 8, 16 or 32; 0 = what the number of sequences asks for. No bit
  // of the results depends on it.
  int rows_per_cta = 0;
};

// All pointers of `args` are device memory, cu_seqlens included: it is read by the kernel, never by
// the host, and must be legal (0 .. tokens, not decreasing; with one sequence it is not read).
// Enqueues one kernel; no allocation, no synchronisation, graph-capturable. Any number of tokens
// and sequences; empty sequences copy their state (zeros with zero_empty_states); fp32 throughout:
// meets the grades strict and fp32 as the CPU kernel does. In place (new_state = state) is legal.
// `state` must still hold the initial states: a path that this one corrects may not have
// overwritten them. The bits of a (sequence, head) do not depend on what else is in the batch.
// Throws kInput for rows_per_cta, kDevice when the launch fails; alignment and overlap are the
// caller's to check.
void RunRecurrent(const Args& args, const RecurrentOptions& options, Stream stream);

// The same contract by tensor cores in chunks of 16 tokens (sm90_recurrent16.cu): quicker from two
// chunks on. `rows_per_cta` is not looked at.
void RunRecurrent16(const Args& args, const RecurrentOptions& options, Stream stream);

}  // namespace assay::gdn_prefill
