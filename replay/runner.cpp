#include "replay/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <memory>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "replay/backend_case.h"
#include "replay/device.h"

namespace assay {
namespace {

constexpr int kContentSets = 3;

bool Wanted(const RunOptions& options, const Backend& backend) {
  const auto& names = options.backends;
  if (names.empty()) return !backend.on_device() || options.why_no_gpu.empty();
  return std::find(names.begin(), names.end(), backend.name) != names.end();
}

void RequireKnownBackends(const Registry& registry, const RunOptions& options) {
  for (const std::string& name : options.backends) {
    std::set<std::string> known;
    for (const Family& family : registry.families()) {
      for (const Backend& backend : family.backends) known.insert(backend.name);
    }
    if (!known.contains(name)) {
      BadInput(
          fmt::format("unknown backend '{}'; this build has: {}", name, fmt::join(known, ", ")));
    }
  }
}

std::int64_t MemoryLimit(const RunOptions& options) {
  if (options.memory_limit_bytes > 0) return options.memory_limit_bytes;
  const std::int64_t available = AvailableMemoryBytes();
  return available > 0 ? available / 5 * 4 : INT64_MAX;
}

// A seeded order of the competitors, different in every repeat (Fisher-Yates).
std::vector<std::size_t> ShuffledOrder(std::size_t count, std::uint64_t key, int repeat) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = count; i > 1; --i) {
    const std::uint64_t random =
        Mix64(key, kAuxiliaryTensor + static_cast<std::uint64_t>(repeat), i);
    std::swap(order[i - 1], order[random % i]);
  }
  return order;
}

// All planned cases of one workload.
class WorkloadRun {
 public:
  WorkloadRun(std::span<const PlannedCase> cases, WorkerPool& workers, const RunOptions& options,
              const MachineCeilings& ceilings, const RunCallbacks& callbacks,
              const std::atomic<bool>& stop)
      : cases_(cases),
        workers_(workers),
        options_(options),
        ceilings_(ceilings),
        callbacks_(callbacks),
        stop_(stop) {}

  // Starts to make inputs and references while the workload before this one runs. Only where every
  // backend computes on a device: a CPU backend would be timed beside it.
  void Prefetch() {
    const Family* family = cases_.front().family;
    const bool devices_only =
        family != nullptr && std::all_of(cases_.begin(), cases_.end(), [&](const PlannedCase& c) {
          const Backend* backend = family->FindBackend(c.backend);
          return backend != nullptr && backend->on_device();
        });
    if (!devices_only) return;
    prefetch_ = std::async(std::launch::async, [this] {
      MakeSets(MemoryLimit(options_) / 2);
      for (int set = 0; set < most_sets_; ++set) sets_->Get(static_cast<std::size_t>(set));
      if (most_sets_ > 0) sets_->InputHashes();
    });
  }

  void Run() {
    const PlannedCase& first = cases_.front();
    if (first.family == nullptr) {
      return ReportAll(Status::kUnsupported,
                       "no operator family of this build has " + first.workload->definition);
    }
    try {
      if (prefetch_.valid()) {
        prefetch_.get();
      }
      if (most_sets_ == 0) MakeSets(MemoryLimit(options_));
      RunKnown();
    } catch (const Error& error) {
      if (error.fault() != Fault::kInput) throw;
      ReportAll(Status::kInvalidRecord, error.what());
    } catch (const std::bad_alloc&) {
      ReportAll(Status::kOom, "memory ran out while inputs or the reference were made");
    }
  }

 private:
  // Decides how many content sets fit into `limit` bytes: 0 = not even one.
  void MakeSets(std::int64_t limit) {
    const Workload& workload = *cases_.front().workload;
    const Family& family = *cases_.front().family;
    Problem problem = MakeProblem(family, workload.definition, workload.axes, workload.attributes,
                                  workload.variant);
    sets_ = std::make_unique<ContentSets>(
        family, std::move(problem),
        workload.content_id.empty() ? workload.uuid : workload.content_id, options_.seed);
    needed_ = static_cast<std::int64_t>(sets_->bytes_per_set());
    limit_ = limit;
    most_sets_ = static_cast<int>(
        std::min<std::int64_t>(limit / std::max<std::int64_t>(needed_, 1), kContentSets));
  }

