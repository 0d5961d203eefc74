// `assay list`: definitions with their backends, suites, backends.
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/common.h"
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

void ListDefinitions(bool json) {
  Json rows = Json::array();
  Table table({{"definition"}, {"axes"}, {"backends"}});
  for (const Family& family : BuiltInRegistry().families()) {
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

void ListBackends(bool json) {
  Json rows = Json::array();
  Table table({{"family"}, {"backend"}, {"what it is"}});
  for (const Family& family : BuiltInRegistry().families()) {
    for (const Backend& backend : family.backends) {
      rows.push_back(
          {{"family", family.name}, {"backend", backend.name}, {"summary", backend.summary}});
      table.Add({family.name, backend.name, backend.summary});
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

}  // namespace

void AddListCommand(CLI::App& app, int&) {
  auto what = std::make_shared<std::string>("definitions");
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("list", "What can be replayed, and by what");
  command->add_option("what", *what, "definitions, backends or suites")
      ->check(CLI::IsMember({"definitions", "backends", "suites"}));
  command->add_flag("--json", *json, "Print JSON");
  command->callback([what, json] {
    if (*what == "backends") return ListBackends(*json);
    if (*what == "suites") return ListSuites(*json);
    ListDefinitions(*json);
  });
}

}  // namespace assay::cli
