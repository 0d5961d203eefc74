// `assay plugin`: start a plugin, or see what one offers.
#include "replay/plugin.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "io/file.h"
#include "ops/registry.h"
#include "report/table.h"

namespace assay::cli {
namespace {

// @NAME@, @DEFINITION@ and @TENSORS@ are replaced.
constexpr const char* kSource = R"(// @NAME@: a kernel for @DEFINITION@.
//
@TENSORS@#include <assay_plugin.h>

#include <cstddef>
#include <cstring>

namespace {

void* Data(const AssayNamedTensor* tensors, std::size_t count, const char* name) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(tensors[i].name, name) == 0) return tensors[i].tensor.data;
  }
  return nullptr;  // an optional input that this call does not have
}

// Write every element of every output; change no input. 0 = done.
int Run(const AssayCall* call) {
  (void)call;
  (void)Data;
  return 1;  // see Error() until the kernel is written
}

const char* Error() { return "not written yet"; }

const AssayBackend kBackends[] = {
    {"@NAME@", "@DEFINITION@", "", nullptr, nullptr, Run, Error},
};

}  // namespace

const AssayBackend* assay_plugin_backends(uint32_t host_abi, size_t* count) {
  *count = 1;
  return host_abi == ASSAY_PLUGIN_ABI ? kBackends : nullptr;
}
)";

constexpr const char* kCMake = R"(cmake_minimum_required(VERSION 3.22)
project(@NAME@ LANGUAGES CXX)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_package(assay REQUIRED)  # cmake -B build -DCMAKE_PREFIX_PATH=<where assay is installed>
add_library(@NAME@ MODULE @NAME@.cpp)
target_link_libraries(@NAME@ PRIVATE assay::plugin)
set_target_properties(@NAME@ PROPERTIES PREFIX "" CXX_STANDARD 17 CXX_VISIBILITY_PRESET hidden)
)";

void Replace(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) {
    text.replace(at, what.size(), by);
    at += by.size();
  }
}

std::string TensorLine(const char* role, const TensorSpec& spec) {
  return fmt::format("//   {:<7} {:<16} {:<10} [{}]{}\n", role, spec.name, DTypeName(spec.dtype),
                     fmt::join(spec.shape, ", "), spec.optional ? ", may be absent" : "");
}

// A C identifier that is also a file and target name.
void RequireName(const std::string& name) {
  const bool sound = !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
                     name.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789_") == std::string::npos;
  if (!sound) {
    BadInput(fmt::format("plugin name '{}' must consist of letters, digits and underscores", name));
  }
}

int New(const std::string& name, const std::string& definition, std::string folder) {
  RequireName(name);
  const Registry& registry = BuiltInRegistry();
  const Family* family = registry.FindFamily(definition);
  if (family == nullptr) family = registry.FindDefinition(definition).family;
  if (family == nullptr) {
    BadInput(fmt::format("unknown definition or family '{}'; `assay list` shows all", definition));
  }
  if (folder.empty()) folder = name;
  if (std::filesystem::exists(folder)) BadInput(fmt::format("{} exists already", folder));
  std::string tensors;
  for (const TensorSpec& spec : family->inputs) tensors += TensorLine("input", spec);
  for (const TensorSpec& spec : family->outputs) tensors += TensorLine("output", spec);
  std::string source = kSource, cmake = kCMake;
  Replace(source, "@TENSORS@", tensors);
  for (std::string* text : {&source, &cmake}) {
    Replace(*text, "@NAME@", name);
    Replace(*text, "@DEFINITION@", definition);
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) BadInput(fmt::format("cannot create {}: {}", folder, error.message()));
  WriteFile(folder + "/" + name + ".cpp", source);
  WriteFile(folder + "/CMakeLists.txt", cmake);
  fmt::print("wrote {0}/{1}.cpp and {0}/CMakeLists.txt\n", folder, name);
  return 0;
}

int List(const std::string& path) {
  std::vector<std::string> worker = OwnWorkerCommand();
  worker.insert(worker.end(), {"--plugin", path});
  Table table({{"backend"}, {"definition or family"}, {"summary"}});
  for (const PluginBackend& kernel : DescribePlugins(worker)) {
    table.Add({kernel.name, kernel.definition, kernel.summary});
  }
  fmt::print("{}", table.Text({.width = TerminalWidth(1), .colour = UseColor(1)}));
  return 0;
}

}  // namespace

void AddPluginCommand(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("plugin", "Kernels of your own in a shared library");
  command->require_subcommand(1);
  auto name = std::make_shared<std::string>();
  auto definition = std::make_shared<std::string>();
  auto folder = std::make_shared<std::string>();
  CLI::App* create = command->add_subcommand("new", "Write a skeleton that builds");
  create->add_option("name", *name, "Name of the kernel")->required();
  create->add_option("--definition", *definition, "Definition or operator family it computes")
      ->required();
  create->add_option("--folder", *folder, "Where to write; default: a new folder of that name");
  create->callback([=, &exit_code] { exit_code = New(*name, *definition, *folder); });
  CLI::App* list = command->add_subcommand("list", "What a plugin offers");
  list->add_option("file", *name, "Shared library")->required();
  list->callback([=, &exit_code] { exit_code = List(*name); });
  command->footer(
      "Examples:\n"
      "  assay plugin new mine --definition gdn_decode\n"
      "  assay plugin list ./mine/build/mine.so\n"
      "  assay run --plugin ./mine/build/mine.so --html report.html");
}

}  // namespace assay::cli
