// The ledger as an append-only text file, one JSON object a line: {"type":"run"}, {"type":"case"},
// {"type":"ceilings"} and {"type":"finish"}. A line is written by one write(2) under a file lock,
// so writers may share a file and a killed one leaves at most an unfinished last line.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "replay/ledger_store.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

// "type" of a line that we wrote, without parsing it; "" when the line looks different.
std::string_view TypeByPrefix(std::string_view line) {
  constexpr std::string_view kPrefix = R"({"type":")";
  if (!line.starts_with(kPrefix)) return {};
  line.remove_prefix(kPrefix.size());
  const std::size_t end = line.find('"');
  return end == std::string_view::npos ? std::string_view{} : line.substr(0, end);
}

class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { flock(fd_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

class JsonlStore : public Ledger::Store {
 public:
  JsonlStore(std::string path, Ledger::Mode mode) : path_(std::move(path)) {
    const bool append = mode == Ledger::Mode::kAppend;
    fd_ = open(path_.c_str(), append ? O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC : O_RDONLY, 0644);
    if (fd_ < 0) BadInput("cannot open ledger " + path_ + ": " + std::strerror(errno));
    struct stat info {};
    if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd_);
      BadInput("ledger " + path_ + " is not a regular file");
    }
    try {
      CheckFirstLine();
      if (append) {
        const FileLock lock(fd_);
        RepairTail();
      }
    } catch (...) {
      close(fd_);
      throw;
    }
  }
  ~JsonlStore() override { close(fd_); }
  JsonlStore(const JsonlStore&) = delete;
  JsonlStore& operator=(const JsonlStore&) = delete;

  void BeginRun(const RunInfo& run, const Ceilings& ceilings) override {
    Append(RunInfoToJson(run) + "\n" + CeilingsToJsonForRun(ceilings, run.id) + "\n");
  }
  void Add(const std::string& run_id, const CaseResult& result) override {
    Append(CaseResultToJson(result, run_id) + "\n");
  }
  void FinishRun(const std::string& run_id, const std::string& finished) override {
    const Json line = {
        {"type", "finish"}, {"schema", kLedgerVersion}, {"run", run_id}, {"finished", finished}};
    Append(line.dump() + "\n");
  }
  void StoreCeilings(const Ceilings& ceilings) override { Append(CeilingsToJson(ceilings) + "\n"); }

  std::vector<RunInfo> Runs() override {
    std::vector<RunInfo> runs;
    ForEach("run", [&](const Json& json) { runs.push_back(RunInfoFrom(json)); });
    ForEach("finish", [&](const Json& json) {
      for (RunInfo& run : runs) {
        if (run.id == json.value("run", "")) run.finished = json.value("finished", "");
      }
    });
    return runs;
  }

  std::vector<CaseResult> Cases(const std::string& run_id) override {
    std::vector<CaseResult> cases;
    ForEach("case", [&](const Json& json) {
      if (json.value("run", "") == run_id) cases.push_back(CaseResultFrom(json));
    });
    return cases;
  }

  std::vector<CaseRow> Rows(const std::string& run_id) override { return RowsOf(Cases(run_id)); }

  Ceilings CeilingsOf(const std::string& run_id) override {
    Ceilings ceilings;
    ForEach("ceilings", [&](const Json& json) {
      if (json.value("run", "") == run_id) ceilings = CeilingsFrom(json);
    });
    return ceilings;
  }

  std::set<CaseKey> Done(const std::string& build) override {
    std::set<std::string> runs;
    for (const RunInfo& run : Runs()) {
      if (run.build == build) runs.insert(run.id);
    }
    std::set<CaseKey> done;
    ForEach("case", [&](const Json& json) {
      if (!runs.contains(json.value("run", ""))) return;
      done.emplace(json.value("uuid", ""), json.at("backend").value("name", ""), build);
    });
    return done;
  }

  std::optional<Ceilings> FindCeilings(const std::string& device_id) override {
    std::optional<Ceilings> newest;
    ForEach("ceilings", [&](const Json& json) {
      if (json.contains("run") || json.value("device_id", "") != device_id) return;
      Ceilings ceilings = CeilingsFrom(json);
      if (!newest || ceilings.measured >= newest->measured) newest = std::move(ceilings);
    });
    return newest;
  }

