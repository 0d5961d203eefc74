// New content on a GPU: the same bits as on the host, from version to version, in graphs.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "cuda/accelerator.h"
#include "replay/fresh_inputs.h"

namespace assay {
namespace {

class VersionsOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    gpu_ = OpenAccelerator(0, why_not);
    if (gpu_ == nullptr) GTEST_SKIP() << why_not;
    // Sizes that end inside a word, inside a vector, inside a line, beyond one part and beyond what
    // all blocks take at once.
    for (Bundle* bundle : {&host_, &device_}) {
      *bundle = Bundle::AllocateShared({{"large", DType::kBF16, {3, 33'333'331}},
                                        {"half", DType::kF16, {65'537}},
                                        {"single", DType::kF32, {77}},
                                        {"byte", DType::kE4M3, {100'001}},
                                        {"other", DType::kE5M2, {5}},
                                        {"double", DType::kF64, {9}},
                                        {"index", DType::kI32, {100}},
                                        {"scale", DType::kF32, {}}});
      for (std::size_t t = 0; t < bundle->tensors().size(); ++t) {
        const Tensor& tensor = bundle->tensors()[t];
        for (std::size_t i = 0; i < tensor.bytes(); ++i) {
          tensor.data[i] = static_cast<std::byte>(Mix64(5, t, i / 8) >> (8 * (i % 8)));
        }
      }
    }
    memory_ = gpu_->Allocate(device_.arena().size());
    gpu_->Upload(memory_, device_.arena().data(), device_.arena().size());
    versions_ = gpu_->MakeVersions(ChangingParts(device_, memory_));
    parts_ = ChangingParts(host_, host_.arena().data());
    version_of_.assign(parts_.size(), kOriginalVersion);
    ASSERT_GT(StepsOf(kFirstTimedVersion, parts_.size()).step, 10u);
  }
  void TearDown() override {
    versions_.reset();
    if (gpu_ != nullptr) gpu_->Free(memory_);
  }

  // What a change to `version` does, on the host.
  void Change(std::uint64_t version) {
    const PartSteps steps = StepsOf(version, parts_.size());
    for (std::uint64_t p = steps.first; p < parts_.size(); p += steps.step) {
      ChangePart(parts_[p], version_of_[p], version);
      version_of_[p] = version;
    }
  }

  // The device's memory, guard bands included, is what the host has.
  void ExpectSame(const std::string& when) {
    gpu_->Download(device_.arena().data(), memory_, device_.arena().size());
    for (std::size_t t = 0; t < host_.tensors().size(); ++t) {
      const Tensor &expected = host_.tensors()[t], &got = device_.tensors()[t];
      EXPECT_EQ(std::memcmp(expected.data, got.data, expected.bytes()), 0)
          << expected.name << " " << when;
    }
    EXPECT_EQ(device_.CheckRedZones(), std::nullopt);
  }

  std::unique_ptr<Accelerator> gpu_;
  Bundle host_, device_;
  std::byte* memory_ = nullptr;
  std::unique_ptr<ContentVersions> versions_;
  std::vector<ContentPart> parts_;  // the host's
  std::vector<std::uint64_t> version_of_;
};

TEST_F(VersionsOnDevice, AreTheHostsBitForBit) {
  const Bundle original = Bundle::AllocateShared(host_.layouts());
  std::memcpy(original.arena().data(), host_.arena().data(), host_.arena().size());
  for (std::uint64_t version = kFirstTimedVersion; version < 5; ++version) {
    versions_->EnqueueNext(gpu_->stream());
    Change(version);
    ExpectSame("in version " + std::to_string(version));
  }
  versions_->SetNext(kJudgedVersion);
  versions_->EnqueueNext(gpu_->stream());
  Change(kJudgedVersion);
  ExpectSame("in the judged version");
  ChangeVersion(host_, kJudgedVersion, kOriginalVersion);  // all parts were in that version
  EXPECT_EQ(std::memcmp(original.arena().data(), host_.arena().data(), host_.arena().size()), 0);
  versions_->SetNext(kOriginalVersion);
  versions_->EnqueueNext(gpu_->stream());
  ExpectSame("taken back");
}

TEST_F(VersionsOnDevice, CountUpInEveryReplay) {
  const auto twice = gpu_->Record([&](Stream stream) {
    versions_->EnqueueNext(stream);
    versions_->EnqueueNext(stream);
  });
  for (int replay = 0; replay < 10; ++replay) twice->Replay();
  for (std::uint64_t change = 0; change < 20; ++change) Change(kFirstTimedVersion + change);
  ExpectSame("after ten replays");
  versions_->SetNext(kOriginalVersion - 1);
  twice->Replay();
  Change(kOriginalVersion);
  ExpectSame("counted up to the original");
  versions_->Reset();
  twice->Replay();
  Change(kFirstTimedVersion);
  Change(kFirstTimedVersion + 1);
  ExpectSame("after a new start");
}

}  // namespace
}  // namespace assay
