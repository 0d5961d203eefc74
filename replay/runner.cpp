#include "replay/runner.h"

#include <fmt/format.h>

#include <algorithm>
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

  void Run() {
    const PlannedCase& first = cases_.front();
    if (first.family == nullptr) {
      return ReportAll(Status::kUnsupported,
                       "no operator family of this build has " + first.workload->definition);
    }
    try {
      RunKnown();
    } catch (const Error& error) {
      if (error.fault() != Fault::kInput) throw;
      ReportAll(Status::kInvalidRecord, error.what());
    } catch (const std::bad_alloc&) {
      ReportAll(Status::kOom, "memory ran out while inputs or the reference were made");
    }
  }

 private:
  void RunKnown() {
    const Workload& workload = *cases_.front().workload;
    const Family& family = *cases_.front().family;
    Problem problem = MakeProblem(family, workload.definition, workload.axes, workload.attributes,
                                  workload.variant);
    ContentSets sets(family, std::move(problem),
                     workload.content_id.empty() ? workload.uuid : workload.content_id,
                     options_.seed);
    const auto needed = static_cast<std::int64_t>(sets.bytes_per_set());
    const std::int64_t limit = MemoryLimit(options_);
    if (needed > limit) {
      return ReportAll(Status::kOom, fmt::format("needs {} bytes for one content set, {} are free",
                                                 needed, limit));
    }
    const int most_sets = static_cast<int>(
        std::clamp<std::int64_t>(limit / std::max<std::int64_t>(needed, 1), 1, kContentSets));
    std::vector<BackendCase> running;
    running.reserve(cases_.size());
    for (const PlannedCase& planned : cases_) {
      running.emplace_back(planned, sets, workers_, options_, most_sets);
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
  for (std::size_t begin = 0; begin < plan.size() && !stop;) {
    std::size_t end = begin + 1;
    while (end < plan.size() && plan[end].workload == plan[begin].workload) ++end;
    WorkloadRun(std::span(plan).subspan(begin, end - begin), workers, options, ceilings, callbacks,
                stop)
        .Run();
    begin = end;
  }
}

}  // namespace assay
