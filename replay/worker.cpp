#include "replay/worker.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/channel.h"
#include "replay/open_case.h"
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

// The worker's side of a connection.
struct Service {
  const Registry& registry;
  Channel& channel;
  const DeviceHooks& hooks;
  bool has_plugins = false;
  std::unique_ptr<Accelerator> gpu;  // opened when it is first needed
  std::string why_no_gpu;
  std::unique_ptr<OpenCase> open;
};

// Does the device compute at all? Write, read, compare: a device that another process left broken
// fails here and not in somebody's case.
void CheckHealth(Accelerator& gpu) {
  constexpr std::size_t kBytes = 1 << 20;
  std::byte* memory = gpu.Allocate(kBytes);
  gpu.Fill(memory, 0x5A, kBytes);
  const std::uint64_t once = gpu.Checksum(memory, kBytes);
  std::byte last{};
  gpu.Download(&last, memory + kBytes - 1, 1);
  const bool healthy = once == gpu.Checksum(memory, kBytes) && last == std::byte{0x5A};
  gpu.Free(memory);
  if (!healthy) throw DeviceError("the device does not read back what was written");
}

Accelerator& Gpu(Service& service) {
  if (service.gpu == nullptr && service.why_no_gpu.empty()) {
    service.gpu = service.hooks.open(service.why_no_gpu);
    if (service.gpu != nullptr) CheckHealth(*service.gpu);
  }
  if (service.gpu == nullptr) FailCase(Status::kUnsupported, "", service.why_no_gpu);
  return *service.gpu;
}

void Open(Service& service, const Json& request) {
  service.open.reset();
  CaseToOpen wanted = FindCase(service.registry, request);
  service.open = wanted.backend->on_device() ? OpenDeviceCase(std::move(wanted), Gpu(service))
                                             : OpenHostCase(std::move(wanted), service.has_plugins);
}

Reply DescribeDevice(Service& service) {
  Reply reply;
  reply.device = Gpu(service).info();
  return reply;
}

Reply MeasureCeilings(Service& service) {
  const AcceleratorInfo& gpu = Gpu(service).info();
  if (service.hooks.measure_ceilings == nullptr) {
    FailCase(Status::kUnsupported, "", "this worker does not measure ceilings");
  }
  Reply reply;
  reply.device = gpu;
  reply.ceilings = service.hooks.measure_ceilings();
  return reply;
}

Reply Handle(Service& service, const Json& request) {
  std::unique_ptr<OpenCase>& open = service.open;
  const std::string op = request.at("op");
  // Taken even when the case is gone: the next slot must not get them.
  std::vector<FileDescriptor> fds = service.channel.TakeFds(op == "slot" ? 2 : 0);
  if (op == "device") return DescribeDevice(service);
  if (op == "ceilings") return MeasureCeilings(service);
  if (op == "open") {
    Open(service, request);
    return {};
  }
  if (op == "close") {
    open.reset();
    if (HasChildren()) {
      FailCase(Status::kFailed, "child", "the backend left a child process running");
    }
    return {};
  }
  if (open == nullptr) BadInput("request '" + op + "' without an open case");
  if (op == "slot") return open->MapSlot(request, fds);
  if (op == "run") return open->RunSlot(request);
  if (op == "time") return open->Time(request);
  if (op == "span") return open->Span(request);
  BadInput("unknown request '" + op + "'");
}

Reply FailureReply(Status status, const std::string& sub, const std::string& reason) {
  Reply reply;
  reply.status = status;
  reply.sub = sub;
  reply.reason = reason;
  return reply;
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
    reply = FailureReply(Status::kOom, "", "the backend ran out of memory");
  } catch (const OutOfDeviceMemory& error) {
    reply = FailureReply(Status::kOom, "", error.what());
  } catch (const DeviceError& error) {
    reply = FailureReply(Status::kFailed, kLostDevice, error.what());
  } catch (const Error& error) {
    const bool unsupported = error.fault() == Fault::kUnsupported;
    reply = FailureReply(unsupported ? Status::kUnsupported : Status::kFailed, "exception",
                         error.what());
  } catch (const std::exception& error) {
    reply = FailureReply(Status::kFailed, "exception", error.what());
  } catch (...) {
    reply = FailureReply(Status::kFailed, "exception",
                         "the backend threw something that is not a std::exception");
  }
  reply.busy_ns = NanosecondsSince(start);
  reply.peak_bytes = PeakBytes();
  return reply;
}

}  // namespace

void FailCase(Status status, const std::string& sub, const std::string& reason) {
  throw CaseFailure{FailureReply(status, sub, reason)};
}

Reply OpenCase::Span(const Json&) {
  FailCase(Status::kUnsupported, "", "this backend does not compute on a device");
}

Slot MapBundles(const Json& request, std::vector<FileDescriptor>& fds) {
  if (fds.size() != 2) BadInput("a slot request carries two descriptors");
  return {Bundle::MapShared(LayoutsFromJson(request.at("inputs")), fds[0].release()),
          Bundle::MapShared(LayoutsFromJson(request.at("outputs")), fds[1].release())};
}

TimingLimits LimitsOf(const Json& request) {
  TimingLimits limits;
  limits.budget_s = request.at("budget_s");
  if (!request.at("warmup").get<bool>()) limits.warmup_calls = 0, limits.warmup_s = 0;
  return limits;
}

CaseToOpen FindCase(const Registry& registry, const Json& request) {
  const Workload workload = WorkloadFromJson(request.at("workload").dump());
  const DefinitionRef found = registry.FindDefinition(workload.definition);
  if (found.family == nullptr) {
    FailCase(Status::kUnsupported, "", "this worker has no definition " + workload.definition);
  }
  CaseToOpen wanted;
  wanted.threads = request.at("threads");
  wanted.problem = MakeProblem(*found.family, workload.definition, workload.axes,
                               workload.attributes, workload.variant);
  const std::string name = request.at("backend");
  wanted.backend = found.family->FindBackend(name);
  if (wanted.backend == nullptr) {
    FailCase(Status::kUnsupported, "", found.family->name + " has no backend '" + name + "'");
  }
  return wanted;
}

std::unique_ptr<Accelerator> OpenLocalAccelerator(std::string& why_not) {
  for (const char* rank : {"SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    if (const char* text = std::getenv(rank)) return OpenAccelerator(std::atoi(text), why_not);
  }
  return OpenAccelerator(0, why_not);
}

int ServeWorker(const Registry& registry, int fd, const Json& plugin_backends,
                const DeviceHooks& hooks) {
  Channel channel{FileDescriptor(fd)};
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Json hello = {{"protocol", kProtocolVersion},
                      {"worker", "assay"},
                      {"pid", getpid()},
                      {"plugin_backends", plugin_backends}};
  if (!channel.Send(hello.dump())) return 0;
  Service service{registry, channel, hooks, !plugin_backends.empty(), nullptr, "", nullptr};
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
