// config.json of a published checkpoint. Every key that the engine depends on is named here and
// checked, so that a rename upstream fails with its name.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "engine/config.h"
#include "io/json.h"

namespace assay::engine {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  // "a.b" names member b of member a.
  const Json* Find(const std::string& key) const {
    const Json* value = &json_;
    for (std::size_t begin = 0; begin <= key.size();) {
      const std::size_t dot = std::min(key.find('.', begin), key.size());
      if (!value->is_object()) return nullptr;
      const auto member = value->find(key.substr(begin, dot - begin));
      if (member == value->end() || member->is_null()) return nullptr;
      value = &*member;
      begin = dot + 1;
    }
    return value;
  }

  std::int64_t Integer(const std::string& key) const {
    const Json& value = Need(key);
    if (!value.is_number_integer()) Refuse(key, "wanted an integer");
    return value.get<std::int64_t>();
  }
  double Number(const std::string& key) const {
    const Json& value = Need(key);
    if (!value.is_number()) Refuse(key, "wanted a number");
    return value.get<double>();
  }
  void ExpectInteger(const std::string& key, std::int64_t wanted) const {
    if (Integer(key) != wanted) Refuse(key, "this engine needs " + std::to_string(wanted));
  }
  void ExpectBool(const std::string& key, bool wanted) const {
    const Json& value = Need(key);
    if (!value.is_boolean() || value.get<bool>() != wanted) {
      Refuse(key, std::string("this engine needs ") + (wanted ? "true" : "false"));
    }
  }
  void ExpectText(const std::string& key, const std::vector<std::string>& allowed) const {
    const Json& value = Need(key);
    if (!value.is_string() ||
        std::find(allowed.begin(), allowed.end(), value.get<std::string>()) == allowed.end()) {
      std::string list;
      for (const std::string& name : allowed) list += (list.empty() ? "" : ", ") + name;
      Refuse(key, "this engine knows " + list);
    }
  }
  [[noreturn]] void Refuse(const std::string& key, const std::string& why) const {
    const Json* value = Find(key);
    BadInput(where_ + ": " + key + " is " + (value ? value->dump().substr(0, 80) : "missing") +
             "; " + why);
  }

 private:
  const Json& Need(const std::string& key) const {
    const Json* value = Find(key);
    if (value == nullptr) Refuse(key, "the engine needs it");
    return *value;
  }

  const Json& json_;
  std::string where_;
};

// Marks the layers of one list; lists count from 0 or from 1.
void MarkLayers(const Reader& reader, const std::string& key, LayerKind kind, std::int64_t base,
                std::vector<std::optional<LayerKind>>& layers) {
  for (const Json& entry : *reader.Find(key)) {
    const std::int64_t layer = entry.is_number_integer() ? entry.get<std::int64_t>() - base : -1;
    if (layer < 0 || layer >= static_cast<std::int64_t>(layers.size()) ||
        layers[static_cast<std::size_t>(layer)]) {
      reader.Refuse(key, "an entry is no layer number, or a layer of both lists");
    }
    layers[static_cast<std::size_t>(layer)] = kind;
  }
}

std::vector<LayerKind> ReadLayers(const Reader& reader, std::int64_t count) {
  const std::string kda = "linear_attn_config.kda_layers",
                    dsa = "linear_attn_config.full_attn_layers";
  std::int64_t highest = -1;
  for (const std::string& key : {kda, dsa}) {
    const Json* list = reader.Find(key);
    if (list == nullptr || !list->is_array()) reader.Refuse(key, "wanted a list of layer numbers");
    for (const Json& entry : *list) {
      if (entry.is_number_integer()) highest = std::max(highest, entry.get<std::int64_t>());
    }
  }
  std::vector<std::optional<LayerKind>> marked(static_cast<std::size_t>(count));
  const std::int64_t base = highest == count ? 1 : 0;
  MarkLayers(reader, kda, LayerKind::kKda, base, marked);
  MarkLayers(reader, dsa, LayerKind::kDsa, base, marked);
  std::vector<LayerKind> layers;
  for (const auto& kind : marked) {
    if (!kind) reader.Refuse(kda, "the two lists together leave out a layer");
    layers.push_back(*kind);
  }
  return layers;
}

