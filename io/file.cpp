#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace assay {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void FailRead(const std::string& path, int error) {
  BadInput("cannot read '" + path + "': " + std::strerror(error));
}

[[noreturn]] void FailWrite(const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;  // EFBIG: a limit
  throw Error(full ? Fault::kDevice : Fault::kInput,
              "cannot write '" + path + "': " + std::strerror(error));
}

void WriteAll(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) FailWrite(path, errno);
    content.remove_prefix(static_cast<std::size_t>(written));
  }
}

// A device or a pipe keeps its place: a rename would put a file there.
bool IsSpecial(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

void WriteInPlace(const std::string& path, std::span<const std::string_view> parts) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) FailWrite(path, errno);
  for (const std::string_view part : parts) WriteAll(file.get(), path, part);
}

}  // namespace

std::string ReadFile(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) FailRead(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) FailRead(path, errno);
  if (S_ISDIR(status.st_mode)) FailRead(path, EISDIR);
  std::string content;
  // st_size is only a hint: it is 0 for pipes and /proc files.
  std::size_t capacity = static_cast<std::size_t>(status.st_size) + 4096;
  std::size_t size = 0;
  while (true) {
    content.resize(capacity);
    const ssize_t got = ::read(file.get(), content.data() + size, capacity - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) FailRead(path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
    if (size == capacity) capacity *= 2;
  }
  content.resize(size);
  return content;
}

void WriteFile(const std::string& path, std::string_view content) {
  WriteFile(path, std::span<const std::string_view>(&content, 1));
}

void WriteFile(const std::string& path, std::span<const std::string_view> parts) {
  if (IsSpecial(path)) return WriteInPlace(path, parts);
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  try {
    const Descriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file.get() < 0) FailWrite(path, errno);
    for (const std::string_view part : parts) WriteAll(file.get(), path, part);
    if (::fsync(file.get()) != 0 && errno != EINVAL) FailWrite(path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) FailWrite(path, errno);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace assay
