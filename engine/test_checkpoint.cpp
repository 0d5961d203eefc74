// Checkpoints written here and read back: every format, every complaint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/checkpoint.h"
#include "engine/synthetic.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace assay::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json ConfigJson(const ModelConfig& c) {
  json kda = json::array(), dsa = json::array();
  for (std::int64_t layer = 0; layer < c.trunk_layers(); ++layer) {
    (c.kind(layer) == LayerKind::kKda ? kda : dsa).push_back(layer);
  }
  const json text = {{"hidden_size", c.hidden},
                     {"vocab_size", c.vocab},
                     {"max_position_embeddings", c.max_positions},
                     {"num_hidden_layers", c.trunk_layers()},
                     {"first_k_dense_replace", c.dense_layers},
                     {"num_nextn_predict_layers", 1},
                     {"rms_norm_eps", c.rms_eps},
                     {"qk_rope_head_dim", 0},
                     {"linear_attn_config",
                      {{"kda_layers", kda},
                       {"full_attn_layers", dsa},
                       {"num_heads", c.kda_heads},
                       {"head_dim", c.kda_dim},
                       {"short_conv_kernel_size", 4},
                       {"gate_lower_bound", -5.0}}},
                     {"num_attention_heads", c.heads},
                     {"q_lora_rank", c.q_lora},
                     {"kv_lora_rank", c.kv_lora},
                     {"qk_nope_head_dim", c.nope},
                     {"v_head_dim", c.v_dim},
                     {"index_n_heads", c.index_heads},
                     {"index_head_dim", c.index_dim},
                     {"index_topk", c.index_topk},
                     {"index_kpool", 4},
                     {"index_kpool_compress", true},
                     {"index_kpool_always_select_tail", true},
                     {"hc_mult", 4},
                     {"hc_sinkhorn_iters", 20},
                     {"hc_eps", 1e-6},
                     {"intermediate_size", c.dense_inter},
                     {"n_routed_experts", c.experts},
                     {"num_experts_per_tok", c.experts_per_token},
                     {"moe_intermediate_size", c.expert_inter},
                     {"n_shared_experts", 1},
                     {"scoring_func", "sigmoid"},
                     {"topk_method", "noaux_tc"},
                     {"norm_topk_prob", true},
                     {"routed_scaling_factor", 2.5},
                     {"swiglu_limit", 10.0},
                     {"tie_word_embeddings", false}};
  return {{"text_config", text}};
}

// Folders of this process, gone when it ends.
struct Folders {
  std::vector<std::filesystem::path> paths;
  ~Folders() {
    for (const auto& path : paths) std::filesystem::remove_all(path);
  }
};

// A checkpoint in memory that tests may spoil before it is written.
struct Checkpoint {
  json config;
  std::map<std::string, std::vector<std::byte>> memory;
  std::map<std::string, Tensor> tensors;

  void Add(const std::string& name, DType dtype, Shape shape, const void* data, std::size_t bytes) {
    std::vector<std::byte>& copy = memory[name];
    copy.resize(bytes);
    std::memcpy(copy.data(), data, bytes);
    tensors[name] = {name, dtype, std::move(shape), copy.data()};
  }

  void AddMatrix(const TensorSpec& spec, const Matrix& w) {
    const std::string base = spec.name.substr(0, spec.name.size() - 7);
    const auto bytes = static_cast<std::size_t>(w.n * w.k);
    if (w.format == WeightFormat::kBF16) {
      return Add(spec.name, DType::kBF16, spec.shape, w.data.get(), 2 * bytes);
    }
    if (w.format == WeightFormat::kFP8) {
      const Shape scales{(w.n + 127) / 128, (w.k + 127) / 128};
      Add(spec.name, DType::kE4M3, spec.shape, w.data.get(), bytes);
      return Add(base + ".weight_scale_inv", DType::kF32, scales, w.scales.get(),
                 static_cast<std::size_t>(4 * scales[0] * scales[1]));
    }
    Add(spec.name, DType::kU8, {w.n, w.k / 2}, w.data.get(), bytes / 2);
    Add(base + ".weight_scale", DType::kU8, {w.n, w.k / 32}, w.scales.get(), bytes / 32);
  }

