// One function per verb: adds the subcommand, whose callback does the work and sets the exit code.
// Errors are thrown as assay::Error and become exit codes in main.cpp alone.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace assay::cli {

void AddListCommand(CLI::App& app, int& exit_code);
void AddRunCommand(CLI::App& app, int& exit_code);
void AddShowCommand(CLI::App& app, int& exit_code);
void AddBestCommand(CLI::App& app, int& exit_code);
void AddDiffCommand(CLI::App& app, int& exit_code);
void AddMergeCommand(CLI::App& app, int& exit_code);
void AddReportCommand(CLI::App& app, int& exit_code);
void AddDeviceCommand(CLI::App& app, int& exit_code);
void AddImportCommand(CLI::App& app, int& exit_code);
void AddDatasetCommand(CLI::App& app, int& exit_code);
void AddAbCommand(CLI::App& app, int& exit_code);
void AddSelftestCommand(CLI::App& app, int& exit_code);
void AddPluginCommand(CLI::App& app, int& exit_code);
void AddWorkerCommand(CLI::App& app, int& exit_code);
void AddDecodeCommand(CLI::App& app, int& exit_code);
void AddTimelineCommand(CLI::App& app, int& exit_code);  // only in builds with ASSAY_HAVE_TIMELINE

}  // namespace assay::cli
