// The worker protocol: one JSON line each way per request, over a socket pair. A worker is this
// binary (`assay worker --fd N`) or any program that speaks it (docs/worker-protocol.md).
//
//   worker -> runner, once    {"protocol": 2, "worker": "...", "pid": ...}
//   open   {workload, backend, threads}          start a case; forgets the previous one
//   slot   {slot, inputs, outputs, run} + 2 fds  map one content set; with run: compute it once
//   time   {modes, budget_s, new_content}        timing loops over all mapped slots
//   run    {slot}                                compute one mapped slot once, caches emptied
//   close  {}                                    unmap everything
//   device {}                                    which GPU this worker has
//   ceilings {}                                  what it can do at most; takes some ten seconds
//
// Every reply has "status": "ok", or the status, sub and reason of a failed case.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/accelerator.h"
#include "cuda/clocks.h"
#include "replay/result.h"

namespace assay {

inline constexpr int kProtocolVersion = 2;

// The `sub` of a reply after which the worker's device context is lost: the process is replaced.
inline constexpr const char* kLostDevice = "cuda_error";

// What a worker answered, or what became of it.
struct Reply {
  Status status = Status::kPassed;  // kPassed = "ok"
  std::string sub, reason;
  bool last = false;  // the worker ends after this reply: it cannot go on, and wants a successor
  double run_ns = 0;  // slot: the one run; time: all kernel calls together
  double prepare_ns = 0;  // time: the rest of the timing loops (poisoning, flushing)
  double busy_ns = 0;     // from the request's arrival to this reply
  std::int64_t peak_bytes = 0;
  std::int64_t unwritten_calls = 0;  // timed calls that left elements unwritten when they returned
  std::vector<std::string> marks;    // slot with run, run: ChangeMarks of the outputs right after
  std::vector<TimingSeries> series;
  // time: every cold call met content of its own, and slot 0 holds what it made of kJudgedVersion.
  bool new_content = false;
  std::vector<std::string> flags;         // time: what the result must say of the backend
  std::vector<std::string> notes;         // time: how the backend computed, see cuda/notes.h
  std::vector<ClockReading> clocks;       // time, on a device: before, between and after the series
  std::vector<Ceiling> ceilings;          // ceilings
  std::optional<AcceleratorInfo> device;  // device
};

std::string ReplyToJson(const Reply& reply);
Reply ReplyFromJson(const std::string& line);  // throws kInput on anything that is not a reply

void LayoutsToJson(const std::vector<TensorLayout>& layouts, nlohmann::json& json);
std::vector<TensorLayout> LayoutsFromJson(const nlohmann::json& json);

}  // namespace assay
