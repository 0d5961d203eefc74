// One end of the socket pair between the runner and a worker: JSON lines with file descriptors.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace assay {

// Owns one file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

// A line longer than this is a broken peer, not a message (2,000 samples take 50 KB).
inline constexpr std::size_t kLongestMessageBytes = 64u << 20;

class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Channel(FileDescriptor socket) : socket_(std::move(socket)) {}

  // False when the peer is gone. `line` must hold no newline.
  bool Send(const std::string& line, std::span<const int> fds = {});

  enum class Outcome { kMessage, kClosed, kTimeout, kBroken };
  // The next line, without its newline, waiting until `deadline` at most. kBroken: an overlong
  // line.
  Outcome Receive(std::string& line, Clock::time_point deadline);
  // Waits forever.
  Outcome Receive(std::string& line) { return Receive(line, Clock::time_point::max()); }

  // The oldest `count` descriptors that arrived and were not yet taken; those of a line are there
  // when the line is. Fewer when the peer sent fewer.
  std::vector<FileDescriptor> TakeFds(std::size_t count);

 private:
  bool TakeLine(std::string& line);

  FileDescriptor socket_;
  std::string buffer_;
  std::vector<FileDescriptor> pending_fds_;
};

}  // namespace assay
