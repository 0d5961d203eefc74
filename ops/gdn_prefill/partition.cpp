#include "ops/gdn_prefill/partition.h"

#include <algorithm>
#include <unordered_set>

#include "base/random.h"

namespace assay::gdn_prefill {
namespace {

using Lengths = std::vector<std::int64_t>;

// `parts` non-empty lengths that sum to `tokens`, from distinct sorted uniform cut points. With
// fewer tokens than parts the last parts are empty.
Lengths UniformLengths(std::int64_t tokens, std::int64_t parts) {
  if (parts <= 0) return {};
  const auto key = static_cast<std::uint64_t>(tokens) << 32 ^ static_cast<std::uint64_t>(parts);
  const std::int64_t cuts = std::clamp<std::int64_t>(tokens - 1, 0, parts - 1);
  // Floyd's sampling of `cuts` distinct numbers in 1..tokens-1.
  std::unordered_set<std::int64_t> chosen;
  for (std::int64_t top = tokens - cuts; top < tokens; ++top) {
    const double u = Uniform(key, kAuxiliaryTensor, static_cast<std::uint64_t>(top));
    const auto pick = 1 + static_cast<std::int64_t>(u * static_cast<double>(top));
    chosen.insert(chosen.contains(pick) ? top : pick);
  }
  std::vector<std::int64_t> sorted(chosen.begin(), chosen.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.resize(static_cast<std::size_t>(parts), tokens);
  Lengths lengths;
  std::int64_t previous = 0;
  for (std::int64_t cut : sorted) {
    lengths.push_back(cut - previous);
    previous = cut;
  }
  return lengths;
}

// The middle sequence takes two thirds of all tokens.
Lengths SkewedLengths(std::int64_t tokens, std::int64_t parts) {
  if (parts < 2) return UniformLengths(tokens, parts);
  const std::int64_t large = tokens * 2 / 3;
  Lengths lengths = UniformLengths(tokens - large, parts - 1);
  lengths.insert(lengths.begin() + parts / 2, large);
  return lengths;
}

// The first, the last and a middle sequence are empty, as far as one non-empty remains.
Lengths LengthsWithEmpty(std::int64_t tokens, std::int64_t parts) {
  const std::int64_t empty = std::clamp<std::int64_t>(parts - 1, 0, 3);
  Lengths lengths = UniformLengths(tokens, parts - empty);
  if (empty >= 1) lengths.insert(lengths.begin(), 0);
  if (empty >= 3) lengths.insert(lengths.begin() + parts / 2, 0);
  if (empty >= 2) lengths.push_back(0);
  return lengths;
}

Lengths EqualLengths(std::int64_t tokens, std::int64_t parts) {
  Lengths lengths;
  for (std::int64_t s = 0; s < parts; ++s) {
    lengths.push_back(tokens * (s + 1) / parts - tokens * s / parts);
  }
  return lengths;
}

}  // namespace

std::vector<std::int64_t> Partition(std::int64_t tokens, std::int64_t sequences,
                                    std::string_view variant) {
  Lengths lengths;
  if (variant == "skewed") {
    lengths = SkewedLengths(tokens, sequences);
  } else if (variant == "with_empty") {
    lengths = LengthsWithEmpty(tokens, sequences);
  } else if (variant == "equal") {
    lengths = EqualLengths(tokens, sequences);
  } else {
    lengths = UniformLengths(tokens, sequences);
  }
  std::vector<std::int64_t> cu_seqlens{0};
  for (std::int64_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
  return cu_seqlens;
}

}  // namespace assay::gdn_prefill
