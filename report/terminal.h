// The report that `assay run` and `assay show` print.
#pragma once

#include <string>

#include "report/analysis.h"
#include "report/table.h"

namespace assay {

struct TerminalOptions {
  int width = 100;
  bool colour = false;
  std::string baseline = "";  // backend to compare with; "" = chosen by Analyse
};

// The case table by definition, failures, comparison of backends, counts; each block only if there
// is something to say.
std::string TerminalReport(const RunReport& report, const TerminalOptions& options = {});
std::string TerminalReport(const Analysis& analysis, const TerminalOptions& options);

// The blocks one by one, for verbs that show only some.
std::string CaseTable(const Analysis& analysis, const TerminalOptions& options);
std::string FailureList(const Analysis& analysis, const TerminalOptions& options);
std::string ComparisonBlock(const Analysis& analysis, const TerminalOptions& options);
std::string StatusLine(const Analysis& analysis, const TerminalOptions& options);

// Everything about one case: verdict, checks of every output, timing of every mode, provenance.
std::string CaseDetails(const CaseResult& result, const TerminalOptions& options = {});

Tone ToneOf(Status status);

}  // namespace assay
