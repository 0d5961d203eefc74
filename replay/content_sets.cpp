#include "replay/content_sets.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "io/sha256.h"
#include "replay/fresh_inputs.h"

#ifdef ASSAY_HAVE_XXHASH
#include <xxhash.h>
#endif

namespace assay {

namespace {

constexpr std::size_t kMostBytes = 256u << 20;  // of content that is made again and again
constexpr std::size_t kLargeBytes = 64u << 20;  // of a set, or of a truth
constexpr int kUnseenSet = 1'000'000;           // no run counts its content sets that far
constexpr int kUnseenVariation = 3;             // after those of the three checked sets

// Memory pages and tensors are aligned to this, see base/tensor.h.
constexpr std::size_t kPage = 4096;

bool AllZero(std::span<const std::byte> bytes) {
  return bytes[0] == std::byte{0} && std::memcmp(&bytes[0], &bytes[1], bytes.size() - 1) == 0;
}

// Feeds (offset, bytes) of every page of [begin, end) of a tensor that is not all zero to `update`,
// given the tensor's touched parts. A hole that somebody merely read has become a page of zeros,
// and that is no change.
template <class Update>
void UpdateWithPages(const Tensor& tensor,
                     std::span<const std::pair<std::size_t, std::size_t>> parts, std::size_t begin,
                     std::size_t end, Update&& update) {
  for (const auto& [first, last] : parts) {
    const std::size_t stop = std::min(last, end);
    for (std::size_t at = std::max(first, begin); at < stop; at += kPage) {
      const std::span<const std::byte> page(tensor.data + at, std::min(kPage, stop - at));
      if (AllZero(page)) continue;
      const auto offset = static_cast<std::uint64_t>(at);
      update(std::as_bytes(std::span(&offset, 1)));
      update(page);
    }
  }
}

// The hash of a whole tensor in one go, for identities that are stored.
template <class Update>
void UpdateWithContent(const Bundle& bundle, const Tensor& tensor, Update&& update) {
  UpdateWithPages(tensor, bundle.TouchedParts(tensor), 0, tensor.bytes(), update);
}

#ifdef ASSAY_HAVE_XXHASH
class MarkHash {
 public:
  MarkHash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }
  void Update(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  std::string Finish() {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text;
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};
#else
class MarkHash {
 public:
  void Update(std::span<const std::byte> bytes) { hash_.Update(bytes); }
  std::string Finish() { return Hex(hash_.Finish()); }

 private:
  Sha256 hash_;
};
#endif

// Blocks of fixed place are hashed side by side, then their hashes in order: the mark depends on
// neither the number of threads nor on how the touched parts are cut.
std::string ChangeMark(const Bundle& bundle, const Tensor& tensor) {
  constexpr std::size_t kBlock = 8 << 20;  // a multiple of kPage
  const auto parts = bundle.TouchedParts(tensor);
  const std::size_t blocks = (tensor.bytes() + kBlock - 1) / kBlock;
  std::vector<std::string> marks(blocks);
  const auto mark_block = [&](std::int64_t index) {
    const std::size_t begin = static_cast<std::size_t>(index) * kBlock;
    MarkHash hash;
    UpdateWithPages(tensor, parts, begin, std::min(begin + kBlock, tensor.bytes()),
                    [&](std::span<const std::byte> bytes) { hash.Update(bytes); });
    marks[static_cast<std::size_t>(index)] = hash.Finish();
  };
  if (blocks == 1) {
    mark_block(0);
    return marks[0];
  }
  ParallelFor(static_cast<std::int64_t>(blocks), 0, mark_block);
  MarkHash all;
  for (const std::string& mark : marks) all.Update(std::as_bytes(std::span(mark)));
  return all.Finish();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> HashTensors(const Bundle& bundle, bool sparse) {
  std::vector<std::pair<std::string, std::string>> hashes;
  for (const Tensor& tensor : bundle.tensors()) {
    Sha256 hash;
    hash.Update(DTypeName(tensor.dtype));
    hash.Update(ShapeText(tensor.shape));
    if (sparse) {
      hash.Update("sparse");
      UpdateWithContent(bundle, tensor,
                        [&](std::span<const std::byte> part) { hash.Update(part); });
    } else {
      hash.Update(std::span<const std::byte>(tensor.data, tensor.bytes()));
    }
    hashes.emplace_back(tensor.name, Hex(hash.Finish()));
  }
  return hashes;
}

std::vector<std::string> ChangeMarks(const Bundle& bundle) {
  std::vector<std::string> marks;
  for (const Tensor& tensor : bundle.tensors()) marks.push_back(ChangeMark(bundle, tensor));
  return marks;
}

ContentSets::ContentSets(const Family& family, Problem problem, std::string content_id,
                         std::uint64_t first_set)
    : family_(family),
      problem_(std::move(problem)),
      content_id_(std::move(content_id)),
      first_set_(first_set) {}

void ContentSets::UseStored(const Workload& workload) {
  stored_ = StoredInputs::Open(workload, family_, problem_);
}

std::vector<TensorLayout> ContentSets::layouts() const {
  return stored_ != nullptr ? stored_->layouts() : family_.input_layouts(problem_);
}

std::size_t ContentSets::bytes_per_set() const {
  const std::size_t inputs =
      sparse() ? family_.resident_bytes(problem_) : Bundle::ArenaBytes(layouts());
  return inputs + Bundle::ArenaBytes(OutputLayouts(family_, problem_));
}

bool ContentSets::SaveMemory() {
  saves_memory_ = !sparse() && bytes_per_set() > kLargeBytes;
  return saves_memory_;
}

bool ContentSets::IsTooLarge(const Expected& truth) const {
  std::size_t bytes = 0;
  for (const ExpectedRows& output : truth.outputs) {
    bytes += (output.value.size() + output.scale.size()) * sizeof(double);
  }
  return saves_memory_ && bytes > kLargeBytes;
}

void ContentSets::Fill(std::uint64_t key, int variation, Bundle& inputs) {
  if (stored_ != nullptr) return stored_->Fill(key, variation, inputs);
  family_.generate(problem_, key, inputs);
}

// The truth of content that was changed; `invalid` when the operator refuses it: elements that
// changed may mean something.
Expected ContentSets::ExpectOther(const Bundle& inputs, std::uint64_t key) {
  try {
    if (family_.validate_inputs != nullptr) family_.validate_inputs(problem_, inputs);
    return Expect(inputs, key);
  } catch (const Error& error) {
    if (error.fault() != Fault::kInput) throw;
    Expected none;
    none.invalid = error.what();
    return none;
  }
}

bool ContentSets::FillVariation(std::uint64_t key, int variation, Bundle& inputs,
                                Expected& expected) {
  Fill(key, variation, inputs);
  expected = ExpectOther(inputs, key);
  return expected.invalid.empty();
}

ContentSet& ContentSets::Get(std::size_t index) {
  const std::scoped_lock lock(making_);
  if (sets_.size() <= index) sets_.resize(index + 1);
  if (sets_[index] != nullptr) return *sets_[index];
  auto set = std::make_unique<ContentSet>();
  set->key = ContentKey(content_id_, kGeneratorVersion, static_cast<int>(first_set_ + index));
  set->inputs = Bundle::AllocateShared(layouts());
  set->variation = stored_ != nullptr ? static_cast<int>(index) : 0;
  const bool varied =
      set->variation > 0 && FillVariation(set->key, set->variation, set->inputs, set->expected);
  if (!varied) {
    set->variation = 0;
    Fill(*set);
    if (family_.validate_inputs != nullptr) family_.validate_inputs(problem_, set->inputs);
    set->expected = Expect(set->inputs, set->key);
  }
  set->marks = ChangeMarks(set->inputs);
  sets_[index] = std::move(set);
  return *sets_[index];
}

const std::vector<std::pair<std::string, std::string>>& ContentSets::InputHashes() {
  std::call_once(hashed_, [this] { input_hashes_ = HashTensors(Get(0).inputs, sparse()); });
  return input_hashes_;
}

// A reference that cannot be had judges nobody.
Expected ContentSets::Expect(const Bundle& inputs, std::uint64_t key) {
  try {
    return ComputeExpected(family_, problem_, inputs, key);
  } catch (const Error& error) {
    if (error.fault() != Fault::kIncomplete) throw;
    Expected none;
    none.invalid = error.what();
    return none;
  }
}

const Expected& ContentSets::TruthOf(std::size_t index) {
  ContentSet& set = Get(index);
  const std::scoped_lock lock(making_);
  if (set.expected.rows.empty()) set.expected = Expect(set.inputs, set.key);
  return set.expected;
}

void ContentSets::ForgetLargeTruths() {
  for (const std::unique_ptr<ContentSet>& set : sets_) {
    if (set != nullptr && IsTooLarge(set->expected)) set->expected = {};
  }
  for (std::unique_ptr<Expected>* truth : {&third_, &unseen_, &judged_}) {
    if (*truth != nullptr && IsTooLarge(**truth)) truth->reset();
  }
}

// `truth` is computed when it is not there yet.
const Expected* ContentSets::SwapIn(std::uint64_t key, int variation,
                                    std::unique_ptr<Expected>& truth) {
  ContentSet& first = Get(0);
  if (truth == nullptr) {
    truth = std::make_unique<Expected>();
    if (!FillVariation(key, variation, first.inputs, *truth)) {
      truth->invalid = "the operator refuses it";
    }
  } else {
    Fill(key, variation, first.inputs);
  }
  if (!truth->invalid.empty()) {
    Fill(first);
    return nullptr;
  }
  swapped_ = {key, variation, ChangeMarks(first.inputs)};
  return truth.get();
}

const Expected* ContentSets::SwapInThird() {
  if (sparse()) return nullptr;
  third_key_ = ContentKey(content_id_, kGeneratorVersion, static_cast<int>(first_set_ + 2));
  return SwapIn(third_key_, stored_ != nullptr ? 2 : 0, third_);
}

const Expected* ContentSets::SwapInUnseen() {
  if (TooLargeToJudge()) return nullptr;
  unseen_key_ = ContentKey(content_id_, kGeneratorVersion, kUnseenSet);
  return SwapIn(unseen_key_, stored_ != nullptr ? kUnseenVariation : 0, unseen_);
}

bool ContentSets::SwapInOther(int number) {
  ContentSet& first = Get(0);
  Fill(ContentKey(content_id_, kGeneratorVersion, kUnseenSet + number),
       stored_ != nullptr ? kUnseenVariation + number : 0, first.inputs);
  try {
    if (family_.validate_inputs != nullptr) family_.validate_inputs(problem_, first.inputs);
  } catch (const Error& error) {
    if (error.fault() != Fault::kInput) throw;
    return false;
  }
  return true;
}

const Expected* ContentSets::SwapInJudged() {
  if (TooLargeToJudge() || !HasVersions(Get(0).inputs)) return nullptr;
  ContentSet& first = Get(0);
  ChangeVersion(first.inputs, kOriginalVersion, kJudgedVersion);
  if (judged_ == nullptr) {
    judged_ = std::make_unique<Expected>(ExpectOther(first.inputs, first.key));
  }
  if (judged_->invalid.empty()) return judged_.get();
  SwapOutJudged();
  return nullptr;
}

bool ContentSets::TooLargeToJudge() const { return sparse() || bytes_per_set() > kMostBytes; }

bool ContentSets::CanBeJudged() {
  if (!can_be_judged_) {
    can_be_judged_ = SwapInJudged() != nullptr;
    if (*can_be_judged_) SwapOutJudged();
  }
  return *can_be_judged_;
}

void ContentSets::SwapOutJudged() {
  ChangeVersion(Get(0).inputs, kJudgedVersion, kOriginalVersion);
  if (judged_ != nullptr && IsTooLarge(*judged_)) judged_.reset();
}

void ContentSets::RestoreFirstSet() { Fill(Get(0)); }

std::string ContentSets::CheckInputs(Bundle& inputs, const Origin& origin) {
  std::string change;
  if (const auto damage = inputs.CheckRedZones()) change = *damage;
  if (change.empty()) {
    const std::vector<std::string> now = ChangeMarks(inputs);
    for (std::size_t t = 0; t < now.size() && change.empty(); ++t) {
      if (now[t] != origin.marks[t]) {
        change = "input '" + inputs.tensors()[t].name + "' was modified";
      }
    }
  }
  if (!change.empty()) {
    if (sparse()) inputs.PunchOut();  // a hole may have been written to
    Fill(origin.key, origin.variation, inputs);
    inputs.WriteRedZones();
  }
  return change;
}

std::string ContentSets::CheckUntouched(std::size_t index) {
  ContentSet& set = Get(index);
  return CheckInputs(set.inputs, {set.key, set.variation, set.marks});
}

std::string ContentSets::CheckSwappedUntouched() { return CheckInputs(Get(0).inputs, swapped_); }

}  // namespace assay
