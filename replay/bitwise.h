// `assay run --bitwise`: kernels that document the order of their sums are held to it, bit for bit.
#pragma once

#include <cstdint>

#include "ops/family.h"
#include "replay/verify.h"

namespace assay {

// Compares sampled elements of every output (all of a small one; the corners and a seeded sample of
// a large one) with what `backend.bitwise` says. Finding "bitwise": `measured` counts the elements
// that differ, `detail` names the first.
Finding CheckBitwise(const Family& family, const Backend& backend, const Problem& problem,
                     const Bundle& inputs, const Bundle& outputs, std::uint64_t seed);

// Adds that finding to a verdict that is not about shapes; a difference makes it incorrect
// (`bitwise`). A backend without a documented order gets the flag "no_bitwise_order".
void AddBitwise(const Family& family, const Backend& backend, const Problem& problem,
                const Bundle& inputs, const Bundle& outputs, std::uint64_t seed, Verdict& verdict);

}  // namespace assay
