#include "replay/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace assay {
namespace {

constexpr std::size_t kMostFds = 8;  // a message carries two: inputs and outputs

// Milliseconds for poll(), rounded up; -1 = forever.
int PollTimeout(Channel::Clock::time_point deadline) {
  if (deadline == Channel::Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Channel::Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

void CollectFds(msghdr& header, std::vector<FileDescriptor>& fds) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

void FileDescriptor::reset() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

bool Channel::Send(const std::string& line, std::span<const int> fds) {
  std::string text = line + "\n";
  std::size_t sent = 0;
  while (sent < text.size()) {
    iovec part{text.data() + sent, text.size() - sent};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
    if (sent == 0 && !fds.empty()) {  // descriptors travel with the first byte
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    const ssize_t n = sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

bool Channel::TakeLine(std::string& line) {
  const std::size_t end = buffer_.find('\n');
  if (end == std::string::npos) return false;
  line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return true;
}

std::vector<FileDescriptor> Channel::TakeFds(std::size_t count) {
  const auto end =
      pending_fds_.begin() + static_cast<std::ptrdiff_t>(std::min(count, pending_fds_.size()));
  std::vector<FileDescriptor> taken(std::make_move_iterator(pending_fds_.begin()),
                                    std::make_move_iterator(end));
  pending_fds_.erase(pending_fds_.begin(), end);
  return taken;
}

Channel::Outcome Channel::Receive(std::string& line, Clock::time_point deadline) {
  while (!TakeLine(line)) {
    if (buffer_.size() > kLongestMessageBytes) return Outcome::kBroken;
    pollfd wait{socket_.get(), POLLIN, 0};
    const int ready = poll(&wait, 1, PollTimeout(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return Outcome::kTimeout;
    char chunk[65536];
    iovec part{chunk, sizeof chunk};
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Outcome::kClosed;
    CollectFds(header, pending_fds_);
    buffer_.append(chunk, static_cast<std::size_t>(n));
  }
  return Outcome::kMessage;
}

}  // namespace assay
