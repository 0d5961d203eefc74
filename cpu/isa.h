// Which vector instructions this processor has. Kernels that are worth it are compiled once per set
// (one translation unit each, see cpu/lanes.h) and chosen here, at run time.
#pragma once

namespace assay::cpu {

enum class Isa {
  kBaseline,  // what every 64-bit processor of the architecture has (x86-64: SSE2)
  kAvx2,      // AVX2 and FMA
  kAvx512,    // AVX-512 F, VL, BW, DQ
};

// True when kernels for `isa` were built and this processor and operating system can run them.
bool Supports(Isa isa);
// The widest supported set.
Isa BestIsa();
// kAvx512 and products of bf16 pairs with fp32 sums (vdpbf16ps).
bool HasAvx512Bf16();
const char* IsaName(Isa isa);  // "baseline", "avx2", "avx512"

}  // namespace assay::cpu
