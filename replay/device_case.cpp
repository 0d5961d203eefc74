// Cases of backends that compute on a GPU. Every tensor has a mirror in device memory, red zones
// included; the runner only ever sees the host's copy.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cuda/notes.h"
#include "replay/content_sets.h"
#include "replay/fresh_inputs.h"
#include "replay/measure_device.h"
#include "replay/open_case.h"
#include "replay/spans.h"

namespace assay {
namespace {

using Json = nlohmann::json;

// A bundle's arena on the device, laid out as on the host.
class Mirror {
 public:
  Mirror(Accelerator& gpu, Bundle& host)
      : gpu_(gpu),
        host_(host),
        memory_(gpu.Allocate(host.arena().size())),
        bundle_(Bundle::Over(host.layouts(), memory_)) {}
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror() { gpu_.Free(memory_); }

  Bundle& bundle() { return bundle_; }
  // Of what the host's memory holds now.
  std::unique_ptr<ContentVersions> Versions() {
    return gpu_.MakeVersions(ChangingParts(host_, memory_));
  }

  // Host to device. Holes of the host's memory become zeros without being read.
  void Upload() {
    const auto parts = host_.TouchedParts();
    const std::size_t size = host_.arena().size();
    if (parts.size() != 1 || parts.front() != std::pair<std::size_t, std::size_t>{0, size}) {
      gpu_.Fill(memory_, 0, size);
    }
    for (const auto& [first, last] : parts) {
      gpu_.Upload(memory_ + first, host_.arena().data() + first, last - first);
    }
  }
  // What the host's arena holds before a call: red zones around poison, written on the spot.
  void Reset() {
    gpu_.Fill(memory_, std::to_integer<int>(kRedZoneByte), host_.arena().size());
    Poison();
  }
  void Download() { gpu_.Download(host_.arena().data(), memory_, host_.arena().size()); }

  void Poison() {
    for (Tensor& tensor : bundle_.tensors()) {
      if (tensor.bytes() > 0) gpu_.Fill(tensor.data, PoisonByte(tensor.dtype), tensor.bytes());
    }
  }

  // One per tensor, over its payload and the red zones on both sides.
  std::vector<std::uint64_t> Checksums() {
    std::vector<std::uint64_t> sums;
    for (std::size_t t = 0; t < bundle_.tensors().size(); ++t) {
      const std::size_t first = Offset(t);
      const std::size_t last =
          t + 1 < bundle_.tensors().size() ? Offset(t + 1) : host_.arena().size();
      sums.push_back(gpu_.Checksum(memory_ + first, last - first));
    }
    return sums;
  }

 private:
  std::size_t Offset(std::size_t tensor) const {
    return static_cast<std::size_t>(bundle_.tensors()[tensor].data - memory_) - kRedZoneBytes;
  }

  Accelerator& gpu_;
  Bundle& host_;
  std::byte* memory_;
  Bundle bundle_;
};

// The tensors that a plan may depend on, as bytes; see Backend::prepare.
std::string PlanContent(const Bundle& inputs) {
  std::string content;
  for (const Tensor& tensor : inputs.tensors()) {
    const bool integers = tensor.dtype == DType::kI32 || tensor.dtype == DType::kI64;
    if (integers) content.append(reinterpret_cast<const char*>(tensor.data), tensor.bytes());
  }
  return content;
}

// One content set: host memory, its mirrors, the prepared call.
struct DeviceSlot {
  Slot host;
  std::unique_ptr<Mirror> inputs, outputs;
  std::vector<std::uint64_t> input_sums;
  std::vector<std::uint64_t> output_sums;  // of what the host has; empty before the first run
  std::string plan_content;
  DeviceCall call;
  std::unique_ptr<Recording> recording;
  std::unique_ptr<ContentVersions> versions;  // while and after calls are timed on new content
};

class DeviceCase : public OpenCase {
 public:
  DeviceCase(CaseToOpen wanted, Accelerator& gpu)
      : gpu_(gpu), backend_(wanted.backend), problem_(std::move(wanted.problem)) {}

  Reply MapSlot(const Json& request, std::vector<FileDescriptor>& fds) override {
    auto slot = std::make_unique<DeviceSlot>();
    slot->host = MapBundles(request, fds);
    const std::string refusal = backend_->supports(problem_, slot->host.inputs);
    if (!refusal.empty()) FailCase(Status::kUnsupported, "", refusal);
    slot->inputs = std::make_unique<Mirror>(gpu_, slot->host.inputs);
    slot->outputs = std::make_unique<Mirror>(gpu_, slot->host.outputs);
    slots_.push_back(std::move(slot));
    Load(*slots_.back());
    return request.at("run").get<bool>() ? RunOnce(*slots_.back()) : Reply{};
  }

  Reply RunSlot(const Json& request) override {
    DeviceSlot& slot = *slots_.at(request.at("slot").get<std::size_t>());
    Load(slot);
    const bool warm = !request.value("evict", true) && slot.versions != nullptr;
    return warm ? FastestOnNewContent(slot) : RunOnce(slot);
  }

