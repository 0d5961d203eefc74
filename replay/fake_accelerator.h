// A GPU for tests on machines without one: device memory is host memory, time is simulated, and
// "kernels" are functions that a test launches on a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/accelerator.h"

namespace assay {

class FakeAccelerator : public Accelerator {
 public:
  // Simulated costs: of starting a graph, and of every node in it.
  static constexpr double kStartNs = 3500, kNodeNs = 700, kFlushNs = 26e3, kVersionNs = 5e3;

  const AcceleratorInfo& info() const override { return info_; }
  std::byte* Allocate(std::size_t bytes) override;
  void Free(std::byte* memory) noexcept override;
  void Upload(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void Download(std::byte* to, const std::byte* from, std::size_t bytes) override;
  void Fill(std::byte* to, int byte, std::size_t bytes) override;
  std::uint64_t Checksum(const std::byte* data, std::size_t bytes) override;
  Stream stream() override { return reinterpret_cast<Stream>(this); }
  void Synchronize() override;
  void EnqueueFlush(Stream stream, FlushKind kind) override;
  std::unique_ptr<ContentVersions> MakeVersions(const std::vector<ContentPart>& parts) override;
  void ResetPersistingLines() override {}
  bool TakePersistingLimit() override { return std::exchange(pins_lines_, false); }
  std::unique_ptr<ActivityRecorder> RecordActivities(std::string& why_not) override;
  std::unique_ptr<Recording> Record(const std::function<void(Stream)>& work) override;

  // What a backend under test does with a stream of a FakeAccelerator.
  static FakeAccelerator& Of(Stream stream) { return *reinterpret_cast<FakeAccelerator*>(stream); }
  // A kernel of `warm_ns`; `cold_ns` when a flush came since the last kernel.
  void Launch(double warm_ns, double cold_ns, std::function<void()> kernel);
  // Work on a stream that is not being captured: it runs at once and is in no graph.
  void LaunchElsewhere(const std::function<void()>& kernel) { kernel(); }
  // Of a kernel while it runs: it takes this much longer.
  void Spend(double ns) { spent_ns_ += ns; }
  void LeaveUnjoined() { unjoined_ = true; }
  void Break(const std::string& message) { broken_ = message; }
  void PinLines() { pins_lines_ = true; }

  std::string why_no_activities;  // "" = there is something to trace with
  double activity_factor = 1;     // by which activities last longer than events say
  std::int64_t memory_limit = std::int64_t{1} << 40;
  std::size_t allocated() const { return allocated_; }

 private:
  struct Node {
    double warm_ns, cold_ns;
    bool flushes;
    std::function<void()> kernel;
  };
  friend class FakeRecording;
  friend class FakeActivityRecorder;
  double Execute(const std::vector<Node>& nodes);
  void Enqueue(Node node);

  AcceleratorInfo info_{"Fake GPU", "GPU-fake", "0000:1B:00.0", "1.0 (CUDA 13.0)",
                        90,         4,          1 << 30,        1 << 20};
  std::map<std::byte*, std::vector<std::byte>> blocks_;
  std::size_t allocated_ = 0;
  std::vector<Node>* capture_ = nullptr;
  bool cold_ = true, unjoined_ = false, pins_lines_ = false, traced_ = false;
  double spent_ns_ = 0;
  double now_ns_ = 0;
  std::vector<Activity> activities_;
  std::string broken_;
};

}  // namespace assay
