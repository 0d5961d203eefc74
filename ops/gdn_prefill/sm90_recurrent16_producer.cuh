// Producer warps of the recurrent kernel: a chunk of tokens from memory to shared memory, and the
// coefficients that all rows of the state share. Included by sm90_recurrent16.cu only.
#pragma once

#include <cstdint>

#include "cuda/mbarrier.cuh"
#include "ops/gdn_decode/gates.cuh"
#include "ops/gdn_prefill/sm90_recurrent16_stage.cuh"

namespace assay::gdn_prefill {
namespace {

// A chunk as a producer lane holds it. Lane 4 i + p has of tokens i and i + 8 the columns 4 p + 16
// m
// .. + 3, which are fragments of a matrix product (any order of columns will do, if both operands
// have it).
template <int kTiles>
struct RawChunk {
  uint2 k[2][8], q[2][8];
  uint2 v[2 * kTiles];  // rows 4 (lane / 16 + 2 e) .. + 3 of token lane % 16
  float a, b;           // of that token
};

template <int kTiles>
__device__ RawChunk<kTiles> LoadChunk(const Args& args, const Task& task, std::int64_t chunk,
                                      int lane) {
  RawChunk<kTiles> raw = {};
  const std::int64_t first = task.begin + chunk * kChunk;
  const std::int64_t left = task.tokens - chunk * kChunk;  // 0 or less behind the last chunk
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = lane / 4 + kHalf * half;
    if (token >= left) continue;
    const std::int64_t at = ((first + token) * kKeyHeads + task.head / 2) * kWidth + lane % 4 * 4;
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      raw.k[half][m] = *reinterpret_cast<const uint2*>(args.k + at + 16 * m);
      raw.q[half][m] = *reinterpret_cast<const uint2*>(args.q + at + 16 * m);
    }
  }
  if (lane % kChunk < left) {
    const std::int64_t at = (first + lane % kChunk) * kValueHeads + task.head;
    raw.a = Widen(args.a[at]);
    raw.b = Widen(args.b[at]);
#pragma unroll
    for (int e = 0; e < 2 * kTiles; ++e) {
      raw.v[e] = *reinterpret_cast<const uint2*>(args.v + at * kWidth + task.row +
                                                 4 * (lane / kChunk + 2 * e));
    }
  }
  return raw;
}

template <int kTiles>
__device__ void StoreTokens(const RawChunk<kTiles>& raw, Stage<kTiles>& stage, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      const int token = lane / 4 + kHalf * half, column = lane % 4 * 4 + 16 * m;
      *reinterpret_cast<uint2*>(&stage.k[token][column]) = raw.k[half][m];
      *reinterpret_cast<uint2*>(&stage.q[token][column]) = raw.q[half][m];
    }
  }
}

// d[half] = x_i.k_j of the chunk for tokens j = 8 half ..: lane 4 i + p gets {i, i, i + 8, i + 8}
// with j = 8 half + {2 p, 2 p + 1, 2 p, 2 p + 1}.
__device__ void Gram(const uint2 (&x)[2][8], const uint2 (&k)[2][8], float (&d)[2][4]) {
  float odd[2][4] = {};
#pragma unroll
  for (int m = 0; m < 8; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      MmaBF16(m % 2 == 0 ? d[half] : odd[half], x[0][m].x, x[1][m].x, x[0][m].y, x[1][m].y,
              k[half][m].x, k[half][m].y);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 4; ++e) d[half][e] += odd[half][e];
  }
}

// Products of gates that a lane needs: rows i and i + 8 of the chunk, columns j = 2 p and 2 p + 1,
// and those 8 behind.
struct Decays {
  float low[2], cross[2], high[2];  // D(i, j + c), D(i + 8, j + c), D(i + 8, 8 + j + c)
  float start[2], tail[2], all;     // of rows i, i + 8: D(.,-1), D(15,.); D(15,-1)
};

__device__ Decays MultiplyGates(float gate, int i, int j) {
  Decays d;
  float first = 1, second = 1, to_middle[2] = {1, 1}, tail = 1, from_middle = 1;
  d.low[0] = d.low[1] = d.high[0] = d.high[1] = d.start[0] = d.tail[1] = 1;
#pragma unroll
  for (int m = 0; m < kHalf; ++m) {
    const float g0 = __shfl_sync(kFull, gate, m), g1 = __shfl_sync(kFull, gate, m + kHalf);
    const auto take = [](float& x, bool does, float g) { x = does ? x * g : x; };
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      take(d.low[c], m > j + c && m <= i, g0);
      take(to_middle[c], m > j + c, g0);
      take(d.high[c], m > j + c && m <= i, g1);
    }
    take(d.start[0], m <= i, g0);
    take(tail, m > i, g0);
    take(from_middle, m <= i, g1);
    take(d.tail[1], m > i, g1);
    first *= g0;
    second *= g1;
  }
  d.start[1] = first * from_middle;
  d.tail[0] = tail * second;
  d.all = first * second;
  d.cross[0] = to_middle[0] * from_middle;
  d.cross[1] = to_middle[1] * from_middle;
  return d;
}

