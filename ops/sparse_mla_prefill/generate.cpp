// Generated contents of sparse_mla_prefill: lists first, then only those workspace rows that some
// list has.
#include <algorithm>

#include "base/parallel.h"
#include "base/random.h"
#include "ops/mla/codec.h"
#include "ops/mla/inputs.h"
#include "ops/sparse_mla_prefill/chunk.h"
#include "ops/sparse_mla_prefill/lists.h"
#include "ops/sparse_mla_prefill/spec.h"

namespace assay::sparse_mla_prefill {
namespace {

// Positions in the declared order: the tensor numbers of the element source.
enum TensorNumber : std::uint64_t { kQ, kKv, kIndices, kTopkLength, kAttnSink };

constexpr std::int64_t kKeepPicks = 5;  // neighbouring queries share 80 % of their picks
constexpr std::int64_t kPageRows = 4;   // workspace rows of 1 KB in a page of memory
constexpr float kSpecialScale = 0.0625f;

// --- lists ---

// Compressed picks, the window directly after them, then -1. Returns the number of valid columns.
std::int32_t FillList(const Chunk& chunk, const PickSource& picks, std::int64_t row,
                      std::vector<bool>& seen, std::int32_t* list, std::int64_t width) {
  const Request& request = chunk.RequestOf(row);
  const std::int64_t query = row - request.first_row;
  std::vector<std::int32_t> columns;
  picks.Append(request, query, seen, columns);
  for (std::int32_t& pick : columns) pick += static_cast<std::int32_t>(request.compressed_base);
  const Request::Range window = request.WindowOf(request.first_position + query);
  for (std::int64_t i = 0; i < window.count; ++i) {
    columns.push_back(static_cast<std::int32_t>(window.first + i));
  }
  std::copy(columns.begin(), columns.end(), list);
  std::fill(list + columns.size(), list + width, -1);
  return static_cast<std::int32_t>(columns.size());
}

// What must be ignored behind topk_length, whatever it is.
void PoisonColumns(std::int64_t row, std::int64_t nkv, std::int32_t* begin, std::int32_t* end) {
  const std::int32_t junk[] = {INT32_MIN, -1, INT32_MAX, 0, static_cast<std::int32_t>(nkv), -2};
  for (std::int64_t n = row; begin != end; ++begin, ++n) *begin = junk[n % 6];
}

void GenerateLists(const Problem& problem, const Chunk& chunk, std::uint64_t key, Bundle& inputs) {
  const Lists lists = ListsOf(problem, inputs);
  auto* indices = inputs["indices"].as<std::int32_t>();
  Tensor* lengths = inputs.find("topk_length");
  const PickSource picks(chunk, key, problem.variant == "unshared" ? 1 : kKeepPicks);
  ParallelRanges(lists.m, 16, 0, [&](std::int64_t begin, std::int64_t end) {
    std::vector<bool> seen(static_cast<std::size_t>(chunk.window_base));
    for (std::int64_t row = begin; row < end; ++row) {
      std::int32_t* list = indices + row * lists.width;
      const std::int32_t length = FillList(chunk, picks, row, seen, list, lists.width);
      if (lengths != nullptr) lengths->as<std::int32_t>()[row] = length;
      if (problem.variant == "poison") {
        PoisonColumns(row, lists.nkv, list + length, list + lists.width);
      }
    }
  });
}

// Row m of the variant `special` is of kind m % 9.
enum SpecialRow { kEmpty, kOneKey, kOneIndex, kHoles, kBeyond, kLateStart, kLarge, kFlat, kPlain };
constexpr int kSpecialRows = kPlain + 1;

void SpecialList(std::int64_t kind, std::int64_t nkv, std::int32_t* list, std::int64_t width) {
  const std::int32_t first = list[0];
  switch (kind) {
    case kEmpty:
      std::fill_n(list, width, -1);
      break;
    case kOneKey:
      std::fill_n(list, width, -1);
      list[width / 2] = first;
      break;
    case kOneIndex:
      std::fill_n(list, width, first);
      break;
    case kHoles:
      for (std::int64_t j = 1; j < width; j += 3) list[j] = -1;
      break;
    case kBeyond:
      for (std::int64_t j = 1; j < width; j += 5) {
        list[j] = static_cast<std::int32_t>(j % 2 == 0 ? nkv + j : INT32_MAX);
      }
      break;
    case kLateStart:  // whole leading blocks without a key
      std::fill_n(list, width - 16, -1);
      std::fill_n(list + width - 16, 16, first);
      break;
    default:
      break;
  }
}

void MakeSpecial(const Problem& problem, Bundle& inputs) {
  const std::int64_t width = problem.axis("W");
  for (std::int64_t row = 0; row < problem.axis("M"); ++row) {
    const std::int64_t kind = row % kSpecialRows;
    SpecialList(kind, problem.axis("Nkv"), inputs["indices"].as<std::int32_t>() + row * width,
                width);
    if (kind != kLarge && kind != kFlat) continue;
    bf16* q = inputs["q"].as<bf16>() + row * kHeads * kDim;
    for (std::int64_t i = 0; i < kHeads * kDim; ++i) {
      q[i] = kind == kFlat ? bf16{} : ToBF16(50 * ToFloat(q[i]));
    }
  }
}

// --- workspace rows ---

// On the grid of the cache format that the engine dequantised it from.
void FillRow(const Chunk& chunk, std::uint64_t key, std::int64_t row, bf16* out) {
  float x[kDim];
  std::uint8_t data[kDim], scales[32];
  mla::LatentRow(key, kKv, row, x);
  if (row < chunk.window_base) {
    mla::EncodeV41Fp4(x, data, scales);
    mla::DecodeV41Fp4(data, scales, out);
  } else {
    mla::EncodeV41(x, data, scales);
    mla::DecodeV41(data, scales, out);
  }
}

void PoisonRow(std::int64_t row, bf16* out) {
  const bf16 nan{0x7FFF}, infinity{0xFF80};
  std::fill_n(out, kDim, row % 2 == 0 ? nan : infinity);
}

// Rows that no list has hold NaN or Inf where their page of memory is needed anyway, and stay holes
// where it is not: filling them too would cost up to three quarters of a gigabyte.
void GenerateRows(const Problem& problem, const Chunk& chunk, std::uint64_t key, Bundle& inputs) {
  const std::vector<std::uint8_t> selected = SelectedRows(ListsOf(problem, inputs));
  const std::int64_t rows = problem.axis("Nkv");
  const bool fill_all = problem.variant == "poison";
  bf16* kv = inputs["kv"].as<bf16>();
  ParallelRanges(
      (rows + kPageRows - 1) / kPageRows, 64, 0,
      [&](std::int64_t first_page, std::int64_t last_page) {
        for (std::int64_t page = first_page; page < last_page; ++page) {
          const std::int64_t begin = page * kPageRows, end = std::min(begin + kPageRows, rows);
          const bool used = std::count(selected.begin() + begin, selected.begin() + end, 1) != 0;
          for (std::int64_t row = begin; row < end && (used || fill_all); ++row) {
            if (selected[static_cast<std::size_t>(row)] != 0) {
              FillRow(chunk, key, row, kv + row * kDim);
            } else {
              PoisonRow(row, kv + row * kDim);
            }
          }
        }
      });
}

}  // namespace

void Generate(const Problem& problem, std::uint64_t key, Bundle& inputs) {
  const Chunk chunk = ChunkOf(problem);
  mla::GenerateQueries(key, kQ, problem.axis("M"), inputs["q"].as<bf16>());
  GenerateLists(problem, chunk, key, inputs);
  if (problem.variant == "special") MakeSpecial(problem, inputs);
  GenerateRows(problem, chunk, key, inputs);
  if (Tensor* sink = inputs.find("attn_sink")) {
    mla::GenerateSinks(key, kAttnSink, sink->as<float>());
  }
  if (Tensor* scale = inputs.find("sm_scale")) scale->as<float>()[0] = kSpecialScale;
}

}  // namespace assay::sparse_mla_prefill
