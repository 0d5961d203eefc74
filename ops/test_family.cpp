// The operator contract: problems and what MakeProblem refuses, shapes, rows, layout checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "ops/family.h"
#include "ops/registry.h"
#include "ops/room.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// y[B, 4, N] = f(x[B, N], mask[N]); B may not be 13.
Family MakeFamily() {
  Family family;
  family.name = "toy";
  family.definitions = {{"toy_n8", {{"N", 8}}, {"B", "T"}}, {"toy_n16", {{"N", 16}}, {"B", "T"}}};
  family.inputs = {{"x", DType::kBF16, {"B", "N"}}, {"mask", DType::kBool, {"N"}, true}};
  family.outputs = {{"y", DType::kF32, {"B", "4", "N"}, false, 2}};
  family.variants = {"plain", "peaky"};
  family.attributes = {"count", "scale", "kind", "segments"};
  family.validate_axes = [](const Problem& problem) {
    if (problem.axis("B") == 13) BadInput("toy: axis B = 13 is unlucky");
  };
  return family;
}

void ExpectBadInput(const std::function<void()>& action,
                    const testing::Matcher<std::string>& text) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    EXPECT_THAT(std::string(error.what()), text);
  }
}

void ExpectRefused(const Axes& axes, const testing::Matcher<std::string>& text,
                   const std::string& variant = "") {
  const Family family = MakeFamily();
  ExpectBadInput([&] { MakeProblem(family, "toy_n8", axes, {}, variant); }, text);
}

TEST(MakeProblem, JoinsConstantsAndVariables) {
  const Family family = MakeFamily();
  const Problem problem = MakeProblem(family, "toy_n16", {{"B", 3}, {"T", 0}}, {}, "peaky");
  EXPECT_EQ(problem.definition, family.FindDefinition("toy_n16"));
  EXPECT_EQ(problem.axes, (Axes{{"N", 16}, {"B", 3}, {"T", 0}}));
  EXPECT_EQ(problem.variant, "peaky");
  EXPECT_EQ(problem.axis("N"), 16);
  EXPECT_THROW(problem.axis("n"), Error);
}

TEST(MakeProblem, AcceptsAConstantThatIsRepeatedRight) {
  const Family family = MakeFamily();
  EXPECT_NO_THROW(MakeProblem(family, "toy_n8", {{"B", 1}, {"T", 1}, {"N", 8}}));
  ExpectRefused({{"B", 1}, {"T", 1}, {"N", 9}},
                AllOf(HasSubstr("N = 9"), HasSubstr("fixes it at 8")));
}

TEST(MakeProblem, RefusesBadAxes) {
  ExpectRefused({{"B", 1}}, HasSubstr("toy_n8: axis T is missing"));
  ExpectRefused({}, HasSubstr("is missing"));
  ExpectRefused({{"B", 1}, {"T", 1}, {"Q", 2}}, HasSubstr("unknown axis Q = 2"));
  ExpectRefused({{"B", -1}, {"T", 1}}, HasSubstr("axis B = -1 is outside"));
  ExpectRefused({{"B", (1LL << 40) + 1}, {"T", 1}}, HasSubstr("axis B = 1099511627777 is outside"));
  ExpectRefused({{"B", INT64_MIN}, {"T", 1}}, HasSubstr("-9223372036854775808"));
  ExpectRefused({{"B", 13}, {"T", 1}}, HasSubstr("unlucky"));
  EXPECT_NO_THROW(MakeProblem(MakeFamily(), "toy_n8", {{"B", 1LL << 40}, {"T", 0}}));
}

TEST(MakeProblem, RefusesUnknownDefinitionsAndVariants) {
  const Family family = MakeFamily();
  ExpectBadInput([&] { MakeProblem(family, "toy_n9", {}); }, HasSubstr("definition 'toy_n9'"));
  ExpectRefused({{"B", 1}, {"T", 1}}, HasSubstr("variant 'spiky'"), "spiky");
}

TEST(Problem, AttributesByType) {
  const Family family = MakeFamily();
  const Attributes attributes = {{"count", std::int64_t{3}},
                                 {"scale", 0.5},
                                 {"kind", std::string("text")},
                                 {"segments", std::vector<std::int64_t>{0, 4, 1}},
                                 {"captured_at", std::string("elsewhere")}};
  const Problem problem = MakeProblem(family, "toy_n8", {{"B", 1}, {"T", 1}}, attributes);
  EXPECT_EQ(*problem.integer("count"), 3);
  EXPECT_EQ(*problem.text("kind"), "text");
  EXPECT_EQ(problem.integers("segments")->size(), 3u);
  EXPECT_EQ(problem.integer("kind"), nullptr);
  EXPECT_EQ(problem.text("absent"), nullptr);
  EXPECT_EQ(problem.integers("count"), nullptr);
  EXPECT_FALSE(problem.attributes.contains("captured_at"));  // the family does not read it
}