  // Writes two shards and an index; returns the folder.
  std::string Write() const {
    static Folders written;
    const std::filesystem::path folder =
        std::filesystem::path(testing::TempDir()) /
        ("checkpoint" + std::to_string(getpid()) + "_" + std::to_string(written.paths.size()));
    written.paths.push_back(folder);
    std::filesystem::create_directories(folder);
    WriteFile((folder / "config.json").string(), config.dump());
    std::vector<Tensor> shards[2];
    json map;
    std::size_t i = 0;
    for (const auto& [name, tensor] : tensors) {
      map[name] = i % 2 == 0 ? "a.safetensors" : "b.safetensors";
      shards[i++ % 2].push_back(tensor);
    }
    WriteSafetensors((folder / "a.safetensors").string(), shards[0]);
    WriteSafetensors((folder / "b.safetensors").string(), shards[1]);
    WriteFile((folder / "model.safetensors.index.json").string(), json{{"weight_map", map}}.dump());
    return folder.string();
  }
};

Checkpoint MakeCheckpoint(const Model& model) {
  Checkpoint checkpoint;
  checkpoint.config = ConfigJson(model.config);
  Model copy = model;
  VisitTensors(model.config, copy,
               {[&](const TensorSpec& spec, Matrix& w) { checkpoint.AddMatrix(spec, w); },
                [&](const TensorSpec& spec, std::vector<float>& v) {
                  if (spec.fp32) {
                    return checkpoint.Add(spec.name, DType::kF32, spec.shape, v.data(),
                                          4 * v.size());
                  }
                  std::vector<bf16> rounded;
                  for (const float x : v) rounded.push_back(ToBF16(x));
                  checkpoint.Add(spec.name, DType::kBF16, spec.shape, rounded.data(), 2 * v.size());
                }});
  return checkpoint;
}

Model Tiny(WeightFormat format = WeightFormat::kBF16) {
  return MakeSyntheticModel(PresetConfig("tiny"), {.seed = 3, .plant = 5.0, .format = format});
}

std::string Refusal(const Checkpoint& checkpoint) {
  try {
    LoadCheckpoint(checkpoint.Write());
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "(accepted)";
}

TEST(Checkpoint, EveryFormatComesBack) {
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kFP8, WeightFormat::kMXFP4}) {
    const Model model = Tiny(format);
    const Model loaded = LoadCheckpoint(MakeCheckpoint(model).Write());
    const Matrix &a = model.layers[2].moe.experts[7].down,
                 &b = loaded.layers[2].moe.experts[7].down;
    ASSERT_EQ(b.format, format);
    for (std::int64_t i = 0; i < a.n * a.k; ++i) {
      ASSERT_EQ(WeightValue(a, i / a.k, i % a.k), WeightValue(b, i / b.k, i % b.k));
    }
    EXPECT_EQ(model.layers[0].kda.q_conv, loaded.layers[0].kda.q_conv);
    EXPECT_EQ(model.layers[1].moe.bias, loaded.layers[1].moe.bias);
    EXPECT_EQ(loaded.config.layers, model.config.layers);
    EXPECT_EQ(loaded.config.index_topk, 16);
  }
}

TEST(Checkpoint, NVFP4OfBothWriters) {
  Checkpoint checkpoint = MakeCheckpoint(Tiny());
  const std::string base = "model.language_model.layers.2.mlp.experts.1.up_proj";
  const std::vector<std::uint8_t> codes(64 * 64, 0x72), scales(64 * 8, 0x30);  // (1, 6) x 0.5
  for (const bool packed : {false, true}) {
    Checkpoint changed = checkpoint;
    changed.tensors.erase(base + ".weight");
    const float global = packed ? 0.5f : 2.0f;
    changed.Add(base + (packed ? ".weight_packed" : ".weight"), DType::kU8, {64, 64}, codes.data(),
                4096);
    changed.Add(base + ".weight_scale", DType::kE4M3, {64, 8}, scales.data(), 512);
    changed.Add(base + (packed ? ".weight_global_scale" : ".weight_scale_2"), DType::kF32, {1},
                &global, 4);
    const Model loaded = LoadCheckpoint(changed.Write());
    EXPECT_EQ(WeightValue(loaded.layers[2].moe.experts[1].up, 3, 0), 1.0);
    EXPECT_EQ(WeightValue(loaded.layers[2].moe.experts[1].up, 3, 1), 6.0);
  }
}