  void RunKnown() {
    if (most_sets_ == 0) {
      return ReportAll(Status::kOom, fmt::format("needs {} bytes for one content set, {} are free",
                                                 needed_, limit_));
    }
    ContentSets& sets = *sets_;
    std::vector<BackendCase> running;
    running.reserve(cases_.size());
    for (const PlannedCase& planned : cases_) {
      running.emplace_back(planned, sets, workers_, options_, most_sets_);
      if (callbacks_.on_start) callbacks_.on_start(planned, reported_);
      running.back().Check();
      if (stop_) return;
    }
    if (options_.timing) TimeAll(running, sets.Get(0).key);
    for (BackendCase& one : running) {
      if (stop_) return;
      one.Finish(ceilings_);
      Report(one.result());
    }
  }

  void TimeAll(std::vector<BackendCase>& running, std::uint64_t key) {
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      std::vector<std::string> timed;
      for (BackendCase& one : running) {
        if (one.healthy() && repeat < one.repeats()) timed.push_back(one.result().backend);
      }
      workers_.StartTogether(timed, repeat);
      for (std::size_t at : ShuffledOrder(running.size(), key, repeat)) {
        if (stop_) return;
        if (running[at].healthy() && repeat < running[at].repeats()) running[at].Time(repeat);
      }
    }
  }

  void ReportAll(Status status, const std::string& reason) {
    for (std::size_t c = reported_; c < cases_.size(); ++c) {
      CaseResult result = StartResult(cases_[c]);
      result.status = status;
      result.reason = reason;
      Report(result);
    }
  }

  void Report(const CaseResult& result) {
    ++reported_;
    callbacks_.on_result(result);
  }

  std::span<const PlannedCase> cases_;
  WorkerPool& workers_;
  const RunOptions& options_;
  const MachineCeilings& ceilings_;
  const RunCallbacks& callbacks_;
  const std::atomic<bool>& stop_;
  std::unique_ptr<ContentSets> sets_;
  std::int64_t needed_ = 0, limit_ = 0;  // bytes
  int most_sets_ = 0;
  std::future<void> prefetch_;  // last: its destructor waits for work on the members above
  std::size_t reported_ = 0;
};

}  // namespace

std::vector<PlannedCase> PlanCases(const Registry& registry, const Suite& suite,
                                   const RunOptions& options) {
  RequireKnownBackends(registry, options);
  std::vector<PlannedCase> plan;
  const auto add = [&](const Workload& workload, const Family* family, const std::string& backend) {
    if (options.done.contains({workload.uuid, backend, options.build})) return;
    plan.push_back({&workload, family, backend});
  };
  for (const Workload& workload : suite.workloads) {
    const Family* family = registry.FindDefinition(workload.definition).family;
    if (family == nullptr) {
      add(workload, nullptr, options.backends.empty() ? "cpu" : options.backends.front());
      continue;
    }
    for (const Backend& backend : family->backends) {
      if (Wanted(options, backend)) add(workload, family, backend.name);
    }
  }
  return plan;
}

void RunCases(const std::vector<PlannedCase>& plan, const RunOptions& options,
              const MachineCeilings& ceilings, const RunCallbacks& callbacks,
              const std::atomic<bool>& stop) {
  WorkerPool workers(options, stop);
  for (const PlannedCase& planned : plan) workers.StartEarly(planned.backend);
  const auto workload_from = [&](std::size_t begin) {
    std::size_t end = begin;
    while (end < plan.size() && plan[end].workload == plan[begin].workload) ++end;
    return std::span(plan).subspan(begin, end - begin);
  };
  const auto start = [&](std::span<const PlannedCase> cases) {
    return std::make_unique<WorkloadRun>(cases, workers, options, ceilings, callbacks, stop);
  };
  std::span<const PlannedCase> cases = workload_from(0);
  std::unique_ptr<WorkloadRun> run = cases.empty() ? nullptr : start(cases);
  for (std::size_t at = 0; run != nullptr && !stop;) {
    at += cases.size();
    cases = workload_from(at);
    std::unique_ptr<WorkloadRun> next = cases.empty() ? nullptr : start(cases);
    if (next != nullptr) next->Prefetch();
    run->Run();
    run = std::move(next);
  }
}

}  // namespace assay
