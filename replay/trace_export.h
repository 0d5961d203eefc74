// Runs and workloads as a FlashInfer-Trace folder, and the evaluations of such a folder as a run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/trace_dataset.h"
#include "replay/result.h"
#include "replay/suite.h"

namespace assay {

struct TraceExport {
  std::string out;            // made when missing; refused when it holds anything
  std::string base;           // dataset whose files are copied byte for byte first; "" = none
  bool write_inputs = false;  // generated inputs go to blob/, as content set `run.seed` made them
  bool unverified = false;    // `suspicious` and `pending-audit` as PASSED; extra.assay names them
};

struct TraceExportCounts {
  std::size_t copied = 0, definitions = 0, workloads = 0, blobs = 0, solutions = 0, traces = 0;
  std::size_t left_out = 0;      // cases that the format cannot hold
  std::vector<std::string> why;  // one sentence a kind, with its number of cases
};

// Definitions and workloads of the suite that `base` does not have, with the tensors that they
// refer to in other datasets, and the cases of one run. Throws kInput when `out` is not empty or
// cannot be written, or when inputs should be written beside a base; kDevice when the disk is full.
TraceExportCounts ExportTraces(const TraceExport& how, const Registry& registry, const Suite& suite,
                               const RunInfo& run, const std::vector<CaseResult>& cases);

// What others recorded, as a run: backend = solution, timing mode "recorded" with one sample. A
// PASSED line becomes `pending-audit`: nobody here has verified it.
std::pair<RunInfo, std::vector<CaseResult>> RunFromTraces(const std::string& root,
                                                          const std::vector<TraceLine>& lines,
                                                          const Registry& registry,
                                                          const Suite& suite);

// One workload as a dataset line (no newline): {definition, workload {axes, inputs, uuid},
// solution, evaluation, ...}. Inputs that are not stored have type random.
std::string TraceWorkloadLine(const Registry& registry, const Workload& workload);

}  // namespace assay
