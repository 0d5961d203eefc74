// Other people's kernels: shared libraries that speak include/assay_plugin.h. They are loaded in
// workers only; the runner learns from a worker what a plugin offers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "include/assay_plugin.h"
#include "ops/registry.h"

namespace assay {

// What a worker's greeting says about one kernel of a plugin, or about one Python peer.
struct PluginBackend {
  std::string name, definition, summary;  // `definition` may name a whole family
  std::string device = "cpu";             // as Backend::device
  std::string unavailable = "";           // why it cannot run on this machine; "" if it may
};

// Loads the library and returns its kernels. Throws kInput with the loader's own words, or when the
// library does not export assay_plugin_backends, speaks another ABI or offers an incomplete kernel.
std::span<const AssayBackend> LoadPlugin(const std::string& path);

// `base` with the kernels as backends of their families. Throws kInput when a definition is unknown
// or a name is taken.
Registry WithPluginBackends(const Registry& base, std::span<const AssayBackend> kernels);

// The same in the runner, which has only the descriptions: these backends cannot be run there. One
// that names several definitions of a family is one backend of it.
Registry WithDescribedBackends(const Registry& base, const std::vector<PluginBackend>& kernels);

// Starts one worker with `command`, asks what its plugins offer and ends it. Throws kInput with the
// worker's last words when it dies before it can say.
std::vector<PluginBackend> DescribePlugins(const std::vector<std::string>& command);

nlohmann::json DescriptionOf(std::span<const AssayBackend> kernels);

}  // namespace assay
