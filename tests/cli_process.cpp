#include "tests/cli_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "io/file.h"

namespace assay {
namespace {

pid_t Start(const std::vector<std::string>& words, const std::string& folder,
            const std::string& out, const std::string& err) {
  std::vector<std::string> all = {ASSAY_PROGRAM};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  if (chdir(folder.c_str()) != 0 || freopen(out.c_str(), "w", stdout) == nullptr ||
      freopen(err.c_str(), "w", stderr) == nullptr) {
    _exit(126);
  }
  execv(argv[0], argv.data());
  _exit(127);
}

CliResult Finish(pid_t child, const std::string& out, const std::string& err) {
  int status = 0;
  waitpid(child, &status, 0);
  CliResult result;
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.out = ReadFile(out);
  result.err = ReadFile(err);
  return result;
}

}  // namespace

CliResult RunCli(const std::vector<std::string>& words, const std::string& folder) {
  const std::string out = folder + "/stdout.txt", err = folder + "/stderr.txt";
  return Finish(Start(words, folder, out, err), out, err);
}

CliResult RunCliInterrupted(const std::vector<std::string>& words, const std::string& folder,
                            const std::function<bool()>& ready) {
  const std::string out = folder + "/stdout.txt", err = folder + "/stderr.txt";
  const pid_t child = Start(words, folder, out, err);
  for (int i = 0; i < 600 && !ready(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  kill(child, SIGINT);
  return Finish(child, out, err);
}

CliResult RunCliKilled(const std::vector<std::string>& words, const std::string& folder,
                       const std::function<bool()>& ready) {
  const std::string out = folder + "/stdout.txt", err = folder + "/stderr.txt";
  const pid_t child = Start(words, folder, out, err);
  for (int i = 0; i < 10'000 && !ready(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  return Finish(child, out, err);
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "assay-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  WriteFile(path, text);
  return path;
}

}  // namespace assay
