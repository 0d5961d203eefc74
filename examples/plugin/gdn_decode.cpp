// A complete plugin: gdn_decode in plain loops. The operator's page is ops/gdn_decode/README.md.
#include <assay_plugin.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kHeads = 8, kKeyHeads = 4, kSize = 128;

float FromBf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

std::uint16_t ToBf16(float value) {  // round to nearest, ties to even
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void* Data(const AssayNamedTensor* tensors, std::size_t count, const char* name) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(tensors[i].name, name) == 0) return tensors[i].tensor.data;
  }
  return nullptr;  // an optional input that this call does not have
}

template <class T>
const T* Input(const AssayCall* call, const char* name) {
  return static_cast<const T*>(Data(call->inputs, call->input_count, name));
}

template <class T>
T* Output(const AssayCall* call, const char* name) {
  return static_cast<T*>(Data(call->outputs, call->output_count, name));
}

std::vector<float> Row(const std::uint16_t* values) {
  std::vector<float> row(kSize);
  for (int i = 0; i < kSize; ++i) row[i] = FromBf16(values[i]);
  return row;
}

// S <- g S + beta (v - g S k) k^T, out = scale S q, for value head h of sequence n.
void Head(const AssayCall* call, std::int64_t n, int h) {
  const std::int64_t row = n * kHeads + h;
  const std::int64_t key_row = n * kKeyHeads + h / (kHeads / kKeyHeads);
  const std::vector<float> q = Row(Input<std::uint16_t>(call, "q") + key_row * kSize);
  const std::vector<float> k = Row(Input<std::uint16_t>(call, "k") + key_row * kSize);
  const std::vector<float> v = Row(Input<std::uint16_t>(call, "v") + row * kSize);
  const float x = FromBf16(Input<std::uint16_t>(call, "a")[row]) + Input<float>(call, "dt_bias")[h];
  const float softplus = x > 20 ? x : std::log1p(std::exp(x));
  const float g = std::exp(-std::exp(Input<float>(call, "A_log")[h]) * softplus);
  const float beta = 1 / (1 + std::exp(-FromBf16(Input<std::uint16_t>(call, "b")[row])));
  const float* given = Input<float>(call, "scale");
  const float scale = given != nullptr && *given != 0 ? *given : 1 / std::sqrt(float{kSize});
  const float* state = Input<float>(call, "state");
  for (int i = 0; i < kSize; ++i) {
    const std::int64_t at = (row * kSize + i) * kSize;
    float* next = Output<float>(call, "new_state") + at;
    float kept = 0, sum = 0;
    for (int j = 0; j < kSize; ++j) {
      next[j] = state != nullptr ? g * state[at + j] : 0;
      kept += next[j] * k[j];
    }
    for (int j = 0; j < kSize; ++j) {
      next[j] += beta * (v[i] - kept) * k[j];
      sum += next[j] * q[j];
    }
    Output<std::uint16_t>(call, "output")[row * kSize + i] = ToBf16(scale * sum);
  }
}

int Run(const AssayCall* call) {
  const std::int64_t batch = call->outputs[0].tensor.shape[0];
  for (std::int64_t n = 0; n < batch; ++n) {
    for (int h = 0; h < kHeads; ++h) Head(call, n, h);
  }
  return 0;
}

const AssayBackend kBackends[] = {
    {"example", "gdn_decode", "plain loops, one thread", nullptr, nullptr, Run, nullptr},
};

}  // namespace

const AssayBackend* assay_plugin_backends(uint32_t host_abi, size_t* count) {
  *count = sizeof kBackends / sizeof kBackends[0];
  return host_abi == ASSAY_PLUGIN_ABI ? kBackends : nullptr;
}
