#include "replay/suite_reader.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "io/file.h"
#include "io/json.h"
#include "replay/workload_json.h"

namespace assay {
namespace {

// Lines per task: large enough to amortise a task, small enough to balance 1,104 records.
constexpr std::int64_t kLinesPerTask = 64;
// Smaller files are read on one thread (about 15 ms): a runner that is going to fork workers, or a
// command that only lists, should not start threads for that.
constexpr std::size_t kSerialBytes = 1 << 20;

struct Line {
  std::int64_t number = 0;  // from 1
  std::string_view text;
  bool complete = true;  // ends in a newline
};

// What became of a line: a workload or a problem.
struct Outcome {
  std::optional<Workload> workload;
  SuiteProblem problem;
};

// Lines that hold anything but blanks. A Windows line end is a blank.
std::vector<Line> SplitLines(std::string_view content) {
  std::vector<Line> lines;
  if (content.substr(0, 3) == "\xEF\xBB\xBF") content.remove_prefix(3);
  for (std::int64_t number = 1; !content.empty(); ++number) {
    const std::size_t end = content.find('\n');
    const std::string_view text = content.substr(0, end);
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
      lines.push_back({number, text, end != std::string_view::npos});
    }
    content.remove_prefix(end == std::string_view::npos ? content.size() : end + 1);
  }
  return lines;
}

Outcome ReadLine(const Line& line, const Registry& registry,
                 std::span<const std::string_view> skipped_keys,
                 const std::function<Workload(nlohmann::json&)>& convert) {
  Outcome outcome;
  outcome.problem.line = line.number;
  try {
    nlohmann::json record = ParseJson(line.text, skipped_keys);
    Workload workload = convert(record);
    try {
      CheckWorkload(workload, registry);
    } catch (const Error& error) {
      BadInput("record " + workload.uuid + ": " + error.what());
    }
    outcome.workload = std::move(workload);
  } catch (const JsonError& error) {
    outcome.problem.column = error.column();
    outcome.problem.message =
        (line.complete ? "malformed JSON: " : "the last line is cut off or malformed: ") +
        error.detail();
  } catch (const Error& error) {
    outcome.problem.message = error.what();
  } catch (const nlohmann::json::exception& error) {
    outcome.problem.message = std::string("a field has an unexpected form: ") + error.what();
  }
  return outcome;
}

}  // namespace

Suite ReadRecords(const std::string& path, const Registry& registry,
                  std::span<const std::string_view> skipped_keys,
                  const std::function<Workload(nlohmann::json& record)>& convert) {
  const std::string content = ReadFile(path);
  const std::vector<Line> lines = SplitLines(content);
  std::vector<Outcome> outcomes(lines.size());
  const int threads = content.size() < kSerialBytes ? 1 : 0;
  ParallelRanges(static_cast<std::int64_t>(lines.size()), kLinesPerTask, threads,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end);
                        ++i) {
                     outcomes[i] = ReadLine(lines[i], registry, skipped_keys, convert);
                   }
                 });

  Suite suite;
  suite.name = std::filesystem::path(path).stem().string();
  std::map<std::string, std::int64_t> line_of_uuid;
  for (Outcome& outcome : outcomes) {
    if (outcome.workload) {
      const auto [first, added] =
          line_of_uuid.emplace(outcome.workload->uuid, outcome.problem.line);
      if (added) {
        suite.workloads.push_back(std::move(*outcome.workload));
        continue;
      }
      outcome.problem.message = "duplicate uuid " + outcome.workload->uuid + ", first on line " +
                                std::to_string(first->second);
    }
    outcome.problem.file = path;
    suite.problems.push_back(std::move(outcome.problem));
  }
  return suite;
}

}  // namespace assay