TEST(Checkpoint, ComplaintsNameTheTensor) {
  const Checkpoint good = MakeCheckpoint(Tiny());
  const std::string norm = "model.language_model.layers.1.input_layernorm.weight";
  Checkpoint bad = good;
  bad.tensors.erase(norm);
  EXPECT_THAT(Refusal(bad), HasSubstr("1 missing:\n    " + norm));
  bad = good;
  bad.Add("model.language_model.layers.1.input_layernorm2.weight", DType::kBF16, {1}, "xx", 2);
  EXPECT_THAT(Refusal(bad),
              HasSubstr("1 not understood:\n    model.language_model.layers.1.input_layernorm2"));
  bad = good;
  bad.Add("model.visual.patch", DType::kBF16, {1}, "xx", 2);
  EXPECT_EQ(Refusal(bad), "(accepted)");
  bad = good;
  bad.tensors[norm].shape = {2, 64};
  EXPECT_THAT(Refusal(bad), HasSubstr(norm + " bfloat16[2,64] should have shape [128]"));
  bad = good;
  const std::uint16_t nan = 0x7FC0;
  std::memcpy(bad.memory["lm_head.weight"].data() + 2 * 1000, &nan, 2);
  bad.tensors["lm_head.weight"].data = bad.memory["lm_head.weight"].data();
  EXPECT_THAT(Refusal(bad),
              HasSubstr("lm_head.weight bfloat16[257,128] holds NaN or infinity at element 1000"));
  // 48 columns: a legal size, but no whole groups of FP4 scales.
  ModelConfig narrow = PresetConfig("tiny");
  narrow.expert_inter = 48;
  bad = MakeCheckpoint(MakeSyntheticModel(narrow, {.seed = 3}));
  const std::string down = "model.language_model.layers.2.mlp.experts.1.down_proj.weight";
  bad.Add(down, DType::kU8, {128, 24}, std::vector<char>(128 * 24).data(), 128 * 24);
  EXPECT_THAT(Refusal(bad), HasSubstr(down + " uint8[128,24] has FP4 codes, and its 48 columns"));
  bad = MakeCheckpoint(Tiny(WeightFormat::kFP8));
  bad.tensors.erase("model.language_model.layers.0.mlp.up_proj.weight_scale_inv");
  EXPECT_THAT(
      Refusal(bad),
      HasSubstr("1 missing:\n    model.language_model.layers.0.mlp.up_proj.weight_scale_inv"));
}

TEST(Checkpoint, ConfigValuesTheEngineRefuses) {
  const json good = ConfigJson(PresetConfig("tiny"));
  const auto refusal = [&](const std::function<void(json&)>& spoil) -> std::string {
    json bad = good;
    spoil(bad["text_config"]);
    try {
      ReadConfig(bad.dump(), "config.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_EQ(refusal([](json&) {}), "(accepted)");
  EXPECT_THAT(refusal([](json& c) { c.erase("q_lora_rank"); }),
              HasSubstr("q_lora_rank is missing"));
  EXPECT_THAT(refusal([](json& c) { c["qk_rope_head_dim"] = 64; }),
              HasSubstr("qk_rope_head_dim is 64; this engine needs 0"));
  EXPECT_THAT(refusal([](json& c) { c["index_kpool_compress"] = false; }),
              HasSubstr("index_kpool_compress"));
  EXPECT_THAT(refusal([](json& c) {
                c["linear_attn_config"]["kda_layers"] = {0, 1, 2};
              }),
              HasSubstr("leave out a layer"));
  EXPECT_THAT(refusal([](json& c) {
                c["linear_attn_config"]["kda_layers"] = {0, 1, 2, 3, 4};
              }),
              HasSubstr("a layer of both lists"));
  EXPECT_THAT(refusal([](json& c) { c["linear_attn_config"].erase("gate_lower_bound"); }),
              HasSubstr("gate_lower_bound is missing"));
  EXPECT_THAT(refusal([](json& c) { c["first_k_dense_replace"] = -1; }),
              HasSubstr("first_k_dense_replace is -1, wanted 0 to 5"));
  EXPECT_THAT(refusal([](json& c) { c["first_k_dense_replace"] = 6; }),
              HasSubstr("first_k_dense_replace is 6, wanted 0 to 5"));
  EXPECT_THAT(refusal([](json& c) { c["hc_sinkhorn_iters"] = 0; }),
              HasSubstr("1 to 1000 are possible"));
  EXPECT_THAT(refusal([](json& c) { c["scoring_func"] = "softmax"; }),
              HasSubstr("this engine knows sigmoid"));
  EXPECT_THAT(refusal([](json& c) {
                c["quantization_config"] = {{"quant_method", "gptq"}};
              }),
              HasSubstr("quant_method is \"gptq\""));
  EXPECT_THAT(refusal([](json& c) { c["hidden_size"] = "big"; }), HasSubstr("wanted an integer"));
  // Lists that count from 1 are understood.
  EXPECT_EQ(refusal([](json& c) {
              c["linear_attn_config"]["kda_layers"] = {1, 2, 3, 5};
              c["linear_attn_config"]["full_attn_layers"] = {4};
            }),
            "(accepted)");
}

}  // namespace
}  // namespace assay::engine
