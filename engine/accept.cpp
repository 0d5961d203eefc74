#include "engine/accept.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "engine/philox.h"
#include "engine/scalar_math.h"

namespace assay::engine {
namespace {

constexpr std::size_t kLeaf = 1024;

// Ids by weight, highest first, ties by lower id.
std::vector<std::size_t> ByWeight(const std::vector<float>& weights) {
  std::vector<std::size_t> ids(weights.size());
  std::iota(ids.begin(), ids.end(), std::size_t{0});
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  return ids;
}

void KeepTop(const SamplingOptions& options, std::vector<float>& weights) {
  const bool by_count =
      options.top_k > 0 && static_cast<std::size_t>(options.top_k) < weights.size();
  if (!by_count && options.top_p >= 1) return;
  const std::vector<std::size_t> ids = ByWeight(weights);
  std::size_t kept = by_count ? static_cast<std::size_t>(options.top_k) : ids.size();
  double total = 0, sum = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weights[ids[i]];
  for (std::size_t i = 0; i < kept && options.top_p < 1; ++i) {
    sum += weights[ids[i]];
    if (sum >= options.top_p * total) kept = i + 1;
  }
  for (std::size_t i = kept; i < ids.size(); ++i) weights[ids[i]] = 0;
}

}  // namespace

std::int32_t Greedy(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Distribution::Distribution(std::span<const float> logits, const SamplingOptions& options)
    : weights_(logits.size(), 0.0f) {
  const std::int32_t top = Greedy(logits);
  const float highest = logits[static_cast<std::size_t>(top)];
  if (options.temperature <= 0) {
    weights_[static_cast<std::size_t>(top)] = 1;
  } else {
    const auto temperature = static_cast<float>(options.temperature);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      weights_[i] = exact::Exp(exact::Div(exact::Sub(logits[i], highest), temperature));
    }
    KeepTop(options, weights_);
  }
  SumLeaves();
}

Distribution::Distribution(std::vector<float> weights) : weights_(std::move(weights)) {
  SumLeaves();
}

void Distribution::SumLeaves() {
  total_ = 0;
  for (std::size_t begin = 0; begin < weights_.size(); begin += kLeaf) {
    before_.push_back(total_);
    float sum = 0;
    for (std::size_t i = begin; i < std::min(begin + kLeaf, weights_.size()); ++i)
      sum += weights_[i];
    total_ += sum;
  }
  if (!(total_ > 0)) {
    BadInput("a distribution over " + std::to_string(weights_.size()) + " tokens sums to " +
             std::to_string(total_) + "; the logits are not finite");
  }
}

std::int32_t Distribution::Draw(float uniform) const {
  const double target = static_cast<double>(uniform) * total_;
  const auto leaf = static_cast<std::size_t>(
      std::upper_bound(before_.begin(), before_.end(), target) - before_.begin() - 1);
  float sum = 0;
  std::size_t last = 0;
  for (std::size_t i = leaf * kLeaf; i < weights_.size(); ++i) {
    if (i % kLeaf == 0) sum = 0;
    sum += weights_[i];
    if (weights_[i] > 0) last = i;
    if (weights_[i] > 0 && before_[i / kLeaf] + sum > target) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(last);
}

Distribution Distribution::Minus(const Distribution& q) const {
  std::vector<float> rest(weights_.size());
  bool any = false;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const auto token = static_cast<std::int64_t>(i);
    rest[i] = static_cast<float>(std::max(probability(token) - q.probability(token), 0.0));
    any = any || rest[i] > 0;
  }
  return any ? Distribution(std::move(rest)) : *this;
}

Distribution Distribution::Without(std::int32_t token) const {
  std::vector<float> rest = weights_;
  rest[static_cast<std::size_t>(token)] = 0;
  const bool any = std::any_of(rest.begin(), rest.end(), [](float w) { return w > 0; });
  return any ? Distribution(std::move(rest)) : *this;
}

namespace {

std::int32_t Target(const AcceptInput& input, std::size_t row) {
  if (input.rule == AcceptRule::kGreedy) return Greedy(input.logits[row]);
  const auto position = static_cast<std::uint64_t>(input.position) + row + 1;
  return Distribution(input.logits[row], input.sampling)
      .Draw(PhiloxUniform(input.seed, position, kDrawToken));
}

std::vector<std::int32_t> AcceptByRejection(const AcceptInput& input) {
  std::vector<std::int32_t> tokens;
  for (std::size_t row = 0; row <= input.drafts.size(); ++row) {
    const Distribution p(input.logits[row], input.sampling);
    const auto position = static_cast<std::uint64_t>(input.position) + row + 1;
    const float draw = PhiloxUniform(input.seed, position, kDrawToken);
    if (row == input.drafts.size()) {
      tokens.push_back(p.Draw(draw));
      break;
    }
    const bool sampled = !input.draft_distributions.empty();
    const RowDecision decision =
        AcceptOrRedraw(p, sampled ? &input.draft_distributions[row] : nullptr, input.drafts[row],
                       PhiloxUniform(input.seed, position, kAcceptDraft), draw);
    tokens.push_back(decision.token);
    if (!decision.accepted) break;
  }
  return tokens;
}

}  // namespace

// Speculative sampling (Leviathan et al., Chen et al. 2023): emits P exactly.
RowDecision AcceptOrRedraw(const Distribution& p, const Distribution* q, std::int32_t draft,
                           float accept, float draw) {
  const double drafted = q != nullptr ? q->probability(draft) : 1;
  if (accept * drafted < p.probability(draft)) return {true, draft};
  return {false, (q != nullptr ? p.Minus(*q) : p.Without(draft)).Draw(draw)};
}

std::vector<std::int32_t> Accept(const AcceptInput& input) {
  if (input.rule == AcceptRule::kRejection) return AcceptByRejection(input);
  std::vector<std::int32_t> tokens;
  for (std::size_t row = 0; row <= input.drafts.size(); ++row) {
    tokens.push_back(Target(input, row));
    if (row < input.drafts.size() && input.drafts[row] != tokens.back()) break;
  }
  return tokens;
}

std::vector<std::int32_t> AcceptSimulated(const AcceptInput& input, int accepted_drafts) {
  std::vector<std::int32_t> tokens(input.drafts.begin(), input.drafts.begin() + accepted_drafts);
  tokens.push_back(Target(input, static_cast<std::size_t>(accepted_drafts)));
  return tokens;
}

double GeometricRatio(double mean, int drafts) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double r = (low + high) / 2;
    double sum = 1, power = 1;
    for (int j = 0; j < drafts; ++j) sum += power *= r;
    (sum < mean ? low : high) = r;
  }
  return (low + high) / 2;
}

