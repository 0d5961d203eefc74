// The page's style and program, embedded from viewer/ at build time.
#pragma once

namespace assay::timeline {
extern const char* const kViewerCss;
extern const char* const kViewerJs;
}  // namespace assay::timeline
