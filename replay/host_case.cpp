// Cases of backends that compute on the host, in the worker's own process.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/content_sets.h"
#include "replay/open_case.h"

namespace assay {
namespace {

using Json = nlohmann::json;

// While it lives, the process may map `more_bytes` beyond what it has: a memory bomb then fails an
// allocation instead of waking the kernel's out-of-memory killer. Sanitizers reserve terabytes.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t more_bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    std::ifstream statm("/proc/self/statm");
    std::size_t pages = 0;
    if (statm >> pages) Set(pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + more_bytes);
#else
    (void)more_bytes;
#endif
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  ~MemoryLimit() { Set(RLIM_INFINITY); }

 private:
  static void Set(rlim_t bytes) {
    rlimit limit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = std::min(bytes, limit.rlim_max);
    setrlimit(RLIMIT_AS, &limit);
  }
};

class HostCase : public OpenCase {
 public:
  HostCase(CaseToOpen wanted, bool limit_memory)
      : backend_(wanted.backend),
        problem_(std::move(wanted.problem)),
        context_{wanted.threads},
        limit_memory_(limit_memory) {}

  Reply MapSlot(const Json& request, std::vector<FileDescriptor>& fds) override {
    Slot slot = MapBundles(request, fds);
    const std::string refusal = backend_->supports(problem_, slot.inputs);
    if (!refusal.empty()) FailCase(Status::kUnsupported, "", refusal);
    for (const Tensor& tensor : slot.outputs.tensors()) given_.push_back(tensor.data);
    slots_.push_back(std::move(slot));
    if (limit_memory_) LimitMemory();
    return request.at("run").get<bool>() ? RunOnce(slots_.back()) : Reply{};
  }

  Reply RunSlot(const Json& request) override {
    Slot& slot = slots_.at(request.at("slot").get<std::size_t>());
    if (!request.value("evict", true)) return FastestOnNewContent(slot);
    EvictFromCaches(slot.inputs);
    EvictFromCaches(slot.outputs);
    return RunOnce(slot);
  }

  Reply Time(const Json& request) override {
    const TimingLimits limits = LimitsOf(request);
    Reply reply;
    reply.new_content = request.value("new_content", false) && HasVersions(slots_.at(0).inputs);
    for (const std::string& mode : request.at("modes").get<std::vector<std::string>>()) {
      MeasuredSeries measured =
          MeasureHost(mode, slots_, limits, reply.new_content, [this](Slot& slot) { Run(slot); });
      reply.unwritten_calls += measured.unwritten_calls;
      reply.run_ns += measured.run_ns;
      reply.prepare_ns += measured.prepare_ns;
      reply.series.push_back(std::move(measured.series));
    }
    for (Slot& slot : slots_) SetVersion(slot, kOriginalVersion);
    return reply;
  }

 private:
  Reply RunOnce(Slot& slot) {
    Reply reply;
    reply.run_ns = Nanoseconds([&] { Run(slot); });
    reply.prepare_ns = Nanoseconds([&] { reply.marks = ChangeMarks(slot.outputs); });
    return reply;
  }

  // In a loop like that of warm_host, but for the inputs: a version of its own for each call.
  Reply FastestOnNewContent(Slot& slot) {
    constexpr std::uint64_t kCalls = 8;
    Reply reply;
    for (std::uint64_t call = 0; call < kCalls; ++call) {
      SetVersion(slot, kFirstTimedVersion + call);
      slot.outputs.Poison();
      const double ns = Nanoseconds([&] { Run(slot); });
      reply.run_ns = call == 0 ? ns : std::min(reply.run_ns, ns);
    }
    SetVersion(slot, kOriginalVersion);
    return reply;
  }

  template <class Work>
  static double Nanoseconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return NanosecondsSince(start);
  }

  void LimitMemory() {
    constexpr std::size_t kWorkspaceFactor = 3, kAlways = std::size_t{1} << 30;
    std::size_t tensors = 0;
    for (const Slot& slot : slots_) tensors += slot.inputs.bytes() + slot.outputs.bytes();
    limit_.reset();
    limit_ = std::make_unique<MemoryLimit>(kWorkspaceFactor * tensors + kAlways);
  }

  // Outputs must land in the memory that was given: a swapped pointer would dodge every guard.
  void Run(Slot& slot) {
    backend_->run(problem_, slot.inputs, slot.outputs, context_);
    const std::size_t first =
        static_cast<std::size_t>(&slot - slots_.data()) * slot.outputs.tensors().size();
    for (std::size_t t = 0; t < slot.outputs.tensors().size(); ++t) {
      const Tensor& tensor = slot.outputs.tensors()[t];
      if (tensor.data != given_[first + t]) {
        FailCase(Status::kIncorrect, "aliasing",
                 "output '" + tensor.name + "' is not the given memory");
      }
    }
  }

  const Backend* backend_ = nullptr;
  Problem problem_;
  RunContext context_;
  bool limit_memory_ = false;  // plugins only: our own kernels are trusted to need little
  std::unique_ptr<MemoryLimit> limit_;
  std::vector<Slot> slots_;
  std::vector<const std::byte*> given_;  // output addresses, slot by slot
};

}  // namespace

std::unique_ptr<OpenCase> OpenHostCase(CaseToOpen wanted, bool limit_memory) {
  return std::make_unique<HostCase>(std::move(wanted), limit_memory);
}

}  // namespace assay
