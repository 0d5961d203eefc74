#include "cli/sanitize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "io/file.h"

namespace assay::cli {
namespace {

namespace fs = std::filesystem;

std::string FindSanitizer() {
  std::istringstream folders(std::string(std::getenv("PATH") ? std::getenv("PATH") : "") +
                             ":/usr/local/cuda/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = folder + "/compute-sanitizer";
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  throw Error(Fault::kUnsupported,
              "--sanitize needs compute-sanitizer, which is neither on the PATH nor in "
              "/usr/local/cuda/bin");
}

}  // namespace

Sanitizer::Sanitizer(const std::string& tool) : tool_(tool) {
  if (tool_.empty()) return;
  program_ = FindSanitizer();
  std::string name = (fs::temp_directory_path() / "assay-sanitize-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw Error(Fault::kDevice, "--sanitize: cannot make a folder for logs: " + name);
  }
  folder_ = name;
}

Sanitizer::~Sanitizer() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

std::vector<std::string> Sanitizer::Command(const std::vector<std::string>& worker) const {
  std::vector<std::string> command = {
      program_, "--tool", tool_, "--log-file", folder_ + "/%p.log", "--print-limit", "20"};
  command.insert(command.end(), worker.begin(), worker.end());
  return command;
}

Sanitizer::Verdict Sanitizer::Read() const {
  Verdict verdict;
  std::size_t files = 0, clean = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    ++files;
    const std::string text = ReadFile(entry.path());
    const bool none = text.find("ERROR SUMMARY: 0 errors") != std::string::npos ||
                      text.find("RACECHECK SUMMARY: 0 hazards") != std::string::npos;
    if (none) {
      ++clean;
    } else {
      verdict.text += text;
    }
  }
  verdict.clean = files > 0 && clean == files;
  verdict.text += fmt::format("{} of {} workers ended without a finding\n", clean, files);
  return verdict;
}

}  // namespace assay::cli
