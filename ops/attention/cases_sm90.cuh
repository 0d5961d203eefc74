// Cases of attention in device memory, random data, poisoned outputs with guards: what the device
// tests and the bench share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda/check.h"
#include "cuda/random_fill.h"
#include "ops/attention/sm90.h"

namespace assay::attention {

template <class T>
T* Allocate(std::int64_t count) {
  void* memory = nullptr;
  CheckCuda(
      cudaMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * sizeof(T)),
      "cudaMalloc");
  return static_cast<T*>(memory);
}

// x = x * scale + spread * (a number in [-1, 1] that depends on the channel).
static __global__ void ShapeKernel(std::uint16_t* x, std::int64_t count, int channels, float scale,
                                   float spread) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const auto channel = static_cast<unsigned>(i % channels);
    const float mean = static_cast<float>(channel * 2654435761u >> 8) * 0x1p-23f - 1;
    const float value = __int_as_float(x[i] << 16) * scale + spread * mean;
    x[i] = static_cast<std::uint16_t>(__bfloat16_as_ushort(__float2bfloat16_rn(value)));
  }
}

inline bf16* AllocateRandom(std::int64_t count, std::uint64_t tensor, int channels, float scale,
                            float spread) {
  bf16* data = Allocate<bf16>(count);
  if (count == 0) return data;
  FillUnitNormal(DType::kBF16, reinterpret_cast<std::byte*>(data), count, 20261130, tensor,
                 nullptr);
  ShapeKernel<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(data), count, channels, scale,
                             spread);
  CheckCuda(cudaGetLastError(), "launch of ShapeKernel");
  return data;
}

struct Case {
  std::int64_t b = 1, h = 32, d = 128, nq = 0, nk = 0, np = 0;
  int mask = 0;  // 1: [B,Nk], 2: [B,1,Nq,Nk], both with a row that sees nothing; 3: all true
  bool block_causal = false;
  std::vector<ImageBlock> blocks = {};

  std::string Name() const {
    std::string name = "B" + std::to_string(b) + " H" + std::to_string(h) + " D" +
                       std::to_string(d) + " " + std::to_string(nq) + "x" + std::to_string(nk);
    if (np > 0) name += "+" + std::to_string(np);
    if (mask > 0) name += " mask" + std::to_string(mask);
    if (block_causal) name += " blocks" + std::to_string(blocks.size());
    return name;
  }
  double Flop() const {
    double pairs = static_cast<double>(nq) * static_cast<double>(nk + np);
    if (block_causal) {
      pairs = static_cast<double>(nq) * static_cast<double>(nq + 1) / 2;
      for (const ImageBlock& x : blocks) {
        const double n = x.end - x.start;
        pairs += n * (n - 1) / 2;
      }
    }
    return 4.0 * static_cast<double>(b * h * d) * pairs;
  }
};

// Tensors of a case; O starts as NaN and has room behind it that must stay NaN.
class CaseData {
 public:
  explicit CaseData(const Case& c, float temperature = 3) : case_(c) {
    Sm90Tensors& x = call.tensors;
    x.batch = c.b, x.heads = c.h, x.head_dim = c.d, x.queries = c.nq;
    const int inner = static_cast<int>(c.h * c.d);
    const auto make = [&](std::int64_t tokens, std::uint64_t tensor, float scale, float spread) {
      bf16* p = AllocateRandom(c.b * tokens * inner, tensor, inner, scale, spread);
      memory_.push_back(p);
      return p;
    };
    x.q = make(c.nq, 0, temperature, 0);
    x.suffix = {c.nk, make(c.nk, 1, 1, 0), Strides::Contiguous(c.nk, c.h, c.d), make(c.nk, 2, 1, 1),
                Strides::Contiguous(c.nk, c.h, c.d)};
    x.prefix = {c.np, make(c.np, 3, 1, 0), Strides::Contiguous(c.np, c.h, c.d), make(c.np, 4, 1, 2),
                Strides::Contiguous(c.np, c.h, c.d)};
    x.q_strides = x.o_strides = Strides::Contiguous(c.nq, c.h, c.d);
    o_count_ = c.b * c.nq * inner;
    x.o = Allocate<bf16>(o_count_ + kGuard);
    memory_.push_back(x.o);
    x.lse = Allocate<float>(c.b * c.h * c.nq);
    memory_.push_back(x.lse);
    call.workspace = Allocate<char>(static_cast<std::int64_t>(Sm90WorkspaceBytes()));
    CheckCuda(cudaMemset(call.workspace, 0, Sm90WorkspaceBytes()), "workspace");
    memory_.push_back(call.workspace);
    call.block_causal = c.block_causal;
    call.blocks = c.blocks;
    if (c.mask > 0) MakeMask();
    Poison();
  }
  ~CaseData() {
    for (void* p : memory_) cudaFree(p);
  }
  CaseData(const CaseData&) = delete;
  CaseData& operator=(const CaseData&) = delete;

