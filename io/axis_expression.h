// Constraints of FlashInfer-Trace definitions: Python expressions over axes, such as
// "len_indptr == batch_size + 1".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace assay {

// Whether `expression` holds for the axes: integers, axis names, + - * // %, comparisons (chained
// as in Python), and, or, not, parentheses. Empty when it needs anything else (published files also
// look at tensor contents: "total == indptr[-1].item()"), divides by zero or leaves 64 bits.
std::optional<bool> HoldsForAxes(std::string_view expression,
                                 const std::map<std::string, std::int64_t, std::less<>>& axes);

}  // namespace assay