  Reply Time(const Json& request) override {
    const TimingLimits limits = LimitsOf(request);
    Reply reply;
    reply.new_content =
        request.value("new_content", false) && HasVersions(slots_.at(0)->host.inputs);
    std::vector<DeviceCall> calls;
    std::vector<ContentVersions*> versions;
    for (const auto& slot : slots_) {
      calls.push_back(slot->call);
      slot->versions = reply.new_content ? slot->inputs->Versions() : nullptr;
      if (slot->versions != nullptr) versions.push_back(slot->versions.get());
    }
    DeviceTimer timer(gpu_, std::move(calls), FlushOf(request), std::move(versions));
    reply.clocks.push_back(ReadClocks(gpu_.info().pci));
    for (const std::string& mode : request.at("modes").get<std::vector<std::string>>()) {
      MeasuredSeries measured = timer.Measure(mode, limits);
      reply.clocks.push_back(ReadClocks(gpu_.info().pci));
      reply.run_ns += measured.run_ns;
      reply.prepare_ns += measured.prepare_ns;
      reply.series.push_back(std::move(measured.series));
    }
    const auto start = std::chrono::steady_clock::now();
    FetchTimedOutputs(timer, request.value("judged", false) ? kJudgedVersion : kOriginalVersion);
    reply.prepare_ns += NanosecondsSince(start);
    reply.notes = notes_;
    if (gpu_.TakePersistingLimit()) reply.flags.push_back("pins_l2");
    return reply;
  }

  Reply Span(const Json& request) override {
    std::vector<DeviceCall> calls;
    for (const auto& slot : slots_) calls.push_back(slot->call);
    MeasuredSeries measured = MeasureSpans(gpu_, calls, FlushOf(request), request.at("samples"));
    Reply reply;
    reply.run_ns = measured.run_ns;
    reply.prepare_ns = measured.prepare_ns;
    reply.series.push_back(std::move(measured.series));
    return reply;
  }

 private:
  static FlushKind FlushOf(const Json& request) {
    return request.value("flush", "read") == "write" ? FlushKind::kWrite : FlushKind::kRead;
  }

  // Uploads inputs and outputs as the host has them, and plans the call where that is needed.
  void Load(DeviceSlot& slot) {
    slot.inputs->Upload();
    slot.outputs->Reset();
    slot.input_sums = slot.inputs->Checksums();
    if (slot.versions != nullptr) slot.versions->Reset();
    std::string plan_content = PlanContent(slot.host.inputs);
    if (slot.call && plan_content == slot.plan_content) return;
    slot.plan_content = std::move(plan_content);
    slot.recording.reset();
    TakeNotes();  // of whoever prepared before
    slot.call = backend_->prepare(problem_, slot.host.inputs, slot.inputs->bundle(),
                                  slot.outputs->bundle());
    for (const std::string& note : TakeNotes()) AddOnce(notes_, note);
    // Once outside any capture: modules load lazily, and errors name the launch that caused them.
    slot.call(gpu_.stream());
    gpu_.Synchronize();
    CheckInputs(slot);
    slot.recording = gpu_.Record(slot.call);
    slot.outputs->Poison();  // again: the recorded call must write everything by itself
  }

  Reply RunOnce(DeviceSlot& slot) {
    if (flush_ == nullptr) {
      flush_ = gpu_.Record([this](Stream stream) { gpu_.EnqueueFlush(stream, FlushKind::kRead); });
    }
    Reply reply;
    flush_->Replay();
    reply.run_ns = slot.recording->Replay();
    const auto start = std::chrono::steady_clock::now();
    CheckInputs(slot);
    slot.outputs->Download();
    slot.output_sums = slot.outputs->Checksums();
    reply.prepare_ns = NanosecondsSince(start);
    return reply;
  }

  // In a loop like that of a warm series, but for the inputs: a version of its own for each call.
  Reply FastestOnNewContent(DeviceSlot& slot) {
    constexpr int kCalls = 8;
    Reply reply;
    for (int call = 0; call < kCalls; ++call) {
      slot.versions->EnqueueNext(gpu_.stream());
      const double ns = slot.recording->Replay();
      reply.run_ns = call == 0 ? ns : std::min(reply.run_ns, ns);
    }
    TakeBack(slot);
    CheckInputs(slot);
    return reply;
  }

  // The content as the host has it.
  void TakeBack(DeviceSlot& slot) {
    slot.versions->SetNext(kOriginalVersion);
    slot.versions->EnqueueNext(gpu_.stream());
  }

  // What the timed graphs compute on poisoned outputs, for the runner's second verdict. A call
  // whose work is not in the graph leaves poison. Set 0 meets `judged`, a version whose truth the
  // runner knows.
  void FetchTimedOutputs(DeviceTimer& timer, std::uint64_t judged) {
    for (const auto& slot : slots_) slot->outputs->Poison();
    std::vector<std::uint64_t> last_versions(slots_.size(), kOriginalVersion);
    last_versions[0] = judged;
    timer.ReplayAll(last_versions);
    if (slots_[0]->versions != nullptr) TakeBack(*slots_[0]);
    for (const auto& slot : slots_) {
      CheckInputs(*slot);
      if (slot->outputs->Checksums() != slot->output_sums) slot->outputs->Download();
    }
  }

  void CheckInputs(DeviceSlot& slot) {
    const std::vector<std::uint64_t> now = slot.inputs->Checksums();
    for (std::size_t t = 0; t < now.size(); ++t) {
      if (now[t] == slot.input_sums[t]) continue;
      FailCase(Status::kIncorrect, "input_modified",
               "input '" + slot.host.inputs.tensors()[t].name +
                   "' or the guard bytes around it changed in device memory");
    }
  }

  Accelerator& gpu_;
  const Backend* backend_;
  Problem problem_;
  std::unique_ptr<Recording> flush_;
  std::vector<std::unique_ptr<DeviceSlot>> slots_;
  std::vector<std::string> notes_;  // of prepare
};

}  // namespace

std::unique_ptr<OpenCase> OpenDeviceCase(CaseToOpen wanted, Accelerator& gpu) {
  return std::make_unique<DeviceCase>(std::move(wanted), gpu);
}

}  // namespace assay
