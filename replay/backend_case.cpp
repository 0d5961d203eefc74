#include "replay/backend_case.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/bitwise.h"
#include "replay/device.h"
#include "replay/fresh_inputs.h"
#include "replay/measure.h"
#include "replay/spans.h"

namespace assay {
namespace {

using Json = nlohmann::json;

constexpr int kModes = 2;                     // cold and warm
constexpr double kSlowKernelNs = 0.3e9;       // slower kernels are checked on two content sets only
constexpr double kUntrustworthyFactor = 0.9;  // below 0.9 of the floor: flagged
constexpr double kFullClock = 0.97;           // a slower SM clock is flagged
// The worker's clock against the runner's: message passing and a busy machine explain this much.
constexpr double kClockFactor = 1.3, kClockSlackS = 0.15;
// The fastest of a few calls on new content against the median of known content: a kernel that
// computes every time is near 1 however noisy the machine.
constexpr int kUnseenCalls = 12;
constexpr double kMemoFactor = 2, kMemoSlackNs = 20e3;
constexpr int kSpanSamples = 21;

// Adds the time of its scope to a total.
class ScopedSeconds {
 public:
  explicit ScopedSeconds(double& total) : total_(total) {}
  ~ScopedSeconds() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Keeps the worse of two checks of the same output on different content.
void MergeCheck(OutputCheck& kept, const OutputCheck& next, const std::vector<Grade>& grades) {
  const auto rank = [&](const std::string& name) {
    for (std::size_t g = 0; g < grades.size(); ++g) {
      if (grades[g].name == name) return g;
    }
    return grades.size();
  };
  if (rank(next.grade) > rank(kept.grade)) kept.grade = next.grade;
  if (next.budget_used > kept.budget_used) {
    kept.budget_used = next.budget_used;
    kept.worst = next.worst;
  }
  kept.mismatches += next.mismatches;
  kept.max_abs = std::max(kept.max_abs, next.max_abs);
  kept.max_rel = std::max(kept.max_rel, next.max_rel);
  kept.max_rel_l2 = std::max(kept.max_rel_l2, next.max_rel_l2);
  if (kept.problem.empty()) kept.problem = next.problem;
}

FileDescriptor ReopenReadOnly(int fd) {
  FileDescriptor reopened(open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (reopened.get() < 0) {
    throw Error(Fault::kDevice,
                fmt::format("cannot open shared memory for reading: {}", std::strerror(errno)));
  }
  return reopened;
}

const Backend* BackendOf(const PlannedCase& planned) {
  return planned.family != nullptr ? planned.family->FindBackend(planned.backend) : nullptr;
}

}  // namespace

WorkerProcess& WorkerPool::Get(const std::string& backend, int repeat) {
  auto& worker = workers_[{backend, repeat}];
  if (worker == nullptr || worker->dead()) {
    const auto own = options_.backend_commands.find(backend);
    worker = std::make_unique<WorkerProcess>(
        own != options_.backend_commands.end() ? own->second : options_.worker_command, stop_,
        options_.worker_leave_s);
  }
  return *worker;
}

void WorkerPool::StartEarly(const std::string& backend) {
  if (IsForeignAndNew(backend, 0)) Get(backend, 0);
}

void WorkerPool::StartTogether(const std::vector<std::string>& backends, int repeat) {
  std::vector<WorkerProcess*> started;
  for (const std::string& backend : backends) {
    if (!IsForeignAndNew(backend, repeat)) continue;
    started.push_back(&Get(backend, repeat));
    started.back()->Post({{"op", "close"}}, {}, "setup");  // answered once everything is loaded
  }
  for (WorkerProcess* worker : started) worker->Collect(options_.timeout_s);
}

bool WorkerPool::IsForeignAndNew(const std::string& backend, int repeat) const {
  return options_.backend_commands.contains(backend) && !workers_.contains({backend, repeat});
}

CaseResult StartResult(const PlannedCase& planned) {
  CaseResult result;
  const Workload& workload = *planned.workload;
  result.uuid = workload.uuid;
  result.definition = workload.definition;
  result.family = planned.family != nullptr ? planned.family->name : "";
  result.backend = planned.backend;
  if (const Backend* backend = BackendOf(planned)) result.device = backend->device;
  result.model = workload.model;
  result.phase = workload.phase;
  result.request = workload.request;
  result.axes = workload.axes;
  result.input_source = "generated";
  result.started = Timestamp();
  return result;
}

BackendCase::BackendCase(const PlannedCase& planned, ContentSets& sets, const RunOptions& options,
                         int most_sets)
    : planned_(planned),
      sets_(sets),
      options_(options),
      most_sets_(most_sets),
      result_(StartResult(planned)) {
  result_.input_source = sets.stored() ? "blob" : "generated";
}

void BackendCase::Fail(Status status, const std::string& sub, const std::string& reason) {
  result_.status = status;
  result_.sub = sub;
  result_.reason = reason;
  result_.timing.clear();  // a case that failed has no speed
}

bool BackendCase::Accept(const Reply& reply) {
  worker_s_ += (reply.run_ns + reply.prepare_ns) * 1e-9;
  result_.peak_bytes = std::max(result_.peak_bytes, reply.peak_bytes);
  if (reply.status == Status::kPassed) return true;
  Fail(reply.status, reply.sub, reply.reason);
  return false;
}

void BackendCase::PostOpen(WorkerProcess& worker) {
  Json request = {{"op", "open"}, {"backend", planned_.backend}, {"threads", options_.threads}};
  request["family"] = planned_.family->name;
  request["workload"] = Json::parse(WorkloadToJson(*planned_.workload));
  worker.Post(request, {}, "setup");
}

void BackendCase::PostSlot(WorkerProcess& worker, std::size_t set, bool run,
                           const std::string& phase) {
  const Bundle& inputs = sets_.Get(set).inputs;
  Bundle& outputs = outputs_[set];
  outputs.Poison(0);
  Json request = {{"op", "slot"}, {"slot", set}, {"run", run}};
  LayoutsToJson(inputs.layouts(), request["inputs"]);
  LayoutsToJson(outputs.layouts(), request["outputs"]);
  // Workers of devices copy the inputs, side by side: none of them may change what the others read.
  const FileDescriptor read_only = on_device() ? ReopenReadOnly(inputs.fd()) : FileDescriptor();
  const int fds[] = {on_device() ? read_only.get() : inputs.fd(), outputs.fd()};
  worker.Post(request, fds, phase);
}

// Waits for everything posted. Requests go out together, because a case would otherwise spend
// longer in waking two processes by turns than in a short kernel. False when one of them failed.
bool BackendCase::Collect(WorkerProcess& worker, std::vector<Reply>& replies) {
  replies = worker.Collect(options_.timeout_s);
  return std::all_of(replies.begin(), replies.end(), [&](const Reply& r) { return Accept(r); });
}

void BackendCase::MergeVerdict(const Verdict& verdict) {
  Correctness& kept = result_.correctness;
  const auto policies = sets_.family().policies(sets_.problem());
  if (kept.content_sets == 0) {
    kept.outputs = verdict.correctness.outputs;
    kept.share_checked = verdict.correctness.share_checked;
    result_.flags = verdict.flags;
  } else {
    for (std::size_t o = 0; o < kept.outputs.size(); ++o) {
      MergeCheck(kept.outputs[o], verdict.correctness.outputs[o], policies[o].grades);
    }
  }
  for (const Finding& finding : verdict.correctness.findings) {
    if (kept.content_sets == 0 || !finding.passed) kept.findings.push_back(finding);
  }
  ++kept.content_sets;
}

bool BackendCase::CheckGuards(std::size_t set) {
  if (const auto damage = outputs_[set].CheckRedZones()) {
    Fail(Status::kIncorrect, "out_of_bounds", *damage);
    outputs_[set].WriteRedZones();
    if (!on_device()) sets_.CheckUntouched(set);  // a wild write may have hit the inputs too
    return false;
  }
  if (on_device()) return true;  // it cannot write to the inputs here, and checks its own copy
  const std::string change = sets_.CheckUntouched(set);
  if (change.empty()) return true;
  Fail(Status::kIncorrect, "input_modified", change);
  return false;
}

// After a failure: whatever it did to the inputs is not the fault of the next backend. Workers of
// devices cannot write to them.
void BackendCase::RestoreInputs() {
  for (std::size_t set = 0; !on_device() && set < outputs_.size(); ++set) {
    sets_.CheckUntouched(set);
  }
}

// The same for content that was swapped in, which other backends are still to meet.
void BackendCase::CheckSwapped() {
  if (on_device()) return;
  const std::string change = sets_.CheckSwappedUntouched();
  if (!change.empty() && healthy()) Fail(Status::kIncorrect, "input_modified", change);
}

ContentSet& BackendCase::GetSet(std::size_t set) {
  const ScopedSeconds timer(judge_s_);
  return sets_.Get(set);
}

bool BackendCase::CheckSet(WorkerProcess& worker, std::size_t set) {
  ContentSet& content = GetSet(set);
  outputs_.push_back(Bundle::AllocateShared(OutputLayouts(sets_.family(), sets_.problem())));
  if (set == 0) result_.input_hashes = sets_.InputHashes();
  const auto before = std::chrono::steady_clock::now();
  if (set == 0) PostOpen(worker);
  PostSlot(worker, set, true, "check");
  std::vector<Reply> replies;
  if (!Collect(worker, replies)) return false;
  // On a device the fastest: other backends may have used it meanwhile.
  const double run_ns = replies.back().run_ns;
  if (set == 0) run_ns_ = run_ns;
  run_ns_ = on_device() ? std::min(run_ns_, run_ns) : std::max(run_ns_, run_ns);
  if (set == 0) {
    result_.setup_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - before)
            .count();
  }
  if (!CheckGuards(set)) return false;
  Verdict verdict;
  {
    const ScopedSeconds timer(judge_s_);
    verdict = Verify(sets_.family(), sets_.problem(), content.inputs, outputs_[set],
                     sets_.TruthOf(set), content.key);
    const Backend* backend = BackendOf(planned_);
    if (options_.bitwise && backend != nullptr) {
      AddBitwise(sets_.family(), *backend, sets_.problem(), content.inputs, outputs_[set],
                 content.key, verdict);
    }
  }
  if (verdict.status != Status::kInvalidReference) MergeVerdict(verdict);
  if (set == 0) result_.engine = sets_.CompareWithEngine(outputs_[0]);
  if (!verdict.passed()) {
    Fail(verdict.status, verdict.sub, fmt::format("content set {}: {}", set, verdict.reason));
    return false;
  }
  output_marks_.push_back(ChangeMarks(outputs_[set]));
  const std::vector<std::string>& at_return =
      replies.back().marks;  // a foreign worker may have none
  if (at_return.empty() || at_return == output_marks_.back()) return true;
  Fail(Status::kIncorrect, "unstable", "the outputs changed after the call had returned");
  return false;
}

void BackendCase::Check(WorkerProcess& worker) {
  const ScopedSeconds wall(wall_s_);
  int sets = most_sets_;
  for (int set = 0; set < sets; ++set) {
    if (!CheckSet(worker, static_cast<std::size_t>(set))) return RestoreInputs();
    if (is_slow()) sets = std::min(sets, 2);
    if (OneRunTakesTheBudget()) break;
  }
}

void BackendCase::CheckThird(WorkerProcess& worker, const Expected& expected) {
  const ScopedSeconds wall(wall_s_);
  if (is_slow() || OneRunTakesTheBudget()) return;
  double run_ns = 0;
  const bool answered = RunUnseen(worker, true, run_ns);
  CheckSwapped();
  if (!answered || !healthy()) return;
  run_ns_ = std::max(run_ns_, run_ns);
  if (const auto damage = outputs_[0].CheckRedZones()) {
    outputs_[0].WriteRedZones();
    return Fail(Status::kIncorrect, "out_of_bounds", *damage);
  }
  const ScopedSeconds timer(judge_s_);
  const Verdict verdict = Verify(sets_.family(), sets_.problem(), sets_.Get(0).inputs, outputs_[0],
                                 expected, sets_.third_key());
  MergeVerdict(verdict);
  if (!verdict.passed()) Fail(verdict.status, verdict.sub, "content set 2: " + verdict.reason);
}

// Such a kernel is checked on one content set and timed by one cold run.
bool BackendCase::OneRunTakesTheBudget() const { return run_ns_ * 1e-9 > options_.budget_s; }

int BackendCase::repeats() const {
  // Every series costs at least one run; a kernel that would need more than the whole budget for
  // that is timed in one process only, and reported as noisy if its interval stays wide.
  const double least_s = run_ns_ * 1e-9 * kModes * options_.repeats;
  return least_s > options_.budget_s ? 1 : options_.repeats;
}

double BackendCase::SeriesBudget() const { return options_.budget_s / (kModes * repeats()); }

// Not where one more call per content set, which a CPU's loop makes, would take the time of the
// others. A device makes new content by itself, also where no truth of it can be had.
bool BackendCase::CanMeetNewContent() {
  const double last_calls_s =
      on_device() ? 0 : run_ns_ * 1e-9 * static_cast<double>(outputs_.size());
  if (is_slow() || last_calls_s > SeriesBudget() / 2) return false;
  const ScopedSeconds timer(judge_s_);
  if (on_device() && sets_.TooLargeToJudge()) return HasVersions(sets_.Get(0).inputs);
  return sets_.CanBeJudged();
}

void BackendCase::PostTime(WorkerProcess& worker, int repeat, bool new_content) {
  if (repeat != 0) {  // the first worker still has the slots mapped from the check
    PostOpen(worker);
    for (std::size_t set = 0; set < outputs_.size(); ++set) PostSlot(worker, set, false, "setup");
  }
  const bool warmup = repeat != 0 || run_ns_ * 1e-9 < SeriesBudget() / 8;
  Json request = {{"op", "time"}, {"budget_s", SeriesBudget()}, {"warmup", warmup}};
  request["new_content"] = new_content;
  request["judged"] = new_content && sets_.CanBeJudged();
  request["modes"] = {on_device() ? "cold" : "cold_host"};
  if (!OneRunTakesTheBudget()) request["modes"].push_back(on_device() ? "warm" : "warm_host");
  if (on_device()) request["flush"] = options_.flush_by_write ? "write" : "read";
  worker.Post(request, {}, "timing");
}

// A backend may slow the clock that it is timed by; the runner's clock is out of its reach.
bool BackendCase::CheckClock(const std::vector<Reply>& replies, double wall_s) {
  double claimed_s = 0;
  for (const Reply& reply : replies) claimed_s += reply.busy_ns * 1e-9;
  const bool agree = wall_s <= kClockFactor * claimed_s + kClockSlackS &&
                     claimed_s <= kClockFactor * wall_s + kClockSlackS;
  if (agree || claimed_s == 0) return true;  // 0: a foreign worker that does not say
  Suspect("clock", fmt::format("the worker says that timing took {:.3g} s, the runner's clock says "
                               "{:.3g} s",
                               claimed_s, wall_s));
  return false;
}

// Keeps the series, unless a call returned too early.
bool BackendCase::AcceptTiming(Reply& reply, int repeat) {
  for (TimingSeries& series : reply.series) {
    series.repeat = repeat;
    result_.timing.push_back(std::move(series));
  }
  KeepClocks(reply, repeat);
  new_content_ = reply.new_content;
  if (!new_content_) AddOnce(result_.flags, "repeated_content");
  for (const std::string& flag : reply.flags) AddOnce(result_.flags, flag);
  // Repeats may choose differently: all are kept.
  for (const std::string& note : reply.notes) AddOnce(result_.notes, note);
  if (reply.unwritten_calls == 0) return true;
  Fail(Status::kIncorrect, "unstable",
       fmt::format("{} timed calls returned before every output element was written",
                   reply.unwritten_calls));
  return false;
}

void BackendCase::KeepClocks(const Reply& reply, int repeat) {
  for (const ClockReading& reading : reply.clocks) {
    if (!reading.known) return AddOnce(result_.flags, "clocks_unknown");
    result_.clocks.push_back({repeat, reading.sm_mhz, reading.max_sm_mhz, reading.memory_mhz,
                              reading.power_w, reading.temperature_c, reading.throttle_reasons});
  }
  // The first reading is of whatever came before.
  for (std::size_t r = 1; r < reply.clocks.size(); ++r) {
    const ClockReading& reading = reply.clocks[r];
    const bool slow = reading.sm_mhz < kFullClock * reading.max_sm_mhz;
    if (slow || (reading.throttle_reasons & kSlowingReasons) != 0)
      AddOnce(result_.flags, "throttled");
  }
}

void BackendCase::Time(WorkerProcess& worker, int repeat) {
  const ScopedSeconds wall(wall_s_);
  repeat_ = repeat;
  const bool new_content = CanMeetNewContent();
  const auto start = std::chrono::steady_clock::now();
  PostTime(worker, repeat, new_content);
  const bool last = repeat + 1 == repeats();
  if (!last) worker.Post({{"op", "close"}}, {}, "close");
  std::vector<Reply> replies;
  if (!Collect(worker, replies)) {
    return RestoreInputs();  // it may have ended in the middle of a version
  }
  const double wall_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Reply& timed = replies[replies.size() - (last ? 1 : 2)];
  const std::size_t cold_samples =
      timed.series.empty() ? 0 : timed.series.front().samples_ns.size();
  if (!AcceptTiming(timed, repeat) || !CheckClock(replies, wall_s)) return RestoreInputs();
  for (std::size_t set = 0; set < outputs_.size(); ++set) {
    if (!RecheckAfterTiming(set, cold_samples)) return RestoreInputs();
  }
}

void BackendCase::Close(WorkerProcess& worker) {
  const ScopedSeconds wall(wall_s_);
  std::vector<Reply> replies;
  worker.Post({{"op", "close"}}, {}, "close");
  Collect(worker, replies);
}

// What cannot be traced is a note, not a fault of the backend.
void BackendCase::CrossCheck(WorkerProcess& worker) {
  if (!options_.cross_check || !on_device() || is_slow()) return;
  const ScopedSeconds wall(wall_s_);
  worker.Post({{"op", "span"},
               {"samples", kSpanSamples},
               {"flush", options_.flush_by_write ? "write" : "read"}},
              {}, "cross-check");
  Reply reply = worker.Collect(options_.timeout_s).front();
  if (reply.status != Status::kPassed && !worker.dead()) {
    return AddOnce(result_.notes, "no cross-check by CUPTI: " + reply.reason);
  }
  const std::vector<TimingSummary> timed = Summarize(result_.timing);
  if (!Accept(reply)) return;
  const TimingSummary* const cold = Headline(timed);
  const std::vector<TimingSummary> spans = Summarize(reply.series);
  if (cold == nullptr || spans.empty()) return;
  if (SpanDiffers(cold->median_ns, spans.front().median_ns)) {
    AddOnce(result_.flags, "span_differs");
  }
  for (TimingSeries& series : reply.series) {
    series.repeat = repeat_;
    result_.timing.push_back(std::move(series));
  }
}

// Slot 0 on whatever its inputs hold now: one call with cold caches; with warm ones the fastest of
// several on versions of it.
bool BackendCase::RunUnseen(WorkerProcess& worker, bool cold, double& run_ns) {
  outputs_[0].Poison();
  worker.Post({{"op", "run"}, {"slot", 0}, {"evict", cold}}, {}, "check");
  std::vector<Reply> replies;
  if (!Collect(worker, replies)) return false;
  run_ns = replies.back().run_ns;
  return true;
}

bool BackendCase::is_slow() const { return run_ns_ > kSlowKernelNs; }

void BackendCase::MeetUnseen(WorkerProcess& worker, const Expected& expected,
                             std::mutex& device_turn) {
  const ScopedSeconds wall(wall_s_);
  const ScopedSeconds timer(judge_s_);
  const double worker_before_s = worker_s_;
  {
    std::unique_lock turn(device_turn, std::defer_lock);
    if (on_device()) turn.lock();
    if (!RunUnseen(worker, true, unseen_cold_ns_)) return CheckSwapped();
  }
  CheckSwapped();
  if (!healthy()) return;
  worker_s_ = worker_before_s;  // this scope is counted as judging already
  const Verdict verdict = Verify(sets_.family(), sets_.problem(), sets_.Get(0).inputs, outputs_[0],
                                 expected, sets_.unseen_key());
  if (!verdict.passed()) {
    return Fail(Status::kIncorrect, "unstable",
                "right when checked, wrong on new content in the same memory: " + verdict.reason);
  }
  // Where cold calls were all new, only the warm ones could be answered from memory.
  if (new_content_) {
    std::unique_lock turn(device_turn, std::defer_lock);
    if (on_device()) turn.lock();
    RunUnseen(worker, false, unseen_warm_ns_);
  }
  CheckSwapped();
  worker_s_ = worker_before_s;
}

void BackendCase::MeetOthers(WorkerProcess& worker) {
  const ScopedSeconds wall(wall_s_);
  const ScopedSeconds timer(judge_s_);
  const double worker_before_s = worker_s_;
  const bool answered = RunOther(worker, true, unseen_cold_ns_) &&
                        (!new_content_ || RunOther(worker, false, unseen_warm_ns_));
  worker_s_ = worker_before_s;
  if (answered && !KeepsResults("cold", unseen_cold_ns_)) KeepsResults("warm", unseen_warm_ns_);
}

// Wholly other content, so that whoever keeps results of similar content gains nothing. A few
// calls, while they look slow: a busy machine does not make a suspect.
bool BackendCase::RunOther(WorkerProcess& worker, bool cold, double& fastest_ns) {
  const int seen = cold ? 0 : kUnseenCalls;  // by the cold calls
  for (int call = 1; call < kUnseenCalls && MuchFaster(cold ? "cold" : "warm", fastest_ns) &&
                     sets_.SwapInOther(seen + call);
       ++call) {
    double run_ns = 0;
    if (!RunUnseen(worker, cold, run_ns)) return false;
    fastest_ns = std::min(fastest_ns, run_ns);
  }
  return true;
}

// The median of a mode in which calls on known content were much faster than one on new content.
std::optional<double> BackendCase::MuchFaster(const char* mode, double new_ns) const {
  for (const TimingSummary& summary : Summarize(result_.timing)) {
    const double known_ns = summary.median_ns;
    const bool much = new_ns > kMemoFactor * known_ns + kMemoSlackNs;
    if (summary.mode.starts_with(mode) && much) return known_ns;
  }
  return std::nullopt;
}

bool BackendCase::KeepsResults(const char* mode, double fastest_ns) {
  const std::optional<double> known_ns = MuchFaster(mode, fastest_ns);
  if (!known_ns) return false;
  Suspect("memo", fmt::format("a call on new content takes at least {:.3g} us, on known content "
                              "{:.3g} us ({})",
                              fastest_ns * 1e-3, *known_ns * 1e-3, mode));
  return true;
}

// The measurement stays, and is left out of rankings.
void BackendCase::Suspect(const std::string& sub, const std::string& reason) {
  result_.status = Status::kSuspicious;
  result_.sub = sub;
  result_.reason = reason;
}

// The last cold call, and every warm one, met a version of set 0 that only the runner knows.
bool BackendCase::RecheckJudged() {
  std::vector<std::string> marks = ChangeMarks(outputs_[0]);
  if (marks == judged_marks_) return true;
  const ScopedSeconds timer(judge_s_);
  const Expected* expected = sets_.SwapInJudged();
  const ContentSet& content = sets_.Get(0);
  const Verdict verdict =
      Verify(sets_.family(), sets_.problem(), content.inputs, outputs_[0], *expected, content.key);
  sets_.SwapOutJudged();
  judged_marks_ = std::move(marks);
  if (verdict.passed()) return true;
  Fail(Status::kIncorrect, "unstable",
       "right when checked, wrong in the timing loop on new content: " + verdict.reason);
  return false;
}

// Equal bits need no second verdict; a backend that is not bit-stable is judged again in full.
bool BackendCase::RecheckAfterTiming(std::size_t set, std::size_t cold_samples) {
  if (!CheckGuards(set)) return false;
  if (set == 0 && new_content_ && sets_.CanBeJudged()) return RecheckJudged();
  const bool was_run =
      on_device() || set == 0 || set < cold_samples;  // a slow kernel may not reach every slot
  if (!was_run || ChangeMarks(outputs_[set]) == output_marks_[set]) return true;
  const ScopedSeconds timer(judge_s_);
  const ContentSet& content = sets_.Get(set);
  const Verdict verdict = Verify(sets_.family(), sets_.problem(), content.inputs, outputs_[set],
                                 sets_.TruthOf(set), content.key);
  if (verdict.passed()) return true;
  Fail(Status::kIncorrect, "unstable",
       fmt::format("right when checked, wrong after timing (content set {}): {}", set,
                   verdict.reason));
  return false;
}

void BackendCase::Finish(const MachineCeilings& ceilings) {
  result_.floor = FloorOf(sets_.family().cost(sets_.problem(), sets_.Get(0).inputs),
                          on_device() ? ceilings.gpu : ceilings.host);
  result_.seconds = wall_s_;
  result_.overhead_ms = std::max(0.0, wall_s_ - worker_s_ - judge_s_) * 1e3;
  const auto summaries = Summarize(result_.timing);
  const TimingSummary* headline = Headline(summaries);
  if (headline == nullptr) return;
  if (headline->noisy) result_.flags.push_back("noisy");
  if (result_.floor.ns > 0 && headline->median_ns < kUntrustworthyFactor * result_.floor.ns) {
    result_.flags.push_back("below_floor");
  }
}

}  // namespace assay
