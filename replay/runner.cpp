#include "replay/runner.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/random.h"
#include "replay/backend_case.h"
#include "replay/device.h"

namespace assay {
namespace {

constexpr int kContentSets = 3;
constexpr double kTooFast = 10;  // over the best of the others
// Of cases that save memory; a third is met in the memory of the first.
constexpr int kLargeSets = 2;

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

  // Starts to make inputs and references while the workload before this one runs on devices.
  void Prefetch() {
    if (cases_.front().family == nullptr) return;
    prefetch_ = std::async(std::launch::async, [this] {
      MakeSets(MemoryLimit(options_) / 2);
      for (int set = 0; set < most_sets_; ++set) sets_->Get(static_cast<std::size_t>(set));
      if (most_sets_ > 0) sets_->InputHashes();
      if (most_sets_ > 0 && options_.timing) sets_->CanBeJudged();
    });
  }

  // Calls `cores_are_free` once only devices have work left. (A run of CPU backends alone never
  // gets there: the next workload would have nothing to hide behind.)
  void Run(const std::function<void()>& cores_are_free) {
    const PlannedCase& first = cases_.front();
    if (first.family == nullptr) {
      return ReportAll(Status::kUnsupported,
                       "no operator family of this build has " + first.workload->definition);
    }
    try {
      if (prefetch_.valid()) prefetch_.get();
      if (most_sets_ == 0) MakeSets(MemoryLimit(options_));
      RunKnown(cores_are_free);
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
    sets_->UseStored(workload);
    needed_ = static_cast<std::int64_t>(sets_->bytes_per_set());
    limit_ = limit;
    // Devices check side by side: nothing may change in the memory of a set meanwhile.
    const bool on_host = std::none_of(cases_.begin(), cases_.end(), [](const PlannedCase& planned) {
      const Backend* backend = planned.family->FindBackend(planned.backend);
      return backend != nullptr && backend->on_device();
    });
    saves_memory_ = on_host && sets_->SaveMemory();
    most_sets_ = static_cast<int>(std::min<std::int64_t>(
        limit / std::max<std::int64_t>(needed_, 1), saves_memory_ ? kLargeSets : kContentSets));
  }

  void RunKnown(const std::function<void()>& cores_are_free) {
    if (most_sets_ == 0) {
      return ReportAll(Status::kOom, fmt::format("needs {} bytes for one content set, {} are free",
                                                 needed_, limit_));
    }
    std::vector<std::unique_ptr<BackendCase>> running;
    std::vector<BackendCase*> hosts, devices;
    for (const PlannedCase& planned : cases_) {
      running.push_back(std::make_unique<BackendCase>(planned, *sets_, options_, most_sets_));
      (running.back()->on_device() ? devices : hosts).push_back(running.back().get());
    }
    RunGroup(hosts);
    if (!devices.empty()) cores_are_free();
    RunGroup(devices);
    if (stop_) return;
    for (const auto& one : running) one->Finish(ceilings_);
    FlagTooFast(hosts);
    FlagTooFast(devices);
    for (const auto& one : running) {
      if (stop_) return;
      Report(one->result());
    }
  }

  // Ten times as fast as the best of the others is rather wrong than brilliant.
  static void FlagTooFast(const std::vector<BackendCase*>& group) {
    std::vector<std::tuple<double, std::string, CaseResult*>> times;  // median, mode
    for (BackendCase* one : group) {
      const auto summaries = Summarize(one->result().timing);
      const TimingSummary* headline = one->healthy() ? Headline(summaries) : nullptr;
      if (headline != nullptr) {
        times.emplace_back(headline->median_ns, headline->mode, &one->result());
      }
    }
    if (times.size() < 2) return;
    std::partial_sort(times.begin(), times.begin() + 2, times.end());
    const auto& [best, mode, result] = times[0];
    const auto& [second, second_mode, other] = times[1];
    if (mode == second_mode && second > kTooFast * best) AddOnce(result->flags, "too_fast");
  }

  // Backends of the host, or those of devices: checked, timed interleaved, then shown new content.
  void RunGroup(const std::vector<BackendCase*>& group) {
    ForEach(group, [](BackendCase& one, WorkerProcess& worker) { one.Check(worker); });
    if (saves_memory_) CheckThird(group);
    if (options_.timing) TimeAll(group);
    if (options_.timing) ShowNewContent(group);
  }

  // The third content set of large cases, in the memory of the first.
  void CheckThird(const std::vector<BackendCase*>& group) {
    sets_->ForgetLargeTruths();
    const bool wanted = most_sets_ == kLargeSets &&
                        std::any_of(group.begin(), group.end(),
                                    [](const BackendCase* one) { return one->healthy(); });
    if (const Expected* expected = wanted && !stop_ ? sets_->SwapInThird() : nullptr) {
      ForEach(group,
              [&](BackendCase& one, WorkerProcess& worker) { one.CheckThird(worker, *expected); });
      sets_->RestoreFirstSet();
    }
    sets_->ForgetLargeTruths();
  }

  // work(case, its worker) for all healthy cases: for devices side by side, because most of the
  // work is the runner's and the transfers'. CPU backends get all cores, one after the other.
  template <class Work>
  void ForEach(const std::vector<BackendCase*>& group, const Work& work) {
    std::vector<std::future<void>> devices;
    for (BackendCase* one : group) {
      if (stop_ || !one->healthy()) continue;
      if (callbacks_.on_start) callbacks_.on_start(one->planned(), reported_);
      WorkerProcess& worker =
          WorkerOf(*one);  // not in the thread: a worker dies with who started it
      if (one->on_device()) {
        devices.push_back(std::async(std::launch::async, [&, one] { work(*one, worker); }));
      } else {
        work(*one, worker);
      }
    }
    for (std::future<void>& device : devices) device.get();
  }

  WorkerProcess& WorkerOf(const BackendCase& one) {
    return workers_.Get(one.planned().backend, one.repeat());
  }

  void TimeAll(const std::vector<BackendCase*>& group) {
    for (int repeat = 0; repeat < options_.repeats && !stop_; ++repeat) {
      std::vector<BackendCase*> timed;
      std::vector<std::string> backends;
      for (std::size_t at : ShuffledOrder(group.size(), sets_->Get(0).key, repeat)) {
        if (!group[at]->healthy() || repeat >= group[at]->repeats()) continue;
        timed.push_back(group[at]);
        backends.push_back(group[at]->planned().backend);
      }
      workers_.StartTogether(backends, repeat);
      for (BackendCase* one : timed) {
        if (stop_) return;
        one->Time(workers_.Get(one->planned().backend, repeat), repeat);
      }
    }
  }

  // Content that no backend has seen, in the memory that all of them know.
  void ShowNewContent(const std::vector<BackendCase*>& group) {
    const bool wanted = std::any_of(group.begin(), group.end(), [](const BackendCase* one) {
      return one->healthy() && !one->is_slow();
    });
    const Expected* expected = wanted && !stop_ ? sets_->SwapInUnseen() : nullptr;
    if (expected != nullptr) {
      std::mutex device_turn;
      ForEach(group, [&](BackendCase& one, WorkerProcess& worker) {
        if (!one.is_slow()) one.MeetUnseen(worker, *expected, device_turn);
      });
      for (BackendCase* one : group) {
        if (!stop_ && one->healthy() && !one->is_slow()) one->MeetOthers(WorkerOf(*one));
      }
      sets_->RestoreFirstSet();
    }
    for (BackendCase* one : group) {
      if (!stop_ && one->healthy()) one->CrossCheck(WorkerOf(*one));
    }
    ForEach(group, [](BackendCase& one, WorkerProcess& worker) { one.Close(worker); });
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
  bool saves_memory_ = false;
  std::future<void> prefetch_;  // last: its destructor waits for work on the members above
  std::size_t reported_ = 0;
};

std::vector<std::span<const PlannedCase>> ByWorkload(const std::vector<PlannedCase>& plan) {
  std::vector<std::span<const PlannedCase>> workloads;
  for (std::size_t begin = 0; begin < plan.size();) {
    std::size_t end = begin + 1;
    while (end < plan.size() && plan[end].workload == plan[begin].workload) ++end;
    workloads.push_back(std::span(plan).subspan(begin, end - begin));
    begin = end;
  }
  return workloads;
}

// The cores of this process in `jobs` parts, each as a list for `assay worker --cpus`.
std::vector<std::string> ShareCores(int jobs) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  const int cores = CPU_COUNT(&allowed);
  if (jobs > cores) {
    BadInput(
        fmt::format("{} jobs side by side need a core each; this process has {}", jobs, cores));
  }
  std::vector<std::string> shares(static_cast<std::size_t>(jobs));
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string& share = shares[static_cast<std::size_t>(seen++ * jobs / cores)];
    share += (share.empty() ? "" : ",") + std::to_string(cpu);
  }
  return shares;
}

// One thread of the runner per share of the cores, each with workers of its own; they take the next
// workload when they are done. The first exception of any of them ends the run.
class SideBySide {
 public:
  SideBySide(const std::vector<std::span<const PlannedCase>>& workloads, const RunOptions& options,
             const MachineCeilings& ceilings, const RunCallbacks& callbacks,
             const std::atomic<bool>& stop)
      : workloads_(workloads), options_(options), ceilings_(ceilings), stop_(stop) {
    options_.memory_limit_bytes = MemoryLimit(options) / options.jobs;
    callbacks_.on_start = [&](const PlannedCase& planned, std::size_t index) {
      const std::scoped_lock lock(mutex_);
      if (callbacks.on_start) callbacks.on_start(planned, index);
    };
    callbacks_.on_result = [&](const CaseResult& result) {
      const std::scoped_lock lock(mutex_);
      callbacks.on_result(result);
    };
  }

