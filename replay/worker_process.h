// The runner's handle of one worker process: spawn, ask with a deadline, kill, explain its death.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "replay/channel.h"
#include "replay/protocol.h"

namespace assay {

class WorkerProcess {
 public:
  // Starts `command` + {"--fd", "N"} in a process group of its own, with stdout and stderr in a
  // private log, and waits for its greeting. A worker that cannot greet is dead(): Ask explains
  // why. Once `stop` is true the worker is killed at the next wait. At the end it has `leave_s`
  // seconds to go by itself.
  WorkerProcess(const std::vector<std::string>& command, const std::atomic<bool>& stop,
                double leave_s = 0.2);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  // Sends one request without waiting; the worker serves them in order. `phase` names the work if
  // it takes too long.
  void Post(const nlohmann::json& request, std::span<const int> fds, const std::string& phase);
  // Waits for the replies of all posted requests, `timeout_s` at most for each. A death, a hang or
  // nonsense becomes a reply with status failed (sub signal, exit or protocol) or timeout, also for
  // the requests after it, and the process is gone afterwards.
  std::vector<Reply> Collect(double timeout_s);

  bool dead() const { return pid_ <= 0; }
  const std::string& why_dead() const { return death_.reason; }
  std::string last_output() const { return LogTail(); }      // of stdout and stderr, in one line
  const std::string& greeting() const { return greeting_; }  // its JSON line

 private:
  Reply Bury(const std::string& what_happened);
  Reply Await(double timeout_s, const std::string& phase);
  Channel::Outcome WaitForLine(std::string& line, Channel::Clock::time_point deadline);
  Reply KillForTimeout(double timeout_s, const std::string& phase);
  Reply Explain(int wait_status, const std::string& what_happened);
  std::string LogTail() const;
  void Greet();

  const std::atomic<bool>& stop_;
  const double leave_s_;
  pid_t pid_ = -1;
  FileDescriptor log_;
  Channel channel_{FileDescriptor()};
  std::string greeting_;
  std::vector<std::string> posted_;  // phases of the requests without a reply
  Reply death_;                      // why a dead worker died
};

}  // namespace assay
