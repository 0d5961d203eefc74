// Plain loops compiled once per x86-64 level, chosen when the program starts.
#pragma once

// Put before a function whose loops should be vectorised for the CPU at hand:
//   ASSAY_VECTOR_CLONES void Scale(...) { ... }
// Contraction is off (cmake/flags.cmake), so element-wise arithmetic gives the same bits in every
// clone; a `#pragma omp simd reduction` may sum in another order. Sanitizers cannot run the
// loader's choice of a clone, and their builds get the baseline only.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ASSAY_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ASSAY_VECTOR_CLONES
#endif
