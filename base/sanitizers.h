// Whether this build is instrumented: loops take 10 to 30 times longer, memory is not limited.
#pragma once

namespace assay {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace assay
