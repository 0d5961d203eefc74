// The list of vendor backends and where libraries are looked for: on any machine, in any build.
#include <gmock/gmock.h>

#include <cstdlib>

#include "peers/loader.h"
#include "peers/registry.h"

namespace assay::peers {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> DeviceBackends(const Registry& registry, const char* family) {
  std::vector<std::string> names;
  for (const Backend& backend : registry.FindFamily(family)->backends) {
    if (backend.on_device() && backend.name != "cuda") names.push_back(backend.name);
  }
  return names;
}

TEST(VendorRegistry, AddsBackendsBehindTheFamiliesOwn) {
  const Registry registry = WithVendorBackends(BuiltInRegistry());
  EXPECT_EQ(registry.families().size(), BuiltInRegistry().families().size());
  EXPECT_THAT(DeviceBackends(registry, "dense_gemm_bf16_nt"),
              ElementsAre("cublaslt", "cublaslt_best"));
  EXPECT_THAT(DeviceBackends(registry, "noncausal_dense_attention"), ElementsAre("cudnn"));
  EXPECT_THAT(DeviceBackends(registry, "prefix_cached_block_causal"), ElementsAre("cudnn"));
  for (const Family& family : registry.families()) {
    const Family& own = *BuiltInRegistry().FindFamily(family.name);
    ASSERT_GE(family.backends.size(), own.backends.size());
    for (std::size_t i = 0; i < own.backends.size(); ++i) {
      EXPECT_EQ(family.backends[i].name, own.backends[i].name);
    }
  }
}

TEST(VendorPaths, OwnFoldersThenTheLoaderThenTheToolkit) {
  setenv("ASSAY_VENDOR_PATH", "/opt/one::/site-packages/nvidia", 1);
  setenv("CUDA_HOME", "/opt/cuda", 1);
  EXPECT_THAT(VendorPaths("libx.so.9"),
              ElementsAre("/opt/one/libx.so.9", "/opt/one/cu13/lib/libx.so.9",
                          "/opt/one/cudnn/lib/libx.so.9", "/site-packages/nvidia/libx.so.9",
                          "/site-packages/nvidia/cu13/lib/libx.so.9",
                          "/site-packages/nvidia/cudnn/lib/libx.so.9", "libx.so.9",
                          "/opt/cuda/lib64/libx.so.9"));
  unsetenv("ASSAY_VENDOR_PATH");
  unsetenv("CUDA_HOME");
  EXPECT_THAT(VendorPaths("libx.so.9"),
              ElementsAre("libx.so.9", "/usr/local/cuda/lib64/libx.so.9"));
}

TEST(VendorPaths, VersionsAreReadable) {
  EXPECT_EQ(VersionText(130100), "13.1.0");
  EXPECT_EQ(VersionText(91302), "9.13.2");
}

}  // namespace
}  // namespace assay::peers
