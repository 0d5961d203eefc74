// Check mode: a step that ran is run again, another way, before it is committed. Committed bytes
// are never written by a step, so a check needs no undo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/check_tasks.h"
#include "engine/compare_math.h"
#include "engine/reference.h"
#include "engine/runner.h"

namespace assay::engine {

enum class CheckMode : std::uint8_t {
  kNone,
  kShadow,     // on a second executor: every byte that the step writes must be equal
  kUnroll,     // a verify step as single-row steps: logits and hidden states must be equal
  kReference,  // in fp64 with the step's own selections: within bounds, selections legal
  kProducts,   // every matrix product in both arithmetics, on equal operands: within their bound
};

struct CheckFindings {
  std::int64_t checked = 0;           // steps
  std::vector<std::string> problems;  // what differs, where first; empty = clean
  // kReference only:
  double worst_error = 0;               // relative, of a row's streams or logits
  double worst_task_error = 0;          // likewise of what one task gives a row
  double worst_divergence = 0;          // KL of the token distributions, nats
  std::int64_t rows = 0, same_top = 0;  // rows whose best token is the reference's
  std::int64_t near_ties = 0;           // rows where it is not, but within rounding
  std::int64_t loose_selections = 0;    // chosen pools or experts within eps of the border
  // kProducts only:
  ProductComparison products;
  std::string worst_product;  // the task that had it
  std::string Text() const;
};

class Checker {
 public:
  // `shadow`: the second executor of kShadow.
  Checker(Runner& runner, Executor& shadow) : runner_(runner), shadow_(shadow) {}

  // Checks the trunk step that `runner` just ran, whose executor is `checked`; to be called before
  // commit. The outputs of that step are the same afterwards.
  void Check(CheckMode mode, Executor& checked);
  const CheckFindings& findings() const { return findings_; }

 private:
  void CheckShadow(Executor& checked);
  void CheckUnroll();
  void CheckReference(Executor& checked);
  void CheckProducts(Executor& checked);
  std::string FirstDifferingTask(const Step& step, Executor& checked);
  // kReference: what is known of one live row.
  struct CheckedRow {
    int row = 0;
    std::string who;  // "request 0, row 1: "
    RowTruth values;
    bool wrong = false;
  };
  void CompareStreams(const CheckedRow& row, const std::vector<reference::Vec>& streams);
  void CompareTasks(const Step& step, Executor& checked, const std::vector<CheckedRow>& rows);
  void CompareLogits(const Step& step, int row, const std::string& who,
                     const reference::Row& truth);

  Runner& runner_;
  Executor& shadow_;
  CheckFindings findings_;
};

// Bounds of kReference: relative L2 of the residual streams after a layer and of the logits, with
// bf16 activations against fp64 (docs/engine.md).
inline constexpr double kStreamBound = 0.03, kLogitBound = 0.06;
// A chosen score may lie below the reference's border by this share of the spread of scores, or by
// four standard deviations of what rounding the index to e4m3 does to both.
inline constexpr double kSelectionSlack = 1.0 / 64;

}  // namespace assay::engine
