#include "replay/content_sets.h"

#include <utility>

#include "io/sha256.h"

#ifdef ASSAY_HAVE_XXHASH
#include <xxhash.h>
#endif

namespace assay {

std::vector<std::pair<std::string, std::string>> HashTensors(const Bundle& bundle) {
  std::vector<std::pair<std::string, std::string>> hashes;
  for (const Tensor& tensor : bundle.tensors()) {
    Sha256 hash;
    hash.Update(DTypeName(tensor.dtype));
    hash.Update(ShapeText(tensor.shape));
    hash.Update(std::span<const std::byte>(tensor.data, tensor.bytes()));
    hashes.emplace_back(tensor.name, Hex(hash.Finish()));
  }
  return hashes;
}

std::vector<std::string> ChangeMarks(const Bundle& bundle) {
  std::vector<std::string> marks;
  for (const Tensor& tensor : bundle.tensors()) {
#ifdef ASSAY_HAVE_XXHASH
    const XXH128_hash_t hash = XXH3_128bits(tensor.data, tensor.bytes());
    marks.emplace_back(reinterpret_cast<const char*>(&hash), sizeof hash);
#else
    marks.push_back(Sha256Hex(std::span<const std::byte>(tensor.data, tensor.bytes())));
#endif
  }
  return marks;
}

ContentSets::ContentSets(const Family& family, Problem problem, std::string content_id,
                         std::uint64_t first_set)
    : family_(family),
      problem_(std::move(problem)),
      content_id_(std::move(content_id)),
      first_set_(first_set) {}

std::size_t ContentSets::bytes_per_set() const {
  return Bundle::ArenaBytes(family_.input_layouts(problem_)) +
         Bundle::ArenaBytes(OutputLayouts(family_, problem_));
}

void ContentSets::Fill(ContentSet& set) { family_.generate(problem_, set.key, set.inputs); }

ContentSet& ContentSets::Get(std::size_t index) {
  if (sets_.size() <= index) sets_.resize(index + 1);
  if (sets_[index] != nullptr) return *sets_[index];
  auto set = std::make_unique<ContentSet>();
  {
    const ScopedSeconds timer(seconds_);
    set->key = ContentKey(content_id_, kGeneratorVersion, static_cast<int>(first_set_ + index));
    set->inputs = Bundle::AllocateShared(family_.input_layouts(problem_));
    Fill(*set);
    if (family_.validate_inputs != nullptr) family_.validate_inputs(problem_, set->inputs);
  }
  set->marks = ChangeMarks(set->inputs);
  const ScopedSeconds timer(seconds_);
  set->expected = ComputeExpected(family_, problem_, set->inputs, set->key);
  sets_[index] = std::move(set);
  return *sets_[index];
}

std::string ContentSets::CheckUntouched(std::size_t index) {
  ContentSet& set = Get(index);
  std::string change;
  if (const auto damage = set.inputs.CheckRedZones()) change = *damage;
  if (change.empty()) {
    const std::vector<std::string> now = ChangeMarks(set.inputs);
    for (std::size_t t = 0; t < now.size() && change.empty(); ++t) {
      if (now[t] != set.marks[t]) {
        change = "input '" + set.inputs.tensors()[t].name + "' was modified";
      }
    }
  }
  if (!change.empty()) {
    Fill(set);
    set.inputs.WriteRedZones();
  }
  return change;
}

}  // namespace assay
