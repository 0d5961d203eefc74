// The report as one offline HTML file: no address is fetched, everything is inside.
#pragma once

#include <cstddef>
#include <string>

#include "report/report.h"

namespace assay {

struct HtmlOptions {
  // File of Chart.js 3 to inline. "" = the file named by environment variable ASSAY_CHARTJS, else
  // the one found when this was built, else plain SVG. "none" = plain SVG.
  std::string chartjs = "";
  // Timing samples in the page, over all cases; about 6 bytes each.
  std::size_t max_samples = 200000;
  // Another run to compare with, case by case; changes below `margin` (0.02 = 2 %) are none.
  const RunReport* against = nullptr;
  double margin = 0.02;
};

// Throws kInput when a Chart.js file that was named (not merely found at build time) cannot be
// read or would break the page.
std::string HtmlReport(const RunReport& report, const HtmlOptions& options = {});

}  // namespace assay