int SimulatedLength(const SimulatedLengths& options, int drafts, std::int64_t cycle, int request,
                    int requests) {
  const double mean = std::clamp(options.mean, 1.0, drafts + 1.0);
  const auto step = static_cast<std::uint64_t>(cycle);
  const auto uniform = [&](std::uint32_t index) {
    return static_cast<double>(PhiloxUniform(options.seed, step, kAcceptLength + 16 * index));
  };
  switch (options.mode) {
    case LengthMode::kMatchExpected: {
      const double lower = std::floor(mean);
      return static_cast<int>(lower) + (uniform(0) < mean - lower ? 1 : 0);
    }
    case LengthMode::kNormal: {
      const double normal = std::sqrt(-2 * std::log(1 - uniform(0))) *
                            std::cos(2 * 3.14159265358979323846 * uniform(1));
      return static_cast<int>(std::lround(std::clamp(mean + normal, 1.0, drafts + 1.0)));
    }
    case LengthMode::kGeometric: {
      const double r = GeometricRatio(mean, drafts);
      int length = 1;
      while (length <= drafts &&
             uniform(static_cast<std::uint32_t>(request * (drafts + 1) + length)) < r) {
        ++length;
      }
      return length;
    }
    case LengthMode::kTrace: {
      const std::size_t index =
          static_cast<std::size_t>(cycle) * static_cast<std::size_t>(requests) +
          static_cast<std::size_t>(request);
      if (index >= options.trace.size() || options.trace[index] < 1 ||
          options.trace[index] > drafts + 1) {
        BadInput("the length trace has no entry of 1 to " + std::to_string(drafts + 1) +
                 " for cycle " + std::to_string(cycle) + ", request " + std::to_string(request));
      }
      return options.trace[index];
    }
  }
  return 1;
}

}  // namespace assay::engine
