// `assay list`: definitions with their backends, suites, backends.
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/python.h"
#include "replay/suite.h"
#include "report/table.h"

namespace assay::cli {
namespace {

using Json = nlohmann::json;

std::string BackendNames(const Family& family) {
  std::vector<std::string> names;
  for (const Backend& backend : family.backends) names.push_back(backend.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void ListDefinitions(const Registry& registry, bool json) {
  Json rows = Json::array();
  Table table({{"definition"}, {"axes"}, {"backends"}});
  for (const Family& family : registry.families()) {
    for (const Definition& definition : family.definitions) {
      Json backends = Json::array();
      for (const Backend& backend : family.backends) backends.push_back(backend.name);
      rows.push_back({{"definition", definition.name},
                      {"family", family.name},
                      {"axes", definition.variables},
                      {"constants", definition.constants},
                      {"backends", backends}});
      table.Add({definition.name, fmt::format("{}", fmt::join(definition.variables, ", ")),
                 BackendNames(family)});
    }
  }
  if (json) {
    fmt::print("{}\n", rows.dump(2));
  } else {
    fmt::print("{}", table.Text({.width = TerminalWidth(1)}));
  }
}

// `unavailable`: backend to reason, for those that cannot run on this machine.
void ListBackends(const Registry& registry, const std::map<std::string, std::string>& unavailable,
                  bool json) {
  Json rows = Json::array();
  Table table({{"family"}, {"backend"}, {"what it is"}});
  for (const Family& family : registry.families()) {
    for (const Backend& backend : family.backends) {
      const auto reason = unavailable.find(backend.name);
      Json row = {{"family", family.name}, {"backend", backend.name}, {"summary", backend.summary}};
      if (reason != unavailable.end()) row["unavailable"] = reason->second;
      rows.push_back(row);
      table.Add({family.name, backend.name,
                 reason == unavailable.end() ? backend.summary : "unavailable: " + reason->second});
    }
  }
  fmt::print("{}", json ? rows.dump(2) + "\n" : table.Text({.width = TerminalWidth(1)}));
}

void ListSuites(bool json) {
  Json rows = Json::array();
  Table table({{"suite"}, {"workloads", Align::kRight}, {"definitions", Align::kRight}, {"file"}});
  for (const std::string& name : BuiltInSuites()) {
    const std::string path = SuitePath(name);
    const Suite suite = LoadSuite(path, BuiltInRegistry());
    std::map<std::string, int> definitions;
    for (const Workload& workload : suite.workloads) ++definitions[workload.definition];
    rows.push_back({{"suite", name},
                    {"workloads", suite.workloads.size()},
                    {"definitions", definitions},
                    {"file", path}});
    table.Add(
        {name, std::to_string(suite.workloads.size()), std::to_string(definitions.size()), path});
  }
  fmt::print("{}", json ? rows.dump(2) + "\n" : table.Text({.width = TerminalWidth(1)}));
}

struct ListFlags {
  std::string what = "definitions";
  bool json = false;
  PythonFlags python;
};

void List(const ListFlags& flags) {
  if (flags.what == "suites") return ListSuites(flags.json);
  if (!flags.python.wanted()) {
    return flags.what == "backends" ? ListBackends(ShippedRegistry(), {}, flags.json)
                                    : ListDefinitions(ShippedRegistry(), flags.json);
  }
  const PythonPeers peers = FindPythonPeers(flags.python, ShippedRegistry());
  const Registry registry = WithDescribedBackends(ShippedRegistry(), peers.backends);
  std::map<std::string, std::string> unavailable;
  for (const PluginBackend& peer : peers.backends) {
    if (!peer.unavailable.empty()) unavailable[peer.name] = peer.unavailable;
  }
  if (flags.what == "backends") return ListBackends(registry, unavailable, flags.json);
  ListDefinitions(registry, flags.json);
  if (flags.json) return;  // one document; the reasons are in `list backends --json`
  for (const auto& [name, reason] : unavailable) fmt::print("{}: {}\n", name, reason);
}

}  // namespace

void AddListCommand(CLI::App& app, int&) {
  auto flags = std::make_shared<ListFlags>();
  CLI::App* command = app.add_subcommand("list", "What can be replayed, and by what");
  command->add_option("what", flags->what, "definitions, backends or suites")
      ->check(CLI::IsMember({"definitions", "backends", "suites"}));
  command->add_flag("--json", flags->json, "Print JSON");
  AddPythonFlags(*command, flags->python);
  command->callback([flags] { List(*flags); });
}

}  // namespace assay::cli
