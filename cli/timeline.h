// What the `timeline` verbs share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "timeline/windows.h"

namespace assay::cli {

struct ScopeFlags {
  std::vector<std::string> windows, host_windows, epoch_windows, nvtx;
  std::string log;
};
void AddScopeOptions(CLI::App& command, ScopeFlags& flags);
// The declared scopes, or the whole trace when none was declared.
std::vector<timeline::Scope> ScopesOf(const timeline::Trace& trace, const ScopeFlags& flags);

// "-" prints, "" does nothing, anything else is a file.
void DeliverText(const std::string& path, const std::string& content);

void AddTimelineDiff(CLI::App& timeline, int& exit_code);
void AddTimelineRecord(CLI::App& timeline, int& exit_code);
void AddTimelineReplays(CLI::App& timeline, int& exit_code);

}  // namespace assay::cli
