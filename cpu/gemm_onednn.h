// oneDNN behind the same arguments. Defined in gemm_onednn.cpp, or in gemm_without_onednn.cpp where
// the library was not found at build time.
#pragma once

#include "cpu/gemm.h"

namespace assay::cpu {

bool OneDnnBuiltIn();
// The measured rule of `Run`, see gemm_onednn.cpp.
bool OneDnnIsFaster();
// Throws kUnsupported when oneDNN is not built in or cannot do bf16 on this CPU.
void RunOneDnn(const GemmBf16Nt& args, int threads);

}  // namespace assay::cpu
