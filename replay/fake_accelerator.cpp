#include "replay/fake_accelerator.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "replay/fresh_inputs.h"

namespace assay {

class FakeRecording : public Recording {
 public:
  FakeRecording(FakeAccelerator& gpu, std::vector<FakeAccelerator::Node> nodes)
      : gpu_(gpu), nodes_(std::move(nodes)) {}
  double Replay() override { return FakeAccelerator::kStartNs + gpu_.Execute(nodes_); }

 private:
  FakeAccelerator& gpu_;
  std::vector<FakeAccelerator::Node> nodes_;
};

class FakeActivityRecorder : public ActivityRecorder {
 public:
  explicit FakeActivityRecorder(FakeAccelerator& gpu) : gpu_(gpu) { gpu_.traced_ = true; }
  FakeActivityRecorder(const FakeActivityRecorder&) = delete;
  FakeActivityRecorder& operator=(const FakeActivityRecorder&) = delete;
  ~FakeActivityRecorder() override { gpu_.traced_ = false; }
  std::vector<Activity> Take() override { return std::exchange(gpu_.activities_, {}); }

 private:
  FakeAccelerator& gpu_;
};

class FakeContentVersions : public ContentVersions {
 public:
  explicit FakeContentVersions(std::vector<ContentPart> parts)
      : parts_(std::move(parts)), versions_(parts_.size()) {}

  void EnqueueNext(Stream stream) override {
    FakeAccelerator::Of(stream).Launch(
        FakeAccelerator::kVersionNs, FakeAccelerator::kVersionNs, [this] {
          const PartSteps steps = StepsOf(next_, parts_.size());
          for (std::uint64_t p = steps.first; p < parts_.size(); p += steps.step) {
            ChangePart(parts_[p], std::exchange(versions_[p], next_), next_);
          }
          ++next_;
        });
  }
  void SetNext(std::uint64_t version) override { next_ = version; }
  void Reset() override {
    std::fill(versions_.begin(), versions_.end(), kOriginalVersion);
    next_ = kFirstTimedVersion;
  }

 private:
  std::vector<ContentPart> parts_;
  std::vector<std::uint64_t> versions_;  // of every part
  std::uint64_t next_ = kFirstTimedVersion;
};

std::byte* FakeAccelerator::Allocate(std::size_t bytes) {
  if (static_cast<std::int64_t>(allocated_ + bytes) > memory_limit) {
    throw OutOfDeviceMemory("needs " + std::to_string(bytes) + " bytes of device memory, " +
                            std::to_string(memory_limit - static_cast<std::int64_t>(allocated_)) +
                            " are free");
  }
  std::vector<std::byte> block(bytes);
  std::byte* const address = block.data();
  allocated_ += bytes;
  blocks_.emplace(address, std::move(block));
  return address;
}

void FakeAccelerator::Free(std::byte* memory) noexcept {
  const auto block = blocks_.find(memory);
  if (block == blocks_.end()) return;
  allocated_ -= block->second.size();
  blocks_.erase(block);
}

void FakeAccelerator::Upload(std::byte* to, const std::byte* from, std::size_t bytes) {
  Synchronize();
  std::memcpy(to, from, bytes);
}

void FakeAccelerator::Download(std::byte* to, const std::byte* from, std::size_t bytes) {
  Synchronize();
  std::memcpy(to, from, bytes);
}

void FakeAccelerator::Fill(std::byte* to, int byte, std::size_t bytes) {
  Synchronize();
  std::memset(to, byte, bytes);
}

std::uint64_t FakeAccelerator::Checksum(const std::byte* data, std::size_t bytes) {
  Synchronize();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes / 8; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + 8 * i, 8);
    sum += Mix64(word, 0, i);
  }
  return sum;
}

void FakeAccelerator::Synchronize() {
  if (!broken_.empty()) throw DeviceError(broken_);
}

double FakeAccelerator::Execute(const std::vector<Node>& nodes) {
  Synchronize();
  double ns = 0;
  for (const Node& node : nodes) {
    double kernel_ns = cold_ ? node.cold_ns : node.warm_ns;
    cold_ = node.flushes;
    if (node.kernel) node.kernel();
    kernel_ns += std::exchange(spent_ns_, 0);
    now_ns_ += kNodeNs;
    if (traced_) {
      activities_.push_back({static_cast<std::int64_t>(now_ns_),
                             static_cast<std::int64_t>(now_ns_ + activity_factor * kernel_ns),
                             node.flushes ? "flush" : "kernel"});
    }
    now_ns_ += activity_factor * kernel_ns;
    ns += kNodeNs + kernel_ns;
  }
  Synchronize();
  return ns;
}

void FakeAccelerator::Enqueue(Node node) {
  if (capture_ != nullptr) {
    capture_->push_back(std::move(node));
  } else {
    Execute({std::move(node)});
  }
}

void FakeAccelerator::EnqueueFlush(Stream, FlushKind) { Enqueue({kFlushNs, kFlushNs, true, {}}); }

std::unique_ptr<ActivityRecorder> FakeAccelerator::RecordActivities(std::string& why_not) {
  why_not = why_no_activities;
  if (!why_not.empty()) return nullptr;
  return std::make_unique<FakeActivityRecorder>(*this);
}

std::unique_ptr<ContentVersions> FakeAccelerator::MakeVersions(
    const std::vector<ContentPart>& parts) {
  return std::make_unique<FakeContentVersions>(parts);
}

void FakeAccelerator::Launch(double warm_ns, double cold_ns, std::function<void()> kernel) {
  Enqueue({warm_ns, cold_ns, false, std::move(kernel)});
}

std::unique_ptr<Recording> FakeAccelerator::Record(const std::function<void(Stream)>& work) {
  std::vector<Node> nodes;
  capture_ = &nodes;
  try {
    work(stream());
  } catch (...) {
    capture_ = nullptr;
    throw;
  }
  capture_ = nullptr;
  if (std::exchange(unjoined_, false)) {
    throw Error(Fault::kUnsupported,
                "the backend leaves work on a side stream that never joins the given stream");
  }
  if (nodes.empty()) {
    throw Error(Fault::kUnsupported, "the backend enqueues nothing on the given stream");
  }
  return std::make_unique<FakeRecording>(*this, std::move(nodes));
}

}  // namespace assay
