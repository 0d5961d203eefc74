// The data block of the HTML page: everything that its script shows, as compact JSON.
#pragma once

#include <cstddef>
#include <string>

#include "report/report.h"

namespace assay {

// Safe inside <script type="application/json">: no `<` remains unescaped, text is Printable.
// Timing samples are thinned, evenly in time, to `max_samples` in all; very large runs also lose
// the worst elements of passed outputs and input hashes. `note` says what was left out.
// `against`: another run that is compared with this one; null = none.
std::string HtmlData(const RunReport& report, std::size_t max_samples,
                     const RunReport* against = nullptr, double margin = 0);

}  // namespace assay