  void Poison() {
    CheckCuda(cudaMemset(call.tensors.o, 0xFF, static_cast<std::size_t>(o_count_ + kGuard) * 2),
              "cudaMemset");
  }
  std::vector<std::uint16_t> Output() const {
    std::vector<std::uint16_t> all(static_cast<std::size_t>(o_count_ + kGuard));
    CheckCuda(cudaMemcpy(all.data(), call.tensors.o, all.size() * 2, cudaMemcpyDeviceToHost),
              "output");
    return all;
  }
  bool GuardTouched(const std::vector<std::uint16_t>& all) const {
    return std::any_of(all.end() - kGuard, all.end(), [](std::uint16_t x) { return x != 0xFFFF; });
  }
  Sm90Call call;

 private:
  static constexpr std::int64_t kGuard = 4096;
  void MakeMask() {
    Sm90Mask& mask = call.tensors.mask;
    const std::int64_t rows = case_.mask == 2 ? case_.nq : 1;
    std::vector<std::uint8_t> host(static_cast<std::size_t>(case_.b * rows * case_.nk));
    std::mt19937 random(7);
    for (std::size_t i = 0; i < host.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i) / case_.nk;
      host[i] = case_.mask == 3 ||
                (random() % 4 != 0 && (case_.mask != 2 || row % case_.nq != case_.nq / 2));
    }
    std::uint8_t* device = Allocate<std::uint8_t>(static_cast<std::int64_t>(host.size()));
    CheckCuda(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice), "mask");
    memory_.push_back(device);
    mask = {device, rows * case_.nk, 0, rows == 1 ? 0 : case_.nk, 1};
  }
  Case case_;
  std::int64_t o_count_ = 0;
  std::vector<void*> memory_;
};

// Lengths around every tile border, prefixes that pack and that do not, masks, blocks.
inline std::vector<Case> AwkwardCases() {
  std::vector<Case> cases;
  for (const std::int64_t d : {64, 128}) {
    for (const auto& [q, k] : {std::pair<int, int>{1, 1},
                               {51, 51},
                               {64, 64},
                               {65, 63},
                               {126, 126},
                               {129, 1},
                               {200, 513},
                               {51, 1120},
                               {300, 177},
                               {1120, 51},
                               {257, 352},
                               {193, 129}}) {
      cases.push_back({2, 3, d, q, k});
    }
    for (const int mask : {1, 2, 3}) cases.push_back({2, 3, d, 130, 200, 0, mask});
  }
  for (const std::int64_t np : {1, 7, 8, 9, 25, 31, 32, 33, 175, 176, 177, 400}) {
    cases.push_back({1, 2, 128, 200, 200, np});
  }
  cases.push_back({1, 2, 128, 352, 352, 176});
  cases.push_back({2, 2, 128, 32, 32, 0, 0, true});
  cases.push_back({1, 2, 128, 700, 700, 0, 0, true});
  cases.push_back({1, 2, 128, 700, 700, 0, 0, true, {{0, 700}}});
  cases.push_back({1, 2, 128, 725, 725, 0, 0, true, {{8, 704}}});
  cases.push_back({1, 2, 128, 500, 500, 0, 0, true, {{3, 64}, {64, 129}, {140, 141}, {300, 450}}});
  cases.push_back({1, 33, 128, 700, 700});  // more tiles than multiprocessors
  cases.push_back({1, 60, 64, 700, 300});
  cases.push_back({1, 140, 128, 130, 100});  // and few key tiles each
  cases.push_back({1, 100, 128, 300, 300});
  cases.push_back({1, 150, 64, 300, 100});
  return cases;
}

}  // namespace assay::attention
