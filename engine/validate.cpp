// Proves that a step program is legal, from its regions and counters.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "engine/program.h"

namespace assay::engine {
namespace {

// A set of task numbers.
class TaskSet {
 public:
  explicit TaskSet(std::size_t tasks) : words_((tasks + 63) / 64) {}
  void Insert(std::size_t task) { words_[task / 64] |= std::uint64_t{1} << (task % 64); }
  bool Has(std::size_t task) const { return (words_[task / 64] >> (task % 64) & 1) != 0; }
  void Unite(const TaskSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }

 private:
  std::vector<std::uint64_t> words_;
};

struct Access {
  std::size_t task = 0;
  bool write = false;
  const Region* region = nullptr;
};

bool Covers(const Region& outer, const Region& inner) {
  return outer.layer == inner.layer && outer.row0 <= inner.row0 && inner.row1 <= outer.row1 &&
         outer.column0 <= inner.column0 && inner.column1 <= outer.column1;
}

class Validator {
 public:
  Validator(const Program& program, int limit)
      : p_(program), limit_(limit), signallers_(program.counters.size()) {}

  std::vector<std::string> Run() {
    CheckShapes();
    CheckCounters();
    if (!problems_.empty()) return problems_;  // what follows would only repeat it
    const std::vector<std::size_t> order = TopologicalOrder();
    if (!problems_.empty()) return problems_;
    CheckWorkers();
    CheckAccesses(order);
    return problems_;
  }

 private:
  bool full() const { return static_cast<int>(problems_.size()) >= limit_; }
  void Report(std::string problem) {
    if (!full()) problems_.push_back(std::move(problem));
  }
  std::string Name(std::size_t task) const { return "\"" + DescribeTask(p_, task) + "\""; }

  void CheckShapes() {
    for (std::size_t t = 0; t < p_.tasks.size(); ++t) {
      const Task& task = p_.tasks[t];
      if (task.writes.empty()) Report(Name(t) + " writes nothing");
      if (task.row >= p_.rows() || task.request >= p_.shape.requests) {
        Report(Name(t) + " names a row or request that the step does not have");
      }
      if (task.worker < 0 || task.worker >= p_.shape.workers) {
        Report(Name(t) + " is assigned to worker " + std::to_string(task.worker) + " of " +
               std::to_string(p_.shape.workers));
      }
      for (const auto* regions : {&task.reads, &task.writes}) {
        for (const Region& region : *regions) CheckBounds(t, region);
      }
    }
  }

  void CheckBounds(std::size_t t, const Region& region) {
    const Buffer& buffer = p_.buffer(region.buffer);
    if (region.row0 < 0 || region.row0 >= region.row1 || region.row1 > buffer.rows ||
        region.column0 < 0 || region.column0 >= region.column1 || region.column1 > buffer.columns) {
      Report(Name(t) + " touches rows " + std::to_string(region.row0) + ".." +
             std::to_string(region.row1) + ", columns " + std::to_string(region.column0) + ".." +
             std::to_string(region.column1) + " of buffer " + BufName(region.buffer) +
             ", which is " + std::to_string(buffer.rows) + " x " + std::to_string(buffer.columns));
    }
  }

  // Waits demand all signals of a counter: less would miss a split, more would never come.
  void CheckCounters() {
    for (std::size_t t = 0; t < p_.tasks.size(); ++t) {
      for (const int counter : p_.tasks[t].signals) {
        if (!Exists(t, counter)) return;
        signallers_[static_cast<std::size_t>(counter)].push_back(t);
      }
    }
    for (std::size_t c = 0; c < p_.counters.size(); ++c) {
      const auto signals = static_cast<int>(signallers_[c].size());
      if (signals != p_.counters[c].signals) {
        Report("counter \"" + p_.counters[c].name + "\" says " +
               std::to_string(p_.counters[c].signals) + " signals, and tasks give " +
               std::to_string(signals));
      }
    }
    for (std::size_t t = 0; t < p_.tasks.size(); ++t) {
      for (const Wait& wait : p_.tasks[t].waits) {
        if (!Exists(t, wait.counter)) return;
        const auto signals =
            static_cast<int>(signallers_[static_cast<std::size_t>(wait.counter)].size());
        if (wait.target != signals) {
          Report(Name(t) + " waits for " + std::to_string(wait.target) + " of " +
                 std::to_string(signals) + " signals of counter \"" +
                 p_.counters[static_cast<std::size_t>(wait.counter)].name + "\"");
        }
      }
    }
  }

  bool Exists(std::size_t task, int counter) {
    if (counter >= 0 && counter < static_cast<int>(p_.counters.size())) return true;
    Report(Name(task) + " names counter " + std::to_string(counter) + " of " +
           std::to_string(p_.counters.size()));
    return false;
  }

  // Tasks in an order that respects the waits; reports a cycle when some cannot be ordered.
  std::vector<std::size_t> TopologicalOrder() {
    std::vector<std::size_t> order;
    std::vector<int> unmet(p_.tasks.size()), missing;
    std::vector<std::vector<std::size_t>> waiters(p_.counters.size());
    for (const Counter& counter : p_.counters) missing.push_back(counter.signals);
    for (std::size_t t = 0; t < p_.tasks.size(); ++t) {
      unmet[t] = static_cast<int>(p_.tasks[t].waits.size());
      for (const Wait& wait : p_.tasks[t].waits) {
        waiters[static_cast<std::size_t>(wait.counter)].push_back(t);
      }
      if (unmet[t] == 0) order.push_back(t);
    }
    for (std::size_t done = 0; done < order.size(); ++done) {
      for (const int counter : p_.tasks[order[done]].signals) {
        const auto c = static_cast<std::size_t>(counter);
        if (--missing[c] > 0) continue;
        for (const std::size_t waiter : waiters[c]) {
          if (--unmet[waiter] == 0) order.push_back(waiter);
        }
      }
    }
    for (std::size_t t = 0; t < p_.tasks.size() && order.size() < p_.tasks.size(); ++t) {
      if (unmet[t] == 0) continue;
      Report(Name(t) + " is part of a cycle or waits for one");
      break;
    }
    return order;
  }

