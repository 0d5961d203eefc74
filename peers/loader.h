// Where the libraries of other parties are, and what their versions are. None is linked: a machine
// without one lists the peer as unsupported, with the reason.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace assay::peers {

// Where `file` (e.g. "libcudnn.so.9") may be, in the order in which it is looked for: the folders
// of the environment variable ASSAY_VENDOR_PATH (separated by colons; below each also the folders
// in which Python's `nvidia` packages keep libraries), the loader's own search, the CUDA toolkit.
std::vector<std::string> VendorPaths(const std::string& file);

// 130100 -> "13.1.0": how cuBLAS and cuDNN 9 number themselves.
std::string VersionText(std::size_t number);

// A library that is opened when somebody first asks for it, not when backends are listed: some are
// half a gigabyte. Copies share it. For one thread.
template <class Library>
class OpenedLate {
 public:
  explicit OpenedLate(std::vector<std::string> paths)
      : shared_(std::make_shared<Shared>(Shared{std::move(paths), nullptr})) {}

  const std::shared_ptr<Library>& operator()() const {
    if (shared_->library == nullptr) shared_->library = std::make_shared<Library>(shared_->paths);
    return shared_->library;
  }

 private:
  struct Shared {
    std::vector<std::string> paths;
    std::shared_ptr<Library> library;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace assay::peers
