#include "replay/verify.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/parallel.h"

namespace assay {
namespace {

// Below norm2(r) = 1e-6 * sqrt(n) relative norms say nothing; the element rule alone decides.
constexpr double kTinyRms = 1e-6;
// Allowed |x - r| for the state of a head whose reference is tiny.
constexpr double kTinyStateAbs = 2e-5;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The magnitude from which round-to-nearest gives infinity.
double OverflowLimit(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1.FFp127;
    case DType::kF16:
      return 65520.0;
    case DType::kF32:
      return 0x1.FFFFFFp127;
    default:
      return kInfinity;
  }
}

// Squared norms of the error and of the reference over the elements of one slice.
struct Norms {
  double error2 = 0, reference2 = 0;
  double max_error = 0, max_reference = 0;
  std::int64_t elements = 0, rows = 0;

  void Add(double error, double reference) {
    error2 += error * error;
    reference2 += reference * reference;
    max_error = std::max(max_error, std::abs(error));
    max_reference = std::max(max_reference, std::abs(reference));
    ++elements;
  }
  void Merge(const Norms& other) {
    error2 += other.error2;
    reference2 += other.reference2;
    max_error = std::max(max_error, other.max_error);
    max_reference = std::max(max_reference, other.max_reference);
    elements += other.elements;
    rows += other.rows;
  }
  bool tiny() const {
    return std::sqrt(reference2) <= kTinyRms * std::sqrt(static_cast<double>(elements));
  }
  double relative() const { return reference2 == 0 ? 0 : std::sqrt(error2 / reference2); }
};

enum class Special { kNone, kAgrees, kDisagrees };

// Non-finite references and results, and references near the overflow limit of the output type.
Special CompareSpecial(double got, double expected, DType dtype) {
  if (std::isnan(expected)) return std::isnan(got) ? Special::kAgrees : Special::kDisagrees;
  if (std::isinf(expected)) return got == expected ? Special::kAgrees : Special::kDisagrees;
  const double limit = OverflowLimit(dtype);
  const double magnitude = std::abs(expected);
  if (magnitude > 0.99 * limit) {
    const bool same_infinity = std::isinf(got) && std::signbit(got) == std::signbit(expected);
    if (same_infinity) return Special::kAgrees;
    if (magnitude > 1.01 * limit) return Special::kDisagrees;
    if (!std::isfinite(got)) return Special::kDisagrees;
    return Special::kNone;
  }
  return std::isfinite(got) ? Special::kNone : Special::kDisagrees;
}

double Allowed(const Grade& grade, double expected, double scale) {
  double allowed = grade.atol + grade.rtol * std::abs(expected) + grade.scale_factor * scale;
  if (grade.ulps_bf16 != 0) allowed += grade.ulps_bf16 * UlpBF16(expected);
  return allowed;
}

std::vector<std::int64_t> MultiIndex(const Shape& shape, std::int64_t flat) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return index;
}

std::string IndexText(const std::vector<std::int64_t>& index) { return ShapeText(index); }

