#include "replay/suite.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"
#include "replay/suite_reader.h"
#include "replay/workload_json.h"

namespace assay {
namespace {

constexpr std::array<const char*, 4> kBuiltInSuites = {"smoke", "serving", "step", "worldmodel"};

// Where an installed copy keeps its suites, then the source tree of this build.
std::vector<std::filesystem::path> SuiteFolders() {
  std::vector<std::filesystem::path> folders;
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    folders.push_back(executable.parent_path().parent_path() / "share" / "assay" / "suites");
  }
  folders.emplace_back(ASSAY_SUITE_DIR);
  return folders;
}

std::string BuiltInSuitePath(const std::string& name) {
  std::string tried;
  for (const auto& folder : SuiteFolders()) {
    const auto path = folder / (name + ".jsonl");
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return path.string();
    tried += (tried.empty() ? "" : " nor ") + path.string();
  }
  BadInput("the file of the built-in suite '" + name + "' is neither " + tried);
}

}  // namespace

Suite LoadSuite(const std::string& path, const Registry& registry) {
  return ReadRecords(path, registry, {}, KeepExtra);
}

void WriteSuite(const std::string& path, const std::vector<Workload>& workloads) {
  std::string text;
  for (const Workload& workload : workloads) text += WorkloadToJson(workload) + "\n";
  WriteFile(path, text);
}

std::string WorkloadToJson(const Workload& workload) {
  return ToJson(workload).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Workload WorkloadFromJson(std::string_view text) {
  nlohmann::json record = ParseJson(text);
  return KeepExtra(record);
}

std::uint64_t ContentKey(std::string_view content_id, int generator_version, int content_set) {
  const Sha256Digest digest =
      Sha256Of(std::string(content_id) + "/" + std::to_string(generator_version) + "/" +
               std::to_string(content_set));
  std::uint64_t key = 0;
  for (int byte = 7; byte >= 0; --byte) key = key << 8 | digest[static_cast<std::size_t>(byte)];
  return key;
}

std::string SuitePath(const std::string& name) {
  const auto known = std::find(kBuiltInSuites.begin(), kBuiltInSuites.end(), name);
  if (known != kBuiltInSuites.end()) return BuiltInSuitePath(name);
  std::error_code error;
  if (std::filesystem::exists(name, error)) return name;
  std::string list;
  for (const char* suite : kBuiltInSuites) list += std::string(list.empty() ? "" : ", ") + suite;
  BadInput("'" + name + "' is neither a file nor a built-in suite (" + list + ")");
}

std::vector<std::string> BuiltInSuites() { return {kBuiltInSuites.begin(), kBuiltInSuites.end()}; }

}  // namespace assay