  void Run() {
    std::vector<std::thread> threads;
    for (const std::string& cores : ShareCores(options_.jobs)) {
      threads.emplace_back([this, cores] { Work(cores); });
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void Work(const std::string& cores) {
    RunOptions options = options_;
    options.worker_command.insert(options.worker_command.end(), {"--cpus", cores});
    WorkerPool workers(options, stop_);
    try {
      for (std::size_t w = next_++; w < workloads_.size() && !stop_; w = next_++) {
        WorkloadRun(workloads_[w], workers, options, ceilings_, callbacks_, stop_).Run([] {});
      }
    } catch (...) {
      next_ = workloads_.size();
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  const std::vector<std::span<const PlannedCase>>& workloads_;
  RunOptions options_;
  const MachineCeilings& ceilings_;
  RunCallbacks callbacks_;
  const std::atomic<bool>& stop_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

void RunSideBySide(const std::vector<std::span<const PlannedCase>>& workloads,
                   const RunOptions& options, const MachineCeilings& ceilings,
                   const RunCallbacks& callbacks, const std::atomic<bool>& stop) {
  if (options.timing) {
    BadInput(
        fmt::format("{} jobs side by side share the machine, so their times would mean "
                    "nothing: verify only, or run one at a time",
                    options.jobs));
  }
  SideBySide(workloads, options, ceilings, callbacks, stop).Run();
}

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
  const std::vector<std::span<const PlannedCase>> workloads = ByWorkload(plan);
  if (options.jobs > 1) return RunSideBySide(workloads, options, ceilings, callbacks, stop);
  WorkerPool workers(options, stop);
  for (const PlannedCase& planned : plan) workers.StartEarly(planned.backend);
  std::unique_ptr<WorkloadRun> run;
  const auto start = [&](std::span<const PlannedCase> cases) {
    return std::make_unique<WorkloadRun>(cases, workers, options, ceilings, callbacks, stop);
  };
  for (std::size_t w = 0; w < workloads.size() && !stop; ++w) {
    if (run == nullptr) run = start(workloads[w]);
    std::unique_ptr<WorkloadRun> next;
    if (w + 1 < workloads.size()) next = start(workloads[w + 1]);
    run->Run([&] {
      if (next != nullptr) next->Prefetch();
    });
    run = std::move(next);
  }
}

}  // namespace assay