std::string NumberText(double x) {
  if (std::isnan(x)) return "nan";  // whatever its sign bit
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

// What some rows of one output came to.
class RowTally {
 public:
  struct OfGrade {
    std::int64_t mismatches = 0;
    double budget = 0;
    WorstElement worst;
  };

  RowTally(const Tensor& tensor, const OutputPolicy& policy) : tensor_(tensor), policy_(policy) {
    grades.resize(std::max<std::size_t>(policy.grades.size(), 1));
  }

  void Add(std::int64_t flat, double expected, double scale, Norms& norms) {
    const double got = ElementAsDouble(tensor_, flat);
    const Special special = CompareSpecial(got, expected, tensor_.dtype);
    if (special == Special::kAgrees) return;
    if (special == Special::kDisagrees) {
      for (OfGrade& tally : grades) Count(tally, flat, got, expected, 0, kInfinity);
      ++special_mismatches;
      return;
    }
    const double error = got - expected;
    norms.Add(error, expected);
    max_abs = std::max(max_abs, std::abs(error));
    max_rel = std::max(max_rel, std::abs(error) / (std::abs(expected) + 1e-8));
    for (std::size_t g = 0; g < grades.size(); ++g) {
      const double allowed =
          policy_.grades.empty() ? 0 : Allowed(policy_.grades[g], expected, scale);
      const double used = error == 0 ? 0 : std::abs(error) / allowed;
      Count(grades[g], flat, got, expected, allowed, used);
    }
  }

  // `later`: of rows behind these.
  void Merge(const RowTally& later) {
    for (std::size_t g = 0; g < grades.size(); ++g) {
      const OfGrade& other = later.grades[g];
      grades[g].mismatches += other.mismatches;
      const bool any = !other.worst.index.empty();
      if (any && (other.budget > grades[g].budget || grades[g].worst.index.empty())) {
        grades[g].budget = other.budget;
        grades[g].worst = other.worst;
      }
    }
    for (const auto& [slice, norms] : later.slices) slices[slice].Merge(norms);
    special_mismatches += later.special_mismatches;
    max_abs = std::max(max_abs, later.max_abs);
    max_rel = std::max(max_rel, later.max_rel);
  }

  std::vector<OfGrade> grades;
  std::map<std::int64_t, Norms> slices;
  std::int64_t special_mismatches = 0;
  double max_abs = 0, max_rel = 0;

 private:
  void Count(OfGrade& tally, std::int64_t flat, double got, double expected, double allowed,
             double used) {
    if (!(used <= 1)) ++tally.mismatches;  // a NaN tolerance admits nothing
    if (used > tally.budget || tally.worst.index.empty()) {
      tally.budget = std::max(tally.budget, used);
      tally.worst = {MultiIndex(tensor_.shape, flat), got, expected, allowed};
    }
  }

  const Tensor& tensor_;
  const OutputPolicy& policy_;
};

// One output against its expected rows. Collects everything first, then decides.
class OutputJudge {
 public:
  OutputJudge(const Problem& problem, const Bundle& inputs, const Tensor& tensor,
              const OutputPolicy& policy, std::int64_t row_elements)
      : problem_(problem),
        inputs_(inputs),
        tensor_(tensor),
        policy_(policy),
        row_elements_(row_elements),
        all_(tensor, policy) {}

  OutputCheck Judge(const std::vector<std::int64_t>& rows, const ExpectedRows& expected,
                    std::int64_t rows_total) {
    check_.output = tensor_.name;
    check_.rows_checked = static_cast<std::int64_t>(rows.size());
    check_.rows_total = rows_total;
    if (!policy_.judged_by_checks) CompareRows(rows, expected);
    Decide(check_.rows_checked == rows_total);
    return check_;
  }

 private:
  // Parts of fixed size on all threads, put together in order: no result depends on the threads.
  void CompareRows(const std::vector<std::int64_t>& rows, const ExpectedRows& expected) {
    constexpr std::int64_t kPartElements = 1 << 16;
    const auto count = static_cast<std::int64_t>(rows.size());
    const std::int64_t part_rows =
        std::max<std::int64_t>(1, kPartElements / std::max<std::int64_t>(1, row_elements_));
    std::vector<RowTally> parts(static_cast<std::size_t>((count + part_rows - 1) / part_rows),
                                RowTally(tensor_, policy_));
    ParallelFor(static_cast<std::int64_t>(parts.size()), 0, [&](std::int64_t part) {
      const std::int64_t end = std::min(count, (part + 1) * part_rows);
      for (std::int64_t r = part * part_rows; r < end; ++r) {
        const auto at = static_cast<std::size_t>(r);
        AddRow(rows[at], at, expected, parts[static_cast<std::size_t>(part)]);
      }
    });
    for (const RowTally& part : parts) all_.Merge(part);
    check_.max_abs = all_.max_abs;
    check_.max_rel = all_.max_rel;
  }

  void AddRow(std::int64_t row, std::size_t position, const ExpectedRows& expected,
              RowTally& tally) {
    const std::int64_t slice =
        policy_.slice_of_row ? policy_.slice_of_row(problem_, inputs_, row) : 0;
    Norms& norms = tally.slices[slice];
    ++norms.rows;
    const std::size_t base = position * static_cast<std::size_t>(row_elements_);
    for (std::int64_t e = 0; e < row_elements_; ++e) {
      const std::size_t at = base + static_cast<std::size_t>(e);
      const double scale = expected.scale.empty() ? 0 : expected.scale[at];
      tally.Add(row * row_elements_ + e, expected.value[at], scale, norms);
    }
  }

  void Decide(bool full) {
    if (policy_.judged_by_checks) {
      check_.grade = "checks";
      return;
    }
    const std::string slice_problem = CheckSlices(full);
    std::size_t judging = all_.grades.size() - 1;
    bool met = false;
    for (std::size_t g = 0; g < all_.grades.size() && !met; ++g) {
      if (all_.grades[g].mismatches == 0) {
        judging = g;
        met = true;
      }
    }
    const RowTally::OfGrade& tally = all_.grades[judging];
    check_.mismatches = tally.mismatches;
    check_.budget_used = tally.budget;
    check_.worst = tally.worst;
    if (met) {
      check_.grade = policy_.grades.empty() ? "exact" : policy_.grades[judging].name;
    } else if (HasStateRule() && all_.special_mismatches == 0) {
      check_.problem = CheckState();
      if (check_.problem.empty()) {
        check_.grade = "gdn_state";
        check_.mismatches = 0;
      }
    } else {
      check_.problem = MismatchText();
    }
    if (check_.problem.empty()) check_.problem = slice_problem;
    if (!check_.problem.empty()) check_.grade.clear();
  }

  std::string MismatchText() const {
    const WorstElement& worst = check_.worst;
    return tensor_.name + IndexText(worst.index) + " = " + NumberText(worst.got) + ", expected " +
           NumberText(worst.expected) + " +- " + NumberText(worst.allowed) + " (" +
           std::to_string(check_.mismatches) + " elements are off)";
  }

  // Relative L2 error of every slice; slices with too few sampled rows are judged together.
  std::string CheckSlices(bool full) {
    Norms pooled;
    std::string problem;
    for (const auto& [slice, norms] : all_.slices) {
      if (!full && norms.rows < policy_.min_slice_rows) {
        pooled.Merge(norms);
      } else {
        CheckSlice(norms, "slice " + std::to_string(slice), problem);
      }
    }
    CheckSlice(pooled, "pooled rows", problem);
    return problem;
  }

  void CheckSlice(const Norms& norms, const std::string& what, std::string& problem) {
    if (norms.elements == 0 || norms.tiny() || policy_.slice_rel_l2 == 0) return;
    check_.max_rel_l2 = std::max(check_.max_rel_l2, norms.relative());
    if (norms.relative() > policy_.slice_rel_l2 && problem.empty()) {
      problem = tensor_.name + ", " + what + ": relative L2 error " + NumberText(norms.relative()) +
                " is above " + NumberText(policy_.slice_rel_l2);
    }
  }

  bool HasStateRule() const {
    const StateRule& rule = policy_.state;
    return rule.relative_rms > 0 || rule.max_head_relative_rms > 0 || rule.relative_max > 0;
  }

  // Zero limits are not used.
  static bool Above(double measured, double limit) { return limit > 0 && !(measured <= limit); }

  // The gdn_state rule; "" when met.
  std::string CheckState() const {
    Norms all;
    double largest_head = 0;
    for (const auto& [slice, norms] : all_.slices) {
      all.Merge(norms);
      largest_head = std::max(largest_head, std::sqrt(norms.reference2));
    }
    for (const auto& [slice, norms] : all_.slices) {
      const std::string where = tensor_.name + ", head " + std::to_string(slice) + ": ";
      if (norms.tiny() || std::sqrt(norms.reference2) < 1e-6 * largest_head) {
        if (norms.max_error > kTinyStateAbs) {
          return where + "error " + NumberText(norms.max_error) + " of a vanishing state";
        }
      } else if (Above(norms.relative(), policy_.state.max_head_relative_rms)) {
        return where + "relative rms " + NumberText(norms.relative()) + " is above " +
               NumberText(policy_.state.max_head_relative_rms);
      }
    }
    if (all.tiny()) return "";
    if (Above(all.relative(), policy_.state.relative_rms)) {
      return tensor_.name + ": relative rms " + NumberText(all.relative()) + " is above " +
             NumberText(policy_.state.relative_rms);
    }
    if (Above(all.max_error / all.max_reference, policy_.state.relative_max)) {
      return tensor_.name + ": largest error " + NumberText(all.max_error) + " is above " +
             NumberText(policy_.state.relative_max) + " of the largest value";
    }
    return "";
  }

  const Problem& problem_;
  const Bundle& inputs_;
  const Tensor& tensor_;
  const OutputPolicy& policy_;
  const std::int64_t row_elements_;
  RowTally all_;
  OutputCheck check_;
};

// At most four rows of each list, spread over it.
RowLists FewRows(const RowLists& rows) {
  constexpr std::size_t kRows = 4;
  RowLists few(rows.size());
  for (std::size_t o = 0; o < rows.size(); ++o) {
    const std::size_t n = rows[o].size();
    for (std::size_t i = 0; i < std::min(n, kRows); ++i) {
      few[o].push_back(rows[o][n <= kRows ? i : i * (n - 1) / (kRows - 1)]);
    }
  }
  return few;
}

// The rows `wanted` of `all`, which was computed for the sorted list `have`.
std::vector<double> PickRows(const ExpectedRows& all, const std::vector<std::int64_t>& have,
                             const std::vector<std::int64_t>& wanted) {
  std::vector<double> picked;
  if (have.empty()) return picked;
  const std::size_t width = all.value.size() / have.size();
  for (std::int64_t row : wanted) {
    const auto at =
        static_cast<std::size_t>(std::lower_bound(have.begin(), have.end(), row) - have.begin());
    picked.insert(picked.end(), all.value.begin() + static_cast<std::ptrdiff_t>(at * width),
                  all.value.begin() + static_cast<std::ptrdiff_t>((at + 1) * width));
  }
  return picked;
}

bool SameKind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

// "" when both summation orders agree to 1e-6 of the largest value.
std::string Disagreement(const std::vector<double>& forward, const std::vector<double>& reverse,
                         const std::string& output) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < forward.size(); ++i) {
    if (!SameKind(forward[i], reverse[i])) return output + ": finite in one summation order only";
    if (!std::isfinite(forward[i])) continue;
    largest = std::max(largest, std::abs(forward[i]));
    difference = std::max(difference, std::abs(forward[i] - reverse[i]));
  }
  if (difference <= 1e-6 * largest + 1e-12) return "";
  return output + ": two summation orders differ by " + NumberText(difference) +
         " where the largest value is " + NumberText(largest);
}

