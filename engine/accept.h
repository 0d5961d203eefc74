// From logits to tokens: distributions, draws, and the rules that accept or reject drafts.
// All randomness is keyed by (request seed, position, purpose): results do not depend on batch
// mates, on speculation, or on what was rejected before.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace assay::engine {

struct SamplingOptions {
  double temperature = 0;  // 0 = greedy
  int top_k = 0;           // 0 = all
  double top_p = 1;
};

// Purposes of random numbers at one position.
enum Purpose : std::uint32_t {
  kDrawToken = 0,
  kAcceptDraft = 1,
  kDrawDraft = 2,
  kAcceptLength = 3
};

// A distribution over token ids, from fp32 logits: temperature, top-k, top-p, in that order.
// Draws are inverse-CDF over ascending ids: fp32 sums inside leaves of 1024 ids, fp64 across
// leaves.
class Distribution {
 public:
  Distribution(std::span<const float> logits, const SamplingOptions& options);
  explicit Distribution(std::vector<float> weights);  // unnormalised, not negative

  double probability(std::int64_t token) const {
    return weights_[static_cast<std::size_t>(token)] / total_;
  }
  std::int32_t Draw(float uniform) const;
  // max(P - Q, 0); P itself when nothing remains (P = Q: then nothing is ever rejected).
  Distribution Minus(const Distribution& q) const;
  Distribution Without(std::int32_t token) const;
  std::size_t size() const { return weights_.size(); }

 private:
  void SumLeaves();
  std::vector<float> weights_;
  std::vector<double> before_;  // sum of the leaves before each leaf
  double total_ = 0;
};

std::int32_t Greedy(std::span<const float> logits);  // ties: lower id

enum class AcceptRule : std::uint8_t {
  kGreedy,     // d = argmax; temperature 0
  kCoupled,    // d = the token that would have been drawn without speculation
  kRejection,  // u Q(d) < P(d), then max(P - Q, 0); Q = point mass for argmax drafts
};

// One request's verify rows.
struct AcceptInput {
  AcceptRule rule = AcceptRule::kGreedy;
  SamplingOptions sampling = {};
  std::uint64_t seed = 0;
  std::int64_t position = 0;  // of the first row; its target token belongs to position + 1
  std::vector<std::span<const float>> logits;  // drafts + 1 rows
  std::vector<std::int32_t> drafts;
  std::vector<Distribution> draft_distributions;  // of sampled drafts; empty = point masses
};

// One row of the rejection rule. `draft` was drawn from Q (null: chosen, a point mass) and is
// accepted when `accept` Q(draft) < P(draft); otherwise `token` is drawn by `draw` from
// max(P - Q, 0), normalised. Both numbers are uniform in [0, 1). The token is distributed as P.
struct RowDecision {
  bool accepted = false;
  std::int32_t token = 0;
};
RowDecision AcceptOrRedraw(const Distribution& p, const Distribution* q, std::int32_t draft,
                           float accept, float draw);

// The emitted tokens: accepted drafts, then one more. Never empty.
std::vector<std::int32_t> Accept(const AcceptInput& input);
// The same with a given number of accepted drafts, whatever the logits say (speed runs only).
std::vector<std::int32_t> AcceptSimulated(const AcceptInput& input, int accepted_drafts);

// Lengths of speed runs, so that time does not depend on how good a draft happens to be.
enum class LengthMode : std::uint8_t { kMatchExpected, kNormal, kGeometric, kTrace };
struct SimulatedLengths {
  LengthMode mode = LengthMode::kMatchExpected;
  double mean = 1;  // wanted emitted tokens per cycle, clamped to 1 .. drafts + 1
  std::uint64_t seed = 1;
  std::vector<int> trace = {};  // kTrace: emitted per (cycle, request), cycles first
};
// Emitted tokens (1 .. drafts + 1) of one request in one cycle.
int SimulatedLength(const SimulatedLengths& options, int drafts, std::int64_t cycle, int request,
                    int requests);
// r with 1 + r + .. + r^drafts = mean.
double GeometricRatio(double mean, int drafts);

}  // namespace assay::engine
