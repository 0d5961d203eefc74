// The files of page/, embedded at build time by page/embed.cmake.
#pragma once

#include <string_view>

namespace assay {

extern const std::string_view kPageHtml;  // with {{title}}, {{summary}}, {{css}}, {{data}}, ...
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;

}  // namespace assay