[[noreturn]] void FamilyBug(const Family& family, const std::string& output,
                            const std::string& what) {
  throw Error(Fault::kInternal, family.name + ", output '" + output + "': " + what);
}

// Rows that do not exist, or none at all, would be judged on garbage: a bug, not a verdict.
void RequireRows(const Family& family, const Problem& problem, const RowLists& lists) {
  if (lists.size() != family.outputs.size()) FamilyBug(family, "*", "rows miss an output");
  for (std::size_t o = 0; o < lists.size(); ++o) {
    const TensorSpec& spec = family.outputs[o];
    const std::vector<std::int64_t>& rows = lists[o];
    const std::int64_t total = RowCount(spec, problem);
    if (rows.empty() && total > 0 && RowElements(spec, problem) > 0) {
      FamilyBug(family, spec.name, "no row is checked");
    }
    if (std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) != rows.end()) {
      FamilyBug(family, spec.name, "the rows to check are not sorted and unique");
    }
    if (!rows.empty() && (rows.front() < 0 || rows.back() >= total)) {
      FamilyBug(family, spec.name, "a row to check does not exist");
    }
  }
}

// So would a reference of the wrong extent.
void RequireExtents(const Family& family, const Problem& problem, const Expected& expected) {
  if (expected.outputs.size() != family.outputs.size()) {
    FamilyBug(family, "*", "the reference misses an output");
  }
  for (std::size_t o = 0; o < expected.outputs.size(); ++o) {
    const TensorSpec& spec = family.outputs[o];
    const std::size_t elements =
        expected.rows[o].size() * static_cast<std::size_t>(RowElements(spec, problem));
    const std::size_t scales = expected.outputs[o].scale.size();
    if (expected.outputs[o].value.size() != elements || (scales != 0 && scales != elements)) {
      FamilyBug(family, spec.name, "the reference gave another number of elements than asked");
    }
  }
}

