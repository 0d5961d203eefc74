// The CPU executors: one scheduler, two arithmetics.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "base/error.h"
#include "base/parallel.h"
#include "engine/executor.h"
#include "engine/philox.h"

namespace assay::engine {

void StepStats::Add(const StepStats& other) {
  for (std::size_t op = 0; op < seconds.size(); ++op) {
    seconds[op] += other.seconds[op];
    tasks[op] += other.tasks[op];
  }
  distinct_experts += other.distinct_experts;
}

namespace {

// For each task the earlier ones that must have finished, because one of both writes what the other
// touches. Derived from regions alone, not from waits.
std::vector<std::vector<int>> Conflicts(const Program& program) {
  struct Access {
    int task;
    bool write;
    const Region* region;
  };
  std::vector<std::vector<Access>> by_buffer(static_cast<std::size_t>(Buf::kCount));
  std::vector<std::vector<int>> conflicts(program.tasks.size());
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    const auto visit = [&](const std::vector<Region>& regions, bool write) {
      for (const Region& region : regions) {
        auto& accesses = by_buffer[static_cast<std::size_t>(region.buffer)];
        for (const Access& earlier : accesses) {
          if ((write || earlier.write) && earlier.task != static_cast<int>(t) &&
              earlier.region->Overlaps(region)) {
            conflicts[t].push_back(earlier.task);
          }
        }
        accesses.push_back({static_cast<int>(t), write, &region});
      }
    };
    visit(program.tasks[t].reads, false);
    visit(program.tasks[t].writes, true);
  }
  return conflicts;
}

// The state of one run: which tasks are ready, which counters have advanced.
class Schedule {
 public:
  Schedule(const Step& step, const CpuOptions& options)
      : program_(*step.program),
        options_(options),
        unmet_(program_.tasks.size()),
        finished_(program_.tasks.size()),
        value_(program_.counters.size()),
        waiting_(program_.counters.size()) {
    for (std::size_t t = 0; t < program_.tasks.size(); ++t) {
      const Task& task = program_.tasks[t];
      for (const Wait& wait : task.waits) {
        if (wait.target > 0) ++unmet_[t];
        waiting_[static_cast<std::size_t>(wait.counter)].push_back(static_cast<int>(t));
      }
      if (unmet_[t] == 0) MakeReady(static_cast<int>(t));
    }
    if (options.check_order) conflicts_ = Conflicts(program_);
  }

