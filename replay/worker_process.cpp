#include "replay/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"

namespace assay {
namespace {

using namespace std::chrono_literals;
using Clock = Channel::Clock;

constexpr auto kGreetingTime = 20s;   // loading a large CUDA binary from a cold disk
constexpr auto kTerminateGrace = 5s;  // between SIGTERM and SIGKILL
constexpr std::size_t kLogTailBytes = 2000;

// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void ExecWorker(std::vector<char*>& argv, int socket, int log, pid_t runner) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != runner) _exit(127);  // the runner died before prctl
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  fcntl(socket, F_SETFD, 0);
  // Handlers do not survive exec, but blocked and ignored signals do.
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  execv(argv[0], argv.data());
  _exit(127);
}

// Reaps `pid`, polling until `deadline`. False when it is still running.
bool WaitUntil(pid_t pid, Clock::time_point deadline, int& status) {
  for (;;) {
    const pid_t done = waitpid(pid, &status, WNOHANG);
    if (done == pid) return true;
    if (done < 0 && errno != EINTR) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

WorkerProcess::WorkerProcess(const std::vector<std::string>& command, const std::atomic<bool>& stop,
                             double leave_s)
    : stop_(stop), leave_s_(leave_s) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    throw Error(Fault::kDevice, fmt::format("socketpair failed: {}", std::strerror(errno)));
  }
  channel_ = Channel{FileDescriptor(sockets[0])};
  FileDescriptor theirs(sockets[1]);
  log_ = FileDescriptor(memfd_create("assay-worker-log", MFD_CLOEXEC));
  std::vector<std::string> words = command;
  words.insert(words.end(), {"--fd", std::to_string(theirs.get())});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t runner = getpid();
  pid_ = fork();
  if (pid_ == 0) ExecWorker(argv, theirs.get(), log_.get(), runner);
  if (pid_ < 0) throw Error(Fault::kDevice, fmt::format("fork failed: {}", std::strerror(errno)));
  setpgid(pid_, pid_);  // both sides set it: whoever comes first
  theirs.reset();       // or the death of the worker would not close the socket
  Greet();
}

void WorkerProcess::Greet() {
  const auto outcome = WaitForLine(greeting_, Clock::now() + kGreetingTime);
  if (outcome != Channel::Outcome::kMessage) {
    Bury("it did not greet");
    return;
  }
  try {
    if (nlohmann::json::parse(greeting_).at("protocol") == kProtocolVersion) return;
    Bury(fmt::format("it does not speak protocol {}", kProtocolVersion));
  } catch (const nlohmann::json::exception&) {
    Bury("its greeting is not JSON");
  }
}

WorkerProcess::~WorkerProcess() {
  if (dead()) return;
  channel_ = Channel{FileDescriptor()};  // end of file: a healthy worker leaves by itself
  int status = 0;
  const auto leave =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(leave_s_));
  if (WaitUntil(pid_, Clock::now() + leave, status)) {
    kill(-pid_, SIGKILL);  // children it may have left behind
    return;
  }
  kill(-pid_, SIGKILL);
  waitpid(pid_, &status, 0);
}

void WorkerProcess::Post(const nlohmann::json& request, std::span<const int> fds,
                         const std::string& phase) {
  posted_.push_back(phase);
  if (!dead() && !channel_.Send(request.dump(), fds)) Bury("it closed its socket");
}

std::vector<Reply> WorkerProcess::Collect(double timeout_s) {
  std::vector<Reply> replies;
  for (const std::string& phase : posted_) replies.push_back(Await(timeout_s, phase));
  posted_.clear();
  return replies;
}

Reply WorkerProcess::Await(double timeout_s, const std::string& phase) {
  if (dead()) return death_;
  const auto timeout =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s));
  std::string line;
  switch (WaitForLine(line, Clock::now() + timeout)) {
    case Channel::Outcome::kTimeout:
      return stop_ ? Bury("interrupted") : KillForTimeout(timeout_s, phase);
    case Channel::Outcome::kClosed:
      return Bury("it closed its socket");
    case Channel::Outcome::kBroken:
      return Bury("its reply is longer than 64 MiB");
    case Channel::Outcome::kMessage:
      break;
  }
  try {
    Reply reply = ReplyFromJson(line);
    if (reply.sub == "child") {
      Bury("it left a child process");  // the group goes with it
    } else if (reply.sub == kLostDevice || reply.last) {
      Bury("it cannot go on");
    }
    return reply;
  } catch (const Error& error) {
    return Bury(error.what());
  }
}

// Receive in slices, so that Ctrl-C is noticed while a backend computes.
Channel::Outcome WorkerProcess::WaitForLine(std::string& line, Clock::time_point deadline) {
  for (;;) {
    const auto slice = std::min(deadline, Clock::now() + 100ms);
    const auto outcome = channel_.Receive(line, slice);
    const bool over = slice == deadline || stop_;
    if (outcome != Channel::Outcome::kTimeout || over) return outcome;
  }
}

Reply WorkerProcess::KillForTimeout(double timeout_s, const std::string& phase) {
  kill(-pid_, SIGTERM);
  int status = 0;
  if (!WaitUntil(pid_, Clock::now() + kTerminateGrace, status)) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  kill(-pid_, SIGKILL);
  pid_ = -1;
  death_.status = Status::kTimeout;
  death_.sub = phase;
  death_.reason = fmt::format("no answer within {:g} s in phase {}", timeout_s, phase);
  return death_;
}

// The worker is gone or speaks nonsense: make sure that it is gone, and say how it went.
Reply WorkerProcess::Bury(const std::string& what_happened) {
  int status = 0;
  const bool left_by_itself = WaitUntil(pid_, Clock::now() + 500ms, status);
  kill(-pid_, SIGKILL);
  if (!left_by_itself) waitpid(pid_, &status, 0);
  pid_ = -1;
  death_ = left_by_itself ? Explain(status, what_happened) : Reply{};
  if (!left_by_itself) {
    death_.status = Status::kFailed;
    death_.sub = "protocol";
    death_.reason = "the worker was stopped: " + what_happened;
  }
  const std::string log = LogTail();
  if (!log.empty()) death_.reason += "; its last output: " + log;
  return death_;
}

Reply WorkerProcess::Explain(int wait_status, const std::string& what_happened) {
  Reply reply;
  reply.status = Status::kFailed;
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    reply.sub = "signal";
    reply.reason = fmt::format("the worker died of signal {} ({})", number, strsignal(number));
  } else {
    reply.sub = "exit";
    reply.reason = fmt::format("the worker ended with exit code {} without an answer ({})",
                               WEXITSTATUS(wait_status), what_happened);
  }
  return reply;
}

// The last lines of what the worker printed, joined to one line.
std::string WorkerProcess::LogTail() const {
  const off_t size = lseek(log_.get(), 0, SEEK_END);
  if (size <= 0) return "";
  const auto bytes = std::min<std::size_t>(static_cast<std::size_t>(size), kLogTailBytes);
  std::string text(bytes, '\0');
  const ssize_t n = pread(log_.get(), text.data(), bytes, size - static_cast<off_t>(bytes));
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

}  // namespace assay
