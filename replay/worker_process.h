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
  // why. Once `stop` is true the worker is killed at the next wait.
  WorkerProcess(const std::vector<std::string>& command, const std::atomic<bool>& stop);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  // Sends one request and waits for its reply, `timeout_s` at most. A death, a hang or nonsense
  // becomes a reply with status failed (sub signal, exit or protocol) or timeout, and the process
  // is gone afterwards. `phase` names the work for the timeout message.
  Reply Ask(const nlohmann::json& request, std::span<const int> fds, double timeout_s,
            const std::string& phase);

  bool dead() const { return pid_ <= 0; }

 private:
  Reply Bury(const std::string& what_happened);
  Channel::Outcome WaitForLine(Message& message, Channel::Clock::time_point deadline);
  Reply KillForTimeout(double timeout_s, const std::string& phase);
  Reply Explain(int wait_status, const std::string& what_happened);
  std::string LogTail() const;
  void Greet();

  const std::atomic<bool>& stop_;
  pid_t pid_ = -1;
  FileDescriptor log_;
  Channel channel_{FileDescriptor()};
  Reply death_;  // why a dead worker died
};

}  // namespace assay