  // The next task to run, or -1 when all are taken. Blocks while none is ready.
  int Take() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (error_ || taken_ == program_.tasks.size()) return -1;
      if (!ready_.empty()) break;
      if (running_ == 0) {
        Fail(Error(Fault::kInternal, "step program blocks: " + std::to_string(taken_) + " of " +
                                         std::to_string(program_.tasks.size()) + " tasks ran"));
        return -1;
      }
      changed_.wait(lock);
    }
    const int task = Pick();
    ++taken_, ++running_;
    CheckOrder(task);
    return error_ ? -1 : task;
  }

  void Finish(int index) {
    const std::lock_guard lock(mutex_);
    --running_;
    finished_[static_cast<std::size_t>(index)] = true;
    for (const int counter : program_.tasks[static_cast<std::size_t>(index)].signals) {
      const auto c = static_cast<std::size_t>(counter);
      // Waits are for all signals of a counter.
      if (++value_[c] < program_.counters[c].signals) continue;
      for (const int waiter : waiting_[c]) {
        const auto w = static_cast<std::size_t>(waiter);
        for (const Wait& wait : program_.tasks[w].waits) {
          if (wait.counter == counter && wait.target == value_[c] && --unmet_[w] == 0) {
            MakeReady(waiter);
          }
        }
      }
    }
    changed_.notify_all();
  }

  void Abort(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = error;
    --running_;
    changed_.notify_all();
  }
  void RethrowError() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void MakeReady(int task) {
    ready_.push_back(task);
    // A heap whose top is the earliest task of the program.
    if (!options_.order_seed) std::push_heap(ready_.begin(), ready_.end(), std::greater<>());
  }

  int Pick() {
    if (options_.order_seed) {
      const PhiloxWords words = Philox(*options_.order_seed, {static_cast<std::uint32_t>(taken_)});
      std::swap(ready_[words[0] % ready_.size()], ready_.back());
    } else {
      std::pop_heap(ready_.begin(), ready_.end(), std::greater<>());
    }
    const int task = ready_.back();
    ready_.pop_back();
    return task;
  }

  void CheckOrder(int task) {
    if (!options_.check_order) return;
    for (const int earlier : conflicts_[static_cast<std::size_t>(task)]) {
      if (finished_[static_cast<std::size_t>(earlier)]) continue;
      Fail(Error(Fault::kInternal, "\"" + DescribeTask(program_, static_cast<std::size_t>(task)) +
                                       "\" started before \"" +
                                       DescribeTask(program_, static_cast<std::size_t>(earlier)) +
                                       "\" had finished, and both touch the same bytes"));
      return;
    }
  }

  void Fail(const Error& error) {
    if (!error_) error_ = std::make_exception_ptr(error);
    changed_.notify_all();
  }

  const Program& program_;
  const CpuOptions& options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> unmet_;
  std::vector<bool> finished_;
  std::vector<int> value_;                 // by counter
  std::vector<std::vector<int>> waiting_;  // by counter
  std::vector<int> ready_;
  std::vector<std::vector<int>> conflicts_;
  std::size_t taken_ = 0;
  int running_ = 0;
  std::exception_ptr error_;
};

class CpuExecutor : public Executor {
 public:
  explicit CpuExecutor(const CpuOptions& options)
      : options_(options),
        math_(options.arithmetic == Arithmetic::kFast ? MakeFastMath() : MakeTensorCoreMath()) {
    if (options_.threads == 0) options_.threads = HardwareThreads();
  }

  std::string name() const override {
    return options_.arithmetic == Arithmetic::kFast ? "cpu" : "cpu-bit";
  }
  bool RunTask(const Step& caller, const Task& task) override {
    Step step = caller;
    step.math = math_.get();
    options_.bodies[static_cast<std::size_t>(task.op)](step, task);
    return true;
  }

  StepStats Run(const Step& caller) override {
    Step step = caller;
    step.math = math_.get();
    CheckStep(step);
    Schedule schedule(step, options_);
    std::vector<StepStats> stats(static_cast<std::size_t>(options_.threads));
    ParallelFor(options_.threads, options_.threads, [&](std::int64_t worker) {
      Work(step, schedule, stats[static_cast<std::size_t>(worker)]);
    });
    schedule.RethrowError();
    StepStats sum;
    for (const StepStats& part : stats) sum.Add(part);
    return sum;
  }

 private:
  void Work(const Step& step, Schedule& schedule, StepStats& stats) const {
    using Clock = std::chrono::steady_clock;
    for (;;) {
      const int index = schedule.Take();
      if (index < 0) return;
      const Task& task = step.program->tasks[static_cast<std::size_t>(index)];
      const auto op = static_cast<std::size_t>(task.op);
      const Clock::time_point start = Clock::now();
      try {
        options_.bodies[op](step, task);
      } catch (...) {
        schedule.Abort(std::current_exception());
        return;
      }
      stats.seconds[op] += std::chrono::duration<double>(Clock::now() - start).count();
      ++stats.tasks[op];
      if (task.op == Op::kRoute) stats.distinct_experts += *Routes(step).count;
      schedule.Finish(index);
    }
  }

  CpuOptions options_;
  std::unique_ptr<MatrixMath> math_;
};

}  // namespace

std::unique_ptr<Executor> MakeCpuExecutor(const CpuOptions& options) {
  return std::make_unique<CpuExecutor>(options);
}

}  // namespace assay::engine
