// A worker process whose only family is the faulty one. Its first argument may name a fault of the
// worker itself: "mute" (never greets), "old" (another protocol), "babble" (no JSON), "no_gpu"
// (every other one has a simulated GPU), "no_cupti", "long_spans" (of that GPU), or one of
// Proxy::Fail, followed by the request that it waits for and a file that marks that it has
// happened.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "replay/channel.h"
#include "replay/fake_accelerator.h"
#include "replay/faulty_family.h"
#include "replay/worker.h"

namespace assay {
namespace {

// Stands between the runner and a healthy worker and fails once, at the first request `stage` that
// any process with this marker file meets.
class Proxy {
 public:
  Proxy(int runner_fd, std::string fault, std::string stage, std::string marker)
      : fault_(std::move(fault)),
        stage_(std::move(stage)),
        marker_(std::move(marker)),
        runner_fd_(runner_fd) {}

  int Serve() {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return 1;
    std::thread([fd = sockets[1]] {
      ServeWorker(FaultyRegistry(), fd, nlohmann::json::array());
    }).detach();
    Channel runner{FileDescriptor(runner_fd_)}, worker{FileDescriptor(sockets[0])};
    std::string line;
    if (worker.Receive(line) != Channel::Outcome::kMessage || !runner.Send(line)) return 1;
    while (runner.Receive(line) == Channel::Outcome::kMessage) {
      const std::string op = nlohmann::json::parse(line).at("op");
      const std::vector<FileDescriptor> fds = runner.TakeFds(op == "slot" ? 2 : 0);
      const bool now = op == stage_ && FirstTime();
      if (now) Fail(fds);
      std::vector<int> numbers;
      for (const FileDescriptor& fd : fds) numbers.push_back(fd.get());
      if (!worker.Send(line, numbers)) return 1;
      if (worker.Receive(line) != Channel::Outcome::kMessage) return 1;
      if (now && fault_ == "die_after") raise(SIGKILL);
      if (!runner.Send(line)) return 0;
    }
    return 0;
  }

 private:
  bool FirstTime() const {
    const int fd = open(marker_.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }

  void Fail(const std::vector<FileDescriptor>& fds) const {
    if (fault_ == "die") raise(SIGKILL);
    if (fault_ == "half") {
      constexpr const char* kStart = "{\"status\": ";
      if (write(runner_fd_, kStart, std::strlen(kStart)) > 0) _exit(0);
    }
    if (fault_ == "hang_up") {
      shutdown(runner_fd_, SHUT_RDWR);
      std::this_thread::sleep_for(std::chrono::seconds(60));
    }
    if (fault_ == "nonsense" && write(runner_fd_, "[1]\n", 4) != 4) _exit(1);
    // The memory of the bundles is sealed: this must fail, or the runner would die of SIGBUS.
    if (fault_ == "cut_memory") {
      for (const FileDescriptor& fd : fds) {
        if (ftruncate(fd.get(), 0) == 0) _exit(9);
      }
    }
  }

  const std::string fault_, stage_, marker_;
  const int runner_fd_;
};

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  const int fd = std::atoi(argv[argc - 1]);
  const std::string fault = argc > 3 ? argv[1] : "";
  const auto say = [fd](const char* text) {
    return write(fd, text, std::strlen(text)) > 0 ? 0 : 1;
  };
  if (fault == "mute") return 3;
  if (fault == "old") return say("{\"protocol\": 0}\n");
  if (fault == "babble") return say("hello\n");
  if (argc > 5) return assay::Proxy(fd, fault, argv[2], argv[3]).Serve();
  assay::DeviceHooks hooks;
  hooks.open = [&](std::string& why_not) -> std::unique_ptr<assay::Accelerator> {
    if (fault == "no_gpu") {
      why_not = "no usable GPU: no CUDA-capable device is detected";
      return nullptr;
    }
    auto gpu = std::make_unique<assay::FakeAccelerator>();
    if (fault == "no_cupti") gpu->why_no_activities = "CUPTI could not be loaded";
    if (fault == "long_spans") gpu->activity_factor = 3;
    return gpu;
  };
  hooks.measure_ceilings = [] {
    return std::vector<assay::Ceiling>{{"copy", 4e12, "B/s", "simulated"},
                                       {"bf16_matrix", 8e14, "FLOP/s", "simulated"},
                                       {"launch", 700, "ns", "simulated"}};
  };
  return assay::ServeWorker(assay::FaultyRegistry(), fd, nlohmann::json::array(), hooks);
}
