// Runs the built program as a user would and keeps what it printed. Test code.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace assay {

struct CliResult {
  int exit_code = -1;  // 128 + N when signal N ended it
  std::string out, err;
};

// `words` are the arguments after the program's name. The working folder is `folder`.
CliResult RunCli(const std::vector<std::string>& words, const std::string& folder);

// Starts it, sends SIGINT once `ready` says so (asked every 100 ms, for a minute at most), and
// waits for its end.
CliResult RunCliInterrupted(const std::vector<std::string>& words, const std::string& folder,
                            const std::function<bool()>& ready);

// Starts it and sends SIGKILL once `ready` says so (asked every millisecond, for ten seconds at
// most); exit_code is 137 unless it was done before.
CliResult RunCliKilled(const std::vector<std::string>& words, const std::string& folder,
                       const std::function<bool()>& ready);

// A fresh empty folder, removed with everything in it at the end of its life.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }
  std::string Write(const std::string& name, const std::string& text) const;  // returns its path

 private:
  std::string path_;
};

}  // namespace assay