 private:
  using Visit = std::function<void(const Json& line)>;

  [[noreturn]] void Malformed(std::int64_t number, const std::string& what) const {
    BadInput("ledger " + path_ + ", line " + std::to_string(number) + ": " + what);
  }

  // Calls `visit` for every line of `type`. An unfinished last line is the case that was in flight
  // when a writer died: it is skipped.
  void ForEach(std::string_view type, const Visit& visit) const {
    std::ifstream file(path_, std::ios::binary);
    std::string line;
    for (std::int64_t number = 1; std::getline(file, line); ++number) {
      const bool unfinished = file.eof();
      const std::string_view prefix = TypeByPrefix(line);
      if (line.empty() || (!prefix.empty() && prefix != type)) continue;
      const Json json = Json::parse(line, nullptr, false);
      if (!json.is_object()) {
        if (unfinished) return;
        Malformed(number, "not a JSON object");
      }
      VisitLine(json, number, type, visit);
    }
  }

  void VisitLine(const Json& json, std::int64_t number, std::string_view type,
                 const Visit& visit) const {
    try {
      if (const int version = IntegerOr(json, "schema", 0); version > kLedgerVersion) {
        throw Error(Fault::kInput, NewerVersionMessage("this line", version));
      }
      if (json.value("type", "") == type) visit(json);
    } catch (const std::exception& problem) {
      Malformed(number, problem.what());
    }
  }

  // The first line tells a ledger from other JSONL files, and an old version from a newer one.
  void CheckFirstLine() const {
    std::ifstream file(path_, std::ios::binary);
    std::string line;
    if (!std::getline(file, line) || line.empty()) return;
    const bool unfinished = file.eof();
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() && unfinished && !TypeByPrefix(line).empty()) return;
    const bool ours = json.is_object() && json.contains("schema") &&
                      json["schema"].is_number_integer() && json.contains("type");
    if (!ours) BadInput(path_ + " is not an assay ledger: line 1 has no \"type\" and \"schema\"");
    if (const auto version = json["schema"].get<std::int64_t>(); version > kLedgerVersion) {
      BadInput("ledger " + NewerVersionMessage(path_, version));
    }
  }

  // Cuts off a last line that a killed writer left unfinished. The caller holds the lock, so no
  // living writer is inside a line.
  void RepairTail() const {
    const off_t size = lseek(fd_, 0, SEEK_END);
    off_t keep = size;
    char byte = 0;
    while (keep > 0 && pread(fd_, &byte, 1, keep - 1) == 1 && byte != '\n') --keep;
    if (keep == size) return;
    std::string tail(static_cast<std::size_t>(size - keep), '\0');
    if (pread(fd_, tail.data(), tail.size(), keep) != size - keep) return;
    // A complete object that only lacks its newline (an edited file) is kept.
    const bool complete = Json::accept(tail);
    if (complete ? write(fd_, "\n", 1) != 1 : ftruncate(fd_, keep) != 0) {
      BadInput("cannot repair the last line of ledger " + path_ + ": " + std::strerror(errno));
    }
  }

  void Append(const std::string& text) const {
    const FileLock lock(fd_);
    RepairTail();
    const off_t before = lseek(fd_, 0, SEEK_END);
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t written = write(fd_, text.data() + done, text.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        const int problem = errno;
        // Take back the half-written line, so that the next append starts a line of its own. A
        // failure here leaves a tail that readers skip and the next opener cuts off.
        [[maybe_unused]] const int ignored = ftruncate(fd_, before);
        throw Error(Fault::kDevice, "cannot write to ledger " + path_ + ": " +
                                        std::strerror(problem) + "; it holds all earlier cases");
      }
      done += static_cast<std::size_t>(written);
    }
  }

  std::string path_;
  int fd_ = -1;
};

}  // namespace

std::unique_ptr<Ledger::Store> OpenJsonlStore(const std::string& path, Ledger::Mode mode) {
  return std::make_unique<JsonlStore>(path, mode);
}

}  // namespace assay
