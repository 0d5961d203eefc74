// Python peers: which interpreter, which package, and what they offer. Shared by `run` and `list`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "replay/plugin.h"

namespace assay::cli {

struct PythonFlags {
  std::string program;             // interpreter; "" = no Python peers
  std::vector<std::string> peers;  // more peers: files or folders
  bool wanted() const { return !program.empty() || !peers.empty(); }
};

void AddPythonFlags(CLI::App& command, PythonFlags& flags);

struct PythonPeers {
  std::vector<std::string> command;     // of their worker, without --fd
  std::vector<PluginBackend> backends;  // one per peer and family or definition
  std::string fingerprint;              // 12 hexadecimal digits over the package and the peer files
};

// Asks one worker what there is. Throws kInput when the package or the interpreter is missing, a
// peer file is broken, or a peer takes the name of a backend of `base`.
PythonPeers FindPythonPeers(const PythonFlags& flags, const Registry& base);

}  // namespace assay::cli
