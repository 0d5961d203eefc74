// The gates of a comparison: may these runs be compared, and what must be said with the result.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "serving/metrics.h"
#include "serving/run.h"

namespace assay::serving {

enum class GateStatus { kPass, kUnknown, kResolved, kLimit, kWarn, kAllowed, kRefuse };
std::string_view NameOf(GateStatus status);

struct Gate {
  std::string code;  // G01 .. G24
  GateStatus status = GateStatus::kPass;
  std::string sentence;  // one sentence; what was seen and why it matters
};

struct FactDifference {
  std::string fact, off, on, gate;
  bool declared = false;
};
// Facts of the two arms that differ; "" = not recorded.
std::vector<FactDifference> DifferingFacts(const Run& off, const Run& on,
                                           const std::map<std::string, std::string>& treatment);

// What gates need to know about pairs and statistics, computed by the comparison.
struct GateEvidence {
  double pairs = 0, pairs_with_other_osl = 0;
  double off_requests = 0, on_requests = 0, both = 0;
  double repeated_keys = 0;
  std::optional<double> half_difference, half_uncertainty;  // log effects
  bool swapped_rounds = false;
  std::vector<std::string> suppressed;  // statistics without a number
};

// Golden accept length of GLM-5.x MTP at depth 1..8, with the bonus token; NaN otherwise.
double GoldenAcceptLength(int depth);

// All gates, G01 first. `allow` turns refusals into kAllowed.
std::vector<Gate> CheckGates(const Run& off, const Run& on,
                             const std::map<std::string, std::string>& treatment,
                             const std::set<std::string>& allow, const Statistic& primary,
                             const GateEvidence& evidence);

}  // namespace assay::serving
