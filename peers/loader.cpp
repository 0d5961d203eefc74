#include "peers/loader.h"

#include <cstdlib>
#include <sstream>

namespace assay::peers {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Below site-packages/nvidia: packages of CUDA 13 share one folder, cuDNN has its own.
constexpr const char* kWheelFolders[] = {"", "/cu13/lib", "/cudnn/lib"};

}  // namespace

std::vector<std::string> VendorPaths(const std::string& file) {
  std::vector<std::string> paths;
  std::istringstream folders(Environment("ASSAY_VENDOR_PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.empty()) continue;
    for (const char* below : kWheelFolders) paths.push_back(folder + below + "/" + file);
  }
  paths.push_back(file);
  const std::string home = Environment("CUDA_HOME");
  paths.push_back((home.empty() ? "/usr/local/cuda" : home) + "/lib64/" + file);
  return paths;
}

std::string VersionText(std::size_t number) {
  return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

}  // namespace assay::peers
