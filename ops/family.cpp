#include "ops/family.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "ops/registry.h"

namespace assay {
namespace {

// No captured axis passes 2^21; 2^40 leaves room and keeps products of two axes inside 64 bits.
constexpr std::int64_t kLargestAxis = 1LL << 40;

std::int64_t ResolveDimension(const std::string& text, const Problem& problem) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc{} && end == text.data() + text.size()) return value;
  return problem.axis(text);
}

std::int64_t Product(const Shape& shape, std::size_t first, std::size_t last) {
  return ElementCount(Shape(shape.begin() + static_cast<std::ptrdiff_t>(first),
                            shape.begin() + static_cast<std::ptrdiff_t>(last)));
}

template <class T>
const T* Get(const Attributes& attributes, std::string_view name) {
  const auto it = attributes.find(name);
  return it == attributes.end() ? nullptr : std::get_if<T>(&it->second);
}

void CheckAxis(const Definition& definition, const std::string& name, std::int64_t value) {
  if (value < 0 || value > kLargestAxis) {
    BadInput(definition.name + ": axis " + name + " = " + std::to_string(value) +
             " is outside 0.." + std::to_string(kLargestAxis));
  }
}

}  // namespace

std::int64_t Problem::axis(std::string_view name) const {
  const auto it = axes.find(name);
  if (it == axes.end()) {
    throw Error(Fault::kInternal, "problem has no axis '" + std::string(name) + "'");
  }
  return it->second;
}

const std::string* Problem::text(std::string_view name) const {
  return Get<std::string>(attributes, name);
}
const std::vector<std::int64_t>* Problem::integers(std::string_view name) const {
  return Get<std::vector<std::int64_t>>(attributes, name);
}
const std::int64_t* Problem::integer(std::string_view name) const {
  return Get<std::int64_t>(attributes, name);
}

float Problem::number(std::string_view name, float otherwise) const {
  const auto it = attributes.find(name);
  if (it == attributes.end()) return otherwise;
  if (const auto* real = std::get_if<double>(&it->second)) return static_cast<float>(*real);
  if (const auto* whole = std::get_if<std::int64_t>(&it->second)) return static_cast<float>(*whole);
  BadInput(definition->name + ": " + std::string(name) + " is not a number");
}

TensorLayout Resolve(const TensorSpec& spec, const Problem& problem) {
  TensorLayout layout{spec.name, spec.dtype, {}};
  for (const std::string& dimension : spec.shape) {
    layout.shape.push_back(ResolveDimension(dimension, problem));
  }
  return layout;
}

std::int64_t RowCount(const TensorSpec& spec, const Problem& problem) {
  return Product(Resolve(spec, problem).shape, 0, static_cast<std::size_t>(spec.row_rank));
}

std::int64_t RowElements(const TensorSpec& spec, const Problem& problem) {
  return Product(Resolve(spec, problem).shape, static_cast<std::size_t>(spec.row_rank),
                 spec.shape.size());
}

const Definition* Family::FindDefinition(std::string_view definition_name) const {
  const auto it = std::find_if(definitions.begin(), definitions.end(),
                               [&](const Definition& d) { return d.name == definition_name; });
  return it == definitions.end() ? nullptr : &*it;
}

const Backend* Family::FindBackend(std::string_view backend_name) const {
  const auto it = std::find_if(backends.begin(), backends.end(),
                               [&](const Backend& b) { return b.name == backend_name; });
  return it == backends.end() ? nullptr : &*it;
}

std::vector<TensorLayout> OutputLayouts(const Family& family, const Problem& problem) {
  std::vector<TensorLayout> layouts;
  for (const TensorSpec& spec : family.outputs) layouts.push_back(Resolve(spec, problem));
  return layouts;
}

void CheckInputLayouts(const std::vector<TensorSpec>& specs, const Problem& problem,
                       const Bundle& inputs) {
  const auto text = [](DType dtype, const Shape& shape) {
    return std::string(DTypeName(dtype)) + ShapeText(shape);
  };
  for (const TensorSpec& spec : specs) {
    const Tensor* tensor = inputs.find(spec.name);
    if (tensor == nullptr) {
      if (spec.optional) continue;
      BadInput(problem.definition->name + ": input '" + spec.name + "' is missing");
    }
    const TensorLayout wanted = Resolve(spec, problem);
    if (tensor->dtype != wanted.dtype || tensor->shape != wanted.shape) {
      BadInput(problem.definition->name + ": input '" + spec.name + "' is " +
               text(tensor->dtype, tensor->shape) + ", expected " +
               text(wanted.dtype, wanted.shape));
    }
  }
}

Problem MakeProblem(const Family& family, std::string_view definition_name, const Axes& variables,
                    const Attributes& attributes, std::string variant) {
  const Definition* definition = family.FindDefinition(definition_name);
  if (definition == nullptr) {
    BadInput("unknown definition '" + std::string(definition_name) + "'");
  }
  Problem problem{definition, definition->constants, {}, std::move(variant)};
  for (const std::string& name : family.attributes) {
    if (const auto given = attributes.find(name); given != attributes.end()) {
      problem.attributes.insert(*given);
    }
  }
  for (const auto& [name, value] : variables) {
    CheckAxis(*definition, name, value);
    const auto constant = definition->constants.find(name);
    if (constant != definition->constants.end()) {
      if (constant->second == value) continue;
      BadInput(definition->name + ": axis " + name + " = " + std::to_string(value) +
               ", but the definition fixes it at " + std::to_string(constant->second));
    }
    const auto& known = definition->variables;
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      BadInput(definition->name + ": unknown axis " + name + " = " + std::to_string(value));
    }
    problem.axes[name] = value;
  }
  for (const std::string& name : definition->variables) {
    if (!variables.contains(name)) BadInput(definition->name + ": axis " + name + " is missing");
  }
  const auto& variants = family.variants;
  if (!problem.variant.empty() &&
      std::find(variants.begin(), variants.end(), problem.variant) == variants.end()) {
    BadInput(definition->name + ": unknown generator variant '" + problem.variant + "'");
  }
  if (family.validate_axes != nullptr) family.validate_axes(problem);
  return problem;
}

const Family* Registry::FindFamily(std::string_view name) const {
  for (const Family& family : families_) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

DefinitionRef Registry::FindDefinition(std::string_view name) const {
  for (const Family& family : families_) {
    if (const Definition* definition = family.FindDefinition(name)) return {&family, definition};
  }
  return {};
}

}  // namespace assay
