// Everything that is refused: axes and attributes of a workload, forms and contents of a bundle,
// typed calls.
#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/grouped_gemm_fp8_fp4/spec.h"

namespace assay::grouped_gemm_fp8_fp4 {
namespace {

const std::string kName = "grouped_gemm_fp8_fp4: ";
constexpr std::int64_t kColumnStep = 64;

// --- typed calls ---

std::string At(const char* tensor, std::int64_t index, std::int64_t value) {
  return std::string(tensor) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

std::string OffsetsRefusal(const Args& args) {
  const char* name = "expert_offsets";
  if (args.offset(0) != 0) return At(name, 0, args.offset(0)) + ", expected 0";
  for (std::int64_t e = 0; e < args.experts; ++e) {
    if (args.offset(e + 1) < args.offset(e)) {
      return At(name, e + 1, args.offset(e + 1)) + " is below " + At(name, e, args.offset(e));
    }
  }
  const std::int64_t last = args.offset(args.experts);
  if (last != args.m) {
    return At(name, args.experts, last) + ", expected M = " + std::to_string(args.m);
  }
  for (std::int64_t e = 0; args.m_indices != nullptr && e < args.experts; ++e) {
    for (std::int64_t m = args.offset(e); m < args.offset(e + 1); ++m) {
      if (args.m_indices[m] != e) {
        return At("m_indices", m, args.m_indices[m]) +
               ", but expert_offsets give the row to expert " + std::to_string(e);
      }
    }
  }
  return "";
}

std::string IndicesRefusal(const Args& args) {
  for (std::int64_t m = 0; m < args.m; ++m) {
    const std::int64_t expert = args.m_indices[m];
    if (expert == -1 && args.padding == PaddingRows::kZero) continue;
    if (expert < 0 || expert >= args.experts) {
      return At("m_indices", m, expert) + " is outside 0.." + std::to_string(args.experts - 1) +
             (expert == -1 ? " (padding rows need padding_rows = zero)" : "");
    }
  }
  return "";
}

std::string SizesRefusal(const Args& args) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"M", args.m}, {"N", args.n}, {"K", args.k}, {"E", args.experts}};
  for (const auto& [name, value] : sizes) {
    if (value < 0) return std::string(name) + " = " + std::to_string(value) + " is negative";
  }
  if (args.n % kColumnStep != 0) {
    return "N = " + std::to_string(args.n) + " is not a multiple of 64";
  }
  if (args.k % kGroup != 0) return "K = " + std::to_string(args.k) + " is not a multiple of 32";
  const std::int64_t groups = args.k / kGroup;
  const auto below = [](const char* name, std::int64_t stride, std::int64_t row) {
    return std::string("the row stride of ") + name + ", " + std::to_string(stride) +
           ", is below the row length " + std::to_string(row);
  };
  if (args.lda < args.k) return below("A", args.lda, args.k);
  if (args.lda % 16 != 0) {
    return "the row stride of A, " + std::to_string(args.lda) + ", is not a multiple of 16";
  }
  if (args.ldd < args.n) return below("D", args.ldd, args.n);
  if (args.sfa != nullptr && args.sfa_stride < groups) return below("SFA", args.sfa_stride, groups);
  if (args.sfw != nullptr && args.sfw_stride < groups) return below("SFW", args.sfw_stride, groups);
  const bool packed = args.sfa_packed != nullptr || args.sfw_packed != nullptr;
  if (packed && groups % kPackedGroups != 0) {
    return "K = " + std::to_string(args.k) + " is not a multiple of 128, which packed scales need";
  }
  const auto packed_stride = [&](const char* name, std::int64_t stride, std::int64_t rows) {
    if (stride < rows) return below(name, stride, rows);
    if (stride % kPackedGroups == 0) return std::string();
    return std::string("the row stride of ") + name + ", " + std::to_string(stride) +
           ", is not a multiple of 4";
  };
  std::string refusal;
  if (args.sfa_packed != nullptr) refusal = packed_stride("SFA", args.sfa_packed_stride, args.m);
  if (refusal.empty() && args.sfw_packed != nullptr) {
    refusal = packed_stride("SFW", args.sfw_packed_stride, args.n);
  }
  return refusal;
}

