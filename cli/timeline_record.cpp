// `assay timeline record -- COMMAND`: runs an unmodified program with our recorder injected.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "cli/timeline.h"
#include "timeline/segments.h"

namespace assay::cli {
namespace {

namespace fs = std::filesystem;

struct RecordFlags {
  std::string output = "recording.sqlite", graph = "graph";
  std::vector<std::string> command;
};

// The library lies beside the program, in an installed tree or in a build folder.
std::string RecorderLibrary() {
  if (const char* named = std::getenv("ASSAY_RECORDER")) return named;
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {".", "../lib", "../timeline"}) {
    const fs::path library = here / place / "libassay_recorder.so";
    if (fs::exists(library, ignored)) return fs::weakly_canonical(library).string();
  }
  throw Error(Fault::kUnsupported,
              "libassay_recorder.so was not found beside the program; it is built where CUPTI's "
              "headers are, or named by ASSAY_RECORDER");
}

class SegmentFolder {
 public:
  SegmentFolder() {
    std::string pattern = (fs::temp_directory_path() / "assay-record-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw Error(Fault::kDevice, "cannot create " + pattern);
    path_ = pattern;
  }
  ~SegmentFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  SegmentFolder(const SegmentFolder&) = delete;
  SegmentFolder& operator=(const SegmentFolder&) = delete;
  const std::string& path() const { return path_; }
  std::vector<std::string> Segments() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().extension() == ".segment") files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

 private:
  std::string path_;
};

volatile pid_t recorded_pid = 0;
void Forward(int number) {
  if (recorded_pid > 0) kill(recorded_pid, number);
}

// The program's wait status. Signals that end us go to it first, so that it can flush.
int RunRecorded(const RecordFlags& flags, const std::string& library, const std::string& folder) {
  std::vector<char*> arguments;
  for (const std::string& word : flags.command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error(Fault::kDevice, "cannot start a process");
  if (child == 0) {
    setenv("CUDA_INJECTION64_PATH", library.c_str(), 1);
    setenv("NVTX_INJECTION64_PATH", library.c_str(), 1);
    setenv("ASSAY_RECORD_DIR", folder.c_str(), 1);
    setenv("ASSAY_RECORD_GRAPH", flags.graph.c_str(), 1);
    execvp(arguments[0], arguments.data());
    std::fprintf(stderr, "assay: cannot run %s: %s\n", arguments[0], std::strerror(errno));
    _exit(127);
  }
  recorded_pid = child;
  std::signal(SIGTERM, Forward);
  std::signal(SIGINT, Forward);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  return status;
}

void Record(const RecordFlags& flags, int& exit_code) {
  if (flags.command.empty()) BadInput("record needs a command: assay timeline record -- COMMAND");
  const SegmentFolder folder;
  const int status = RunRecorded(flags, RecorderLibrary(), folder.path());
  const std::vector<std::string> segments = folder.Segments();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127 && segments.empty()) {
    BadInput("the command '" + flags.command.front() + "' could not be run");
  }
  exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (segments.empty()) {
    fmt::print(stderr, "assay: the program never started CUDA: nothing was recorded\n");
    if (exit_code == 0) exit_code = static_cast<int>(Fault::kIncomplete);
    return;
  }
  const timeline::SegmentTotals totals = timeline::ConvertSegments(segments, flags.output);
  fmt::print(
      stderr, "{}: {} processes, {} kernels, {} copies, {} calls, {} ranges{}{}\n", flags.output,
      totals.processes, totals.kernels, totals.copies, totals.calls, totals.markers,
      totals.unfinished ? fmt::format("; {} processes ended without a flush", totals.unfinished)
                        : "",
      totals.dropped ? fmt::format("; {} records dropped", totals.dropped) : "");
}

}  // namespace

void AddTimelineRecord(CLI::App& timeline, int& exit_code) {
  auto flags = std::make_shared<RecordFlags>();
  CLI::App* command = timeline.add_subcommand(
      "record", "Run a program with the CUPTI recorder and write an Nsight-compatible export");
  command->add_option("--out", flags->output, "Export to write")->capture_default_str();
  command->add_option("--graph", flags->graph, "One row per CUDA graph launch, or one per node")
      ->check(CLI::IsMember({"graph", "node"}))
      ->capture_default_str();
  command->add_option("command", flags->command, "The program and its arguments, behind --")
      ->take_all();
  command->positionals_at_end();
  command->footer(
      "Example:\n  assay timeline record --out run.sqlite -- python train.py\n"
      "The exit code is the program's.");
  command->callback([flags, &exit_code] { Record(*flags, exit_code); });
}

}  // namespace assay::cli