  // Workers run their tasks in program order: with all of them together, and so with any number of
  // them at a time, everything must finish.
  void CheckWorkers() {
    std::vector<std::vector<std::size_t>> lists(static_cast<std::size_t>(p_.shape.workers));
    for (std::size_t t = 0; t < p_.tasks.size(); ++t) {
      lists[static_cast<std::size_t>(p_.tasks[t].worker)].push_back(t);
    }
    std::vector<int> value(p_.counters.size());
    std::vector<std::size_t> next(lists.size());
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t worker = 0; worker < lists.size(); ++worker) {
        while (next[worker] < lists[worker].size() && Met(lists[worker][next[worker]], value)) {
          for (const int counter : p_.tasks[lists[worker][next[worker]]].signals) {
            ++value[static_cast<std::size_t>(counter)];
          }
          ++next[worker];
          moved = true;
        }
      }
    }
    for (std::size_t worker = 0; worker < lists.size(); ++worker) {
      if (next[worker] == lists[worker].size()) continue;
      Report("worker " + std::to_string(worker) + " blocks at " +
             Name(lists[worker][next[worker]]) + ": its list is no legal order");
      return;
    }
  }

  bool Met(std::size_t task, const std::vector<int>& value) const {
    const std::vector<Wait>& waits = p_.tasks[task].waits;
    return std::all_of(waits.begin(), waits.end(), [&](const Wait& wait) {
      return value[static_cast<std::size_t>(wait.counter)] >= wait.target;
    });
  }

  // Every two accesses of one region, one of them a write, must be ordered by waits, in the order
  // of the program; and what is read must have been written (workspace buffers only: state has a
  // past).
  void CheckAccesses(const std::vector<std::size_t>& order) {
    const std::vector<TaskSet> finished = FinishedAt(order);
    std::vector<std::vector<Access>> by_buffer(static_cast<std::size_t>(Buf::kCount));
    for (std::size_t t = 0; t < p_.tasks.size() && !full(); ++t) {
      for (const Region& region : p_.tasks[t].reads) {
        CheckAccess({t, false, &region}, finished,
                    by_buffer[static_cast<std::size_t>(region.buffer)]);
      }
      for (const Region& region : p_.tasks[t].writes) {
        CheckAccess({t, true, &region}, finished,
                    by_buffer[static_cast<std::size_t>(region.buffer)]);
      }
    }
  }

  void CheckAccess(const Access& access, const std::vector<TaskSet>& finished,
                   std::vector<Access>& earlier) {
    const std::vector<Wait>& waits = p_.tasks[access.task].waits;
    const auto ordered = [&](std::size_t other) {
      return std::any_of(waits.begin(), waits.end(), [&](const Wait& wait) {
        return finished[static_cast<std::size_t>(wait.counter)].Has(other);
      });
    };
    bool written = access.write || p_.buffer(access.region->buffer).state;
    for (const Access& other : earlier) {
      if (other.task == access.task || !other.region->Overlaps(*access.region)) continue;
      written = written || other.write;
      if ((access.write || other.write) && !ordered(other.task)) {
        ReportRace(access.task, access.write, other);
      }
    }
    if (!written) {
      Report(Name(access.task) + " reads " + BufName(access.region->buffer) +
             " that no task wrote");
    }
    // Whoever is ordered after this access is ordered after what it covers: later layers need not
    // be compared with all earlier ones.
    std::erase_if(earlier, [&](const Access& other) {
      return (access.write || !other.write) && Covers(*access.region, *other.region) &&
             (other.task == access.task || ordered(other.task));
    });
    earlier.push_back(access);
  }

  void ReportRace(std::size_t t, bool write, const Access& earlier) {
    Report(Name(t) + (write ? " writes " : " reads ") + BufName(earlier.region->buffer) +
           " without waiting for " + Name(earlier.task) +
           (earlier.write ? ", which writes it" : ", which reads it"));
  }

  // For each counter all tasks that have finished when a wait for it ends. (A set for each task
  // would take gigabytes for a large model.)
  std::vector<TaskSet> FinishedAt(const std::vector<std::size_t>& order) const {
    std::vector<TaskSet> finished(p_.counters.size(), TaskSet(p_.tasks.size()));
    std::vector<std::set<int>> united(p_.counters.size());  // a stage waits for few counters
    for (const std::size_t t : order) {
      for (const int signal : p_.tasks[t].signals) {
        const auto s = static_cast<std::size_t>(signal);
        finished[s].Insert(t);
        for (const Wait& wait : p_.tasks[t].waits) {  // whose own set is complete in this order
          if (!united[s].insert(wait.counter).second) continue;
          finished[s].Unite(finished[static_cast<std::size_t>(wait.counter)]);
        }
      }
    }
    return finished;
  }

  const Program& p_;
  const int limit_;
  std::vector<std::vector<std::size_t>> signallers_;  // by counter
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> Validate(const Program& program, int limit) {
  return Validator(program, limit).Run();
}

}  // namespace assay::engine
