// The fields that a worker's clock readings and a ledger's samples have in common, as JSON.
#pragma once

#include "io/json.h"

namespace assay {

template <class Json, class Clocks>
void ClocksToFields(const Clocks& clocks, Json& json) {
  json["sm_mhz"] = clocks.sm_mhz;
  json["max_sm_mhz"] = clocks.max_sm_mhz;
  json["memory_mhz"] = clocks.memory_mhz;
  json["power_w"] = clocks.power_w;
  json["temperature_c"] = clocks.temperature_c;
  json["throttle_reasons"] = clocks.throttle_reasons;
}

// What is absent stays 0.
template <class Json, class Clocks>
void ClocksFromFields(const Json& json, Clocks& clocks) {
  clocks.sm_mhz = json.value("sm_mhz", 0.0);
  clocks.max_sm_mhz = json.value("max_sm_mhz", 0.0);
  clocks.memory_mhz = json.value("memory_mhz", 0.0);
  clocks.power_w = json.value("power_w", 0.0);
  clocks.temperature_c = json.value("temperature_c", 0.0);
  clocks.throttle_reasons = IntegerOr(json, "throttle_reasons", std::uint64_t{0});
}

}  // namespace assay
