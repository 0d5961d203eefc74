// One case in flight: a backend on the content sets of a workload, first checked, then timed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "replay/content_sets.h"
#include "replay/runner.h"
#include "replay/worker_process.h"

namespace assay {

// Workers are kept across workloads; each (backend, repeat) has its own process, and a dead one is
// replaced when it is next needed.
class WorkerPool {
 public:
  // `options` says which program serves which backend; it must outlive the pool.
  WorkerPool(const RunOptions& options, const std::atomic<bool>& stop)
      : options_(options), stop_(stop) {}
  WorkerProcess& Get(const std::string& backend, int repeat);
  // Starts the first worker of a backend that another program serves, which may take seconds to
  // load its libraries: those of several backends then load at the same time.
  void StartEarly(const std::string& backend);
  // Likewise for a later repeat; waits until all of them have loaded, so that none of it falls into
  // somebody's timing.
  void StartTogether(const std::vector<std::string>& backends, int repeat);

 private:
  bool IsForeignAndNew(const std::string& backend, int repeat) const;

  const RunOptions& options_;
  const std::atomic<bool>& stop_;
  std::map<std::pair<std::string, int>, std::unique_ptr<WorkerProcess>> workers_;
};

// Its steps in order: Check, perhaps CheckThird, Time for every repeat, MeetUnseen, MeetOthers,
// CrossCheck, Close (all with the worker of that repeat), Finish. Cases on devices may be checked,
// and meet the unseen, side by side.
class BackendCase {
 public:
  BackendCase(const PlannedCase& planned, ContentSets& sets, const RunOptions& options,
              int most_sets);

  // Runs every content set once with poisoned outputs and judges it.
  void Check(WorkerProcess& worker);
  // Runs slot 0 on the content of the third set, which is in its memory now, and judges it.
  void CheckThird(WorkerProcess& worker, const Expected& expected);
  // One fresh-process timing repeat; the outputs of the last use of every slot are judged again.
  void Time(WorkerProcess& worker, int repeat);
  // Results kept for known pointers are wrong on content that nobody has seen, which is now in the
  // memory of set 0; `expected` is its truth. Calls on a device wait for their turn: what they take
  // is compared with the timing.
  void MeetUnseen(WorkerProcess& worker, const Expected& expected, std::mutex& device_turn);
  // Results kept for known content cost their computation again on new content, which the time
  // tells. Changes the content of set 0 where a call looks slow. After MeetUnseen.
  void MeetOthers(WorkerProcess& worker);
  // The same calls by another clock, where the run wants it. Nothing else may use the device.
  void CrossCheck(WorkerProcess& worker);
  void Close(WorkerProcess& worker);
  void Finish(const MachineCeilings& ceilings);

  // False once the case has failed: there is nothing more to measure.
  bool healthy() const { return result_.status == Status::kPassed; }
  // Too slow for calls beyond the timing.
  bool is_slow() const;
  bool on_device() const { return result_.device != "cpu"; }
  int repeats() const;
  int repeat() const { return repeat_; }  // the last one: whose worker has the slots
  const PlannedCase& planned() const { return planned_; }
  CaseResult& result() { return result_; }

 private:
  void PostOpen(WorkerProcess& worker);
  void PostSlot(WorkerProcess& worker, std::size_t set, bool run, const std::string& phase);
  bool Collect(WorkerProcess& worker, std::vector<Reply>& replies);
  ContentSet& GetSet(std::size_t set);
  bool CheckSet(WorkerProcess& worker, std::size_t set);
  bool CheckGuards(std::size_t set);
  void RestoreInputs();
  void CheckSwapped();
  bool RecheckAfterTiming(std::size_t set, std::size_t cold_samples);
  bool RecheckJudged();
  bool CanMeetNewContent();
  void PostTime(WorkerProcess& worker, int repeat, bool new_content);
  bool AcceptTiming(Reply& reply, int repeat);
  void KeepClocks(const Reply& reply, int repeat);
  bool CheckClock(const std::vector<Reply>& replies, double wall_s);
  bool RunUnseen(WorkerProcess& worker, bool cold, double& run_ns);
  bool RunOther(WorkerProcess& worker, bool cold, double& fastest_ns);
  std::optional<double> MuchFaster(const char* mode, double new_ns) const;
  bool KeepsResults(const char* mode, double fastest_ns);
  void Suspect(const std::string& sub, const std::string& reason);
  bool Accept(const Reply& reply);
  void Fail(Status status, const std::string& sub, const std::string& reason);
  void MergeVerdict(const Verdict& verdict);
  double SeriesBudget() const;
  bool OneRunTakesTheBudget() const;

  const PlannedCase& planned_;
  ContentSets& sets_;
  const RunOptions& options_;
  const int most_sets_;
  CaseResult result_;
  int repeat_ = 0;
  std::vector<Bundle> outputs_;                         // one per checked content set
  std::vector<std::vector<std::string>> output_marks_;  // of the verified outputs
  std::vector<std::string> judged_marks_;               // of those on kJudgedVersion
  bool new_content_ = false;                            // in every cold call of the last repeat
  double run_ns_ = 0;  // of the checked runs: slowest; on a device fastest
  double unseen_cold_ns_ = 0, unseen_warm_ns_ = 0;  // fastest calls on new content
  double worker_s_ = 0, judge_s_ = 0;               // inside kernels and preparation; inside Verify
  double wall_s_ = 0;
};

// The part of a result that is known before anything ran.
CaseResult StartResult(const PlannedCase& planned);

}  // namespace assay
