// The row kernel on vectors: lanes run along K, so that a row is read once and written once.
// Included by the translation unit of one instruction set (see cpu/lanes.h).
#pragma once

#include <algorithm>

#include "cpu/lanes.h"
#include "ops/gdn_decode/cpu_rows.h"
#include "ops/gdn_decode/spec.h"

namespace assay::gdn_decode {
namespace {

using cpu::Broadcast;
using cpu::Floats;
using cpu::kLanes;
using cpu::Load;
using cpu::Store;

alignas(64) constexpr float kZeroRow[kHeadSize] = {};

// One pass over a row: s_k = S k and s_q = S q, then S_out = g S + u k^T with
// u = beta (v - g s_k) and output = scale (g s_q + u k.q). The row is still in L1 for its second
// use.
void StepRows(const RowTask& task) {
  constexpr int kVectors = kHeadSize / kLanes;
  // The sums of a row separate its reads from its writes, so the hardware sees short bursts: fetch
  // rows ahead of both streams. (Written lines too: they are read for ownership anyway.)
  constexpr std::int64_t kAhead = 4;
  constexpr int kLineFloats = 16;
  constexpr int kSums = 4;  // independent chains: 2 x 4 hide the latency of a multiply-add
  alignas(64) float k[kHeadSize], q[kHeadSize], v[kHeadSize], out[kHeadSize];
  Floats kq = {};
  for (int i = 0; i < kHeadSize; i += kLanes) {
    const Floats k_i = Load(task.k + i), q_i = Load(task.q + i);
    Store(k_i, k + i);
    Store(q_i, q + i);
    Store(Load(task.v + i), v + i);
    kq += k_i * q_i;
  }
  const float k_dot_q = cpu::Sum(kq);
  const Floats g = Broadcast(task.g);
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    const float* s = task.state != nullptr ? task.state + row * kHeadSize : kZeroRow;
    const std::int64_t ahead = std::min(row + kAhead, task.row_end - 1);
    for (int i = 0; i < kHeadSize; i += kLineFloats) {
      if (task.state != nullptr) __builtin_prefetch(task.state + ahead * kHeadSize + i, 0);
      __builtin_prefetch(task.new_state + ahead * kHeadSize + i, 1);
    }
    Floats s_k[kSums] = {}, s_q[kSums] = {};
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) {
      const Floats x = Load(s + i * kLanes);
      s_k[i % kSums] += x * Load(k + i * kLanes);
      s_q[i % kSums] += x * Load(q + i * kLanes);
    }
    const float sum_k = cpu::Sum((s_k[0] + s_k[1]) + (s_k[2] + s_k[3]));
    const float sum_q = cpu::Sum((s_q[0] + s_q[1]) + (s_q[2] + s_q[3]));
    const float u = task.beta * (v[row] - task.g * sum_k);
    out[row] = task.scale * (task.g * sum_q + u * k_dot_q);
    float* s_out = task.new_state + row * kHeadSize;
    const Floats u_lanes = Broadcast(u);
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) {
      Store(g * Load(s + i * kLanes) + u_lanes * Load(k + i * kLanes), s_out + i * kLanes);
    }
  }
  for (std::int64_t row = task.row_begin; row < task.row_end; row += kLanes) {
    Store(Load(out + row), task.output + row);
  }
}

}  // namespace
}  // namespace assay::gdn_decode
