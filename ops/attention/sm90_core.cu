// Instances of the kernel for long keys.
#include <algorithm>

#include "ops/attention/sm90_core.cuh"
#include "ops/attention/sm90_launch.cuh"

namespace assay::attention {
namespace {

int Multiprocessors() {
  int device = 0, count = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute of multiprocessors");
  return count;
}

template <class T>
std::function<void(Stream)> PrepareCore(const Sm90Call& call, const Sm90Plan& plan) {
  constexpr std::size_t kBytes = sizeof(CoreShared<T>) + 1024;
  static_assert(kBytes <= 232448, "the rings pass 227 KB");
  const Params params = MakeParams(call, plan, T::kRows, T::kN);
  const std::int64_t blocks = std::min<std::int64_t>(params.tiles, Multiprocessors());
  return Launcher(CoreKernel<T>, params, blocks, T::kThreads, 1, kBytes);
}

using enum Visibility;
constexpr std::array kInstances = {
    Sm90Instance{"core_d128x128x176", kAll, PrepareCore<CoreTiling<128, 2, 176, 2, 1, kAll, true>>},
    Sm90Instance{"core_d128x128x176", kBlockCausal,
                 PrepareCore<CoreTiling<128, 2, 176, 2, 1, kBlockCausal, true>>},
    Sm90Instance{"core_d128x128x128", kAll, PrepareCore<CoreTiling<128, 2, 128, 2, 2, kAll, true>>},
    Sm90Instance{"core_d128x128x160", kAll,
                 PrepareCore<CoreTiling<128, 2, 160, 2, 1, kAll, true>>},
    Sm90Instance{"core_d128x128x176_free", kAll,
                 PrepareCore<CoreTiling<128, 2, 176, 2, 1, kAll, false>>},
    Sm90Instance{"core_d64x192x128", kAll, PrepareCore<CoreTiling<64, 3, 128, 2, 2, kAll, true>>},
};

}  // namespace

Sm90Prepare FindCore(std::string_view kernel, Visibility visibility) {
  return FindIn(kInstances, kernel, visibility);
}

}  // namespace assay::attention
