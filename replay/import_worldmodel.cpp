// The world-model attention replays: one workload per distinct (heads, q_len, k_len).
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"
#include "replay/import.h"

namespace assay {
namespace {

using nlohmann::json;

using ShapeKey = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // heads, q_len, k_len

// What all entries of one shape have in common, or all their values.
struct ShapeFacts {
  std::set<std::string> configurations;  // "480x832_tp2_sp2": frame size and parallelism
  std::set<std::int64_t> start_frames;
  std::string role, layer;
  std::int64_t k_buffer = 0;
  std::int64_t audit_pending = 0;  // entries whose kernel dispatch was never checked
};

void AddEntry(const json& entry, std::map<ShapeKey, ShapeFacts>& shapes) {
  const json& context = entry.at("context");
  const ShapeKey key(entry.at("q_shape").at(1).get<std::int64_t>(),
                     entry.at("q_len").get<std::int64_t>(), entry.at("k_len").get<std::int64_t>());
  const auto k_buffer = entry.at("k_shape").at(0).get<std::int64_t>();
  const auto role = context.at("role").get<std::string>();
  ShapeFacts& facts = shapes[key];
  if (!facts.role.empty() && (facts.role != role || facts.k_buffer != k_buffer)) {
    BadInput("entries of one shape disagree on the role or the key buffer");
  }
  facts.role = role;
  facts.k_buffer = k_buffer;
  facts.layer = context.at("layer").get<std::string>();
  facts.configurations.insert(entry.at("configuration").get<std::string>());
  facts.start_frames.insert(context.at("start_frame").get<std::int64_t>());
  if (entry.at("audit_status") == "pending") ++facts.audit_pending;
}

Workload ToWorkload(const ShapeKey& key, const ShapeFacts& facts) {
  const auto [heads, q_len, k_len] = key;
  Workload workload;
  workload.definition = "noncausal_dense_attention_h" + std::to_string(heads) + "_d128";
  workload.axes = {{"B", 1}, {"Nq", q_len}, {"Nk", k_len}};
  workload.uuid = UuidOfName("assay/worldmodel/" + workload.definition + "/" +
                             std::to_string(q_len) + "/" + std::to_string(k_len));
  workload.model = "worldmodel";
  workload.phase = "denoise";
  const std::string& configuration = *facts.configurations.begin();
  workload.request =
      "worldmodel_" + configuration.substr(0, configuration.find('_')) + "_" + facts.role;
  std::string all;
  for (const std::string& name : facts.configurations) all += (all.empty() ? "" : ",") + name;
  workload.attributes["configuration"] = all;
  workload.attributes["k_buffer"] = facts.k_buffer;
  workload.attributes["module_path"] = facts.layer;
  workload.attributes["start_frames"] =
      std::vector<std::int64_t>(facts.start_frames.begin(), facts.start_frames.end());
  if (facts.audit_pending > 0) workload.attributes["audit_pending"] = facts.audit_pending;
  return workload;
}

}  // namespace

std::string UuidOfName(const std::string& name) {
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  std::string hex = Sha256Hex(name).substr(0, 32);
  hex[12] = '8';
  hex[16] = kHexDigits[8 + kHexDigits.find(hex[16]) % 4];
  return hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" +
         hex.substr(16, 4) + "-" + hex.substr(20);
}

std::vector<Workload> WorldModelWorkloads(const std::string& path) {
  const json entries = [&] {
    try {
      return ParseJson(ReadFile(path));
    } catch (const JsonError& error) {
      BadInput("'" + path + "' is not JSON: " + error.what());
    }
  }();
  if (!entries.is_array()) BadInput("'" + path + "' is not a list of replays");
  std::map<ShapeKey, ShapeFacts> shapes;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    try {
      AddEntry(entries[i], shapes);
    } catch (const std::exception& error) {
      BadInput("'" + path + "', entry " + std::to_string(i) + ": " + error.what());
    }
  }
  std::vector<Workload> workloads;
  for (const auto& [key, facts] : shapes) workloads.push_back(ToWorkload(key, facts));
  return workloads;
}

}  // namespace assay
