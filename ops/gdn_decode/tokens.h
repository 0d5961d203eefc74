// The distribution of generated tokens and states, shared by gdn_decode and gdn_prefill: any token
// on demand, the same bits on every machine. (Hence own elementary functions: those of libm differ
// in the last bit between versions and processors.)
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace assay::gdn_decode {

// e^x to about 1e-15 relative; only + - * / in a fixed order. 0 below -700, e^700 above 700.
double Exp(double x);
// ln x for positive normal x, likewise.
double Log(double x);

// Positions of the inputs that both families declare: the tensor numbers of the element source.
enum TensorNumber : std::uint64_t { kQ, kK, kV, kState, kALog, kA, kDtBias, kB };

struct TokenStyle {
  bool correlated = false;  // adds half a fixed vector per key head to every k
  float v_factor = 1;       // multiplies every v
};
// The style that a variant name of either family asks for.
TokenStyle StyleOfVariant(std::string_view variant);

class TokenSource {
 public:
  TokenSource(std::uint64_t key, TokenStyle style);

  void Queries(std::int64_t token, bf16* q) const;      // [4, 128]
  void Keys(std::int64_t token, bf16* k) const;         // [4, 128]
  void Values(std::int64_t token, bf16* v) const;       // [8, 128]
  void DecayInputs(std::int64_t token, bf16* a) const;  // [8]
  void BetaInputs(std::int64_t token, bf16* b) const;   // [8]

  void HeadParameters(float* a_log, float* dt_bias) const;  // [8] each

  // The state of one head after 64 tokens of its own from zero, [128 (V), 128 (K)], fp32 in a fixed
  // order. `history` numbers the token streams.
  void HistoryState(std::int64_t history, std::int64_t head, float* state) const;

 private:
  void UnitRow(std::uint64_t tensor, std::int64_t row, const float* bias, bf16* out) const;
  void ValueRow(std::uint64_t tensor, std::int64_t row, bf16* out) const;

  std::uint64_t key_;
  TokenStyle style_;
  float channel_scale_[8 * 128];  // of v, overall factor included
  float key_bias_[4 * 128];
};

}  // namespace assay::gdn_decode
