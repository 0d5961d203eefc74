// Calls of the H200 kernels: workspace, order of work, launches.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/tensor_map.cuh"
#include "ops/gdn_prefill/sm90.h"
#include "ops/gdn_prefill/sm90_chunk.cuh"
#include "ops/gdn_prefill/sm90_pieces.cuh"
#include "ops/gdn_prefill/sm90_recurrent.h"

namespace assay::gdn_prefill {
namespace {

template <class T>
std::shared_ptr<T> AllocateDevice(std::int64_t count, const char* what) {
  void* memory = nullptr;
  CheckCuda(cudaMalloc(&memory, static_cast<std::size_t>(count) * sizeof(T)), what);
  return std::shared_ptr<T>(static_cast<T*>(memory), [](T* m) { cudaFree(m); });
}

std::shared_ptr<std::int32_t> Upload(const std::vector<std::int32_t>& values, const char* what) {
  auto memory = AllocateDevice<std::int32_t>(static_cast<std::int64_t>(values.size()), what);
  CheckCuda(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(std::int32_t),
                       cudaMemcpyHostToDevice),
            what);
  return memory;
}

std::vector<std::int32_t> LongestFirst(const std::int64_t* cu_seqlens, std::int64_t sequences) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(sequences));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
    return cu_seqlens[x + 1] - cu_seqlens[x] > cu_seqlens[y + 1] - cu_seqlens[y];
  });
  return order;
}

// args.v as [tokens, 8, 128], in boxes of some rows of V of one head and 64 tokens.
CUtensorMap ValueMap(const Args& args, bool paired) {
  sm90::TensorMapSpec spec;
  spec.name = "v";
  spec.base = args.v;
  spec.extents = {kHeadSize, kValueHeads, std::max<std::int64_t>(args.tokens, 1)};
  spec.strides_bytes = {kHeadSize * 2, kValueHeads * kHeadSize * 2};
  spec.box = {paired ? 64 : 16, 1, kChunk};
  spec.swizzle = paired ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  return sm90::EncodeTensorMap(spec);
}

CUtensorMap StateMap(const char* name, const float* base, std::int64_t states,
                     int rows = kStateRows) {
  sm90::TensorMapSpec spec;
  spec.name = name;
  spec.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  spec.element_bytes = 4;
  spec.base = base;
  spec.extents = {kHeadSize, states * kValueHeads * kHeadSize};
  spec.strides_bytes = {kHeadSize * 4};
  spec.box = {kStateColumns, rows};
  return sm90::EncodeTensorMap(spec);
}

// The chunk path moves 16 bytes at a time.
void CheckAlignment(const Args& args) {
  const std::pair<const char*, const void*> tensors[] = {
      {"q", args.q},           {"k", args.k},         {"v", args.v},
      {"output", args.output}, {"state", args.state}, {"new_state", args.new_state}};
  for (const auto& [name, pointer] : tensors) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) {
      BadInput(std::string("gdn_prefill: ") + name +
               " is not aligned to 16 bytes, which the chunk path needs");
    }
  }
}

// The workspace of pieces: E and starts, then M, then the counters of arrivals, which begin as
// zeros.
std::int64_t PieceHeads(const Args& args, int chunks) {
  return FirstPiece(args.tokens, args.sequences, chunks) * kValueHeads;
}
std::shared_ptr<float> AllocatePieces(const Args& args, int chunks) {
  const std::int64_t floats = PieceHeads(args, chunks) * kStateElements * 5 / 2;
  const std::int64_t counters = args.sequences * kValueHeads * 2;
  auto memory = AllocateDevice<float>(floats + counters, "cudaMalloc of pieces");
  CheckCuda(cudaMemset(memory.get() + floats, 0, static_cast<std::size_t>(counters) * sizeof(int)),
            "cudaMemset of pieces");
  return memory;
}
void UsePieces(const Args& args, int chunks, float* memory, Workspace& workspace) {
  const std::int64_t elements = PieceHeads(args, chunks) * kStateElements;
  workspace.piece_chunks = chunks;
  workspace.ends = memory;
  workspace.starts = memory + elements;
  workspace.transitions = reinterpret_cast<std::uint16_t*>(memory + 2 * elements);
  workspace.arrivals = reinterpret_cast<int*>(memory + elements * 5 / 2);
}

