#include "ops/selection/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace assay::selection {
namespace {

std::string Text(const std::vector<Candidate>& candidates, std::int32_t id,
                 const std::string& what) {
  const Candidate& candidate = candidates[static_cast<std::size_t>(id)];
  return what + " " + std::to_string(id) + " (score " + std::to_string(candidate.score) + " +- " +
         std::to_string(2 * candidate.band) + ")";
}

}  // namespace

Ids TopK(const std::vector<Candidate>& candidates, std::int64_t k) {
  Ids ids(candidates.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (ids.size() <= static_cast<std::size_t>(k)) return ids;
  const auto before = [&](std::int32_t i, std::int32_t j) {
    const double a = candidates[static_cast<std::size_t>(i)].score;
    const double b = candidates[static_cast<std::size_t>(j)].score;
    if (std::isnan(a) != std::isnan(b)) return std::isnan(b);
    if (!std::isnan(a) && a != b) return a > b;
    return i < j;
  };
  std::nth_element(ids.begin(), ids.begin() + k - 1, ids.end(), before);
  ids.resize(static_cast<std::size_t>(k));
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string FormProblem(const std::int32_t* ids, std::int64_t k, std::int64_t n,
                        const std::string& what) {
  const std::int64_t count = std::min(n, k);
  for (std::int64_t i = 0; i < k; ++i) {
    const std::string at = "[" + std::to_string(i) + "] = " + std::to_string(ids[i]);
    if (i >= count) {
      if (ids[i] != -1) return at + ", expected -1 behind " + std::to_string(count) + " ids";
    } else if (ids[i] < 0 || ids[i] >= n) {
      return at + " is not a " + what + " of [0, " + std::to_string(n) + ")";
    } else if (i > 0 && ids[i] <= ids[i - 1]) {
      return at + " does not ascend";
    }
  }
  return "";
}

std::string SelectionProblem(const std::vector<Candidate>& candidates, const Ids& got,
                             const std::string& what,
                             const std::function<bool(std::int32_t, std::int32_t)>& exact_tie) {
  const Ids wanted = TopK(candidates, static_cast<std::int64_t>(got.size()));
  Ids missing, extra;
  std::set_difference(wanted.begin(), wanted.end(), got.begin(), got.end(),
                      std::back_inserter(missing));
  std::set_difference(got.begin(), got.end(), wanted.begin(), wanted.end(),
                      std::back_inserter(extra));
  const auto at = [&](std::int32_t id) { return candidates[static_cast<std::size_t>(id)]; };
  double cut = std::numeric_limits<double>::infinity();
  for (std::int32_t id : wanted) cut = std::min(cut, at(id).score);  // a NaN leaves it
  for (std::int32_t id : missing) {
    if (at(id).score > cut + 2 * at(id).band) {
      return Text(candidates, id, what) + " is missing, the cut is at " + std::to_string(cut);
    }
  }
  for (std::int32_t id : extra) {
    if (std::isnan(at(id).score) || at(id).score < cut - 2 * at(id).band) {
      return Text(candidates, id, what) + " was selected, the cut is at " + std::to_string(cut);
    }
  }
  for (std::int32_t out : missing) {
    for (std::int32_t in : extra) {
      if (out < in && exact_tie(out, in)) {
        return Text(candidates, in, what) + " was selected instead of the equal " + what + " " +
               std::to_string(out);
      }
    }
  }
  return "";
}

std::vector<Finding> RowChecks(const RowRule& rule, const Bundle& outputs,
                               const std::vector<std::int64_t>& rows,
                               const ExpectedRows& expected) {
  Finding form{"ids_well_formed", true, 0, 0, ""}, chosen{"selection", true, 0, 0, ""};
  Finding band{"near_tie_rows", true, 0, static_cast<double>(rows.size()),
               "rows whose selection differs from the fp64 one inside the near-tie band"};
  const auto fail = [&](Finding& finding, std::int64_t row, const std::string& problem) {
    if (finding.passed) {
      finding.detail = rule.output + "[" + std::to_string(row) + "]: " + problem;
    }
    finding.passed = false;
    ++finding.measured;
  };
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t row = rows[r], n = rule.candidates(row);
    const std::int32_t* ids = outputs[rule.output].as<std::int32_t>() + row * rule.k;
    const double* wanted = expected.value.data() + r * static_cast<std::size_t>(rule.k);
    if (std::equal(ids, ids + rule.k, wanted)) continue;
    const std::string malformed = FormProblem(ids, rule.k, n, rule.what);
    if (!malformed.empty()) {
      fail(form, row, malformed);
      continue;
    }
    const std::string problem = rule.problem(row, Ids(ids, ids + std::min(n, rule.k)));
    if (problem.empty()) {
      ++band.measured;
    } else {
      fail(chosen, row, problem);
    }
  }
  return {form, chosen, band};
}

}  // namespace assay::selection
