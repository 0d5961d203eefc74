#include "cpu/isa.h"

namespace assay::cpu {

bool Supports(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  }
  return false;
#else
  return isa == Isa::kBaseline;
#endif
}

Isa BestIsa() {
  if (Supports(Isa::kAvx512)) return Isa::kAvx512;
  return Supports(Isa::kAvx2) ? Isa::kAvx2 : Isa::kBaseline;
}

bool HasAvx512Bf16() {
#if defined(__x86_64__)
  return Supports(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace assay::cpu
