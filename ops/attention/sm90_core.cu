// Instances of the kernel for long keys.
#include <algorithm>

#include "ops/attention/sm90_core.cuh"
#include "ops/attention/sm90_launch.cuh"

namespace assay::attention {
namespace {

using enum Visibility;

template <class T>
std::function<void(Stream)> PrepareCore(const Sm90Call& call, const Sm90Plan& plan) {
  constexpr std::size_t kBytes = sizeof(CoreShared<T>) + 1024;
  static_assert(kBytes <= 232448, "the rings pass 227 KB");
  Params params = MakeParams(call, plan, T::kRows, T::kN);
  std::int64_t blocks = std::min<std::int64_t>(params.tiles, Multiprocessors());
  if (plan.share && T::kVisibility == kAll) {
    blocks = Multiprocessors();
    const auto ctas = static_cast<std::int32_t>(blocks);
    params.whole_tiles = params.tiles / ctas * ctas;
    const std::int32_t units =
        (params.tiles - params.whole_tiles) * (params.keys.suffix_tiles + params.keys.prefix_tiles);
    params.units = units / ctas;
    params.extra_units = units % ctas;
    params.shares = static_cast<float*>(call.workspace);
  }
  return Launcher(CoreKernel<T>, params, blocks, T::kThreads, 1, kBytes);
}

constexpr std::array kInstances = {
    Sm90Instance{"core_d128x128x128", kAll, PrepareCore<CoreTiling<128, 2, 128, 2, 2, kAll>>},
    Sm90Instance{"core_d128x128x160", kAll, PrepareCore<CoreTiling<128, 2, 160, 2, 2, kAll>>},
    Sm90Instance{"core_d128x128x160", kBlockCausal,
                 PrepareCore<CoreTiling<128, 2, 160, 2, 1, kBlockCausal>>},
    Sm90Instance{"core_d64x128x160", kAll, PrepareCore<CoreTiling<64, 2, 160, 2, 2, kAll>>},
    Sm90Instance{"core_d64x192x128", kAll, PrepareCore<CoreTiling<64, 3, 128, 2, 2, kAll>>},
};

}  // namespace

std::size_t Sm90WorkspaceBytes() {
  constexpr int kMostConsumers = 3, kMostFloats = 64;
  return static_cast<std::size_t>(
      ShareBytes(std::int64_t{Multiprocessors()} * kMostConsumers, kMostFloats));
}

Sm90Prepare FindCore(std::string_view kernel, Visibility visibility) {
  return FindIn(kInstances, kernel, visibility);
}

}  // namespace assay::attention