bool Misaligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 != 0; }

std::string PointersRefusal(const Args& args) {
  if (args.a == nullptr) return "A is null";
  if (args.w == nullptr) return "W is null";
  if (args.d == nullptr) return "D is null";
  if ((args.sfa == nullptr) == (args.sfa_packed == nullptr)) {
    return "SFA must be given once, as bytes or as words";
  }
  if ((args.sfw == nullptr) == (args.sfw_packed == nullptr)) {
    return "SFW must be given once, as bytes or as words";
  }
  if (Misaligned(args.a)) return "A is not aligned to 16 bytes";
  if (Misaligned(args.w)) return "W is not aligned to 16 bytes";
  const auto a = reinterpret_cast<std::uintptr_t>(args.a),
             d = reinterpret_cast<std::uintptr_t>(args.d);
  const auto a_end = a + static_cast<std::uintptr_t>((args.m - 1) * args.lda + args.k);
  const auto d_end = d + 2 * static_cast<std::uintptr_t>((args.m - 1) * args.ldd + args.n);
  if (a < d_end && d < a_end) return "D overlaps A in memory";
  return "";
}

// --- inputs ---

std::int64_t RoundUp(std::int64_t x, std::int64_t step) { return (x + step - 1) / step * step; }

const Tensor& Require(const Bundle& inputs, const char* name) {
  const Tensor* tensor = inputs.find(name);
  if (tensor == nullptr) BadInput(kName + "input '" + name + "' is missing");
  return *tensor;
}

[[noreturn]] void WrongForm(const Tensor& tensor, const std::string& expected) {
  BadInput(kName + "input '" + tensor.name + "' is " + std::string(DTypeName(tensor.dtype)) +
           ShapeText(tensor.shape) + ", expected " + expected);
}

void CheckForm(const Tensor& tensor, DType dtype, const Shape& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return;
  WrongForm(tensor, std::string(DTypeName(dtype)) + ShapeText(shape));
}

// Plain bytes [leading..., rows, >= groups], or words [leading..., k/128, >= rows].
void CheckScales(const Tensor& tensor, const Shape& leading, std::int64_t rows, const Sizes& s) {
  const Shape& shape = tensor.shape;
  const std::size_t rank = leading.size() + 2;
  const bool prefix =
      shape.size() == rank && std::equal(leading.begin(), leading.end(), shape.begin());
  if (prefix && (tensor.dtype == DType::kUE8M0 || tensor.dtype == DType::kU8)) {
    if (shape[rank - 2] == rows && shape[rank - 1] >= s.g) return;
  }
  if (prefix && tensor.dtype == DType::kI32 && s.k % (kGroup * kPackedGroups) == 0) {
    const std::int64_t stride = shape[rank - 1];
    if (shape[rank - 2] == s.words() && stride >= rows && stride % kPackedGroups == 0) return;
  }
  Shape plain = leading, packed = leading;
  plain.insert(plain.end(), {rows, s.g});
  packed.insert(packed.end(), {s.words(), RoundUp(rows, kPackedGroups)});
  WrongForm(tensor, "float8_e8m0fnu" + ShapeText(plain) + " or int32" + ShapeText(packed) +
                        " (rows may be longer)");
}

void CheckForms(const Problem& problem, const Bundle& inputs) {
  const Sizes s(problem);
  CheckForm(Require(inputs, "A"), DType::kE4M3, {s.m, s.k});
  CheckScales(Require(inputs, "SFA"), {}, s.m, s);
  const Tensor& w = Require(inputs, "W");
  if (w.dtype == DType::kU8) {
    CheckForm(w, DType::kU8, {s.e, s.n, s.k / 2});
  } else {
    CheckForm(w, DType::kE2M1, {s.e, s.n, s.k});
  }
  CheckScales(Require(inputs, "SFW"), {s.e}, s.n, s);
  const Tensor* offsets = inputs.find("expert_offsets");
  if (const Tensor* rows = inputs.find("m_indices")) {
    CheckForm(*rows, DType::kI32, {s.m});
  } else if (offsets == nullptr) {
    BadInput(kName + "neither m_indices nor expert_offsets is given");
  }
  if (offsets != nullptr) {
    const DType dtype = offsets->dtype == DType::kI64 ? DType::kI64 : DType::kI32;
    CheckForm(*offsets, dtype, {s.e + 1});
  }
}

