#include "ops/gdn_decode/tokens.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/random.h"
#include "ops/gdn_decode/spec.h"

namespace assay::gdn_decode {
namespace {

// Tensor numbers of random values that belong to no input.
constexpr std::uint64_t kChannelScale = kAuxiliaryTensor + 20;
constexpr std::uint64_t kOutlierChannel = kAuxiliaryTensor + 21;
constexpr std::uint64_t kKeyBias = kAuxiliaryTensor + 22;
constexpr std::uint64_t kHistoryK = kAuxiliaryTensor + 30;
constexpr std::uint64_t kHistoryV = kAuxiliaryTensor + 31;
constexpr std::uint64_t kHistoryA = kAuxiliaryTensor + 32;
constexpr std::uint64_t kHistoryB = kAuxiliaryTensor + 33;

constexpr std::int64_t kHistoryTokens = 64;
constexpr double kLn2High = 0x1.62E42FEE00000p-1;  // 21 low bits are zero: n * kLn2High is exact
constexpr double kLn2Low = 0x1.A39EF35793C76p-33;

constexpr double kReciprocal[] = {0,        1,        1.0 / 2,  1.0 / 3, 1.0 / 4,
                                  1.0 / 5,  1.0 / 6,  1.0 / 7,  1.0 / 8, 1.0 / 9,
                                  1.0 / 10, 1.0 / 11, 1.0 / 12, 1.0 / 13};

std::uint64_t Index(std::int64_t i) { return static_cast<std::uint64_t>(i); }

double Softplus(double x) { return x > 20 ? x : Log(1 + Exp(x)); }

}  // namespace

double Exp(double x) {
  if (x < -700) return 0;
  x = std::min(x, 700.0);
  const double n = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= 0.35
  double sum = 1;                                     // Horner; r^14 / 14! < 1e-17
  for (int term = 13; term > 0; --term) sum = 1 + sum * r * kReciprocal[term];
  const auto exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023) << 52;
  return sum * std::bit_cast<double>(exponent);
}

double Log(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = (m - 1) / (m + 1);  // ln m = 2 (f + f^3 / 3 + ...), |f| <= 0.172
  double sum = 0;
  for (int term = 23; term > 0; term -= 2) sum = sum * f * f + 1.0 / term;
  const auto n = static_cast<double>(exponent);
  return n * kLn2High + (n * kLn2Low + 2 * f * sum);
}

TokenStyle StyleOfVariant(std::string_view variant) {
  TokenStyle style;
  style.correlated = variant == "correlated";
  if (variant == "v10") style.v_factor = 10;
  if (variant == "v50") style.v_factor = 50;
  if (variant == "v1e4") style.v_factor = 1e4f;
  return style;
}

TokenSource::TokenSource(std::uint64_t key, TokenStyle style) : key_(key), style_(style) {
  for (std::uint64_t c = 0; c < std::size(channel_scale_); ++c) {
    const bool outlier = Uniform(key, kOutlierChannel, c) < 0.02;
    const double scale = Exp(0.5 * UnitNormal(key, kChannelScale, c)) * (outlier ? 10 : 1);
    channel_scale_[c] = static_cast<float>(scale) * style.v_factor;
  }
  for (std::uint64_t c = 0; c < std::size(key_bias_); ++c) {
    key_bias_[c] = style.correlated ? 0.5f * UnitNormal(key, kKeyBias, c) : 0.0f;
  }
}

// silu(z) + bias, divided by its norm in fp32.
void TokenSource::UnitRow(std::uint64_t tensor, std::int64_t row, const float* bias,
                          bf16* out) const {
  float x[kHeadSize];
  float sum = 0;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    const double z = UnitNormal(key_, tensor, Index(row * kHeadSize + i));
    x[i] = static_cast<float>(z / (1 + Exp(-z)));
    if (bias != nullptr) x[i] += bias[i];
    sum += x[i] * x[i];
  }
  const float norm = std::sqrt(sum + 1e-6f);
  for (std::int64_t i = 0; i < kHeadSize; ++i) out[i] = ToBF16(x[i] / norm);
}

