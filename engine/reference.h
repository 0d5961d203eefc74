// The fp64 truth of the model: one function per formula, no rounding beyond what is stored in the
// weights, no code shared with the step bodies. Slow on purpose.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/model.h"

namespace assay::engine::reference {

// What a row's values are called on their way through a layer, for whoever looks for the first
// wrong one (engine/check_tasks.cpp). A site is a mixed input, a sublayer, and an update of the
// streams.
enum class Value : std::uint8_t {
  kHyper,         // post[4], C[source][destination]
  kInput,         // u
  kKdaProjected,  // q k v f_a g_a
  kKdaBeta,       // b, before its sigmoid
  kKdaGate,       // g
  kKdaOutput,     // o, before its norm
  kDsaProjected,  // q_a kv_a key gate, before their norms
  kIndexHead,     // head weights of the index, unscaled
  kLatent,
  kIndexKey,
  kQuery,      // K^T q, all heads
  kAttended,   // value rows, all heads
  kActivated,  // of a dense FFN or of the shared expert
  kRouterLogits,
  kRouteWeights,     // by ascending expert
  kExpertActivated,  // chosen experts one after the other, ascending
  kExpertOutput,     // likewise
  kOutput,           // y of the one producer; of the shared expert in a MoE site
  kStreams,          // after the site
  kHidden,           // f
  kLogits,
};
using Vec = std::vector<double>;
using Tap = std::function<void(Value what, const Vec& values)>;

// ---- formulas ----

double Sigmoid(double x);
double Silu(double x);
Vec Linear(const Matrix& w, const Vec& x);
Vec LinearRows(const Matrix& w, std::int64_t n0, std::int64_t n1, const Vec& x);
Vec RmsNorm(const Vec& x, const std::vector<float>& weight, double eps);
Vec LayerNorm(const Vec& x, const std::vector<float>& weight, const std::vector<float>& bias,
              double eps);

struct Hyper {
  double pre[kStreamCount] = {}, post[kStreamCount] = {};
  double c[kStreamCount][kStreamCount] = {};  // [source][destination]
};
// `streams` is [4, hidden], stream-major.
Hyper HyperOf(const ModelConfig& config, const HyperWeights& w, const Vec& streams);
Vec MixIn(const Hyper& hyper, const Vec& streams);            // sum_j pre_j R_j
void MixOut(const Hyper& hyper, const Vec& y, Vec& streams);  // R'_j = post_j y + sum_k C_kj R_k

// ln of the decay of each key channel of one head, from the raw gate a [dim].
Vec LogDecay(const ModelConfig& config, const KdaWeights& w, std::int64_t head, const Vec& a);

// One token of one head. S [V, K] <- S diag(e^gamma); S <- S + beta (v - S k) k^T; returns S q. All
// vectors have the same size; k is normalised, q is that and scaled.
Vec DeltaStep(double* s, const Vec& q, const Vec& k, const Vec& v, const Vec& gamma, double beta);

struct KdaState {
  Vec s;       // [heads, V, K]
  Vec window;  // [3, 3 channels]: pre-convolution q, k, v, oldest first
};
// One token: convolution, gates, recurrence, gated norm, output projection.
Vec KdaRow(const ModelConfig& config, const KdaWeights& w, const Vec& u, KdaState& state,
           const Tap& tap = {});

struct DsaCache {
  Vec latents;                                       // [tokens, kv_lora]
  std::vector<Vec> pools;                            // [index_dim] each, not rotated
  std::map<std::int64_t, std::pair<Vec, Vec>> tail;  // position -> (index key, pool gate)
};
// Which pools a row attends.
struct Selection {
  std::vector<std::int64_t> pools;  // ascending
  Vec scores;                       // of all visible pools, empty when forced without scoring
  Vec noise;                        // of each score, where asked for: one standard deviation
};
// One token at `position`: appends to the cache (entries beyond are dropped first), closes a pool,
// selects, attends. With `forced`, those pools are attended instead of the best ones, which makes a
// run under test and the reference comparable; `selection` receives what was attended and all
// scores. `open_from`: all tokens from here on are attended besides the selected pools (default:
// the open tail). `with_noise`: how far scores may move when the index rounds query and keys to
// e4m3.
Vec DsaRow(const ModelConfig& config, const DsaWeights& w, const Vec& u, std::int64_t position,
           DsaCache& cache, const std::vector<std::int64_t>* forced, Selection* selection,
           std::optional<std::int64_t> open_from = std::nullopt, bool with_noise = false,
           const Tap& tap = {});

// Scores of the first `visible` pools for index queries q [index_heads, index_dim] and head weights
// om; ids of the `count` best scores, ascending, equal ones by lower id.
Vec PoolScores(const ModelConfig& config, const Vec& q, const Vec& om,
               const std::vector<Vec>& pools, std::int64_t visible);
std::vector<std::int64_t> BestIds(const Vec& scores, std::int64_t count);

// H x, the orthonormal Hadamard matrix (its own inverse).
Vec Rotate(const Vec& x);

// silu(min(gate, limit)) * clamp(up, -limit, limit)
Vec Activate(const ModelConfig& config, const Vec& gate, const Vec& up);
Vec Mlp(const ModelConfig& config, const MlpWeights& w, const Vec& u, const Tap& tap = {});
struct Routing {
  std::vector<std::int64_t> experts;  // ascending
  Vec weights;                        // 2.5 p_e of each
  Vec scores;                         // sigmoid + bias of all experts
};
Routing RouteRow(const ModelConfig& config, const MoeWeights& w, const Vec& u,
                 const std::vector<std::int64_t>* forced, const Tap& tap = {});
Vec MoeRow(const ModelConfig& config, const MoeWeights& w, const Vec& u, const Routing& routing,
           const Tap& tap = {});

// ---- the model, one token at a time ----

struct State {
  std::int64_t length = 0;
  std::vector<KdaState> kda;  // by KDA layer
  std::vector<DsaCache> dsa;  // by DSA layer, the MTP layer last
};
State EmptyState(const ModelConfig& config);

// Selections per layer, by index among DSA layers and among MoE layers of the trunk:
// what a run under test chose. Pool scores are then those of the stored e4m3 index, so
// that they can be compared.
struct Choices {
  std::vector<std::vector<std::int64_t>> pools, experts;
};

struct Row {
  Vec logits, hidden;            // hidden = f, the final-normed state
  Vec stream_rms;                // after each layer
  std::vector<Selection> pools;  // by DSA layer of the trunk
  std::vector<Routing> experts;  // by MoE layer of the trunk
};
// `observe` sees every value in the order in which it arises; site 0 = attention, 1 = FFN. The end
// of the trunk is layer trunk_layers().
using Observer = std::function<void(std::int64_t layer, int site, Value what, const Vec& values)>;
Row TrunkRow(const Model& model, std::int32_t token, State& state, const Choices* forced = nullptr,
             const Observer& observe = {});

struct MtpRow {
  Vec logits, hidden;
  Selection pools;
  Routing experts;
};
// The row at `position`: eats the token at position + 1 and the hidden of `position`.
MtpRow MtpStep(const Model& model, std::int64_t position, std::int32_t token, const Vec& hidden,
               DsaCache& cache, const std::vector<std::int64_t>* forced_pools = nullptr,
               std::optional<std::int64_t> open_from = std::nullopt,
               const std::vector<std::int64_t>* forced_experts = nullptr);

// ---- the model, layer by layer over a whole sequence ----

struct Sequence {
  std::vector<Vec> logits, hidden;  // per position
  State state;                      // after the last token (trunk layers)
};
Sequence WholeSequence(const Model& model, const std::vector<std::int32_t>& tokens);

std::int64_t ArgMax(const Vec& logits);  // ties: lower id

}  // namespace assay::engine::reference
