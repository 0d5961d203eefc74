#include "replay/fake_accelerator.h"

#include <cstring>

#include "base/random.h"

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
    ns += kNodeNs + (cold_ ? node.cold_ns : node.warm_ns);
    cold_ = node.flushes;
    if (node.kernel) node.kernel();
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
