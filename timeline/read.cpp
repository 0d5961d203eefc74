// Format detection, decompression, and putting several files on one clock.
#include "timeline/read.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace assay::timeline {
namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    std::string pattern = (std::filesystem::temp_directory_path() / "assay-XXXXXX").string();
    const int fd = mkstemp(pattern.data());
    if (fd < 0) throw Error(Fault::kDevice, "cannot create a temporary file " + pattern);
    path_ = pattern;
    std::size_t at = 0;
    while (at < content.size()) {
      const ssize_t wrote = write(fd, content.data() + at, content.size() - at);
      if (wrote <= 0) {
        close(fd);
        unlink(path_.c_str());
        throw Error(Fault::kDevice, "cannot write the temporary file " + path_);
      }
      at += static_cast<std::size_t>(wrote);
    }
    close(fd);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string Head(const std::string& path, std::size_t bytes) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) BadInput("cannot open " + path + ": " + std::strerror(errno));
  std::string head(bytes, '\0');
  head.resize(std::fread(head.data(), 1, bytes, file));
  std::fclose(file);
  return head;
}

bool EndsWith(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

constexpr char kSqliteMagic[] = "SQLite format 3";

// Replaces the path of a temporary file in an error by the path that the user gave.
template <class Read>
Trace WithPath(const std::string& real, const std::string& temporary, Read read) {
  try {
    Trace trace = read();
    for (SourceInfo& source : trace.sources) source.path = real;
    return trace;
  } catch (const Error& error) {
    std::string message = error.what();
    for (std::size_t at; (at = message.find(temporary)) != message.npos;) {
      message.replace(at, temporary.size(), real);
    }
    throw Error(error.fault(), message);
  }
}

Trace ReadText(const std::string& path, std::string_view text, const ReadOptions& options) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) BadInput(path + " is empty");
  if (text[first] == '{' || text[first] == '[') {
    const std::size_t key = text.find('"', first);
    if (key != text.npos && text.compare(key, 22, "\"rocprofiler-sdk-tool\"") == 0) {
      return ReadRocprofJson(path, text, options);
    }
    return ReadKineto(path, text, options);
  }
  const std::string_view line = text.substr(first, text.find('\n', first) - first);
  if (line.find("Start_Timestamp") != line.npos) return ReadRocprofCsv(path, text, options);
  BadInput(path +
           " is no trace that Assay knows (Nsight Systems SQLite export, Kineto JSON, "
           "rocprofv3 JSON or CSV)");
}

}  // namespace

std::string ReadWholeFile(const std::string& path) {
  if (std::filesystem::is_directory(path)) BadInput(path + " is a folder, not a trace file");
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files unchanged
  if (!file) BadInput("cannot open " + path + ": " + std::strerror(errno));
  gzbuffer(file, 1 << 20);
  std::string content;
  std::error_code ignored;
  const auto on_disk = std::filesystem::file_size(path, ignored);
  const std::size_t expected =
      ignored ? 0 : static_cast<std::size_t>(on_disk) * (gzdirect(file) ? 1 : 8);
  content.reserve(expected + 1);
  const std::size_t chunk = std::clamp<std::size_t>(expected + 1, 64 << 10, 4 << 20);
  for (;;) {
    const std::size_t at = content.size();
    content.resize(at + chunk);
    const int got = gzread(file, content.data() + at, chunk);
    content.resize(at + static_cast<std::size_t>(std::max(got, 0)));
    if (got < static_cast<int>(chunk)) {
      int code = Z_OK;
      const std::string why = gzerror(file, &code);
      // A gzip file that stops early still holds a readable beginning; JSON readers say so.
      if (code != Z_OK && code != Z_BUF_ERROR && content.empty()) {
        gzclose(file);
        BadInput("cannot decompress " + path + ": " + why);
      }
      break;
    }
  }
  gzclose(file);
  return content;
}

Trace ReadTrace(const std::string& path, const ReadOptions& options) {
  if (std::filesystem::is_directory(path)) BadInput(path + " is a folder, not a trace file");
  const std::string head = Head(path, 16);
  const bool zeroed =
      head.size() == 16 && std::all_of(head.begin(), head.end(), [](char c) { return c == 0; });
  if (head.compare(0, 15, kSqliteMagic) == 0 || zeroed || EndsWith(path, ".nsys-rep") ||
      EndsWith(path, ".sqlite") || EndsWith(path, ".db")) {
    return ReadNsys(path, options);
  }
  const std::string content = ReadWholeFile(path);
  if (content.compare(0, 15, kSqliteMagic) == 0 || EndsWith(path, ".sqlite.gz")) {
    const TemporaryFile file(content);
    return WithPath(path, file.path(), [&] { return ReadNsys(file.path(), options); });
  }
  return ReadText(path, content, options);
}

namespace {

// Boot time in wall-clock ns: equal for two recordings of one host up to clock adjustment.
bool SameHost(const SourceInfo& a, const SourceInfo& b) {
  if (!a.utc_epoch || !b.utc_epoch || !a.system_clock || !b.system_clock) return false;
  const Ns boot_a = *a.utc_epoch - *a.system_clock, boot_b = *b.utc_epoch - *b.system_clock;
  constexpr Ns kTolerance = 2'000'000'000;
  return std::max(boot_a, boot_b) - std::min(boot_a, boot_b) < kTolerance;
}

}  // namespace

Trace ReadRun(const std::vector<std::string>& paths, const ReadOptions& options) {
  if (paths.empty()) BadInput("no trace file was given");
  Trace run = ReadTrace(paths.front(), options);
  for (std::size_t k = 1; k < paths.size(); ++k) {
    Trace next = ReadTrace(paths[k], options);
    const SourceInfo& first = run.sources.front();
    const SourceInfo& second = next.sources.front();
    Ns shift = 0;
    if (SameHost(first, second)) {
      shift = *second.system_clock - *first.system_clock;
    } else if (first.utc_epoch && second.utc_epoch) {
      shift = *second.utc_epoch - *first.utc_epoch;
    } else {
      BadInput("cannot put " + paths[k] + " on the clock of " + paths.front() + ": " +
               (first.utc_epoch ? paths[k] : paths.front()) + " records no wall-clock time");
    }
    if (k == 1) {
      // From now on a device without a physical identity is named by its file.
      for (Device& device : run.devices) {
        if (device.uuid.empty() && run.sources.front().rank >= 0) {
          device.label = "rank " + std::to_string(run.sources.front().rank) + " device " +
                         std::to_string(device.ordinal);
        }
      }
    }
    Append(run, std::move(next), shift);
  }
  return run;
}

}  // namespace assay::timeline
