// The CPU backend: the work items of a call, spread over threads.
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "cpu/isa.h"
#include "ops/neighborhood_attention_3d/cpu_kernel.h"
#include "ops/neighborhood_attention_3d/cpu_plan.h"
#include "ops/neighborhood_attention_3d/cpu_worker.h"
#include "ops/neighborhood_attention_3d/spec.h"

namespace assay::neighborhood_attention_3d {
namespace {

// Workers are reused from item to item; at most one per running thread exists.
class Workers {
 public:
  Workers(const Args& args, const Windows& windows, const TileLeaf& leaf, const Plan& plan)
      : make_([&] { return std::make_unique<Worker>(args, windows, leaf, plan); }) {}

  void Run(const Item& item) {
    std::unique_ptr<Worker> worker = Take();
    worker->Run(item);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(worker));
  }

 private:
  std::unique_ptr<Worker> Take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return make_();
    std::unique_ptr<Worker> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }

  std::function<std::unique_ptr<Worker>()> make_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace

std::vector<Span> ShiftedWindows(std::int64_t length, std::int64_t window) {
  std::vector<Span> spans;
  for (std::int64_t q = 0; q < length; ++q) {
    const std::int64_t begin = std::clamp<std::int64_t>(q - (window - 1) / 2, 0, length - window);
    spans.push_back({begin, begin + window});
  }
  return spans;
}

Windows ShiftedWindows(const Args& args) {
  return {ShiftedWindows(args.t, args.kt), ShiftedWindows(args.y, args.ky),
          ShiftedWindows(args.x, args.kx)};
}

void RunWindows(const Args& args, const Windows& windows, const TileLeaf& leaf, int threads) {
  if (args.b * args.t * args.y * args.x * args.h == 0) return;
  const Plan plan(windows);
  Workers workers(args, windows, leaf, plan);
  const auto blocks = static_cast<std::int64_t>(plan.blocks.size());
  const std::int64_t pieces = (args.t + plan.time_steps - 1) / plan.time_steps;
  // Heads fastest: their rows are neighbours in memory, on the same pages.
  ParallelFor(args.b * pieces * blocks * args.h, threads, [&](std::int64_t index) {
    Item item;
    item.head = index % args.h;
    item.block = plan.blocks[static_cast<std::size_t>(index / args.h % blocks)];
    item.first_t = index / (args.h * blocks) % pieces * plan.time_steps;
    item.last_t = std::min(item.first_t + plan.time_steps, args.t) - 1;
    item.batch = index / (args.h * blocks * pieces);
    workers.Run(item);
  });
}

std::vector<const TileLeaf*> RunnableLeaves() {
  std::vector<const TileLeaf*> leaves;
#if defined(__x86_64__)
  if (cpu::HasAvx512Bf16()) leaves.push_back(&Avx512Bf16Leaf());
  if (cpu::Supports(cpu::Isa::kAvx512)) leaves.push_back(&Avx512Leaf());
  if (cpu::Supports(cpu::Isa::kAvx2)) leaves.push_back(&Avx2Leaf());
#endif
  leaves.push_back(&BaselineLeaf());
  return leaves;
}

void RunCpu(const Args& args, int threads) {
  static const TileLeaf& best = *RunnableLeaves().front();
  Check(args);
  RunWindows(args, ShiftedWindows(args), best, threads);
}

Backend CpuBackend() {
  return {
      "cpu", "tiles of 4 to 8 queries, bf16 pair products where the processor has them",
      [](const Problem&, const Bundle&) { return std::string(); },
      [](const Problem& problem, const Bundle& inputs, Bundle& outputs, const RunContext& context) {
        RunCpu(Bind(problem, inputs, outputs), context.threads);
      }};
}

}  // namespace assay::neighborhood_attention_3d