// (1 + a)^-1 in place of a, column by column: lane j has column j of both.
template <int kTiles>
__device__ void Invert(Stage<kTiles>& stage, int lane) {
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] = i == lane % kChunk ? 1.0f : 0.0f;
#pragma unroll
  for (int s = 0; s + 1 < kChunk; ++s) {
    float a[kChunk];
#pragma unroll
    for (int i = (s + 1) / 4 * 4; i < kChunk; i += 4) {
      *reinterpret_cast<float4*>(&a[i]) = *reinterpret_cast<const float4*>(&stage.inverse[s][i]);
    }
#pragma unroll
    for (int i = s + 1; i < kChunk; ++i) x[i] = fmaf(-a[i], x[s], x[i]);
  }
  __syncwarp();
  if (lane < kChunk) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) stage.inverse[i][lane] = x[i];
  }
}

// `valid`: this lane's token, lane % 16, exists. Others keep the state: g = 1, beta = 0.
template <int kTiles>
__device__ void StoreCoefficients(const RawChunk<kTiles>& raw, Stage<kTiles>& stage, int lane,
                                  bool valid, float exp_a_log, float dt_bias, float scale) {
  const float gate = valid ? gdn_decode::Decay(exp_a_log, raw.a + dt_bias) : 1.0f;
  const float own_beta = valid ? gdn_decode::Beta(raw.b) : 0.0f;
  const int i = lane / 4, j = lane % 4 * 2;
  float kk[2][4] = {}, qk[2][4] = {};
  Gram(raw.k, raw.k, kk);
  Gram(raw.q, raw.k, qk);
  const Decays d = MultiplyGates(gate, i, j);
  const float beta[2] = {__shfl_sync(kFull, own_beta, i), __shfl_sync(kFull, own_beta, i + kHalf)};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    stage.inverse[j + c][i] = j + c < i ? beta[0] * d.low[c] * kk[0][c] : 0.0f;
    stage.inverse[j + c][i + kHalf] = beta[1] * d.cross[c] * kk[0][2 + c];
    stage.inverse[j + c + kHalf][i + kHalf] = j + c < i ? beta[1] * d.high[c] * kk[1][2 + c] : 0.0f;
    stage.p[i][j + c] = scale * d.low[c] * qk[0][c];
    stage.p[i + kHalf][j + c] = scale * d.cross[c] * qk[0][2 + c];
    stage.p[i + kHalf][j + c + kHalf] = scale * d.high[c] * qk[1][2 + c];
  }
  if (j == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      stage.beta_d[i + kHalf * half] = beta[half] * d.start[half];
      stage.scale_d[i + kHalf * half] = scale * d.start[half];
      stage.tail[i + kHalf * half] = d.tail[half];
    }
    stage.all[0] = d.all;
  }
  __syncwarp();
  Invert(stage, lane);
#pragma unroll
  for (int e = 0; e < 2 * kTiles; ++e) {
    const int token = lane % kChunk, row = 4 * (lane / kChunk + 2 * e);
    const uint2 v = raw.v[e];
    const float x[4] = {Low(v.x), High(v.x), Low(v.y), High(v.y)};
#pragma unroll
    for (int r = 0; r < 4; ++r) stage.beta_v[row + r][token] = own_beta * x[r];
  }
}

template <int kTiles>
__device__ void Produce(const Args& args, const Task& task, Shared<kTiles>& shared, int producer,
                        int lane) {
  const float exp_a_log = expf(args.a_log[task.head]), dt_bias = args.dt_bias[task.head];
  const float given = args.scale_at != nullptr ? *args.scale_at : args.scale;
  const float scale = given == 0 ? kDefaultScale : given;
  std::uint32_t parity = 1;  // the stage starts empty
  for (std::int64_t chunk = producer; chunk < task.chunks(); chunk += kProducerWarps) {
    const RawChunk<kTiles> raw = LoadChunk<kTiles>(args, task, chunk, lane);
    sm90::MbarrierWait(&shared.empty[producer], parity);
    __syncwarp();
    parity ^= 1;
    Stage<kTiles>& stage = shared.stage[producer];
    StoreTokens(raw, stage, lane);
    sm90::MbarrierArrive(&shared.tokens[producer]);
    const bool valid = lane % kChunk < task.tokens - chunk * kChunk;
    StoreCoefficients(raw, stage, lane, valid, exp_a_log, dt_bias, scale);
    sm90::MbarrierArrive(&shared.coefficients[producer]);
  }
}

}  // namespace
}  // namespace assay::gdn_prefill
