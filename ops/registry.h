// The families that are built into this binary.
#pragma once

#include <string_view>
#include <vector>

#include "ops/family.h"

namespace assay {

struct DefinitionRef {
  const Family* family = nullptr;
  const Definition* definition = nullptr;
};

// A value, not a global: tests build registries of their own with faulty backends.
class Registry {
 public:
  explicit Registry(std::vector<Family> families) : families_(std::move(families)) {}

  const std::vector<Family>& families() const { return families_; }
  const Family* FindFamily(std::string_view name) const;
  DefinitionRef FindDefinition(std::string_view name) const;  // family == nullptr when unknown

 private:
  std::vector<Family> families_;
};

// The explicit list of ops/registry.cpp.
const Registry& BuiltInRegistry();
// The folder under ops/ that holds a built-in family: mostly of the same name.
std::string_view RoomOf(std::string_view family);

}  // namespace assay
