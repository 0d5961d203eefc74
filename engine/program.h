// The step program: everything one decode or verify step does, as tasks over named buffers that
// wait for counters. Plain data, built once per (model, rows, layout); every executor runs the same
// one.
//
// Dynamic inside a step are only: which experts (a compact list that a task writes), which tokens
// (the selection), and how many index tiles a context has. Everything else is static.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config.h"

namespace assay::engine {

// What a task computes. Bodies: engine/step.h.
enum class Op : std::uint8_t {
  // trunk residual streams
  kMix,    // (row, slice): output of the previous site into the streams, partial mixes of the next
  kMixIn,  // (row): Sinkhorn, mixed and normed input of a site
  // KDA
  kKdaIn,   // (matrix, tile): q, k, v, b, f_a, g_a
  kKda,     // (request, head, half of V): convolution, gates, recurrence over the request's rows
  kKdaOut,  // (tile): gated norm, o_proj
  // DSA
  kDsaIn,       // (matrix, tile): q_a, kv_a, index key, pool gate, index head weights
  kAppend,      // (request): latent, ring and pools of its rows, in row order
  kQuery,       // (head): q and its latent form
  kIndexQuery,  // (index head): rotated, quantised
  kIndexScore,  // (request, tile of 64 pools)
  kSelect,      // (row): best pools, their tokens, the open tail
  kAttend,      // (row, chunk of 256 tokens)
  kValues,      // (row, head): chunks combined left to right, value rows
  kDsaOut,      // (tile): o_proj
  // FFN
  kDenseUp,
  kDenseDown,  // (tile)
  kRouter,     // (tile): logits
  kRoute,      // all rows: experts of each row, rows of each expert
  kSharedUp,
  kSharedDown,  // (tile)
  kExpertUp,
  kExpertDown,  // (slot of the compact list, tile)
  // ends
  kEnd,   // (row): mean of the streams, final norm
  kHead,  // (tile): logits
  // MTP layer
  kMtpEmbed,     // (row): normed embedding and hidden side by side
  kMtpProject,   // (tile)
  kMtpResidual,  // (row): output of the previous site added, normed input of the next
  kCount,
};
const char* OpName(Op op);

// The step's memory. Each buffer is a matrix; a step uses the same ones in every layer.
enum class Buf : std::uint8_t {
  kStreams,       // bf16 [rows, 4 hidden]; MTP: [rows, hidden]
  kPartials,      // fp32 [rows, slices * 25]: 24 mixes and the sum of squares
  kHyper,         // fp32 [rows, 20]: post[4], C[4][4]
  kInput,         // bf16 [rows, hidden]: u
  kProjected,     // bf16 [rows, q k v f_a g_a | q_a kv_a key gate]: see KdaColumns, DsaColumns
  kHeadScale,     // fp32 [rows, heads]: KDA b (bf16 values), DSA index head weights
  kGate,          // bf16 [rows, channels]: raw output gate of KDA
  kValues,        // bf16 [rows, channels or heads v]: attention result before o_proj
  kOutput,        // bf16 [rows, hidden]: y of a site with one producer
  kQuery,         // bf16 [rows, heads kv_lora]
  kIndexQuery,    // e4m3 [rows, index_heads index_dim]
  kIndexWeight,   // fp32 [rows, index_heads]: head weight times query scale
  kScores,        // fp32 [rows, pools of the bucket]
  kSelected,      // i32 [rows, 2 + top pools + token capacity]: pools, tokens (with their counts)
  kChunkStats,    // fp32 [rows, chunks * heads * 2]: maximum, sum
  kChunkSums,     // fp32 [rows, chunks * heads * kv_lora]
  kActivated,     // bf16 [rows, dense inter or shared inter]
  kRouterLogits,  // fp32 [rows, experts]
  kRoutes,        // i32 [1, ...]: see RouteTable in engine/step.h
  kRouteWeights,  // fp32 [rows, top-k]: 2.5 p_e by ascending expert
  kExpertAct,     // bf16 [slots * rows, inter]: slot of the compact list, then row
  kExpertOut,     // bf16 [slots * rows, hidden]
  kMtpInput,      // bf16 [rows, 2 hidden]
  kHidden,        // bf16 [rows, hidden]: f, or the MTP row's h
  kLogits,        // fp32 [rows, vocab]
  // Persistent state, one row per request of the step.
  kLatents,
  kRing,
  kPools,  // per DSA layer: [requests, 1] each
  kKdaState,
  kConvWindow,  // what kKda reads and writes: [requests, heads * 2]
  kCount,
};
const char* BufName(Buf buffer);

enum class Element : std::uint8_t { kBF16, kF32, kI32, kE4M3, kState };
const char* ElementName(Element element);

struct Buffer {
  Element element = Element::kBF16;
  std::int64_t rows = 0, columns = 0;  // 0 rows: not used by this program
  bool state = false;                  // lives in engine/state.h, not in the workspace
};

// A rectangle of a buffer. State buffers of different layers are different memory.
struct Region {
  Buf buffer = Buf::kCount;
  std::int64_t layer = -1;  // state buffers only
  std::int64_t row0 = 0, row1 = 0, column0 = 0, column1 = 0;
  bool Overlaps(const Region& other) const {
    return buffer == other.buffer && layer == other.layer && row0 < other.row1 &&
           other.row0 < row1 && column0 < other.column1 && other.column0 < column1;
  }
};

struct Wait {
  int counter = 0;
  int target = 0;  // signals within this step; executors scale it by the epoch
};

struct Task {
  Op op = Op::kCount;
  std::int16_t layer = 0;
  std::int16_t part = 0;  // matrix of an input stage, half of V, FFN or attention site
  std::int32_t row = -1;  // -1: all rows, or those of `request`
  std::int32_t request = -1;
  std::int32_t index = 0;       // slice, head, chunk, tile of pools, slot
  std::int32_t n0 = 0, n1 = 0;  // output columns of a tile
  std::vector<Region> reads, writes;
  std::vector<Wait> waits;
  std::vector<int> signals;
  std::int32_t worker = 0;  // static assignment; a worker runs its tasks in program order
};

struct Counter {
  std::string name;
  int signals = 0;  // in one step
};

enum class CommitMode : std::uint8_t {
  kReplay,   // rows log their rank-1 updates; the next step re-applies the accepted ones first
  kScratch,  // rows leave whole states behind; commit copies one
};
const char* CommitModeName(CommitMode mode);

enum class ProgramKind : std::uint8_t {
  kTrunk,     // decode (1 row per request) or verify (drafts + 1)
  kMtp,       // rows of the MTP layer with a selection of their own
  kMtpChain,  // rows that reuse a selection made earlier
};

struct ProgramShape {
  ProgramKind kind = ProgramKind::kTrunk;
  int requests = 1;
  int rows_per_request = 1;
  std::int64_t context = 0;  // bucket: no request may be longer, new rows included
  int workers = 1;           // of the static assignment
};

// Sizes of tasks. Bits never depend on them, except kAttendChunk and kMixSlice, which are part of
// the arithmetic.
inline constexpr std::int64_t kAttendChunk = 256;  // tokens of one softmax chunk
inline constexpr std::int64_t kMixSlice = 64;      // columns of one partial mix
inline constexpr std::int64_t kPoolTile = 64;      // pools of a score task
inline constexpr std::int64_t kTileColumns = 64;   // outputs of a matrix tile

inline constexpr int kMaxRows = 16;  // of one step

struct Program {
  ModelConfig model;
  ProgramShape shape;
  std::vector<Buffer> buffers;  // by Buf
  std::vector<Counter> counters;
  std::vector<Task> tasks;  // in an order that is legal for one worker

