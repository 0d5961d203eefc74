// cpu-ref64: steps by the fp64 formulas, on the engine's own state.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/executor.h"
#include "engine/reference_state.h"

namespace assay::engine {
namespace {

using reference::Vec;

template <class T>
Vec Widen(const T* values, std::int64_t count) {
  Vec x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(ToFloat(values[i]));
  return x;
}

void Round(const Vec& x, bf16* target) {
  std::transform(x.begin(), x.end(), target, [](double value) { return ToBF16(value); });
}

// The cache of the first `length` tokens.
reference::DsaCache LoadCache(const ModelConfig& model, State& state, std::int64_t dsa, int slot,
                              std::int64_t length) {
  reference::DsaCache cache;
  for (std::int64_t p = 0; p < length; ++p) {
    const Vec latent = Widen(state.Latent(dsa, slot, p), model.kv_lora);
    cache.latents.insert(cache.latents.end(), latent.begin(), latent.end());
  }
  for (std::int64_t pool = 0; pool < length / kPoolTokens; ++pool) {
    const PoolEntry entry = state.Pool(dsa, slot, pool);
    Vec key = Widen(entry.key, model.index_dim);
    for (double& value : key) value *= *entry.scale;
    cache.pools.push_back(reference::Rotate(key));
  }
  for (std::int64_t p = length / kPoolTokens * kPoolTokens; p < length; ++p) {
    const bf16* ring = state.Ring(dsa, slot, p);
    cache.tail[p] = {Widen(ring, model.index_dim), Widen(ring + model.index_dim, model.index_dim)};
  }
  return cache;
}

class ReferenceExecutor : public Executor {
 public:
  std::string name() const override { return "cpu-ref64"; }
  bool RunTask(const Step&, const Task&) override { return false; }

  StepStats Run(const Step& step) override {
    CheckStep(step);
    if (step.state->options().commit != CommitMode::kScratch) {
      throw Error(Fault::kUnsupported,
                  "executor cpu-ref64 needs scratch commit: it writes no logs");
    }
    for (int request = 0; request < step.program->shape.requests; ++request) {
      if (step.request(request).slot < 0) continue;
      if (step.program->shape.kind == ProgramKind::kTrunk) {
        RunTrunk(step, request);
      } else {
        RunMtp(step, request);
      }
    }
    return {};
  }

 private:
  static void RunTrunk(const Step& step, int index) {
    const StepRequest& request = step.request(index);
    reference::State state = LoadReferenceState(step.config(), *step.state, request.slot);
    for (int i = 0; i < request.rows; ++i) {
      const int row = index * step.rows_per_request() + i;
      const reference::Row result =
          TrunkRow(*step.model, step.tokens[static_cast<std::size_t>(row)], state);
      StoreOutputs(step, row, result.logits, result.hidden, result.pools.back().pools);
      for (std::size_t dsa = 0; dsa < result.pools.size(); ++dsa) {
        StoreToken(step, static_cast<std::int64_t>(dsa), request.slot, request.start + i,
                   state.dsa[dsa]);
      }
      for (std::size_t kda = 0; kda < state.kda.size(); ++kda) {
        StoreKda(step, static_cast<std::int64_t>(kda), request.slot, i, state.kda[kda]);
      }
    }
  }

  static void RunMtp(const Step& step, int index) {
    const ModelConfig& config = step.config();
    const StepRequest& request = step.request(index);
    const std::int64_t dsa = config.dsa_layers() - 1;
    // Rows may run ahead of what is committed, on what earlier chained rows left in the cache.
    reference::DsaCache cache = LoadCache(config, *step.state, dsa, request.slot, request.start);
    const bool chain = step.program->shape.kind == ProgramKind::kMtpChain;
    const std::vector<std::int64_t> seeded(request.seed.pools.begin(), request.seed.pools.end());
    for (int i = 0; i < request.rows; ++i) {
      const int row = index * step.rows_per_request() + i;
      const Vec hidden = Widen(step.hidden.data() + row * config.hidden, config.hidden);
      const std::int32_t token = step.tokens[static_cast<std::size_t>(row)];
      const reference::MtpRow result =
          chain ? MtpStep(*step.model, request.start + i, token, hidden, cache, &seeded,
                          request.seed.open_from)
                : MtpStep(*step.model, request.start + i, token, hidden, cache);
      StoreOutputs(step, row, result.logits, result.hidden, result.pools.pools);
      StoreToken(step, dsa, request.slot, request.start + i, cache);
    }
  }

  static void StoreOutputs(const Step& step, int row, const Vec& logits, const Vec& hidden,
                           const std::vector<std::int64_t>& pools) {
    std::copy(logits.begin(), logits.end(), step.workspace->row<float>(Buf::kLogits, row));
    Round(hidden, step.workspace->row<bf16>(Buf::kHidden, row));
    const SelectedTokens selected = Selected(step, row);
    *selected.pool_count = static_cast<std::int32_t>(pools.size());
    std::copy(pools.begin(), pools.end(), selected.pools);
  }

  static void StoreToken(const Step& step, std::int64_t dsa, int slot, std::int64_t position,
                         const reference::DsaCache& cache) {
    const auto lora = static_cast<std::size_t>(step.config().kv_lora);
    const double* latent = cache.latents.data() + static_cast<std::size_t>(position) * lora;
    Round(Vec(latent, latent + lora), step.state->Latent(dsa, slot, position));
    const auto& [key, gate] = cache.tail.at(position);
    bf16* ring = step.state->Ring(dsa, slot, position);
    Round(key, ring);
    Round(gate, ring + key.size());
    if ((position + 1) % kPoolTokens != 0) return;
    const std::int64_t pool = position / kPoolTokens;
    std::vector<bf16> rounded(key.size());
    Round(cache.pools[static_cast<std::size_t>(pool)], rounded.data());
    const PoolEntry entry = step.state->Pool(dsa, slot, pool);
    *entry.scale =
        RotateAndQuantise(rounded.data(), static_cast<std::int64_t>(key.size()), entry.key);
  }

  static void StoreKda(const Step& step, std::int64_t kda, int slot, int row,
                       const reference::KdaState& state) {
    std::copy(state.s.begin(), state.s.end(), step.state->KdaScratch(kda, slot, row, 0));
    const std::size_t channels = state.window.size() / (kConvWidth - 1);
    const double* newest = state.window.data() + (kConvWidth - 2) * channels;
    Round(Vec(newest, newest + channels), step.state->NextInputs(kda, slot, row));
  }
};

}  // namespace

reference::State LoadReferenceState(const ModelConfig& model, State& state, int slot) {
  reference::State loaded;
  loaded.length = state.length(slot);
  for (std::int64_t kda = 0; kda < model.kda_layers(); ++kda) {
    reference::KdaState& target = loaded.kda.emplace_back();
    std::vector<float> s(static_cast<std::size_t>(model.kda_channels() * model.kda_dim));
    state.CurrentState(kda, slot, s.data());
    target.s.assign(s.begin(), s.end());
    for (int age = kConvWidth - 2; age >= 0; --age) {
      const Vec entry = Widen(state.WindowEntry(kda, slot, age), 3 * model.kda_channels());
      target.window.insert(target.window.end(), entry.begin(), entry.end());
    }
  }
  for (std::int64_t dsa = 0; dsa < model.dsa_layers(); ++dsa) {
    loaded.dsa.push_back(LoadCache(model, state, dsa, slot, state.length(slot)));
  }
  return loaded;
}

std::unique_ptr<Executor> MakeReferenceExecutor() { return std::make_unique<ReferenceExecutor>(); }

}  // namespace assay::engine