// True when some byte, under `mask`, equals `value`.
ASSAY_VECTOR_CLONES bool Holds(const std::byte* bytes, std::int64_t count, unsigned mask,
                               unsigned value) {
  unsigned found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    found |= (std::to_integer<unsigned>(bytes[i]) & mask) == value ? 1u : 0u;
  }
  return found != 0;
}

std::int64_t FirstWith(const std::byte* bytes, std::int64_t count, unsigned mask, unsigned value) {
  std::int64_t i = 0;
  while (i < count && (std::to_integer<unsigned>(bytes[i]) & mask) != value) ++i;
  return i;
}

// The lowest row for which bad(row) holds, or -1.
template <class Bad>
std::int64_t FirstRow(std::int64_t rows, const Bad& bad) {
  std::atomic<std::int64_t> first{rows};
  ParallelRanges(rows, 64, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (!bad(row)) continue;
      std::int64_t seen = first.load();
      while (row < seen && !first.compare_exchange_weak(seen, row)) {
      }
      return;
    }
  });
  return first.load() == rows ? -1 : first.load();
}

// Codes 0x7F and 0xFF in rows that an expert owns.
void RefuseNaNActivations(const Tensor& a, const std::vector<std::int64_t>& experts) {
  const std::int64_t k = a.shape[1];
  const std::int64_t row = FirstRow(a.shape[0], [&](std::int64_t m) {
    return experts[static_cast<std::size_t>(m)] >= 0 && Holds(a.data + m * k, k, 0x7F, 0x7F);
  });
  if (row < 0) return;
  const std::int64_t at = FirstWith(a.data + row * k, k, 0x7F, 0x7F);
  BadInput(kName + "A[" + std::to_string(row) + "," + std::to_string(at) +
           "] is NaN in a row of expert " + std::to_string(experts[static_cast<std::size_t>(row)]));
}

// Scale byte 255 in the rows (of one leading index, or of A) that `used` names. `groups` of a plain
// row are scales, the rest is padding; words hold scales only, but the rows behind `rows` are
// padding.
template <class Used>
void RefuseNaNScales(const Tensor& scales, std::int64_t rows, std::int64_t groups,
                     const Used& used) {
  const std::size_t rank = scales.shape.size();
  const bool packed = scales.dtype == DType::kI32;
  const std::int64_t leading = rank == 3 ? scales.shape[0] : 1;
  const std::int64_t stride = scales.shape[rank - 1];
  const auto block = static_cast<std::int64_t>(scales.bytes()) / std::max<std::int64_t>(leading, 1);
  const auto scale_at = [&](std::int64_t e, std::int64_t row, std::int64_t g) {
    const std::byte* base = scales.data + e * block;
    return packed ? base + ((g / kPackedGroups) * stride + row) * 4 + g % kPackedGroups
                  : base + row * stride + g;
  };
  const auto bad = [&](std::int64_t flat) {
    const std::int64_t e = flat / rows, row = flat % rows;
    if (!used(rank == 3 ? e : row)) return false;
    if (!packed) return Holds(scale_at(e, row, 0), groups, 0xFF, 0xFF);
    for (std::int64_t g = 0; g < groups; ++g) {
      if (*scale_at(e, row, g) == std::byte{0xFF}) return true;
    }
    return false;
  };
  const std::int64_t flat = rows == 0 ? -1 : FirstRow(leading * rows, bad);
  if (flat < 0) return;
  const std::int64_t e = flat / rows, row = flat % rows;
  std::int64_t g = 0;
  while (*scale_at(e, row, g) != std::byte{0xFF}) ++g;
  BadInput(kName + "scale " + scales.name + "[" + (rank == 3 ? std::to_string(e) + "," : "") +
           std::to_string(row) + "," + std::to_string(g) + "] is NaN (byte 255) and is used");
}

}  // namespace

