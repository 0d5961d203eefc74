// What the first kernel of the chunk path hands to the second, against fp64 on the host. For tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "cuda/check.h"
#include "ops/gdn_prefill/sm90_chunk.cuh"

namespace assay::gdn_prefill {

// The largest absolute error of each part, and where (row, column) and what it was.
struct PartError {
  double error = 0, got = 0, expected = 0;
  std::int64_t slot = -1;
  int head = 0, row = 0, column = 0;

  void Look(double new_got, double new_expected, std::int64_t at_slot, int at_head, int at_row,
            int at_column) {
    const double new_error = std::abs(new_got - new_expected);
    if (new_error <= error) return;
    *this = {std::isnan(new_error) ? 1e30 : new_error,
             new_got,
             new_expected,
             at_slot,
             at_head,
             at_row,
             at_column};
  }
  std::string Text() const {
    char text[160];
    std::snprintf(text, sizeof(text), "%.2e (slot %ld head %d row %d column %d: %.6g, not %.6g)",
                  error, static_cast<long>(slot), head, row, column, got, expected);
    return text;
  }
};
struct FactorErrors {
  PartError k, q, t, p, gates;
};

// Element of a matrix with rows of 64; further columns in blocks of 64.
inline double HalfAt(const std::uint16_t* tile, int row, int column) {
  const int unit = column % 64 / 8 ^ (row & 7);
  const int at = column / 64 * kChunk * 64 + row * 64 + unit * 8 + column % 8;
  return static_cast<double>(__half2float(__ushort_as_half(tile[at])));
}

// T = (I + A)^-1 row by row: row i is e_i - sum_j A_ij row j.
inline std::vector<double> InverseOf(const std::vector<double>& a) {
  std::vector<double> t(kChunk * kChunk);
  for (int i = 0; i < kChunk; ++i) {
    t[i * kChunk + i] = 1;
    for (int j = 0; j < i; ++j) {
      for (int c = 0; c <= j; ++c) t[i * kChunk + c] -= a[i * kChunk + j] * t[j * kChunk + c];
    }
  }
  return t;
}

// `host`: the inputs in host memory. One chunk of `tokens` tokens from `begin` on.
inline void CheckChunk(const Args& host, std::int64_t begin, int tokens, std::int64_t slot,
                       const KeyTile* keys, const HeadTile* heads, FactorErrors& errors) {
  for (int h = 0; h < kValueHeads; ++h) {
    const int c = h / 2;
    std::vector<double> k(kChunk * kHeadSize), q(k), g(kChunk), beta(kChunk);
    for (int i = 0; i < kChunk; ++i) {
      g[i] = i > 0 ? g[i - 1] : 0;
      for (int d = 0; d < kHeadSize; ++d) {
        if (i < tokens) {
          const std::int64_t at = ((begin + i) * kKeyHeads + c) * kHeadSize + d;
          k[i * kHeadSize + d] = ToFloat(host.k[at]);
          q[i * kHeadSize + d] = ToFloat(host.q[at]);
        }
        errors.k.Look(HalfAt(keys[c].k[0], i, d), k[i * kHeadSize + d], slot, c, i, d);
        errors.q.Look(HalfAt(keys[c].q[0], i, d), q[i * kHeadSize + d], slot, c, i, d);
      }
      if (i >= tokens) continue;
      const std::int64_t at = (begin + i) * kValueHeads + h;
      const double x = static_cast<double>(ToFloat(host.a[at])) + host.dt_bias[h];
      g[i] += std::max(-120.0, -std::exp(static_cast<double>(host.a_log[h])) *
                                   (x > 20 ? x : std::log1p(std::exp(x))));
      beta[i] = 1 / (1 + std::exp(-static_cast<double>(ToFloat(host.b[at]))));
    }
    std::vector<double> a(kChunk * kChunk), p(a);
    for (int i = 0; i < kChunk; ++i) {
      for (int j = 0; j <= i; ++j) {
        double kk = 0, qk = 0;
        for (int d = 0; d < kHeadSize; ++d) {
          kk += k[i * kHeadSize + d] * k[j * kHeadSize + d];
          qk += q[i * kHeadSize + d] * k[j * kHeadSize + d];
        }
        if (j < i) a[i * kChunk + j] = beta[i] * std::exp(g[i] - g[j]) * kk;
        p[i * kChunk + j] = std::exp(g[i] - g[j]) * qk;
      }
    }
    for (int i = 0; i < kChunk; ++i) {
      const double gates[kGates] = {beta[i], beta[i] * std::exp(g[i]), std::exp(g[i]),
                                    std::exp(g[kChunk - 1] - g[i])};
      for (int gate = 0; gate < kGates; ++gate) {
        errors.gates.Look(heads[h].gates[gate][i], gates[gate], slot, h, gate, i);
      }
    }
    const std::vector<double> t = InverseOf(a);
    for (int i = 0; i < kChunk; ++i) {
      for (int j = 0; j < kChunk; ++j) {
        errors.t.Look(HalfAt(heads[h].t, i, j), t[i * kChunk + j], slot, h, i, j);
        errors.p.Look(HalfAt(heads[h].p, i, j), p[i * kChunk + j], slot, h, i, j);
      }
    }
  }
}

// Runs the first kernel and looks at everything it wrote. `args` on the device, `host` in host
// memory.
inline FactorErrors CheckFactors(const Args& args, const Args& host) {
  const auto slots = static_cast<std::size_t>(FirstSlot(args.tokens, args.sequences));
  Workspace workspace;
  CheckCuda(cudaMalloc(&workspace.keys, slots * kKeyHeads * sizeof(KeyTile)), "cudaMalloc");
  CheckCuda(cudaMalloc(&workspace.heads, slots * kValueHeads * sizeof(HeadTile)), "cudaMalloc");
  CheckCuda(cudaMemset(workspace.keys, 0xFF, slots * kKeyHeads * sizeof(KeyTile)), "cudaMemset");
  CheckCuda(cudaMemset(workspace.heads, 0xFF, slots * kValueHeads * sizeof(HeadTile)),
            "cudaMemset");
  LaunchFactors(args, workspace, nullptr);
  std::vector<KeyTile> keys(slots * kKeyHeads);
  std::vector<HeadTile> heads(slots * kValueHeads);
  CheckCuda(cudaMemcpy(keys.data(), workspace.keys, keys.size() * sizeof(KeyTile),
                       cudaMemcpyDeviceToHost),
            "FactorsKernel");
  CheckCuda(cudaMemcpy(heads.data(), workspace.heads, heads.size() * sizeof(HeadTile),
                       cudaMemcpyDeviceToHost),
            "cudaMemcpy");
  CheckCuda(cudaFree(workspace.keys), "cudaFree");
  CheckCuda(cudaFree(workspace.heads), "cudaFree");
  FactorErrors errors;
  for (std::int64_t s = 0; s < args.sequences; ++s) {
    const std::int64_t begin = host.cu_seqlens[s], end = host.cu_seqlens[s + 1];
    for (std::int64_t first = begin; first < end; first += kChunk) {
      const std::int64_t slot = FirstSlot(begin, s) + (first - begin) / kChunk;
      CheckChunk(host, first, static_cast<int>(std::min<std::int64_t>(kChunk, end - first)), slot,
                 keys.data() + slot * kKeyHeads, heads.data() + slot * kValueHeads, errors);
    }
  }
  return errors;
}

}  // namespace assay::gdn_prefill