  int rows() const { return shape.requests * shape.rows_per_request; }
  const Buffer& buffer(Buf b) const { return buffers[static_cast<std::size_t>(b)]; }
  std::int64_t max_pools() const { return shape.context / kPoolTokens; }
  std::int64_t token_capacity() const;  // tokens a row can attend
  std::int64_t chunks() const { return (token_capacity() + kAttendChunk - 1) / kAttendChunk; }
  std::int64_t slices() const { return model.hidden / kMixSlice; }
};

// Throws kInput with a sentence for shapes that cannot run: no rows, more than kMaxRows, a context
// above the model's positions.
Program BuildProgram(const ModelConfig& model, const ProgramShape& shape);

// Column layout of Buf::kProjected; the parts of kKdaIn and kDsaIn in this order. Parts whose
// result is fp32 (b, index head weights) go to Buf::kHeadScale instead.
struct Column {
  std::int64_t begin = 0, count = 0;
};
enum KdaPart { kPartQ, kPartK, kPartV, kPartFa, kPartGa, kPartB, kKdaParts };
enum DsaPart { kPartQa, kPartKvA, kPartIndexKey, kPartPoolGate, kPartIndexHead, kDsaParts };
Column KdaColumns(const ModelConfig& model, KdaPart part);
Column DsaColumns(const ModelConfig& model, DsaPart part);

// ---- engine/validate.cpp ----

// Everything that is wrong with a program, one sentence each, most basic first; empty = legal:
// cycles, waits that cannot be met, joins that miss a split, reads before their writers, writes
// under a reader, unordered writes of one region, regions out of bounds, a static assignment that
// blocks. `limit`: how many sentences at most.
std::vector<std::string> Validate(const Program& program, int limit = 20);

// ---- engine/print.cpp ----

std::string DescribeTask(const Program& program, std::size_t task);  // "L3 attend row 2 chunk 0"
// Stages with their tasks, buffers and waits; at most `layers` layers in full.
std::string ProgramText(const Program& program, int layers = 2);
std::string ProgramJson(const Program& program);
// The stages of one KDA and one DSA layer as a picture (SVG), drawn from the tasks.
std::string ProgramSvg(const Program& program);
// 64-bit name of the tasks with their regions and counters; texts of a program begin with it.
std::uint64_t ProgramHash(const Program& program);

}  // namespace assay::engine