void TokenSource::Queries(std::int64_t token, bf16* q) const {
  for (std::int64_t c = 0; c < kKeyHeads; ++c) {
    UnitRow(kQ, token * kKeyHeads + c, nullptr, q + c * kHeadSize);
  }
}

void TokenSource::Keys(std::int64_t token, bf16* k) const {
  for (std::int64_t c = 0; c < kKeyHeads; ++c) {
    UnitRow(kK, token * kKeyHeads + c, key_bias_ + c * kHeadSize, k + c * kHeadSize);
  }
}

void TokenSource::ValueRow(std::uint64_t tensor, std::int64_t row, bf16* out) const {
  const float* scale = channel_scale_ + row % kValueHeads * kHeadSize;
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    out[i] = ToBF16(UnitNormal(key_, tensor, Index(row * kHeadSize + i)) * scale[i]);
  }
}

void TokenSource::Values(std::int64_t token, bf16* v) const {
  for (std::int64_t h = 0; h < kValueHeads; ++h) {
    ValueRow(kV, token * kValueHeads + h, v + h * kHeadSize);
  }
}

void TokenSource::DecayInputs(std::int64_t token, bf16* a) const {
  for (std::int64_t h = 0; h < kValueHeads; ++h) {
    a[h] = ToBF16(UnitNormal(key_, kA, Index(token * kValueHeads + h)));
  }
}

void TokenSource::BetaInputs(std::int64_t token, bf16* b) const {
  for (std::int64_t h = 0; h < kValueHeads; ++h) {
    b[h] = ToBF16(1.5f * UnitNormal(key_, kB, Index(token * kValueHeads + h)));
  }
}

void TokenSource::HeadParameters(float* a_log, float* dt_bias) const {
  const double low = Log(1e-3), high = Log(1e-1);
  for (std::int64_t h = 0; h < kValueHeads; ++h) {
    a_log[h] = static_cast<float>(Log(0.5 + 15.5 * Uniform(key_, kALog, Index(h))));
    const double dt = Exp(low + (high - low) * Uniform(key_, kDtBias, Index(h)));
    dt_bias[h] = static_cast<float>(Log(Exp(dt) - 1));  // softplus(dt_bias) = dt
  }
}

void TokenSource::HistoryState(std::int64_t history, std::int64_t head, float* state) const {
  float a_log[kValueHeads], dt_bias[kValueHeads];
  HeadParameters(a_log, dt_bias);
  const std::int64_t c = head / 2;
  alignas(64) float s[kHeadSize][kHeadSize] = {};  // [K][V]: inner loops run over independent rows
  for (std::int64_t step = 0; step < kHistoryTokens; ++step) {
    const std::int64_t token = history * kHistoryTokens + step;
    bf16 k[kHeadSize], v[kHeadSize];
    UnitRow(kHistoryK, token * kKeyHeads + c, key_bias_ + c * kHeadSize, k);
    ValueRow(kHistoryV, token * kValueHeads + head, v);
    const std::uint64_t gate = Index(token * kValueHeads + head);
    const double x = static_cast<double>(UnitNormal(key_, kHistoryA, gate)) + dt_bias[head];
    const auto g = static_cast<float>(Exp(-Exp(a_log[head]) * Softplus(x)));
    const double b = 1.5 * UnitNormal(key_, kHistoryB, gate);
    const auto beta = static_cast<float>(1 / (1 + Exp(-b)));
    float u[kHeadSize] = {};
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      const float k_i = ToFloat(k[i]);
      for (std::int64_t j = 0; j < kHeadSize; ++j) u[j] += s[i][j] * k_i;
    }
    for (std::int64_t j = 0; j < kHeadSize; ++j) u[j] = beta * (ToFloat(v[j]) - g * u[j]);
    for (std::int64_t i = 0; i < kHeadSize; ++i) {
      const float k_i = ToFloat(k[i]);
      for (std::int64_t j = 0; j < kHeadSize; ++j) s[i][j] = g * s[i][j] + u[j] * k_i;
    }
  }
  for (std::int64_t i = 0; i < kHeadSize; ++i) {
    for (std::int64_t j = 0; j < kHeadSize; ++j) state[j * kHeadSize + i] = s[i][j];
  }
}

}  // namespace assay::gdn_decode
