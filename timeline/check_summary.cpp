// Identities that the JSON summary of a result must satisfy.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "timeline/result.h"

namespace assay::timeline {

std::vector<std::string> CheckSummary(const std::string& text, int& rows) {
  const nlohmann::json summary = nlohmann::json::parse(text, nullptr, false);
  if (!summary.is_object()) BadInput("the summary is not a JSON object");
  rows = 0;
  std::vector<std::string> broken;
  for (const auto& [source, recording] : summary.items()) {
    if (!recording.is_object() || !recording.contains("scopes")) {
      BadInput("summary entry '" + source + "' has no scopes");
    }
    std::map<std::string, std::vector<std::map<std::string, double>>> by_scope;
    for (const auto& [scope, object] : recording["scopes"].items()) {
      for (const auto& device : object["devices"]) {
        std::map<std::string, double> d;
        for (const auto& [key, value] : device.items()) {
          if (value.is_number()) d[key] = value.get<double>();
        }
        ++rows;
        const std::string who = source + " " + scope + " device " + device["device"].dump() + ": ";
        constexpr double kError_ms = 1e-6;  // one picosecond short of the page's 1e-9 would round
        const double busy = d["non_nccl_ms"] + d["nccl_ms"] - d["non_nccl_nccl_overlap_ms"] +
                            d["memcpy_ms"] - d["kernel_memcpy_overlap_ms"];
        if (std::fabs(busy - d["observed_busy_ms"]) > kError_ms) {
          broken.push_back(who + "busy is not the union of kernels and copies");
        }
        if (std::fabs(d["observed_busy_ms"] + d["no_observed_kernel_or_memcpy_ms"] -
                      d["window_ms"]) > kError_ms) {
          broken.push_back(who + "window is not busy + gap");
        }
        by_scope[scope].push_back(std::move(d));
      }
      for (const auto& entry : object["top_time"]) {
        const double total = entry["mean_us"].get<double>() * entry["count"].get<double>() / 1e3;
        if (std::fabs(total - entry["total_ms"].get<double>()) > 1e-6 * total + 1e-6) {
          broken.push_back(source + " " + scope + ": mean times count is not the total");
        }
      }
    }
    // Nested windows: steady lies in measured, measured in full.
    const auto nested = [&](const char* inner, const char* outer) {
      const auto &a = by_scope[inner], &b = by_scope[outer];
      for (std::size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
        for (const auto& [key, value] : a[k]) {
          if (key.size() > 3 && key.compare(key.size() - 3, 3, "_ms") == 0 &&
              value > b[k].at(key) + 1e-6) {
            broken.push_back(source + ": " + key + " of " + inner + " exceeds that of " + outer);
          }
        }
      }
    };
    nested("steady", "measured");
    nested("measured", "full");
  }
  return broken;
}

}  // namespace assay::timeline
