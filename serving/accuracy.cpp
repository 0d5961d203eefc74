#include "serving/accuracy.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "serving/json_lines.h"
#include "serving/metrics.h"
#include "serving/readers.h"
#include "serving/text_source.h"

namespace assay::serving {

AccuracyRun ReadAccuracy(const std::string& path) {
  AccuracyRun run;
  run.label = BaseName(path);
  std::map<std::string, std::size_t> index;
  std::vector<std::string> header;
  LineBlocks blocks(path);
  for (const std::vector<Line>* lines = &blocks.Next(); !lines->empty(); lines = &blocks.Next()) {
    for (const Line& line : *lines) {
      const std::string at = fmt::format("{} line {}", run.label, line.number);
      std::string problem;
      double score = kMissing;
      if (line.text.starts_with('{')) {
        const nlohmann::json record = ParseJson(line.text, at);
        if (record.contains("simulated_acceptance")) {
          run.simulated_acceptance = NumberAt(record, "simulated_acceptance") == 1;
          if (!record.contains("problem")) continue;
        }
        problem = TextAt(record, "problem");
        score = NumberAt(record, "correct");
      } else {
        const std::vector<std::string> cells = SplitCsv(line.text);
        if (header.empty()) {
          header = cells;
          continue;
        }
        for (std::size_t i = 0; i < std::min(cells.size(), header.size()); ++i) {
          if (header[i] == "problem") problem = cells[i];
          if (header[i] == "correct") score = NumberOfText(cells[i]);
        }
      }
      if (problem.empty() || !(score >= 0 && score <= 1)) {
        BadInput(at + " needs a problem and a value correct between 0 and 1");
      }
      const auto [found, is_new] = index.emplace(problem, run.problems.size());
      if (is_new) run.problems.push_back({problem, {}});
      run.problems[found->second].scores.push_back(score);
    }
  }
  if (run.problems.empty()) BadInput(run.label + " holds no scored problem");
  return run;
}

AccuracyResult CompareAccuracy(const AccuracyRun& off, const AccuracyRun& on, double margin,
                               std::uint64_t seed, int resamples) {
  std::map<std::string, const AccuracyRun::Problem*> by_name;
  for (const AccuracyRun::Problem& problem : off.problems) by_name[problem.name] = &problem;
  std::vector<double> difference;
  AccuracyResult result;
  result.margin = margin;
  for (const AccuracyRun::Problem& problem : on.problems) {
    const auto found = by_name.find(problem.name);
    if (found == by_name.end()) {
      ++result.on_only;
      continue;
    }
    const double a = Mean(found->second->scores), b = Mean(problem.scores);
    result.off += a;
    result.on += b;
    result.samples += static_cast<std::int64_t>(problem.scores.size());
    difference.push_back(b - a);
  }
  const std::size_t n = difference.size();
  if (n == 0) BadInput("the accuracy files share no problem");
  result.problems = static_cast<std::int64_t>(n);
  result.off_only = static_cast<std::int64_t>(off.problems.size()) - result.problems;
  result.off /= static_cast<double>(n);
  result.on /= static_cast<double>(n);
  result.difference = Mean(difference);
  std::vector<double> draws;
  for (int r = 0; r < resamples; ++r) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double u = Uniform(seed, 43, static_cast<std::uint64_t>(r) * n + i);
      sum += difference[static_cast<std::size_t>(u * static_cast<double>(n))];
    }
    draws.push_back(sum / static_cast<double>(n));
  }
  const std::vector<double> sorted = Sorted(draws);
  result.interval = {QuantileType7(sorted, 0.025), QuantileType7(sorted, 0.975)};
  result.one_sided_low = QuantileType7(sorted, 0.05);
  result.non_inferior = result.one_sided_low > -margin;
  result.worse = result.interval.high < 0;
  return result;
}

}  // namespace assay::serving