// `layer_types` may say the same once more; then it must agree.
void CheckLayerTypes(const Reader& reader, const std::vector<LayerKind>& layers) {
  const std::string key = "layer_types";
  const Json* types = reader.Find(key);
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != layers.size()) {
    reader.Refuse(key, "wanted one name per layer");
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const std::string name = (*types)[layer].is_string() ? (*types)[layer].get<std::string>() : "";
    const bool linear =
        name.find("linear") != std::string::npos || name.find("kda") != std::string::npos;
    const bool full = name.find("full") != std::string::npos ||
                      name.find("dsa") != std::string::npos ||
                      name.find("sparse") != std::string::npos;
    if (linear == full || linear != (layers[layer] == LayerKind::kKda)) {
      reader.Refuse(key, "layer " + std::to_string(layer) + " contradicts linear_attn_config");
    }
  }
}

void CheckFixedParts(const Reader& reader) {
  reader.ExpectInteger("qk_rope_head_dim", 0);
  reader.ExpectInteger("linear_attn_config.short_conv_kernel_size", kConvWidth);
  reader.ExpectInteger("index_kpool", kPoolTokens);
  reader.ExpectBool("index_kpool_compress", true);
  reader.ExpectBool("index_kpool_always_select_tail", true);
  reader.ExpectInteger("hc_mult", kStreamCount);
  reader.ExpectInteger("n_shared_experts", 1);
  reader.ExpectText("scoring_func", {"sigmoid"});
  reader.ExpectText("topk_method", {"noaux_tc"});
  reader.ExpectBool("norm_topk_prob", true);
  reader.ExpectBool("tie_word_embeddings", false);
  if (reader.Find("quantization_config") != nullptr) {
    reader.ExpectText("quantization_config.quant_method",
                      {"fp8", "quark", "modelopt", "compressed-tensors"});
  }
}

}  // namespace

ModelConfig ReadConfig(std::string_view text, const std::string& where) {
  const Json json = ParseJson(text);
  const bool nested = json.is_object() && json.contains("text_config");
  const Reader reader(nested ? json["text_config"] : json, where);
  CheckFixedParts(reader);
  ModelConfig c;
  c.name = where;
  for (const SizeField& field : SizeFields()) c.*field.size = reader.Integer(field.key);
  const std::int64_t layers = reader.Integer("num_hidden_layers");
  if (layers < 1 || layers > 4096) reader.Refuse("num_hidden_layers", "1 to 4096 are possible");
  c.layers = ReadLayers(reader, layers);
  CheckLayerTypes(reader, c.layers);
  c.dense_layers = reader.Integer("first_k_dense_replace");
  const std::int64_t mtp = reader.Integer("num_nextn_predict_layers");
  if (mtp != 0 && mtp != 1) reader.Refuse("num_nextn_predict_layers", "0 or 1 are possible");
  c.mtp = mtp == 1;
  c.rms_eps = reader.Number("rms_norm_eps");
  c.gate = GateKind::kBounded;  // the bound names the gate; without it there is no telling
  c.gate_lower_bound = reader.Number("linear_attn_config.gate_lower_bound");
  if (const Json* share = reader.Find("index_share_for_mtp_iteration")) {
    if (!share->is_boolean())
      reader.Refuse("index_share_for_mtp_iteration", "wanted true or false");
    c.share_mtp_index = share->get<bool>();
  }
  const std::int64_t rounds = reader.Integer("hc_sinkhorn_iters");
  if (rounds < 1 || rounds > 1000) reader.Refuse("hc_sinkhorn_iters", "1 to 1000 are possible");
  c.sinkhorn_rounds = static_cast<int>(rounds);
  c.hc_eps = reader.Number("hc_eps");
  c.routed_scale = reader.Number("routed_scaling_factor");
  c.swiglu_limit = reader.Number("swiglu_limit");
  ValidateConfig(c);
  return c;
}

}  // namespace assay::engine
