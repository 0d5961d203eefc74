// Which turns both arms finished, and the units that are resampled.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/bootstrap.h"
#include "serving/metrics.h"
#include "serving/run.h"

namespace assay::serving {

struct RequestPair {
  std::uint32_t off = 0, on = 0;  // indices into Run::requests
};

// Measured requests of two arms matched by key.
struct Pairing {
  KeyKind key = KeyKind::kNone;   // what matched them; kNone = unpaired
  std::vector<RequestPair> both;  // in the order of the off arm's start times
  std::vector<std::uint32_t> off_only, on_only;
  std::int64_t repeated_keys = 0;  // requests beyond the first play of their key, both arms
  std::string note;                // why an assumed key was used or refused
};

// Key of the runs when both have one; else by index if every input length matches, or by (isl, osl,
// occurrence) when that is at least 95 % unique; else unpaired.
Pairing PairRuns(const Run& off, const Run& on);

// Units for the pairs (joint draws), and for all requests of both arms.
struct Units {
  UnitPlan plan;
  std::vector<std::int32_t> off, on;  // unit per element of the population, parallel to it
};

// At least this many clusters, or blocks in time are used instead.
inline constexpr std::int32_t kFewClusters = 10;
// Above this many clusters, neighbours in time are resampled together: groups of independent
// clusters are independent, and the cost stays bounded.
inline constexpr std::int32_t kMostUnits = 4096;

Units UnitsOfPairs(const Run& off, const Run& on, const std::vector<RequestPair>& pairs);
// All measured requests. Clusters that both arms share are drawn jointly (`joint`), else each arm
// is its own stratum.
Units UnitsOfAll(const Run& off, const Run& on, const std::vector<std::uint32_t>& off_requests,
                 const std::vector<std::uint32_t>& on_requests, bool joint);

// Appends the units of a further round: new strata, never shared with earlier rounds.
void AppendRound(Units& all, const Units& round, std::int32_t round_index);

std::vector<std::uint32_t> MeasuredRequests(const Run& run);

}  // namespace assay::serving
