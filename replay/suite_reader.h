// The line loop that suites and imports share: one bad record costs one line of `problems`.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "replay/suite.h"

namespace assay {

// Parses every line of the file (members named in the sorted `skipped_keys` are not even stored),
// converts the document and checks the result against `registry` and for duplicate uuids. `convert`
// is called from several threads at once. Throws kInput only when the file cannot be read.
Suite ReadRecords(const std::string& path, const Registry& registry,
                  std::span<const std::string_view> skipped_keys,
                  const std::function<Workload(nlohmann::json& record)>& convert);

}  // namespace assay