std::string RoutingRefusal(const Args& args) {
  const bool offsets = args.offsets32 != nullptr || args.offsets64 != nullptr;
  if (args.m_indices == nullptr && !offsets && args.m > 0) {
    return "neither m_indices nor expert_offsets is given";
  }
  std::string refusal;
  if (args.m_indices != nullptr) refusal = IndicesRefusal(args);
  if (refusal.empty() && offsets) refusal = OffsetsRefusal(args);
  return refusal;
}

std::string Refusal(const Args& args) {
  std::string refusal = SizesRefusal(args);
  if (refusal.empty() && args.m > 0 && args.n > 0) refusal = PointersRefusal(args);
  if (refusal.empty()) refusal = RoutingRefusal(args);
  return refusal;
}

void ValidateAxes(const Problem& problem) {
  const Sizes s(problem);
  const auto refuse = [](const std::string& what) { BadInput(kName + what); };
  if (s.n % 64 != 0) refuse("N = " + std::to_string(s.n) + " is not a multiple of 64");
  if (s.k % kGroup != 0) refuse("K = " + std::to_string(s.k) + " is not a multiple of 32");
  if (s.e < 1) refuse("E = " + std::to_string(s.e) + ", but at least one expert is needed");
  if (problem.variant == "packed_scales" && s.k % (kGroup * kPackedGroups) != 0) {
    refuse("K = " + std::to_string(s.k) + " is not a multiple of 128, which packed scales need");
  }
  if (problem.attributes.contains("padding_rows")) {
    const std::string* padding = problem.text("padding_rows");
    if (padding == nullptr || *padding != "zero") {
      refuse("attribute padding_rows must be the text \"zero\"");
    }
    if (problem.variant.starts_with("offsets")) {
      refuse("padding rows cannot be told by expert_offsets (variant " + problem.variant + ")");
    }
  }
  if (!problem.attributes.contains("expert_rows")) return;
  const std::vector<std::int64_t>* rows = problem.integers("expert_rows");
  if (rows == nullptr) refuse("attribute expert_rows must be a list of integers");
  if (static_cast<std::int64_t>(rows->size()) > s.e) {
    refuse("attribute expert_rows has " + std::to_string(rows->size()) +
           " entries, but E = " + std::to_string(s.e));
  }
  std::int64_t sum = 0;
  for (std::size_t e = 0; e < rows->size(); ++e) {
    const std::int64_t count = (*rows)[e];
    if (count < 0 || count > s.m) {
      refuse("attribute expert_rows[" + std::to_string(e) + "] = " + std::to_string(count) +
             " is outside 0.." + std::to_string(s.m));
    }
    sum += count;
  }
  // The rest are padding rows, where those are allowed.
  const bool fits = HasPaddingRows(problem) ? sum <= s.m : sum == s.m;
  if (!fits) {
    refuse("attribute expert_rows sums to " + std::to_string(sum) +
           ", but M = " + std::to_string(s.m));
  }
}

void ValidateInputs(const Problem& problem, const Bundle& inputs) {
  CheckForms(problem, inputs);
  Bundle none;
  const std::string refusal = RoutingRefusal(Bind(problem, inputs, none));
  if (!refusal.empty()) BadInput(kName + refusal);
  const std::vector<std::int64_t> experts = ExpertsOfRows(problem, inputs);
  const Sizes s(problem);
  const std::vector<bool> active = ActiveExperts(s.e, experts);
  RefuseNaNActivations(inputs["A"], experts);
  RefuseNaNScales(inputs["SFA"], s.m, s.g,
                  [&](std::int64_t m) { return experts[static_cast<std::size_t>(m)] >= 0; });
  RefuseNaNScales(inputs["SFW"], s.n, s.g,
                  [&](std::int64_t e) { return active[static_cast<std::size_t>(e)]; });
}

}  // namespace assay::grouped_gemm_fp8_fp4
