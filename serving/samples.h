// What a comparison computes with: the requests of all rounds, pooled, and one metric's values.
#pragma once

#include <string_view>
#include <vector>

#include "serving/bootstrap.h"
#include "serving/compare.h"

namespace assay::serving {

// Pairs and units of every round, pooled.
struct Pool {
  std::vector<Pairing> pairings;
  Units pair_units, all_units;
  bool paired = true;
};

// The costs of one metric for the pooled pairs or for all requests, with unit of each value.
struct Sample {
  ArmValues off, on;
  std::vector<double> effects;  // paired, ln(off cost / on cost)
};

// How the value of a request is chosen: by population.
enum class Population { kBoth, kBothEqualOutput, kAll };
inline constexpr std::string_view kPopulationNames[] = {"both", "both, equal output", "all"};

// Pairs the requests of every round and finds the units that are resampled together.
Pool MakePool(const CompareInput& input);

// The costs of the requests of this population that have the metric.
Sample SampleOf(const CompareInput& input, const Pool& pool, Metric metric, Population population);

}  // namespace assay::serving