// `scratch`: AllocatePieces, null without pieces.
ChainMaps MakeMaps(const Args& args, const Plan& plan, float* scratch) {
  ChainMaps maps;
  maps.v = ValueMap(args, plan.paired);
  maps.new_state = StateMap("new_state", args.new_state, args.sequences,
                            plan.paired ? kStateRows : kWideStoreRows);
  maps.state =
      args.state == nullptr ? maps.new_state : StateMap("state", args.state, args.sequences);
  maps.ends = maps.starts = maps.new_state;
  if (scratch != nullptr) {
    Workspace workspace;
    UsePieces(args, plan.piece_chunks, scratch, workspace);
    const std::int64_t pieces = FirstPiece(args.tokens, args.sequences, plan.piece_chunks);
    maps.ends = StateMap("the ends of pieces", workspace.ends, pieces);
    maps.starts = StateMap("the starts of pieces", workspace.starts, pieces);
  }
  return maps;
}

}  // namespace

std::function<void(Stream)> PrepareCuda(const Args& args, const std::int64_t* host_cu_seqlens,
                                        const Plan& plan) {
  Args checked = args;
  checked.cu_seqlens = host_cu_seqlens;
  const std::string refusal = Refusal(checked);
  if (!refusal.empty()) BadInput("gdn_prefill: " + refusal);
  if (std::find(std::begin(kChainRows), std::end(kChainRows), plan.chain_rows) ==
      std::end(kChainRows)) {
    BadInput("gdn_prefill: no chain of " + std::to_string(plan.chain_rows) + " rows");
  }
  if ((plan.paired && plan.chain_rows != 64) || (plan.piece_chunks != 0 && !plan.paired) ||
      plan.piece_chunks < 0) {
    BadInput("gdn_prefill: no pieces of " + std::to_string(plan.piece_chunks) + " chunks for " +
             std::to_string(plan.chain_rows) + " rows" + (plan.paired ? ", paired" : ""));
  }
  if (plan.piece_chunks > 0 && args.tokens > kMostPieces * plan.piece_chunks * kChunk) {
    BadInput("gdn_prefill: pieces of " + std::to_string(plan.piece_chunks) + " chunks for " +
             std::to_string(args.tokens) + " tokens are more than " + std::to_string(kMostPieces));
  }
  if (args.sequences == 0) return [](Stream) {};

  if (plan.recurrent) {
    return [=, run = plan.recurrent16 ? RunRecurrent16 : RunRecurrent](Stream stream) {
      run(args, {}, stream);
    };
  }

  CheckAlignment(args);
  const std::int64_t slots = FirstSlot(args.tokens, args.sequences);
  const auto keys = AllocateDevice<KeyTile>(slots * kKeyHeads, "cudaMalloc of key tiles");
  const auto heads = AllocateDevice<HeadTile>(slots * kValueHeads, "cudaMalloc of head tiles");
  const auto order = Upload(LongestFirst(host_cu_seqlens, args.sequences), "the order of work");
  std::shared_ptr<std::int32_t> items, first_item;
  int ctas = 0;
  if (plan.chain_rows == 64 && !plan.paired) {
    const WideSchedule schedule = ScheduleWide(host_cu_seqlens, args.sequences, Multiprocessors());
    items = Upload(schedule.items, "the items of work");
    first_item = Upload(schedule.first_item, "the items of CTAs");
    ctas = static_cast<int>(schedule.first_item.size()) - 1;
  }
  const auto scratch = plan.piece_chunks > 0 ? AllocatePieces(args, plan.piece_chunks) : nullptr;
  const ChainMaps maps = MakeMaps(args, plan, scratch.get());
  return [=](Stream stream) {
    Workspace workspace;
    workspace.keys = keys.get();
    workspace.heads = heads.get();
    if (args.sequences > 1) workspace.order = order.get();
    workspace.items = items.get();
    workspace.first_item = first_item.get();
    workspace.ctas = ctas;
    if (scratch != nullptr) UsePieces(args, plan.piece_chunks, scratch.get(), workspace);
    LaunchFactors(args, workspace, stream);
    if (plan.paired) {
      LaunchPairedChain(args, workspace, maps, stream);
    } else if (plan.chain_rows == 64) {
      LaunchWideChain(args, workspace, maps, stream);
    } else {
      LaunchNarrowChain(args, workspace, maps.v, plan.chain_rows, stream);
    }
  };
}

}  // namespace assay::gdn_prefill
