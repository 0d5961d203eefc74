#include "cli/common.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"
#include "peers/registry.h"

namespace assay::cli {
namespace {

std::string& MutableCommandLine() {
  static std::string text;
  return text;
}

}  // namespace

const Registry& ShippedRegistry() {
  static const Registry registry = peers::WithVendorBackends(BuiltInRegistry());
  return registry;
}

std::string DefaultLedger() {
#ifdef ASSAY_HAVE_SQLITE
  return "assay.sqlite";
#else
  return "assay.jsonl";
#endif
}

RunInfo FindRun(const Ledger& ledger, const std::string& id) {
  const std::vector<RunInfo> runs = ledger.Runs();
  if (runs.empty()) BadInput("the ledger holds no run yet; `assay run` makes one");
  if (id == "last") return runs.back();
  std::vector<RunInfo> matches;
  for (const RunInfo& run : runs) {
    if (run.id == id) return run;
    if (run.id.starts_with(id)) matches.push_back(run);
  }
  if (matches.size() == 1) return matches.front();
  if (matches.empty()) {
    BadInput(fmt::format("no run '{}' in the ledger; the newest is {}", id, runs.back().id));
  }
  BadInput(fmt::format("run '{}' is ambiguous: {} and {} match", id, matches[0].id, matches[1].id));
}

bool UseColor(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(fd) == 1 && (no_color == nullptr || *no_color == '\0');
}

int TerminalWidth(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 100;
}

std::vector<std::string> OwnWorkerCommand() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) throw Error(Fault::kDevice, "cannot find this program's own path in /proc");
  return {std::string(path, static_cast<std::size_t>(n)), "worker"};
}

void SetCommandLine(int argc, char** argv) {
  std::string& text = MutableCommandLine();
  text = "assay";
  for (int i = 1; i < argc; ++i) text += fmt::format(" {}", argv[i]);
}

const std::string& CommandLine() { return MutableCommandLine(); }

}  // namespace assay::cli
