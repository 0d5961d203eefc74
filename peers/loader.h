// Where the libraries of other parties are, and what their versions are. None is linked: a machine
// without one lists the peer as unsupported, with the reason.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace assay::peers {

// Where `file` (e.g. "libcudnn.so.9") may be, in the order in which it is looked for: the folders
// of the environment variable ASSAY_VENDOR_PATH (separated by colons; below each also the folders
// in which Python's `nvidia` packages keep libraries), the loader's own search, the CUDA toolkit.
std::vector<std::string> VendorPaths(const std::string& file);

// What the vendor backends of this process have to tell, one sentence each and none twice: the
// libraries that were opened ("cuBLASLt 13.1.0 from /usr/local/cuda/lib64/libcublasLt.so.13"), the
// algorithms that were chosen. Safe from several threads.
void AddVendorNote(const std::string& note);
std::vector<std::string> VendorNotes();

// 130100 -> "13.1.0": how cuBLAS and cuDNN 9 number themselves.
std::string VersionText(std::size_t number);

}  // namespace assay::peers
