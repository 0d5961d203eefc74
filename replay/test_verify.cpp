// Verification on a toy family whose truth is a list of numbers: each grade at its border, the
// rules for NaN, infinities, overflow and vanishing states, slices and pooling, broken references,
// and mistakes that every policy must notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "replay/verify.h"

namespace assay {
namespace {

using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargestBF16 = 0x1.FEp127, kOverflowBF16 = 0x1.FFp127;

// y[R, C], its truth, and how it is judged. A family is plain function pointers, hence a global.
struct Toy {
  std::int64_t rows = 1, columns = 1, rows_per_slice = 0;  // 0: one slice
  std::vector<double> truth, scale;
  double input = 1;           // the one element of the only input
  double reverse_offset = 0;  // what the other summation order adds
  OutputPolicy policy;
  std::vector<Finding> findings, row_findings;
};
Toy toy;

std::vector<ExpectedRows> ToyReference(const Problem&, const Bundle&, const RowLists& rows,
                                       SumOrder order) {
  std::vector<ExpectedRows> expected(1);
  for (const std::int64_t row : rows[0]) {
    for (std::int64_t c = 0; c < toy.columns; ++c) {
      const auto at = static_cast<std::size_t>(row * toy.columns + c);
      expected[0].value.push_back(toy.truth[at] +
                                  (order == SumOrder::kReverse ? toy.reverse_offset : 0));
      if (!toy.scale.empty()) expected[0].scale.push_back(toy.scale[at]);
    }
  }
  return expected;
}

std::int64_t ToySlice(const Problem&, const Bundle&, std::int64_t row) {
  return row / toy.rows_per_slice;
}

Family ToyFamily(DType dtype) {
  Family family;
  family.name = "toy";
  family.definitions = {{"toy", {{"R", toy.rows}, {"C", toy.columns}}, {}}};
  family.inputs = {{"x", DType::kF32, {"1"}}};
  family.outputs = {{"y", dtype, {"R", "C"}, false, 1}};
  family.reference = ToyReference;
  family.policies = [](const Problem&) {
    OutputPolicy policy = toy.policy;
    if (toy.rows_per_slice > 0) policy.slice_of_row = ToySlice;
    return std::vector<OutputPolicy>{policy};
  };
  if (!toy.findings.empty()) {
    family.whole_checks = [](const Problem&, const Bundle&, const Bundle&, std::uint64_t) {
      return toy.findings;
    };
  }
  if (!toy.row_findings.empty()) {
    family.row_checks = [](const Problem&, const Bundle&, const Bundle&, const RowLists&,
                           const std::vector<ExpectedRows>&) { return toy.row_findings; };
  }
  return family;
}

void Store(Tensor& tensor, std::int64_t at, double x) {
  switch (tensor.dtype) {
    case DType::kBF16:
      tensor.as<bf16>()[at] = ToBF16(x);
      return;
    case DType::kF16:
      tensor.as<f16>()[at] = ToF16(x);
      return;
    case DType::kF32:
      tensor.as<float>()[at] = static_cast<float>(x);
      return;
    case DType::kF64:
      tensor.as<double>()[at] = x;
      return;
    default:
      tensor.as<std::int32_t>()[at] = static_cast<std::int32_t>(x);
  }
}

Bundle ToyInputs() {
  Bundle inputs = Bundle::Allocate({{"x", DType::kF32, {1}}});
  inputs["x"].as<float>()[0] = static_cast<float>(toy.input);
  return inputs;
}

Bundle ToyOutputs(const std::vector<double>& got, DType dtype) {
  Bundle outputs = Bundle::Allocate({{"y", dtype, {toy.rows, toy.columns}}});
  for (std::size_t i = 0; i < got.size(); ++i) {
    Store(outputs["y"], static_cast<std::int64_t>(i), got[i]);
  }
  return outputs;
}

std::vector<std::int64_t> AllRows() {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(toy.rows));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

Verdict JudgeRows(const std::vector<double>& got, DType dtype, std::vector<std::int64_t> rows) {
  const Family family = ToyFamily(dtype);
  const Problem problem = MakeProblem(family, "toy", {});
  const Bundle inputs = ToyInputs();
  const Expected expected = ComputeExpected(family, problem, inputs, {std::move(rows)});
  return Verify(family, problem, inputs, ToyOutputs(got, dtype), expected, 1);
}

Verdict Judge(const std::vector<double>& got, DType dtype = DType::kF64) {
  return JudgeRows(got, dtype, AllRows());
}

// The toy becomes one row with this truth, judged element by element only.
void OneRow(const std::vector<double>& truth, const std::vector<Grade>& grades) {
  toy = Toy{};
  toy.columns = static_cast<std::int64_t>(truth.size());
  toy.truth = truth;
  toy.policy.grades = grades;
  toy.policy.slice_rel_l2 = 0;
}

const Grade kCaptured{"captured", 0.005, 0.016, 0, 0};
const Grade kFlash{"flash", 0.005, 0.016, 0x1p-8, 0};
const Grade kStrict{"strict", 0, 0, 0, 1};
const Grade kFp32{"fp32", 2e-5, 1e-4, 0, 0};

std::string GradeOf(double got, double truth, const std::vector<Grade>& grades,
                    std::vector<double> scale = {}) {
  OneRow({truth}, grades);
  toy.scale = std::move(scale);
  const Verdict verdict = Judge({got});
  return verdict.passed() ? verdict.correctness.grade() : verdict.sub;
}

TEST(Grades, CapturedBorder) {
  // 0.005 + 0.016 * 2 = 0.037
  EXPECT_EQ(GradeOf(2 + 0.0369999, 2, {kCaptured}), "captured");
  EXPECT_EQ(GradeOf(2 - 0.0369999, 2, {kCaptured}), "captured");
  EXPECT_EQ(GradeOf(2 + 0.0370001, 2, {kCaptured}), "numerical");
  EXPECT_EQ(GradeOf(-2 - 0.0370001, -2, {kCaptured}), "numerical");
  EXPECT_EQ(GradeOf(0.005, 0, {kCaptured}), "captured");
  EXPECT_EQ(GradeOf(0.00500001, 0, {kCaptured}), "numerical");
}

TEST(Grades, StrictestMetIsNamed) {
  const std::vector<Grade> all = {kStrict, kCaptured, kFlash};
  EXPECT_EQ(GradeOf(1, 1, all, {4}), "strict");
  EXPECT_EQ(GradeOf(1 + 0x1p-7, 1, all, {4}), "strict");  // exactly one bf16 ulp
  EXPECT_EQ(GradeOf(1 + 0x1p-7 + 1e-9, 1, all, {4}), "captured");
  EXPECT_EQ(GradeOf(1 + 0.022, 1, all, {4}), "flash");  // 0.021 + 4 / 256
  EXPECT_EQ(GradeOf(1 + 0.037, 1, all, {4}), "numerical");
}

TEST(Grades, OneElementOutsideSpoilsAGradeForTheWholeOutput) {
  OneRow({1, 1, 1}, {kStrict, kCaptured});
  EXPECT_EQ(Judge({1, 1.01, 1}).correctness.grade(), "captured");
  const Verdict verdict = Judge({1, 1.01, 1.1});
  EXPECT_EQ(verdict.status, Status::kIncorrect);
  EXPECT_EQ(verdict.correctness.outputs[0].mismatches, 1);  // outside the loosest grade
  EXPECT_EQ(verdict.correctness.grade(), "");
}

TEST(Grades, WorstElementAndBudgetAreReported) {
  toy = Toy{};
  toy.rows = 3;
  toy.columns = 4;
  toy.truth.assign(12, 1.0);
  toy.policy.grades = {kCaptured};
  toy.policy.slice_rel_l2 = 0;
  std::vector<double> got(12, 1.001);
  got[9] = 1.5;
  const Verdict verdict = Judge(got);
  const OutputCheck& check = verdict.correctness.outputs[0];
  EXPECT_EQ(check.worst.index, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(check.worst.got, 1.5);
  EXPECT_EQ(check.worst.expected, 1.0);
  EXPECT_DOUBLE_EQ(check.worst.allowed, 0.021);
  EXPECT_DOUBLE_EQ(check.budget_used, 0.5 / 0.021);
  EXPECT_EQ(check.max_abs, 0.5);
  EXPECT_EQ(verdict.reason, "y[2,1] = 1.5, expected 1 +- 0.021 (1 elements are off)");
}

TEST(Exact, IntegersMustBeEqual) {
  OneRow({5, -1, 2147483647}, {});
  EXPECT_EQ(Judge({5, -1, 2147483647}, DType::kI32).correctness.grade(), "exact");
  const Verdict verdict = Judge({5, 0, 2147483647}, DType::kI32);
  EXPECT_FALSE(verdict.passed());
  EXPECT_EQ(verdict.correctness.outputs[0].worst.index, (std::vector<std::int64_t>{0, 1}));
}

TEST(Exact, FloatsMustBeEqualAndZerosMayDifferInSign) {
  OneRow({0, 1}, {});
  EXPECT_TRUE(Judge({-0.0, 1}, DType::kBF16).passed());
  EXPECT_FALSE(Judge({0, 1 + 0x1p-7}, DType::kBF16).passed());
}

// Ruling 4: NaN wants NaN, infinity the same infinity; finite wants finite.
TEST(NonFinite, MustAgree) {
  const std::vector<double> kinds = {kNaN, kInf, -kInf, 1.0};
  for (std::size_t want = 0; want < kinds.size(); ++want) {
    for (std::size_t got = 0; got < kinds.size(); ++got) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
        OneRow({kinds[want], 1.0}, {kCaptured});
        toy.input = kInf;  // otherwise the NaN reference would be unsound
        const Verdict verdict = Judge({kinds[got], 1.0}, dtype);
        EXPECT_EQ(verdict.passed(), want == got) << kinds[want] << ' ' << kinds[got];
      }
    }
  }
}

TEST(NonFinite, MismatchIsTheWorstElementAndFailsEveryGrade) {
  OneRow({1, 1, 1}, {kStrict, kCaptured, {"anything", 1e300, 0, 0, 0}});
  const Verdict verdict = Judge({1, kNaN, 1.4});
  EXPECT_FALSE(verdict.passed());
  EXPECT_EQ(verdict.correctness.outputs[0].worst.index, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(verdict.correctness.outputs[0].budget_used, kInf);
  EXPECT_THAT(verdict.reason, HasSubstr("y[0,1] = nan, expected 1"));
}

TEST(NonFinite, AgreeingElementsLeaveTheNorms) {
  OneRow({kInf, kNaN, 1, 1}, {kCaptured});
  toy.input = kNaN;
  toy.policy.slice_rel_l2 = 5e-3;
  const Verdict verdict = Judge({kInf, kNaN, 1.001, 1.001});
  EXPECT_TRUE(verdict.passed()) << verdict.reason;
  EXPECT_NEAR(verdict.correctness.outputs[0].max_rel_l2, 0.001, 1e-9);
  EXPECT_FALSE(Judge({kInf, kNaN, 1.006, 1.006}).passed());
}

// Ruling 6: above the rounding limit infinity is required, within 1 % of it either will do.
TEST(Overflow, AroundTheRoundingLimitOfBF16) {
  const auto passes = [](double truth, double got) {
    OneRow({truth}, {kCaptured});
    return Judge({got}, DType::kBF16).passed();
  };
  for (const double sign : {1.0, -1.0}) {
    EXPECT_TRUE(passes(sign * 1.02 * kOverflowBF16, sign * kInf));
    EXPECT_FALSE(passes(sign * 1.02 * kOverflowBF16, sign * kLargestBF16));
    EXPECT_TRUE(passes(sign * 1.005 * kOverflowBF16, sign * kInf));
    EXPECT_TRUE(passes(sign * 1.005 * kOverflowBF16, sign * kLargestBF16));
    EXPECT_TRUE(passes(sign * 0.995 * kOverflowBF16, sign * kInf));
    EXPECT_TRUE(passes(sign * 0.995 * kOverflowBF16, sign * kLargestBF16));
    EXPECT_FALSE(passes(sign * 0.98 * kOverflowBF16, sign * kInf));
    EXPECT_TRUE(passes(sign * 0.98 * kOverflowBF16, sign * 0.98 * kOverflowBF16));
    EXPECT_FALSE(passes(sign * 1.005 * kOverflowBF16, -sign * kInf));
    EXPECT_FALSE(passes(sign * 1.005 * kOverflowBF16, kNaN));
    EXPECT_FALSE(passes(sign * 1.005 * kOverflowBF16, sign * 0.5 * kLargestBF16));
  }
}

TEST(Overflow, OtherTypes) {
  OneRow({70000}, {kCaptured});
  EXPECT_TRUE(Judge({kInf}, DType::kF16).passed());
  EXPECT_FALSE(Judge({65504}, DType::kF16).passed());
  EXPECT_FALSE(Judge({kInf}, DType::kF32).passed());
  OneRow({4e38}, {kCaptured});
  EXPECT_TRUE(Judge({kInf}, DType::kF32).passed());
  EXPECT_FALSE(Judge({kInf}, DType::kF64).passed());
}

// `rows` rows in slices of `rows_per_slice`, truth 1 everywhere.
void Slices(std::int64_t rows, std::int64_t rows_per_slice, double truth = 1) {
  toy = Toy{};
  toy.rows = rows;
  toy.columns = 2;
  toy.rows_per_slice = rows_per_slice;
  toy.truth.assign(static_cast<std::size_t>(rows * 2), truth);
  toy.policy.grades = {kCaptured};
}

TEST(SliceRelL2, OneWrongHeadIsFoundAmongManyRightOnes) {
  Slices(64, 8);
  std::vector<double> got = toy.truth;
  for (std::size_t i = 16 * 2; i < 24 * 2; ++i) got[i] = 1.01;  // slice 2, inside `captured`
  const Verdict verdict = Judge(got);
  EXPECT_FALSE(verdict.passed());
  EXPECT_THAT(verdict.reason, HasSubstr("y, slice 2: relative L2 error 0.01"));
  EXPECT_NEAR(verdict.correctness.outputs[0].max_rel_l2, 0.01, 1e-9);
  EXPECT_EQ(verdict.correctness.outputs[0].mismatches, 0);
  EXPECT_EQ(verdict.correctness.grade(), "");
  // As one slice the same error drowns: sqrt(1/8) * 0.01 = 0.0035.
  toy.rows_per_slice = 0;
  EXPECT_TRUE(Judge(got).passed());
}

TEST(SliceRelL2, SampledSlicesWithFewRowsArePooled) {
  Slices(64, 8);
  toy.policy.min_slice_rows = 4;
  std::vector<double> got = toy.truth;
  for (std::size_t i = 0; i < 8 * 2; ++i) got[i] = 1.008;  // slice 0
  // 3 rows of slice 0 and 3 of slice 1: pooled error 0.008 / sqrt(2) = 0.0057 > 0.005.
  EXPECT_THAT(JudgeRows(got, DType::kF64, {0, 1, 2, 8, 9, 10}).reason, HasSubstr("pooled rows"));
  // 1 of 9 pooled rows is off: 0.008 / 3.
  EXPECT_TRUE(JudgeRows(got, DType::kF64, {0, 8, 9, 10, 16, 17, 18, 24, 25}).passed());
  // Four rows of slice 0 make it a slice of its own.
  EXPECT_THAT(JudgeRows(got, DType::kF64, {0, 1, 2, 3, 8, 9, 10}).reason, HasSubstr("slice 0"));
  // In a full check nothing is pooled.
  toy.policy.min_slice_rows = 1000;
  EXPECT_THAT(Judge(got).reason, HasSubstr("slice 0"));
}

TEST(SliceRelL2, TinyReferencesAreLeftToTheElementRule) {
  // norm2(r) <= 1e-6 sqrt(n): a relative norm says nothing there.
  Slices(8, 4, 0.9e-6);
  EXPECT_TRUE(Judge(std::vector<double>(16, 0.004)).passed());
  EXPECT_FALSE(Judge(std::vector<double>(16, 0.006)).passed());
  Slices(8, 4, 1.1e-6);
  EXPECT_FALSE(Judge(std::vector<double>(16, 0.004)).passed());
  Slices(8, 4, 0);
  EXPECT_TRUE(Judge(std::vector<double>(16, 0.0)).passed());
}

// One head per row, 100 values each; judged by the state rule unless the fp32 rule holds.
void Heads(const std::vector<double>& magnitudes) {
  toy = Toy{};
  toy.rows = static_cast<std::int64_t>(magnitudes.size());
  toy.columns = 100;
  toy.rows_per_slice = 1;
  for (std::size_t head = 0; head < magnitudes.size(); ++head) {
    for (std::uint64_t c = 0; c < 100; ++c) {
      toy.truth.push_back(magnitudes[head] * (Mix64(3, head, c) % 2 == 0 ? 1 : -1));
    }
  }
  toy.policy.grades = {kFp32};
  toy.policy.state = {0.01, 0.02, 0.015};
  toy.policy.slice_rel_l2 = 0;
}

// Scales head `head` by 1 + relative.
std::vector<double> WithHeadError(std::size_t head, double relative) {
  std::vector<double> got = toy.truth;
  for (std::size_t c = 0; c < 100; ++c) got[head * 100 + c] *= 1 + relative;
  return got;
}

TEST(StateRule, IsUsedOnlyWhenTheElementRuleFails) {
  Heads({1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(Judge(toy.truth).correctness.grade(), "fp32");
  const Verdict verdict = Judge(WithHeadError(3, 0.014));
  EXPECT_EQ(verdict.correctness.grade(), "gdn_state") << verdict.reason;
  EXPECT_EQ(verdict.correctness.outputs[0].mismatches, 0);
}

TEST(StateRule, EachLimitRejects) {
  Heads({1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5});
  // Head: 0.021 of the small head, 0.0105 of the largest value, 0.0033 overall.
  EXPECT_THAT(Judge(WithHeadError(9, 0.021)).reason, HasSubstr("head 9: relative rms 0.021"));
  EXPECT_TRUE(Judge(WithHeadError(9, 0.019)).passed());
  // Largest value: 0.016 of it, but only 0.005 overall.
  EXPECT_THAT(Judge(WithHeadError(0, 0.016)).reason, HasSubstr("largest error 0.016"));
  // Whole tensor: 0.011 everywhere.
  std::vector<double> got = toy.truth;
  for (double& x : got) x *= 1.011;
  EXPECT_THAT(Judge(got).reason, HasSubstr("y: relative rms 0.011"));
}

TEST(StateRule, VanishingHeadsAreJudgedAbsolutely) {
  Heads({1, 0});
  std::vector<double> got = WithHeadError(0, 0.001);
  got[150] = 1.9e-5;
  EXPECT_EQ(Judge(got).correctness.grade(), "gdn_state");
  got[150] = 2.1e-5;
  EXPECT_THAT(Judge(got).reason, HasSubstr("head 1: error 2.1e-05 of a vanishing state"));
  // Below 1e-6 of the largest head counts as vanishing too.
  Heads({1000, 0.9e-3});
  EXPECT_THAT(Judge(WithHeadError(1, 0.03)).reason, HasSubstr("vanishing"));
  Heads({1000, 1.1e-3});
  EXPECT_THAT(Judge(WithHeadError(1, 0.03)).reason, HasSubstr("relative rms"));
}

TEST(StateRule, DoesNotForgiveNonFiniteValues) {
  Heads({1, 1});
  std::vector<double> got = toy.truth;
  got[7] = kNaN;
  EXPECT_FALSE(Judge(got).passed());
  got[7] = kInf;
  EXPECT_FALSE(Judge(got).passed());
}

TEST(StateRule, UnusedLimitsDoNotReject) {
  Heads({1, 1});
  toy.policy.state = {0.01, 0, 0};
  EXPECT_TRUE(Judge(WithHeadError(0, 0.0139)).passed());  // 0.0098 overall
  EXPECT_FALSE(Judge(WithHeadError(0, 0.0143)).passed());
}

TEST(Findings, FailedWholeChecksReject) {
  OneRow({1}, {kCaptured});
  toy.findings = {{"first", true, 0, 1, "fine"}, {"freivalds", false, 3, 1, "row 5: 7 against 8"}};
  const Verdict verdict = Judge({1});
  EXPECT_EQ(verdict.status, Status::kIncorrect);
  EXPECT_EQ(verdict.sub, "numerical");
  EXPECT_EQ(verdict.reason, "freivalds: row 5: 7 against 8");
  EXPECT_EQ(verdict.correctness.findings.size(), 2u);
  toy.findings.pop_back();
  EXPECT_TRUE(Judge({1}).passed());
}

TEST(Findings, RowChecksAloneJudgeAnOutputThatIsLeftToThem) {
  OneRow({1}, {});
  toy.policy.judged_by_checks = true;
  toy.row_findings = {{"near_tie_rows", true, 1, 2, ""}};
  const Verdict accepted = Judge({7});  // no element rule applies
  EXPECT_TRUE(accepted.passed());
  EXPECT_EQ(accepted.correctness.grade(), "checks");
  EXPECT_EQ(accepted.correctness.outputs[0].rows_checked, 1);
  ASSERT_EQ(accepted.correctness.findings.size(), 1u);
  EXPECT_EQ(accepted.correctness.findings[0].measured, 1);
  toy.row_findings[0] = {"near_tie_rows", false, 3, 2, "3 rows"};
  toy.findings = {{"whole", false, 1, 0, "later"}};
  const Verdict rejected = Judge({7});
  EXPECT_EQ(rejected.status, Status::kIncorrect);
  EXPECT_EQ(rejected.reason, "near_tie_rows: 3 rows");
  EXPECT_EQ(rejected.correctness.findings.size(), 2u);
}

TEST(InvalidReference, OrdersOfSummationDisagree) {
  OneRow({1}, {kCaptured});
  toy.reverse_offset = 0.9e-6;
  EXPECT_TRUE(Judge({1}).passed());
  toy.reverse_offset = 1.1e-6;
  const Verdict verdict = Judge({1});
  EXPECT_EQ(verdict.status, Status::kInvalidReference);
  EXPECT_THAT(verdict.reason, HasSubstr("y: two summation orders differ"));
  toy.reverse_offset = kNaN;
  EXPECT_EQ(Judge({1}).status, Status::kInvalidReference);
}

TEST(InvalidReference, NaNFromFiniteInputs) {
  OneRow({1, kNaN}, {kCaptured});
  EXPECT_EQ(Judge({1, kNaN}).status, Status::kInvalidReference);
  toy.input = kNaN;
  EXPECT_TRUE(Judge({1, kNaN}).passed());
}

TEST(InvalidReference, ToleranceScaleMustBeFinite) {
  for (const double scale : {kNaN, kInf, -1.0}) {
    OneRow({1}, {kFlash});
    toy.scale = {scale};
    EXPECT_EQ(Judge({1}).status, Status::kInvalidReference) << scale;
  }
}

TEST(Rows, MustExistOnceAndInOrder) {
  Slices(8, 0);
  for (const std::vector<std::int64_t>& rows :
       {std::vector<std::int64_t>{}, {2, 2}, {3, 1}, {-1, 0}, {7, 8}}) {
    try {
      JudgeRows(toy.truth, DType::kF64, rows);
      ADD_FAILURE() << testing::PrintToString(rows);
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInternal);
    }
  }
}

TEST(Rows, ShareCheckedIsReportedAndOtherRowsAreNotRead) {
  Slices(8, 0);
  std::vector<double> got = toy.truth;
  got[2 * 5] = 77;  // row 5 is not in the sample
  const Verdict verdict = JudgeRows(got, DType::kF64, {0, 7});
  EXPECT_TRUE(verdict.passed());
  EXPECT_EQ(verdict.correctness.share_checked, 0.25);
  EXPECT_EQ(verdict.correctness.outputs[0].rows_checked, 2);
  EXPECT_EQ(verdict.correctness.outputs[0].rows_total, 8);
  EXPECT_FALSE(JudgeRows(got, DType::kF64, {0, 5, 7}).passed());
}

TEST(Empty, PassesWithAFlag) {
  for (const auto& [rows, columns] : {std::pair{0, 4}, {4, 0}, {0, 0}}) {
    toy = Toy{};
    toy.rows = rows;
    toy.columns = columns;
    toy.policy.grades = {kCaptured};
    const Verdict verdict = Judge({});
    EXPECT_TRUE(verdict.passed());
    EXPECT_THAT(verdict.flags, testing::ElementsAre("empty"));
    EXPECT_EQ(verdict.correctness.share_checked, 1);
    EXPECT_EQ(verdict.correctness.grade(), "captured");
  }
  OneRow({1}, {kCaptured});
  EXPECT_TRUE(Judge({1}).flags.empty());
}

TEST(Layout, ShapeAndDtypeComeFirst) {
  OneRow({1, 1}, {kCaptured});
  const Family family = ToyFamily(DType::kF32);
  const Problem problem = MakeProblem(family, "toy", {});
  const Bundle inputs = ToyInputs();
  const Expected expected = ComputeExpected(family, problem, inputs, RowLists{{0}});
  const auto judge = [&](const std::vector<TensorLayout>& layouts) {
    return Verify(family, problem, inputs, Bundle::Allocate(layouts), expected, 1);
  };
  const Verdict dtype = judge({{"y", DType::kF16, {1, 2}}});
  EXPECT_EQ(dtype.sub, "dtype");
  EXPECT_EQ(dtype.reason, "y is float16, expected float32");
  const Verdict shape = judge({{"y", DType::kF32, {2, 1}}});
  EXPECT_EQ(shape.sub, "shape");
  EXPECT_EQ(shape.reason, "y is [2,1], expected [1,2]");
  EXPECT_EQ(judge({{"z", DType::kF32, {1, 2}}}).sub, "shape");
  EXPECT_EQ(judge({{"z", DType::kF32, {1, 2}}}).status, Status::kIncorrect);
}

// 64 rows of 32 bell-shaped values of size `magnitude`, in slices of 16 rows, as an attention
// output would be judged: bf16, two grades and the blindness guard.
std::vector<double> Attention(std::uint64_t content, double magnitude) {
  toy = Toy{};
  toy.rows = 64;
  toy.columns = 32;
  toy.rows_per_slice = 16;
  for (std::uint64_t i = 0; i < 64 * 32; ++i) {
    toy.truth.push_back(magnitude * UnitNormal(content, 0, i));
    toy.scale.push_back(std::abs(toy.truth.back()));
  }
  toy.policy.grades = {kCaptured, kFlash};
  return toy.truth;
}

TEST(Mutants, AreRejectedAtEveryMagnitude) {
  // Magnitude 0.01 is where the recorded tolerance alone accepts anything.
  for (const double magnitude : {0.01, 1.0, 30.0}) {
    const std::vector<double> previous = Attention(2, magnitude), right = Attention(1, magnitude);
    const auto rejected = [](const std::vector<double>& got) {
      return !Judge(got, DType::kBF16).passed();
    };
    EXPECT_FALSE(rejected(right)) << "bf16 rounding alone must pass";
    EXPECT_TRUE(rejected(std::vector<double>(right.size(), 0.0)));
    EXPECT_TRUE(rejected(previous));
    std::vector<double> got = right;
    for (double& x : got) x *= 1.01;
    EXPECT_TRUE(rejected(got)) << "scaled by 1.01";
    got = right;
    std::rotate(got.begin(), got.begin() + toy.columns, got.end());
    EXPECT_TRUE(rejected(got)) << "rows moved by one";
    got = right;
    std::swap_ranges(got.begin(), got.begin() + 16 * toy.columns, got.begin() + 16 * toy.columns);
    EXPECT_TRUE(rejected(got)) << "two heads swapped";
    got = right;
    for (auto x = got.begin(); x != got.begin() + 16 * toy.columns; ++x) *x = -*x;
    EXPECT_TRUE(rejected(got)) << "one head negated";
  }
}

TEST(Mutants, OutputsThatWereNeverWrittenAreRejected) {
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kI32}) {
    Attention(1, 1);
    if (dtype == DType::kI32) {
      toy.policy.grades.clear();
      for (double& x : toy.truth) x = std::round(x);
    }
    const Family family = ToyFamily(dtype);
    const Problem problem = MakeProblem(family, "toy", {});
    const Bundle inputs = ToyInputs();
    const Expected expected = ComputeExpected(family, problem, inputs, RowLists{AllRows()});
    Bundle outputs = ToyOutputs(toy.truth, dtype);
    toy.policy.slice_rel_l2 = 0;
    EXPECT_TRUE(Verify(family, problem, inputs, outputs, expected, 1).passed());
    outputs.Poison();
    EXPECT_FALSE(Verify(family, problem, inputs, outputs, expected, 1).passed());
  }
}

TEST(ElementAsDouble, ReadsEveryOutputType) {
  const std::vector<TensorLayout> layouts = {
      {"bf16", DType::kBF16, {1}}, {"f16", DType::kF16, {1}},  {"e4m3", DType::kE4M3, {1}},
      {"e5m2", DType::kE5M2, {1}}, {"u8", DType::kU8, {1}},    {"scale", DType::kUE8M0, {1}},
      {"i64", DType::kI64, {1}},   {"bool", DType::kBool, {1}}};
  Bundle bundle = Bundle::Allocate(layouts);
  bundle["bf16"].as<bf16>()[0] = ToBF16(1.5);
  bundle["f16"].as<f16>()[0] = ToF16(2.5);
  bundle["e4m3"].as<e4m3>()[0] = ToE4M3(448.0);
  bundle["e5m2"].as<e5m2>()[0] = ToE5M2(-3.0);
  bundle["u8"].as<std::uint8_t>()[0] = 200;
  bundle["scale"].as<ue8m0>()[0] = {130};
  bundle["i64"].as<std::int64_t>()[0] = -7;
  bundle["bool"].data[0] = std::byte{1};
  const double wanted[] = {1.5, 2.5, 448, -3, 200, 8, -7, 1};
  for (std::size_t t = 0; t < layouts.size(); ++t) {
    EXPECT_EQ(ElementAsDouble(bundle.tensors()[t], 0), wanted[t]) << layouts[t].name;
  }
  Bundle packed = Bundle::Allocate({{"p", DType::kE2M1, {2}}});
  EXPECT_THROW(ElementAsDouble(packed["p"], 0), Error);
}

}  // namespace
}  // namespace assay
