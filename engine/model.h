// The weights of a model, and the one table that says where each of them comes from: its name in a
// checkpoint, its shape, its recipe when it is synthetic, and the place it is loaded to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "engine/config.h"

namespace assay::engine {

enum class WeightFormat : std::uint8_t {
  kBF16,
  kFP8,    // e4m3, one fp32 scale per 128 x 128 block
  kMXFP4,  // e2m1, one ue8m0 scale per 32 along k
  kNVFP4,  // e2m1, one e4m3 scale per 16 along k, and one fp32 scale
};
const char* WeightFormatName(WeightFormat format);
inline constexpr std::int64_t kFP8Block = 128, kMXFP4Group = 32, kNVFP4Group = 16;
constexpr std::int64_t FP8Blocks(std::int64_t size) { return (size + kFP8Block - 1) / kFP8Block; }

// W [n, k], row-major, as the checkpoint holds it. Memory is shared with its owner (a mapped file
// or a generated block), so that copies of a Matrix are cheap.
struct Matrix {
  WeightFormat format = WeightFormat::kBF16;
  std::int64_t n = 0, k = 0;
  std::shared_ptr<const std::byte> data;  // bf16 [n,k], e4m3 [n,k] or two e2m1 codes a byte [n,k/2]
  std::shared_ptr<const std::byte>
      scales;       // fp32 [ceil(n/128),ceil(k/128)], u8 [n,k/32] or [n,k/16]
  float scale = 1;  // kNVFP4 only

  const bf16* row(std::int64_t i) const {  // kBF16 only
    return reinterpret_cast<const bf16*>(data.get()) + i * k;
  }
  std::int64_t bytes() const;  // scales included
};

// Elements k0..k1 of row `i` as bf16 without block scale: exact for every format. `target` holds
// k1 - k0 elements. For kFP8 the caller multiplies by BlockScale, for kNVFP4 by `scale`.
void DecodeRow(const Matrix& w, std::int64_t i, std::int64_t k0, std::int64_t k1, bf16* target);
// kFP8: the scale of block column `block` in row i.
float BlockScale(const Matrix& w, std::int64_t i, std::int64_t block);
// The value of one weight, scales included, in fp64.
double WeightValue(const Matrix& w, std::int64_t i, std::int64_t k);

struct HyperWeights {
  std::vector<float> fn;     // [24, 4 hidden], stream-major
  std::vector<float> base;   // [24]
  std::vector<float> scale;  // [3]: pre, post, stream matrix
};

struct KdaWeights {
  Matrix q, k, v;                             // [channels, hidden]
  Matrix b;                                   // [heads, hidden]
  Matrix f_a, g_a;                            // [dim, hidden]
  Matrix f_b, g_b;                            // [channels, dim]
  Matrix o;                                   // [hidden, channels]
  std::vector<float> q_conv, k_conv, v_conv;  // [channels, 1, 4], oldest tap first
  std::vector<float> dt_bias;                 // [channels]
  std::vector<float> a_log;                   // [heads]
  std::vector<float> o_norm;                  // [dim]
};

struct DsaWeights {
  Matrix q_a;         // [q_lora, hidden]
  Matrix q_b;         // [heads nope, q_lora]
  Matrix kv_a;        // [kv_lora, hidden]
  Matrix kv_b;        // [heads (nope + v), kv_lora]: per head the key rows, then the value rows
  Matrix o;           // [hidden, heads v]
  Matrix index_q;     // [index_heads index_dim, q_lora]
  Matrix index_k;     // [index_dim, hidden]
  Matrix index_head;  // [index_heads, hidden]
  Matrix pool_gate;   // [index_dim, hidden]
  std::vector<float> pool_ape;      // [4, index_dim]
  std::vector<float> q_norm;        // [q_lora]
  std::vector<float> kv_norm;       // [kv_lora]
  std::vector<float> index_k_norm;  // [index_dim]
  std::vector<float> index_k_bias;  // [index_dim]
};

struct MlpWeights {
  Matrix gate, up, down;  // [inter, hidden] twice, [hidden, inter]
};

struct MoeWeights {
  Matrix router;            // [experts, hidden]
  std::vector<float> bias;  // [experts], used to choose only
  MlpWeights shared;
  std::vector<MlpWeights> experts;
};

struct LayerWeights {
  HyperWeights attention_mix, ffn_mix;      // trunk only
  std::vector<float> input_norm, ffn_norm;  // [hidden]
  KdaWeights kda;                           // by the layer's kind
  DsaWeights dsa;
  MlpWeights dense;  // by the layer's number
  MoeWeights moe;
};

struct MtpWeights {
  std::vector<float> embed_norm, hidden_norm, final_norm;  // [hidden]
  Matrix project;                                          // [hidden, 2 hidden]: embedding, hidden
};

struct Model {
  ModelConfig config;
  Matrix embed, head;                // [vocab, hidden]
  std::vector<float> norm;           // [hidden]
  std::vector<LayerWeights> layers;  // the MTP layer last when there is one
  MtpWeights mtp;
};

// What a tensor is to the synthetic generator; the numbers are part of its counters.
struct Slot {
  enum : int {
    kHcFn = 0,
    kHcBase = 1,
    kHcScale = 2,  // attention site; + 3: FFN site
    kInputNorm = 6,
    kFfnNorm = 7,
    kQ = 8,
    kK = 9,
    kV = 10,
    kB = 11,
    kFa = 12,
    kFb = 13,
    kGa = 14,
    kGb = 15,
    kO = 16,
    kConvQ = 17,
    kConvK = 18,
    kConvV = 19,
    kDtBias = 20,
    kALog = 21,
    kONorm = 22,
    kQa = 24,
    kQaNorm = 25,
    kQb = 26,
    kKvA = 27,
    kKvANorm = 28,
    kKvB = 29,
    kIndexQ = 30,
    kIndexK = 31,
    kIndexHead = 32,
    kIndexNorm = 33,
    kIndexBias = 34,
    kPoolGate = 35,
    kPoolApe = 36,
    kRouter = 40,
    kRouterBias = 41,
    kDense = 42,
    kShared = 45,  // + 0 gate, 1 up, 2 down
    kEmbedNorm = 48,
    kHiddenNorm = 49,
    kProject = 50,
    kFinalNorm = 51,
    kExpert = 64,  // + 3 expert + {0 gate, 1 up, 2 down}
    kEmbed = -1,
    kNorm = -2,
    kHead = -3,
  };
};

struct TensorSpec {
  std::string name;  // in a checkpoint
  Shape shape;
  std::int64_t layer = -1;  // -1: not part of one
  int slot = 0;
  std::int64_t expert = -1;
  double sigma = 0, mean = 0;     // of the synthetic weights
  bool fp32 = false;              // kept in fp32 by checkpoints and generator
  bool may_be_quantised = false;  // read through the matrix products only
  std::uint32_t tensor_id = 0;    // counter of the synthetic generator
};

struct TensorVisitor {
  std::function<void(const TensorSpec&, Matrix&)> matrix;
  std::function<void(const TensorSpec&, std::vector<float>&)> vector;
};

// Visits every tensor of the architecture once, with its place in `model` (whose layers are sized
// on the way). Order: embedding, norm, head, then layer by layer.
void VisitTensors(const ModelConfig& config, Model& model, const TensorVisitor& visit);

}  // namespace assay::engine