bool AllFinite(const Bundle& inputs) {
  for (const Tensor& tensor : inputs.tensors()) {
    const bool can_be_nan = IsFloat(tensor.dtype) || tensor.dtype == DType::kUE8M0;
    if (!can_be_nan || tensor.dtype == DType::kE2M1) continue;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      if (!std::isfinite(ElementAsDouble(tensor, i))) return false;
    }
  }
  return true;
}

// "" unless the reference is NaN on finite inputs, or its tolerance scale makes no sense.
std::string Unsound(const ExpectedRows& expected, const Bundle& inputs, const std::string& output) {
  bool nan = false;
  for (std::size_t i = 0; i < expected.value.size(); ++i) {
    nan = nan || std::isnan(expected.value[i]);
    if (expected.scale.empty() || !std::isfinite(expected.value[i])) continue;
    if (!(expected.scale[i] >= 0 && std::isfinite(expected.scale[i]))) {
      return output + ": the tolerance scale of a finite element is " +
             NumberText(expected.scale[i]);
    }
  }
  return nan && AllFinite(inputs) ? output + ": NaN although all inputs are finite" : "";
}

// "shape" or "dtype" when an output is not what the family declares, with the sentence in `reason`.
std::string LayoutProblem(const Family& family, const Problem& problem, const Bundle& outputs,
                          std::string& reason) {
  for (const TensorSpec& spec : family.outputs) {
    const TensorLayout wanted = Resolve(spec, problem);
    const Tensor* got = outputs.find(spec.name);
    if (got == nullptr) {
      reason = "output '" + spec.name + "' is missing";
      return "shape";
    }
    if (got->dtype != wanted.dtype) {
      reason = spec.name + " is " + std::string(DTypeName(got->dtype)) + ", expected " +
               std::string(DTypeName(wanted.dtype));
      return "dtype";
    }
    if (got->shape != wanted.shape) {
      reason = spec.name + " is " + ShapeText(got->shape) + ", expected " + ShapeText(wanted.shape);
      return "shape";
    }
  }
  return "";
}

