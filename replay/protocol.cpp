#include "replay/protocol.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace assay {

std::string ReplyToJson(const Reply& reply) {
  nlohmann::json json;
  json["status"] = reply.status == Status::kPassed ? "ok" : StatusName(reply.status);
  if (!reply.sub.empty()) json["sub"] = reply.sub;
  if (!reply.reason.empty()) json["reason"] = reply.reason;
  json["run_ns"] = reply.run_ns;
  json["prepare_ns"] = reply.prepare_ns;
  json["peak_bytes"] = reply.peak_bytes;
  for (const TimingSeries& series : reply.series) {
    // Clocks count whole nanoseconds, and integers are written and parsed far faster.
    const std::vector<std::int64_t> samples(series.samples_ns.begin(), series.samples_ns.end());
    json["series"].push_back(
        {{"mode", series.mode}, {"stop", series.stop}, {"samples_ns", samples}});
  }
  // A backend's message may hold any bytes; the protocol stays valid UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Reply ReplyFromJson(const std::string& line) {
  try {
    const auto json = nlohmann::json::parse(line);
    Reply reply;
    const std::string status = json.at("status");
    if (status != "ok") {
      const auto parsed = ParseStatus(status);
      if (!parsed) BadInput("worker answered with unknown status '" + status + "'");
      reply.status = *parsed;
    }
    reply.sub = json.value("sub", "");
    reply.reason = json.value("reason", "");
    reply.run_ns = json.value("run_ns", 0.0);
    reply.prepare_ns = json.value("prepare_ns", 0.0);
    reply.peak_bytes = json.value("peak_bytes", std::int64_t{0});
    for (const auto& series : json.value("series", nlohmann::json::array())) {
      reply.series.push_back({series.at("mode"), 0, series.at("stop"), series.at("samples_ns")});
    }
    return reply;
  } catch (const nlohmann::json::exception& error) {
    BadInput(std::string("worker answered with something that is not a reply: ") + error.what());
  }
}

void LayoutsToJson(const std::vector<TensorLayout>& layouts, nlohmann::json& json) {
  json = nlohmann::json::array();
  for (const TensorLayout& layout : layouts) {
    json.push_back({{"name", layout.name},
                    {"dtype", std::string(DTypeName(layout.dtype))},
                    {"shape", layout.shape}});
  }
}

std::vector<TensorLayout> LayoutsFromJson(const nlohmann::json& json) {
  std::vector<TensorLayout> layouts;
  for (const auto& entry : json) {
    const std::string name = entry.at("dtype");
    const auto dtype = ParseDType(name);
    if (!dtype) BadInput("tensor layout has unknown dtype '" + name + "'");
    layouts.push_back({entry.at("name"), *dtype, entry.at("shape")});
  }
  return layouts;
}

}  // namespace assay
