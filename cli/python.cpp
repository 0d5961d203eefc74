#include "cli/python.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "cli/common.h"
#include "io/file.h"
#include "io/sha256.h"

namespace assay::cli {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The folder that holds the package `assay`: told by the environment, installed beside this
// program, or in the sources that it was built from.
std::string PackageFolder() {
  std::vector<fs::path> folders;
  const std::string told = Environment("ASSAY_PYTHON_DIR");
  if (!told.empty()) {
    folders.emplace_back(told);
  } else {
    const fs::path program = OwnWorkerCommand().front();
    folders.push_back(program.parent_path().parent_path() / "share" / "assay" / "python");
    folders.emplace_back(ASSAY_PYTHON_SOURCE_DIR);
  }
  std::string tried;
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (fs::is_regular_file(folder / "assay" / "worker.py", error)) return folder.string();
    tried += (tried.empty() ? "" : " nor in ") + folder.string();
  }
  BadInput("the Python package 'assay' is not in " + tried);
}

std::vector<std::string> PythonFiles(const std::vector<std::string>& places) {
  std::vector<std::string> files;
  for (const std::string& place : places) {
    std::error_code error;
    if (!fs::is_directory(place, error)) {
      files.push_back(place);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(place, error)) {
      if (entry.path().extension() == ".py") files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void AddPythonFlags(CLI::App& command, PythonFlags& flags) {
  command.add_flag("--python{python3}", flags.program,
                   "Python peers as well (torch, Triton, ...); --python=PROGRAM: this interpreter");
  command
      .add_option("--peers", flags.peers,
                  "More Python peers: files or folders (comma-separated); implies --python")
      ->delimiter(',');
}

PythonPeers FindPythonPeers(const PythonFlags& flags, const Registry& base) {
  PythonPeers found;
  const std::string folder = PackageFolder(), paths = Environment("PYTHONPATH");
  const std::string program = flags.program.empty() ? "python3" : flags.program;
  found.command = {"/usr/bin/env",
                   fmt::format("PYTHONPATH={}{}{}", folder, paths.empty() ? "" : ":", paths),
                   program, "-m", "assay.worker"};
  for (const std::string& peers : flags.peers) {
    found.command.insert(found.command.end(), {"--peers", peers});
  }
  found.backends = DescribePlugins(found.command);
  for (const Family& family : base.families()) {
    for (const PluginBackend& peer : found.backends) {
      if (family.FindBackend(peer.name) == nullptr) continue;
      BadInput(fmt::format("Python peer '{}' has the name of another backend of {}", peer.name,
                           family.name));
    }
  }
  std::vector<std::string> places = flags.peers;
  places.push_back(folder + "/assay");
  std::string digests;
  for (const std::string& file : PythonFiles(places)) digests += Sha256Hex(ReadFile(file));
  found.fingerprint = Sha256Hex(digests).substr(0, 12);
  return found;
}

}  // namespace assay::cli