// The checks beyond elements; the first that fails becomes the reason.
void AddFindings(const Family& family, const Problem& problem, const Bundle& inputs,
                 const Bundle& outputs, const Expected& expected, std::uint64_t seed,
                 Verdict& verdict) {
  std::vector<Finding>& findings = verdict.correctness.findings;
  if (family.row_checks != nullptr) {
    findings = family.row_checks(problem, inputs, outputs, expected.rows, expected.outputs);
  }
  if (family.whole_checks != nullptr) {
    for (Finding& finding : family.whole_checks(problem, inputs, outputs, seed)) {
      findings.push_back(std::move(finding));
    }
  }
  for (const Finding& finding : findings) {
    if (!finding.passed && verdict.reason.empty()) {
      verdict.reason = finding.name + ": " + finding.detail;
    }
  }
}

}  // namespace

double ElementAsDouble(const Tensor& tensor, std::int64_t index) {
  switch (tensor.dtype) {
    case DType::kBF16:
      return ToFloat(tensor.as<bf16>()[index]);
    case DType::kF16:
      return ToFloat(tensor.as<f16>()[index]);
    case DType::kE4M3:
      return ToFloat(tensor.as<e4m3>()[index]);
    case DType::kE5M2:
      return ToFloat(tensor.as<e5m2>()[index]);
    case DType::kUE8M0:
      return ToFloat(tensor.as<ue8m0>()[index]);
    case DType::kF32:
      return tensor.as<float>()[index];
    case DType::kF64:
      return tensor.as<double>()[index];
    case DType::kI32:
      return tensor.as<std::int32_t>()[index];
    case DType::kI64:
      return static_cast<double>(tensor.as<std::int64_t>()[index]);
    case DType::kI16:
      return tensor.as<std::int16_t>()[index];
    case DType::kI8:
      return tensor.as<std::int8_t>()[index];
    case DType::kU8:
      return tensor.as<std::uint8_t>()[index];
    case DType::kBool:
      return std::to_integer<unsigned>(tensor.data[index]) != 0;
    case DType::kE2M1:
      break;
  }
  throw Error(Fault::kInternal, "tensor '" + tensor.name + "' cannot be compared element-wise");
}

