#include "replay/protocol.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "replay/clock_json.h"

namespace assay {
namespace {

// Clocks count whole nanoseconds. "812 795 803": thousands of JSON numbers would take milliseconds.
std::string SamplesToText(const std::vector<double>& samples) {
  std::string text;
  text.reserve(samples.size() * 8);
  char digits[24];
  for (double sample : samples) {
    const auto end =
        std::to_chars(digits, digits + sizeof digits, static_cast<std::int64_t>(sample)).ptr;
    if (!text.empty()) text += ' ';
    text.append(digits, end);
  }
  return text;
}

std::vector<double> SamplesFromText(const std::string& text) {
  std::vector<double> samples;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    std::int64_t sample = 0;
    const auto [next, error] = std::from_chars(at, end, sample);
    if (error != std::errc{} || sample < 0 || (next != end && *next != ' ')) {
      BadInput("worker answered with samples that are not numbers of nanoseconds: " +
               text.substr(static_cast<std::size_t>(at - text.data()), 20));
    }
    samples.push_back(static_cast<double>(sample));
    at = next == end ? end : next + 1;
  }
  return samples;
}

nlohmann::json ClocksToJson(const std::vector<ClockReading>& clocks) {
  nlohmann::json json = nlohmann::json::array();
  for (const ClockReading& reading : clocks) {
    if (!reading.known) {
      json.push_back({{"why_unknown", reading.why_unknown}});
      continue;
    }
    ClocksToFields(reading, json.emplace_back(nlohmann::json::object()));
  }
  return json;
}

std::vector<ClockReading> ClocksFromJson(const nlohmann::json& json) {
  std::vector<ClockReading> clocks;
  for (const auto& entry : json) {
    ClockReading& reading = clocks.emplace_back();
    reading.why_unknown = entry.value("why_unknown", "");
    reading.known = reading.why_unknown.empty();
    ClocksFromFields(entry, reading);
  }
  return clocks;
}

nlohmann::json DeviceToJson(const AcceleratorInfo& device) {
  return {{"name", device.name},
          {"uuid", device.uuid},
          {"pci", device.pci},
          {"driver", device.driver},
          {"capability", device.capability},
          {"multiprocessors", device.multiprocessors},
          {"memory_bytes", device.memory_bytes},
          {"l2_bytes", device.l2_bytes}};
}

AcceleratorInfo DeviceFromJson(const nlohmann::json& json) {
  AcceleratorInfo device;
  json.at("name").get_to(device.name);
  json.at("uuid").get_to(device.uuid);
  device.pci = json.value("pci", "");
  device.driver = json.value("driver", "");
  device.capability = IntegerOr(json, "capability", 0);
  device.multiprocessors = IntegerOr(json, "multiprocessors", 0);
  device.memory_bytes = IntegerOr(json, "memory_bytes", std::int64_t{0});
  device.l2_bytes = IntegerOr(json, "l2_bytes", std::int64_t{0});
  return device;
}

}  // namespace

std::string ReplyToJson(const Reply& reply) {
  nlohmann::json json;
  json["status"] = reply.status == Status::kPassed ? "ok" : StatusName(reply.status);
  if (!reply.sub.empty()) json["sub"] = reply.sub;
  if (!reply.reason.empty()) json["reason"] = reply.reason;
  if (reply.last) json["last"] = true;
  json["run_ns"] = reply.run_ns;
  json["prepare_ns"] = reply.prepare_ns;
  json["busy_ns"] = reply.busy_ns;
  json["peak_bytes"] = reply.peak_bytes;
  if (reply.unwritten_calls != 0) json["unwritten_calls"] = reply.unwritten_calls;
  if (!reply.marks.empty()) json["marks"] = reply.marks;
  for (const TimingSeries& series : reply.series) {
    json["series"].push_back({{"mode", series.mode},
                              {"stop", series.stop},
                              {"samples_ns", SamplesToText(series.samples_ns)}});
  }
  if (reply.new_content) json["new_content"] = true;
  if (!reply.flags.empty()) json["flags"] = reply.flags;
  if (!reply.notes.empty()) json["notes"] = reply.notes;
  if (!reply.clocks.empty()) json["clocks"] = ClocksToJson(reply.clocks);
  for (const Ceiling& one : reply.ceilings) {
    json["ceilings"].push_back({{"name", one.name},
                                {"value", one.value},
                                {"unit", one.unit},
                                {"how", one.how},
                                {"n", one.n},
                                {"low", one.low},
                                {"high", one.high}});
  }
  if (reply.device) json["device"] = DeviceToJson(*reply.device);
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
    reply.last = json.value("last", false);
    reply.run_ns = json.value("run_ns", 0.0);
    reply.prepare_ns = json.value("prepare_ns", 0.0);
    reply.busy_ns = json.value("busy_ns", 0.0);
    reply.peak_bytes = IntegerOr(json, "peak_bytes", std::int64_t{0});
    reply.unwritten_calls = IntegerOr(json, "unwritten_calls", std::int64_t{0});
    reply.marks = json.value("marks", std::vector<std::string>{});
    for (const auto& series : json.value("series", nlohmann::json::array())) {
      const auto& samples = series.at("samples_ns").get_ref<const std::string&>();
      reply.series.push_back({series.at("mode"), 0, series.at("stop"), SamplesFromText(samples)});
    }
    reply.new_content = json.value("new_content", false);
    reply.flags = json.value("flags", std::vector<std::string>{});
    reply.notes = json.value("notes", std::vector<std::string>{});
    reply.clocks = ClocksFromJson(json.value("clocks", nlohmann::json::array()));
    for (const auto& one : json.value("ceilings", nlohmann::json::array())) {
      reply.ceilings.push_back({one.at("name"), one.at("value"), one.at("unit"), one.at("how"),
                                IntegerOr(one, "n", 0), one.value("low", 0.0),
                                one.value("high", 0.0)});
    }
    if (json.contains("device")) reply.device = DeviceFromJson(json.at("device"));
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
    Shape shape;
    for (const auto& size : entry.at("shape"))
      shape.push_back(ToInteger<std::int64_t>(size, "shape"));
    layouts.push_back({entry.at("name"), *dtype, std::move(shape)});
  }
  return layouts;
}

}  // namespace assay
