// The `assay` program: parses the command line and maps errors to exit codes. Verbs live in their
// own files.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "replay/build_info.h"

namespace {

constexpr const char* kFooter = R"(
Examples:
  assay list                                      what can be replayed, and by which backends
  assay run --suite smoke                         replay, verify and time on this machine
  assay run --suite serving --family gdn_decode   only one operator of the captured workloads
  assay show                                      the last run as a table
  assay report --html report.html                 the last run as one offline page
  assay run --plugin ./libmine.so                 judge somebody else's kernel
  assay ab compare --off A --on B                 does a serving speed-up hold?
  assay decode --model tiny --mtp 3               tokens from the step engine, speculative

Exit codes: 0 ok; 1 a case failed; 2 bad input; 3 unsupported; 4 machine or device; 5 inconclusive;
6 not comparable or incomplete evidence; 70 internal error; 130 interrupted.)";

int Report(const assay::Error& error) {
  std::fprintf(stderr, "assay: %s\n", error.what());
  if (error.fault() == assay::Fault::kInternal) {
    std::fprintf(stderr, "assay: internal error at %s:%u; please report it\n",
                 error.where().file_name(), static_cast<unsigned>(error.where().line()));
  }
  return static_cast<int>(error.fault());
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  assay::cli::SetCommandLine(argc, argv);
  CLI::App app("Replays captured GPU operators, proves kernels right, and times them.", "assay");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string(assay::kVersion) + " (" + assay::kBuildCommit +
                                        ", " + assay::kBuildCompiler + ")");
  app.require_subcommand(1);
  assay::cli::AddListCommand(app, exit_code);
  assay::cli::AddRunCommand(app, exit_code);
  assay::cli::AddShowCommand(app, exit_code);
  assay::cli::AddReportCommand(app, exit_code);
  assay::cli::AddBestCommand(app, exit_code);
  assay::cli::AddDiffCommand(app, exit_code);
  assay::cli::AddMergeCommand(app, exit_code);
  assay::cli::AddDeviceCommand(app, exit_code);
  assay::cli::AddImportCommand(app, exit_code);
  assay::cli::AddDatasetCommand(app, exit_code);
  assay::cli::AddAbCommand(app, exit_code);
  assay::cli::AddSelftestCommand(app, exit_code);
  assay::cli::AddPluginCommand(app, exit_code);
  assay::cli::AddDecodeCommand(app, exit_code);
  assay::cli::AddWorkerCommand(app, exit_code);
#ifdef ASSAY_HAVE_TIMELINE
  assay::cli::AddTimelineCommand(app, exit_code);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(assay::Fault::kInput);
  } catch (const assay::Error& error) {
    return Report(error);
  } catch (const std::exception& error) {
    return Report(assay::Error(assay::Fault::kInternal, error.what()));
  }
  return exit_code;
}
