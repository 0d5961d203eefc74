// How the generator cuts a packed batch into sequences.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace assay::gdn_prefill {

// cu_seqlens [sequences + 1] of the variant: "skewed", "with_empty", "equal", anything else uniform
// random cut points. Depends on (tokens, sequences, variant) only, so that timings of different
// content keys run the same lengths.
std::vector<std::int64_t> Partition(std::int64_t tokens, std::int64_t sequences,
                                    std::string_view variant);

}  // namespace assay::gdn_prefill
