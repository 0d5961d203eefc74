// A whole run as one JSON document: `assay run --json`, `assay show --json`, `assay report --json`.
#pragma once

#include <string>

#include "report/report.h"

namespace assay {

// {"schema", "run", "ceilings", "summary", "cases"}; `run`, `ceilings` and every case are the
// objects of replay/ledger.h, with all samples. `summary` holds counts by status and, per
// definition and backend, what the tables show. Numbers that JSON cannot hold are the strings
// "NaN", "Infinity", "-Infinity". Text that is not UTF-8 is repaired with U+FFFD.
std::string RunToJson(const RunReport& report);

}  // namespace assay
