#include "replay/worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/channel.h"
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
  OpenCase(const Registry& registry, const Json& request)
      : context_{request.at("threads").get<int>()} {
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
    Reply reply;
    if (request.at("run").get<bool>()) {
      const auto start = std::chrono::steady_clock::now();
      Run(slots_.back());
      reply.run_ns =
          std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
              .count();
    }
    return reply;
  }

  Reply Time(const Json& request) {
    TimingLimits limits;
    limits.budget_s = request.at("budget_s");
    if (!request.at("warmup").get<bool>()) limits.warmup_calls = 0, limits.warmup_s = 0;
    Reply reply;
    for (const std::string& mode : request.at("modes").get<std::vector<std::string>>()) {
      MeasuredSeries measured =
          MeasureHost(mode, slots_, limits, [this](Slot& slot) { Run(slot); });
      reply.run_ns += measured.run_ns;
      reply.prepare_ns += measured.prepare_ns;
      reply.series.push_back(std::move(measured.series));
    }
    return reply;
  }

 private:
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
  std::vector<Slot> slots_;
  std::vector<const std::byte*> given_;  // output addresses, slot by slot
};

Reply Handle(const Registry& registry, std::unique_ptr<OpenCase>& open, const Json& request,
             Channel& channel) {
  const std::string op = request.at("op");
  // Taken even when the case is gone: the next slot must not get them.
  std::vector<FileDescriptor> fds = channel.TakeFds(op == "slot" ? 2 : 0);
  if (op == "open") {
    open.reset();
    open = std::make_unique<OpenCase>(registry, request);
    return {};
  }
  if (op == "close") {
    open.reset();
    return {};
  }
  if (open == nullptr) BadInput("request '" + op + "' without an open case");
  if (op == "slot") return open->MapSlot(request, fds);
  if (op == "time") return open->Time(request);
  BadInput("unknown request '" + op + "'");
}

// A reply for everything that a backend may throw.
Reply Answer(const Registry& registry, std::unique_ptr<OpenCase>& open, const std::string& line,
             Channel& channel) {
  Reply reply;
  try {
    reply = Handle(registry, open, Json::parse(line), channel);
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
  reply.peak_bytes = PeakBytes();
  return reply;
}

}  // namespace

int ServeWorker(const Registry& registry, int fd) {
  Channel channel{FileDescriptor(fd)};
  const Json hello = {{"protocol", kProtocolVersion}, {"worker", "assay"}, {"pid", getpid()}};
  if (!channel.Send(hello.dump())) return 0;
  std::unique_ptr<OpenCase> open;
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
    if (!channel.Send(ReplyToJson(Answer(registry, open, line, channel)))) return 0;
  }
}

}  // namespace assay
