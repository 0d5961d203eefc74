#include "cpu/gemm.h"

namespace assay::cpu {}
