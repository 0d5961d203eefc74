#include "replay/worker.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/channel.h"
#include "replay/content_sets.h"
#include "replay/measure.h"
#include "replay/protocol.h"
#include "replay/suite.h"

namespace assay {
namespace {

using Json = nlohmann::json;

std::int64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

// Orphans count: the worker is their reaper (ServeWorker).
bool HasChildren() {
  int status = 0;
  for (;;) {
    const pid_t child = waitpid(-1, &status, WNOHANG);
    if (child <= 0) return child == 0;  // 0: at least one is running
  }
}

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

// A failure of the case, thrown by a handler and turned into a reply.
struct CaseFailure {
  Reply reply;
};

[[noreturn]] void Fail(Status status, const std::string& sub, const std::string& reason) {
  Reply reply;
  reply.status = status;
  reply.sub = sub;
  reply.reason = reason;
  throw CaseFailure{reply};
}

// The case that the last `open` started.
class OpenCase {
 public:
  OpenCase(const Registry& registry, const Json& request, bool limit_memory)
      : context_{request.at("threads").get<int>()}, limit_memory_(limit_memory) {
    const Workload workload = WorkloadFromJson(request.at("workload").dump());
    const DefinitionRef found = registry.FindDefinition(workload.definition);
    if (found.family == nullptr) {
      Fail(Status::kUnsupported, "", "this worker has no definition " + workload.definition);
    }
    family_ = found.family;
    problem_ = MakeProblem(*family_, workload.definition, workload.axes, workload.attributes,
                           workload.variant);
    const std::string name = request.at("backend");
    backend_ = family_->FindBackend(name);
    if (backend_ == nullptr) {
      Fail(Status::kUnsupported, "", family_->name + " has no backend '" + name + "'");
    }
  }

  Reply MapSlot(const Json& request, std::vector<FileDescriptor>& fds) {
    if (fds.size() != 2) BadInput("a slot request carries two descriptors");
    Slot slot;
    slot.inputs = Bundle::MapShared(LayoutsFromJson(request.at("inputs")), fds[0].release());
    slot.outputs = Bundle::MapShared(LayoutsFromJson(request.at("outputs")), fds[1].release());
    const std::string refusal = backend_->supports(problem_, slot.inputs);
    if (!refusal.empty()) Fail(Status::kUnsupported, "", refusal);
    for (const Tensor& tensor : slot.outputs.tensors()) given_.push_back(tensor.data);
    slots_.push_back(std::move(slot));
    if (limit_memory_) LimitMemory();
    return request.at("run").get<bool>() ? RunOnce(slots_.back()) : Reply{};
  }

  Reply RunSlot(const Json& request) {
    Slot& slot = slots_.at(request.at("slot").get<std::size_t>());
    EvictFromCaches(slot.inputs);
    EvictFromCaches(slot.outputs);
    return RunOnce(slot);
  }

  Reply Time(const Json& request) {
    TimingLimits limits;
    limits.budget_s = request.at("budget_s");
    if (!request.at("warmup").get<bool>()) limits.warmup_calls = 0, limits.warmup_s = 0;
    Reply reply;
    for (const std::string& mode : request.at("modes").get<std::vector<std::string>>()) {
      MeasuredSeries measured =
          MeasureHost(mode, slots_, limits, [this](Slot& slot) { Run(slot); });
      reply.unwritten_calls += measured.unwritten_calls;
      reply.run_ns += measured.run_ns;
      reply.prepare_ns += measured.prepare_ns;
      reply.series.push_back(std::move(measured.series));
    }
    return reply;
  }

 private:
  Reply RunOnce(Slot& slot) {
    Reply reply;
    reply.run_ns = Nanoseconds([&] { Run(slot); });
    reply.prepare_ns = Nanoseconds([&] { reply.marks = ChangeMarks(slot.outputs); });
    return reply;
  }

  template <class Work>
  static double Nanoseconds(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
        .count();
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
        Fail(Status::kIncorrect, "aliasing",
             "output '" + tensor.name + "' is not the given memory");
      }
    }
  }

  const Family* family_ = nullptr;
  const Backend* backend_ = nullptr;
  Problem problem_;
  RunContext context_;
  bool limit_memory_ = false;  // plugins only: our own kernels are trusted to need little
  std::unique_ptr<MemoryLimit> limit_;
  std::vector<Slot> slots_;
  std::vector<const std::byte*> given_;  // output addresses, slot by slot
};

// The worker's side of a connection.
struct Service {
  const Registry& registry;
  Channel& channel;
  bool has_plugins = false;
  std::unique_ptr<OpenCase> open;
};

Reply Handle(Service& service, const Json& request) {
  std::unique_ptr<OpenCase>& open = service.open;
  const std::string op = request.at("op");
  // Taken even when the case is gone: the next slot must not get them.
  std::vector<FileDescriptor> fds = service.channel.TakeFds(op == "slot" ? 2 : 0);
  if (op == "open") {
    open.reset();
    open = std::make_unique<OpenCase>(service.registry, request, service.has_plugins);
    return {};
  }
  if (op == "close") {
    open.reset();
    if (HasChildren()) {
      Fail(Status::kFailed, "child", "the backend left a child process running");
    }
    return {};
  }
  if (open == nullptr) BadInput("request '" + op + "' without an open case");
  if (op == "slot") return open->MapSlot(request, fds);
  if (op == "run") return open->RunSlot(request);
  if (op == "time") return open->Time(request);
  BadInput("unknown request '" + op + "'");
}

// A reply for everything that a backend may throw.
Reply Answer(Service& service, const std::string& line) {
  const auto start = std::chrono::steady_clock::now();
  Reply reply;
  try {
    reply = Handle(service, Json::parse(line));
  } catch (const CaseFailure& failure) {
    reply = failure.reply;
  } catch (const std::bad_alloc&) {
    reply.status = Status::kOom;
    reply.reason = "the backend ran out of memory";
  } catch (const Error& error) {
    reply.status = error.fault() == Fault::kUnsupported ? Status::kUnsupported : Status::kFailed;
    reply.sub = "exception";
    reply.reason = error.what();
  } catch (const std::exception& error) {
    reply.status = Status::kFailed;
    reply.sub = "exception";
    reply.reason = error.what();
  } catch (...) {
    reply.status = Status::kFailed;
    reply.sub = "exception";
    reply.reason = "the backend threw something that is not a std::exception";
  }
  reply.busy_ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  reply.peak_bytes = PeakBytes();
  return reply;
}

}  // namespace

int ServeWorker(const Registry& registry, int fd, const Json& plugin_backends) {
  Channel channel{FileDescriptor(fd)};
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Json hello = {{"protocol", kProtocolVersion},
                      {"worker", "assay"},
                      {"pid", getpid()},
                      {"plugin_backends", plugin_backends}};
  if (!channel.Send(hello.dump())) return 0;
  Service service{registry, channel, !plugin_backends.empty(), nullptr};
  for (;;) {
    std::string line;
    switch (channel.Receive(line)) {
      case Channel::Outcome::kClosed:
        return 0;
      case Channel::Outcome::kMessage:
        break;
      default:
        return static_cast<int>(Fault::kInternal);
    }
    if (!channel.Send(ReplyToJson(Answer(service, line)))) return 0;
  }
}

}  // namespace assay