TEST(Shapes, ResolveAxesAndNumbers) {
  const Family family = MakeFamily();
  const Problem problem = MakeProblem(family, "toy_n8", {{"B", 3}, {"T", 1}});
  const TensorLayout layout = Resolve(family.outputs[0], problem);
  EXPECT_EQ(layout.name, "y");
  EXPECT_EQ(layout.dtype, DType::kF32);
  EXPECT_EQ(layout.shape, (Shape{3, 4, 8}));
  EXPECT_EQ(RowCount(family.outputs[0], problem), 12);
  EXPECT_EQ(RowElements(family.outputs[0], problem), 8);
  EXPECT_THROW(Resolve({"z", DType::kF32, {"Z"}}, problem), Error);
}

TEST(Shapes, RowsOfScalarsAndEmptyTensors) {
  const Family family = MakeFamily();
  const Problem problem = MakeProblem(family, "toy_n8", {{"B", 0}, {"T", 1}});
  EXPECT_EQ(RowCount(family.outputs[0], problem), 0);
  EXPECT_EQ(RowElements(family.outputs[0], problem), 8);
  const TensorSpec scalar{"s", DType::kF32, {}, false, 0};
  EXPECT_EQ(RowCount(scalar, problem), 1);
  EXPECT_EQ(RowElements(scalar, problem), 1);
}

TEST(Shapes, ProductsThatOverflowAreBadInput) {
  const Family family = MakeFamily();
  const Problem problem = MakeProblem(family, "toy_n8", {{"B", 1LL << 40}, {"T", 1LL << 40}});
  const TensorSpec huge{"h", DType::kF32, {"B", "T"}, false, 1};
  EXPECT_EQ(RowCount(huge, problem), 1LL << 40);
  ExpectBadInput([&] { Bundle::ArenaBytes({Resolve(huge, problem)}); },
                 HasSubstr("[1099511627776"));
}

TEST(Layouts, InputsAndOutputs) {
  const Family family = MakeFamily();
  const Problem problem = MakeProblem(family, "toy_n8", {{"B", 3}, {"T", 1}});
  const auto inputs = LayoutsOf(family.inputs, problem);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_EQ(inputs[1].name, "mask");
  EXPECT_EQ(OutputLayouts(family, problem).size(), 1u);
}

TEST(Layouts, CheckInputLayoutsNamesTheTensor) {
  const Family family = MakeFamily();
  const Problem problem = MakeProblem(family, "toy_n8", {{"B", 3}, {"T", 1}});
  const auto check = [&](const std::vector<TensorLayout>& layouts) {
    CheckInputLayouts(family.inputs, problem, Bundle::Allocate(layouts));
  };
  EXPECT_NO_THROW(check({{"x", DType::kBF16, {3, 8}}}));  // the mask is optional
  ExpectBadInput([&] { check({}); }, HasSubstr("input 'x' is missing"));
  ExpectBadInput(
      [&] {
        check({{"x", DType::kBF16, {3, 7}}});
      },
      HasSubstr("input 'x' is bfloat16[3,7], expected bfloat16[3,8]"));
  ExpectBadInput([&] { check({{"x", DType::kF16, {3, 8}}}); }, HasSubstr("float16[3,8]"));
  ExpectBadInput(
      [&] {
        check({{"x", DType::kBF16, {3, 8}}, {"mask", DType::kBool, {9}}});
      },
      HasSubstr("input 'mask'"));
}

TEST(Registry, FindsFamiliesAndDefinitions) {
  const Registry registry({MakeFamily()});
  EXPECT_EQ(registry.FindFamily("toy")->name, "toy");
  EXPECT_EQ(registry.FindFamily("to"), nullptr);
  const DefinitionRef found = registry.FindDefinition("toy_n16");
  EXPECT_EQ(found.family->name, "toy");
  EXPECT_EQ(found.definition->constants.at("N"), 16);
  EXPECT_EQ(registry.FindDefinition("toy").family, nullptr);
}

// What every room must declare; a hole here would be a crash in the runner.
TEST(Registry, BuiltInFamiliesAreComplete) {
  for (const Family& family : BuiltInRegistry().families()) {
    SCOPED_TRACE(family.name);
    EXPECT_FALSE(family.summary.empty());
    EXPECT_FALSE(family.definitions.empty());
    EXPECT_FALSE(family.inputs.empty());
    EXPECT_FALSE(family.outputs.empty());
    EXPECT_FALSE(family.backends.empty());
    EXPECT_FALSE(family.mutants.empty());
    EXPECT_TRUE(family.input_layouts && family.generate && family.cost && family.sample_rows &&
                family.reference && family.policies);
    EXPECT_EQ(family.FindBackend("reference"), nullptr) << "the reference is no competitor";
    for (const Definition& definition : family.definitions) {
      EXPECT_EQ(definition.name.rfind(family.name, 0), 0u) << definition.name;
      EXPECT_EQ(BuiltInRegistry().FindDefinition(definition.name).family, &family);
    }
  }
}

TEST(Rooms, EveryFamilyHasAFolderWithAPage) {
  for (const Family& family : BuiltInRegistry().families()) {
    const std::string page = ASSAY_SOURCE_DIR "/ops/" + std::string(RoomOf(family.name));
    EXPECT_TRUE(std::filesystem::exists(page + "/README.md")) << family.name << ": " << page;
  }
}

}  // namespace
}  // namespace assay
