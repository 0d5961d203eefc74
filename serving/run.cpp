#include "serving/run.h"

#include <algorithm>
#include <cmath>

namespace assay::serving {

double Distribution::At(double q) const {
  for (const auto& [key, value] : quantiles) {
    if (std::abs(key - q) < 1e-9) return value;
  }
  return kMissing;
}

std::string_view NameOf(KeyKind kind) {
  switch (kind) {
    case KeyKind::kNone:
      return "none";
    case KeyKind::kIndex:
      return "index (assumed)";
    case KeyKind::kPromptHash:
      return "prompt hash";
    case KeyKind::kRequestId:
      return "request id";
    case KeyKind::kConversationTurn:
      return "conversation and turn";
  }
  return "";
}

int Run::EvidenceLevel() const {
  const bool measured =
      std::any_of(requests.begin(), requests.end(), [](const Request& r) { return r.Measured(); });
  if (!measured) return 1;
  return key >= KeyKind::kPromptHash ? 3 : 2;
}

double Run::Number(const std::string& name) const {
  const auto found = numbers.find(name);
  return found == numbers.end() ? kMissing : found->second;
}

std::string Run::Fact(const std::string& name) const {
  const auto found = facts.find(name);
  return found == facts.end() ? "" : found->second;
}

void Run::AddFact(const std::string& name, const std::string& value) {
  if (!value.empty()) facts.emplace(name, value);
}

void Run::AddNumber(const std::string& name, double value) {
  if (!std::isnan(value)) numbers.emplace(name, value);
}

std::int32_t NamePool::Index(std::string_view name) {
  const auto found = index_.find(name);
  if (found != index_.end()) return found->second;
  const auto index = static_cast<std::int32_t>(run_.names.size());
  run_.names.emplace_back(name);
  index_.emplace(std::string(name), index);
  return index;
}

void FinishRun(Run& run) {
  double input = 0, output = 0, cached = 0, successes = 0, errors = 0, warmups = 0, censored = 0;
  double prompt_of_cached = 0;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = kNoTime;
  for (Request& r : run.requests) {
    if (!(r.osl >= 2)) r.itl_s = kMissing;
    if (std::isnan(r.itl_s) && r.osl >= 2) r.itl_s = (r.e2e_s - r.ttft_s) / (r.osl - 1);
    if (r.end_ns == kNoTime && r.start_ns != kNoTime && !std::isnan(r.e2e_s)) {
      r.end_ns = r.start_ns + static_cast<std::int64_t>(std::llround(r.e2e_s * 1e9));
    }
    if (r.phase == Phase::kWarmup) {
      ++warmups;
      continue;
    }
    if (r.outcome != Outcome::kOk) {
      ++errors;
      if (r.outcome == Outcome::kTimeout || r.outcome == Outcome::kCancelled) ++censored;
      continue;
    }
    ++successes;
    input += r.isl;
    output += r.osl;
    if (!std::isnan(r.cached)) {
      cached += r.cached;
      prompt_of_cached += r.isl;
    }
    if (r.start_ns != kNoTime) first = std::min(first, r.start_ns);
    if (r.end_ns != kNoTime) last = std::max(last, r.end_ns);
  }
  if (run.requests.empty()) return;
  run.AddNumber("successes", successes);
  run.AddNumber("errors", errors);
  run.AddNumber("censored", censored);
  run.AddNumber("warmup_records", warmups);
  run.AddNumber("input_tokens", input);
  run.AddNumber("output_tokens", output);
  if (last != kNoTime && last > first) {
    run.AddNumber("duration_s", 1e-9 * static_cast<double>(last - first));
  }
  if (prompt_of_cached > 0) run.AddNumber("server_hit_rate", cached / prompt_of_cached);
}

}  // namespace assay::serving
