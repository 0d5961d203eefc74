// What the ratio of two paired arms becomes when random clusters have their arms swapped. Without
// an effect the arms of a conversation are exchangeable: the observed ratio is one more draw of the
// same distribution, whatever its shape (Fisher 1935, The Design of Experiments, 21; Pitman 1937).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serving/bootstrap.h"

namespace assay::serving {

// The values of one metric for pairs, sorted within each arm; both arms hold the same number of
// values of every unit.
struct PairedArms {
  std::vector<double> value[2];       // off, on
  std::vector<std::int32_t> unit[2];  // parallel to value
  std::vector<double> sum[2];         // per unit

  PairedArms(const ArmValues& off, const ArmValues& on, const UnitPlan& plan);
  std::int64_t count() const { return static_cast<std::int64_t>(value[0].size()); }
  double LogRatio(double q) const;  // ln(on / off) of quantile q in (0, 1), or of means (q = 0)
};

// 1 for every unit whose arms are swapped in draw `draw`, else 0; moving blocks are swapped whole,
// cut at a random phase.
void DrawSwaps(const UnitPlan& plan, std::uint64_t seed, std::uint64_t draw,
               std::vector<std::int32_t>& swapped);

// ln(on / off) after swaps, the on arm divided by exp(theta) before. A quantile costs O(units) and
// a scan of a window around its rank: units below the window are counted once.
class SwappedRatio {
 public:
  // `arms` must outlive this object.
  SwappedRatio(const PairedArms& arms, const UnitPlan& plan, double q, double theta);
  double At(std::span<const std::int32_t> swapped) const;

 private:
  // Both arms merged in value order between two values; what lies below is counted per unit.
  struct Window {
    std::vector<double> value;
    std::vector<std::int32_t> unit, arm;
    std::vector<std::int32_t> gain;  // per unit: values of the on arm below, minus of the off arm
    std::int64_t below[2] = {0, 0};
  };
  Window MakeWindow(std::int64_t reach) const;
  bool Scan(const Window& window, std::span<const std::int32_t> swapped, double& log_ratio) const;

  const PairedArms* arms_;
  double q_, scale_;  // the on arm is multiplied by scale_
  std::int64_t rank_ = 0;
  Window window_;
  std::vector<double> sum_gain_;  // for means: on - off per unit
  double sum_off_ = 0, sum_both_ = 0;
};

// The same draws 0 .. `draws` - 1 for every ratio: [ratio][draw].
std::vector<std::vector<double>> SwapDraws(const std::vector<SwappedRatio>& ratios,
                                           const UnitPlan& plan, std::uint64_t seed, int draws);

}  // namespace assay::serving
