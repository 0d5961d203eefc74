// setmaxnreg: registers move from the warpgroup that loads to those that compute. Needs both
// arguments of __launch_bounds__; every warp of the warpgroup executes it.
#pragma once

namespace assay::sm90 {

template <int kRegisters>
__device__ inline void SetMaxNRegInc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256,
                "setmaxnreg takes a multiple of 8 in 24..256");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

template <int kRegisters>
__device__ inline void SetMaxNRegDec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256,
                "setmaxnreg takes a multiple of 8 in 24..256");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

}  // namespace assay::sm90
