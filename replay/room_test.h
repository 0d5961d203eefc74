// What every room's test.cpp needs: make a case small or captured-size, run a backend on it with
// poisoned outputs and guard bands, and judge it exactly as `assay run` would. Test code only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/sanitizers.h"
#include "ops/family.h"
#include "replay/verify.h"

namespace assay {

struct TestCase {
  const Family* family = nullptr;
  Problem problem;
  Bundle inputs, outputs;
};

// Generated inputs for `key`, poisoned outputs. Throws what validation throws.
inline TestCase MakeTestCase(const Family& family, std::string_view definition, const Axes& axes,
                             std::uint64_t key, const std::string& variant = "",
                             const Attributes& attributes = {}) {
  TestCase test{&family, MakeProblem(family, definition, axes, attributes, variant), {}, {}};
  test.inputs = Bundle::Allocate(family.input_layouts(test.problem));
  family.generate(test.problem, key, test.inputs);
  if (family.validate_inputs != nullptr) family.validate_inputs(test.problem, test.inputs);
  test.outputs = Bundle::Allocate(OutputLayouts(family, test.problem));
  test.outputs.Poison();
  return test;
}

// Every row of every output.
inline RowLists AllRows(const TestCase& test) {
  RowLists rows;
  for (const TensorSpec& spec : test.family->outputs) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(RowCount(spec, test.problem)));
    for (std::size_t r = 0; r < all.size(); ++r) all[r] = static_cast<std::int64_t>(r);
    rows.push_back(std::move(all));
  }
  return rows;
}

inline Verdict VerifyFully(const TestCase& test) {
  const Expected expected = ComputeExpected(*test.family, test.problem, test.inputs, AllRows(test));
  return Verify(*test.family, test.problem, test.inputs, test.outputs, expected, 1);
}

// Runs `backend` and verifies: all rows when `full`, else the default sample.
inline Verdict RunAndVerify(TestCase& test, const std::string& backend = "cpu", bool full = true,
                            int threads = 0) {
  const Backend* implementation = test.family->FindBackend(backend);
  if (implementation == nullptr) throw Error(Fault::kInternal, "no backend '" + backend + "'");
  const std::string refusal = implementation->supports(test.problem, test.inputs);
  if (!refusal.empty()) throw Error(Fault::kUnsupported, refusal);
  test.outputs.Poison();
  implementation->run(test.problem, test.inputs, test.outputs, RunContext{threads});
  EXPECT_EQ(test.outputs.CheckRedZones(), std::nullopt);
  EXPECT_EQ(test.inputs.CheckRedZones(), std::nullopt);
  if (full) return VerifyFully(test);
  const Expected expected = ComputeExpected(*test.family, test.problem, test.inputs, 1);
  return Verify(*test.family, test.problem, test.inputs, test.outputs, expected, 1);
}

// The CPU kernel must pass: on all rows when `full`, else on the default sample.
inline void ExpectCpuPasses(TestCase& test, const std::string& what, bool full = true) {
  const Verdict verdict = RunAndVerify(test, "cpu", full);
  EXPECT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
}

// The same, and every output that has rows reaches this grade.
inline void ExpectGrade(TestCase& test, const std::string& grade, const std::string& what,
                        bool full = true) {
  const Verdict verdict = RunAndVerify(test, "cpu", full);
  EXPECT_TRUE(verdict.passed()) << what << ": " << verdict.reason;
  if (!verdict.passed()) return;
  for (const OutputCheck& check : verdict.correctness.outputs) {
    if (check.rows_total == 0) continue;
    EXPECT_EQ(check.grade, grade) << what << ", " << check.output;
  }
}

// The finding of a verdict by its name; throws when there is none.
inline Finding FindingOf(const Verdict& verdict, const std::string& name) {
  for (const Finding& finding : verdict.correctness.findings) {
    if (finding.name == name) return finding;
  }
  throw Error(Fault::kInternal, "no finding " + name);
}

// The complaint of a call that must refuse its input.
inline std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "no error";
}

inline std::vector<std::byte> BytesOf(const Tensor& tensor) {
  return {tensor.data, tensor.data + tensor.bytes()};
}

inline std::vector<std::vector<std::byte>> BytesOf(const Bundle& bundle) {
  std::vector<std::vector<std::byte>> all;
  for (const Tensor& tensor : bundle.tensors()) all.push_back(BytesOf(tensor));
  return all;
}

// FNV-1a of all tensors; `hash`: of what comes before them.
inline std::uint64_t HashOf(const Bundle& bundle, std::uint64_t hash = 0xCBF29CE484222325) {
  for (const Tensor& tensor : bundle.tensors()) {
    for (std::size_t i = 0; i < tensor.bytes(); ++i) {
      hash = (hash ^ std::to_integer<unsigned>(tensor.data[i])) * 0x100000001B3;
    }
  }
  return hash;
}

// What the family says of inputs (all zeros) one of whose tensors has this layout instead of its
// own; of inputs without the tensor `dropped`.
inline std::string ErrorOfLayout(const Family& family, const Problem& problem,
                                 const TensorLayout& changed, const std::string& dropped = "") {
  std::vector<TensorLayout> layouts = family.input_layouts(problem);
  std::erase_if(layouts, [&](const TensorLayout& layout) {
    return layout.name == changed.name || layout.name == dropped;
  });
  if (!changed.name.empty()) layouts.push_back(changed);
  const Bundle inputs = Bundle::Allocate(layouts);
  return ErrorOf([&] { family.validate_inputs(problem, inputs); });
}

// The verification that `assay run` uses by default must reject every mutant of the family; in a
// generator variant that some mutant asks for, those mutants. Returns how many were tried.
inline int ExpectMutantsKilled(TestCase& test) {
  const auto& mutants = test.family->mutants;
  const bool special = std::any_of(mutants.begin(), mutants.end(), [&](const Mutant& mutant) {
    return !mutant.variant.empty() && mutant.variant == test.problem.variant;
  });
  const Expected expected = ComputeExpected(*test.family, test.problem, test.inputs, 1);
  EXPECT_EQ(expected.invalid, "");
  int tried = 0;
  for (const Mutant& mutant : test.family->mutants) {
    if (!mutant.Applies(test.problem) || (special && mutant.variant.empty())) continue;
    ++tried;
    test.outputs.Poison();
    mutant.run(test.problem, test.inputs, test.outputs);
    const Verdict verdict =
        Verify(*test.family, test.problem, test.inputs, test.outputs, expected, 1);
    EXPECT_FALSE(verdict.passed())
        << "mutant survived: " << mutant.name << " (" << mutant.mistake << ")";
  }
  return tried;
}

}  // namespace assay