Expected ComputeExpected(const Family& family, const Problem& problem, const Bundle& inputs,
                         std::uint64_t seed) {
  return ComputeExpected(family, problem, inputs, family.sample_rows(problem, inputs, seed));
}

Expected ComputeExpected(const Family& family, const Problem& problem, const Bundle& inputs,
                         RowLists rows) {
  Expected expected;
  expected.rows = std::move(rows);
  RequireRows(family, problem, expected.rows);
  expected.outputs = family.reference(problem, inputs, expected.rows, SumOrder::kForward);
  RequireExtents(family, problem, expected);
  const RowLists few = FewRows(expected.rows);
  const auto reverse = family.reference(problem, inputs, few, SumOrder::kReverse);
  for (std::size_t o = 0; o < family.outputs.size() && expected.invalid.empty(); ++o) {
    const std::string& name = family.outputs[o].name;
    expected.invalid = Unsound(expected.outputs[o], inputs, name);
    if (!expected.invalid.empty()) break;
    expected.invalid = Disagreement(PickRows(expected.outputs[o], expected.rows[o], few[o]),
                                    reverse[o].value, name);
  }
  return expected;
}

Verdict Verify(const Family& family, const Problem& problem, const Bundle& inputs,
               const Bundle& outputs, const Expected& expected, std::uint64_t seed) {
  Verdict verdict;
  if (!expected.invalid.empty()) {
    verdict.status = Status::kInvalidReference;
    verdict.reason = expected.invalid;
    return verdict;
  }
  verdict.sub = LayoutProblem(family, problem, outputs, verdict.reason);
  if (!verdict.sub.empty()) {
    verdict.status = Status::kIncorrect;
    return verdict;
  }
  const std::vector<OutputPolicy> policies = family.policies(problem);
  std::int64_t checked = 0, total = 0, elements = 0;
  for (std::size_t o = 0; o < family.outputs.size(); ++o) {
    const TensorSpec& spec = family.outputs[o];
    OutputJudge judge(problem, inputs, outputs[spec.name], policies[o], RowElements(spec, problem));
    OutputCheck check = judge.Judge(expected.rows[o], expected.outputs[o], RowCount(spec, problem));
    checked += check.rows_checked;
    total += check.rows_total;
    elements += outputs[spec.name].elements();
    if (verdict.reason.empty()) verdict.reason = check.problem;
    verdict.correctness.outputs.push_back(std::move(check));
  }
  verdict.correctness.share_checked =
      total == 0 ? 1 : static_cast<double>(checked) / static_cast<double>(total);
  if (elements == 0) verdict.flags.push_back("empty");
  AddFindings(family, problem, inputs, outputs, expected, seed, verdict);
  if (!verdict.reason.empty()) {
    verdict.status = Status::kIncorrect;
    verdict.sub = "numerical";
  }
  return verdict;
}

}  // namespace assay
