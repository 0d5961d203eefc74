// Instances of the kernels for few keys or queries, and the one for everything else.
#include <algorithm>

#include "ops/attention/sm90_launch.cuh"
#include "ops/attention/sm90_short.cuh"

namespace assay::attention {
namespace {

template <class T>
std::function<void(Stream)> PrepareResident(const Sm90Call& call, const Sm90Plan& plan) {
  const Params params = MakeParams(call, plan, kShortRows, T::kN);
  return Launcher(ResidentKernel<T>, params,
                  std::int64_t{params.tiles / params.query_tiles} * plan.split, 128, 1,
                  sizeof(ResidentShared<T>) + 1024);
}

template <class T>
std::function<void(Stream)> PrepareSplit(const Sm90Call& call, const Sm90Plan& plan) {
  const Params params = MakeParams(call, plan, kShortRows, T::kN);
  return Launcher(SplitKernel<T>, params, std::int64_t{params.tiles} * plan.split, T::kThreads,
                  plan.split, sizeof(SplitShared<T>) + 1024);
}

template <Visibility kVisibility>
std::function<void(Stream)> PrepareGeneric(const Sm90Call& call, const Sm90Plan& plan) {
  const Params params = MakeParams(call, plan, 0, 0);
  const Sm90Tensors& x = call.tensors;
  const std::int64_t blocks = (x.batch * x.heads * x.queries + 3) / 4;
  return Launcher(GenericKernel<kVisibility>, params, std::min<std::int64_t>(blocks, 1 << 20), 128,
                  1, 0);
}

using enum Visibility;
template <int kDim, int kKeys, int kStages, Visibility kVisibility>
constexpr auto kResident = PrepareResident<ShortTiling<kDim, kKeys, kStages, kVisibility>>;
template <int kDim, int kKeys, int kStages, Visibility kVisibility, int kGroups = 1>
constexpr auto kSplit = PrepareSplit<ShortTiling<kDim, kKeys, kStages, kVisibility, kGroups>>;

constexpr std::array kInstances = {
    Sm90Instance{"resident_d64x64x64", kAll, kResident<64, 64, 3, kAll>},
    Sm90Instance{"resident_d64x64x128", kAll, kResident<64, 128, 3, kAll>},
    Sm90Instance{"resident_d128x64x64", kAll, kResident<128, 64, 2, kAll>},
    Sm90Instance{"resident_d128x64x64", kBlockCausal, kResident<128, 64, 2, kBlockCausal>},
    Sm90Instance{"split_d64x64x64", kAll, kSplit<64, 64, 3, kAll>},
    Sm90Instance{"split_d64x64x128", kAll, kSplit<64, 128, 2, kAll>},
    Sm90Instance{"split_d64x64x64_g2", kAll, kSplit<64, 64, 3, kAll, 2>},
    Sm90Instance{"split_d64x64x64_g4", kAll, kSplit<64, 64, 2, kAll, 4>},
    Sm90Instance{"split_d64x64x128_g2", kAll, kSplit<64, 128, 2, kAll, 2>},
    Sm90Instance{"split_d64x64x128", kMask, kSplit<64, 128, 2, kMask>},
    Sm90Instance{"split_d128x64x64", kAll, kSplit<128, 64, 2, kAll>},
    Sm90Instance{"split_d128x64x64", kBlockCausal, kSplit<128, 64, 2, kBlockCausal>},
    Sm90Instance{"split_d128x64x64", kMask, kSplit<128, 64, 2, kMask>},
    Sm90Instance{"generic", kAll, PrepareGeneric<kAll>},
    Sm90Instance{"generic", kBlockCausal, PrepareGeneric<kBlockCausal>},
    Sm90Instance{"generic", kMask, PrepareGeneric<kMask>},
};

}  // namespace

Sm90Prepare FindShort(std::string_view kernel, Visibility visibility) {
  return FindIn(kInstances, kernel, visibility);
}

}  // namespace assay::attention
