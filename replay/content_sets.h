// The inputs of one workload in several versions of different content, with their truth.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "replay/stored_inputs.h"
#include "replay/suite.h"
#include "replay/verify.h"

namespace assay {

struct ContentSet {
  std::uint64_t key = 0;
  int variation = 0;               // of stored inputs
  Bundle inputs;                   // shared memory
  std::vector<std::string> marks;  // ChangeMarks of the inputs
  Expected expected;
};

class ContentSets {
 public:
  // `first_set` is the number of the first content set (the run's seed).
  ContentSets(const Family& family, Problem problem, std::string content_id,
              std::uint64_t first_set);

  // Set 0 becomes what a dataset stores of the workload, the others variations of it. Throws what
  // StoredInputs::Open throws; does nothing where nothing is stored.
  void UseStored(const Workload& workload);

  const Family& family() const { return family_; }
  const Problem& problem() const { return problem_; }
  bool stored() const { return stored_ != nullptr && stored_->any_blob(); }
  // Inputs have holes that read as zeros (Family::resident_bytes).
  bool sparse() const { return family_.resident_bytes != nullptr && stored_ == nullptr; }

  // Memory of one set: inputs (their resident part) and outputs with their red zones.
  std::size_t bytes_per_set() const;
  // Large sets without holes save memory at the price of computation: truths that are large as well
  // are computed again when they are needed again, and the caller keeps two sets, the third being
  // met in the memory of the first. To be called before the first Get; true = it is so.
  bool SaveMemory();

  // Makes set `index` on first use (generates, validates, hashes, computes the reference). Throws
  // what the family's validation throws. Any thread.
  ContentSet& Get(std::size_t index);

  // SHA-256 of the first set's inputs, computed once. Any thread.
  const std::vector<std::pair<std::string, std::string>>& InputHashes();
  // The recorded engine outputs against those of set 0.
  std::vector<EngineError> CompareWithEngine(const Bundle& outputs) const {
    return stored_ != nullptr ? stored_->CompareWithEngine(outputs) : std::vector<EngineError>{};
  }

  // The truth of a set: as Get made it, or computed again after ForgetLargeTruths.
  const Expected& TruthOf(std::size_t index);
  void ForgetLargeTruths();  // while no backend is being judged

  // "" when the inputs of the set still have their hashes and red zones; else what changed, after
  // which the inputs are restored.
  std::string CheckUntouched(std::size_t index);
  // The same of what SwapInThird or SwapInUnseen put in.
  std::string CheckSwappedUntouched();

  // Puts the content of set 2 into the memory of set 0, and returns its truth; null with holes, or
  // where the operator refuses it. RestoreFirstSet ends it.
  const Expected* SwapInThird();
  // Puts content that no backend has seen into the memory of set 0, and returns its truth. Null
  // where that costs too much: large inputs, or inputs with holes.
  const Expected* SwapInUnseen();
  // After that: wholly other content once more, without a truth, for every `number` from 1 on.
  // False where the operator refuses it.
  bool SwapInOther(int number);
  // Is there a truth of kJudgedVersion (cuda/content_versions.h) of set 0? Made on first use. Not
  // where that costs too much, no input has versions or the operator refuses them.
  bool CanBeJudged();
  bool TooLargeToJudge() const;
  // Changes set 0 to that version and returns its truth, or null. SwapOutJudged ends it.
  const Expected* SwapInJudged();
  void SwapOutJudged();
  void RestoreFirstSet();
  std::uint64_t third_key() const { return third_key_; }
  std::uint64_t unseen_key() const { return unseen_key_; }

 private:
  std::vector<TensorLayout> layouts() const;
  void Fill(std::uint64_t key, int variation, Bundle& inputs);
  void Fill(ContentSet& set) { Fill(set.key, set.variation, set.inputs); }
  bool FillVariation(std::uint64_t key, int variation, Bundle& inputs, Expected& expected);
  Expected Expect(const Bundle& inputs, std::uint64_t key);
  Expected ExpectOther(const Bundle& inputs, std::uint64_t key);
  const Expected* SwapIn(std::uint64_t key, int variation, std::unique_ptr<Expected>& truth);
  bool IsTooLarge(const Expected& truth) const;

  const Family& family_;
  const Problem problem_;
  const std::string content_id_;
  const std::uint64_t first_set_;
  struct Origin {
    std::uint64_t key = 0;
    int variation = 0;
    std::vector<std::string> marks;
  } swapped_;  // what SwapIn put in
  std::string CheckInputs(Bundle& inputs, const Origin& origin);
  bool saves_memory_ = false;
  std::optional<bool> can_be_judged_;
  std::uint64_t third_key_ = 0, unseen_key_ = 0;
  std::unique_ptr<Expected> third_, unseen_, judged_;
  std::unique_ptr<StoredInputs> stored_;  // null = all is generated
  std::mutex making_;                     // of sets_
  std::vector<std::unique_ptr<ContentSet>> sets_;
  std::once_flag hashed_;
  std::vector<std::pair<std::string, std::string>> input_hashes_;
};

// SHA-256 over dtype, shape and bytes of every tensor: identity, for results. `sparse`: for
// families whose inputs have holes, over the word "sparse" and (offset, bytes) of the pages that
// are not zero in place of all bytes.
std::vector<std::pair<std::string, std::string>> HashTensors(const Bundle& bundle,
                                                             bool sparse = false);

// Did these bytes change within this run? 128-bit XXH3 per tensor where libxxhash was found (some
// 10 GB/s), SHA-256 otherwise. Never stored.
std::vector<std::string> ChangeMarks(const Bundle& bundle);

}  // namespace assay
