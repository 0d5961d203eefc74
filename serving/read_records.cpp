// Our own record form (JSONL or CSV with the same column names), facts, server logs, clock samples.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "base/stats.h"
#include "serving/facts.h"
#include "serving/json_lines.h"
#include "serving/readers.h"
#include "serving/text_source.h"

namespace assay::serving {
namespace {

using nlohmann::json;

enum Column {
  kConversation,
  kTurn,
  kRequestId,
  kPromptHash,
  kRoot,
  kStart,
  kStartNs,
  kTtft,
  kE2e,
  kIsl,
  kOsl,
  kCached,
  kAccept,
  kQueue,
  kChunks,
  kPhase,
  kError,
  kColumnCount
};
constexpr std::string_view kColumnNames[kColumnCount] = {
    "conversation",  "turn",    "request_id", "prompt_hash", "root", "start_s",
    "start_ns",      "ttft_s",  "e2e_s",      "isl",         "osl",  "cached_tokens",
    "accept_length", "queue_s", "chunks",     "phase",       "error"};

// What one line says; text only where text is meant.
struct Row {
  std::array<std::string, 5> key;  // conversation, turn (unused), request_id, prompt_hash, root
  std::array<double, kColumnCount> value{};
  std::int64_t start_ns = kNoTime;
  std::string phase, error, problem;
  bool header = false, is_facts = false;
};

void Store(Row& row, int column, std::string_view text) {
  switch (column) {
    case kConversation:
    case kRequestId:
    case kPromptHash:
    case kRoot:
      row.key[static_cast<std::size_t>(column)] = text;
      return;
    case kPhase:
      row.phase = text;
      return;
    case kError:
      row.error = text == "null" || text == "false" ? "" : text;
      return;
    default:
      row.value[static_cast<std::size_t>(column)] = NumberOfText(text);
  }
}

std::string UserName(const LoadOptions& options, std::string_view column) {
  const auto found = options.columns.find(std::string(column));
  return found == options.columns.end() ? std::string(column) : found->second;
}

class RowSink : public FlatSink {
 public:
  RowSink(Row& row, const std::vector<std::string>& names) : row_(row), names_(names) {
    row_.value.fill(kMissing);
  }
  void Number(std::string_view path, double value) override {
    const int column = Find(path);
    if (column < 0) return;
    if (column == kConversation || column == kRequestId || column == kPromptHash ||
        column == kRoot || column == kPhase || column == kError) {
      Store(row_, column, fmt::format("{}", value));
    } else {
      row_.value[static_cast<std::size_t>(column)] = value;
    }
  }
  void Integer(std::string_view path, std::int64_t value) override {
    const int column = Find(path);
    if (column == kStartNs) row_.start_ns = value;
    Number(path, static_cast<double>(value));
  }
  void Text(std::string_view path, std::string_view value) override {
    if (path == "format") row_.header = true;
    if (const int column = Find(path); column >= 0) Store(row_, column, value);
  }
  void Bool(std::string_view path, bool value) override {
    if (const int column = Find(path); column >= 0) Store(row_, column, value ? "true" : "false");
  }

 private:
  int Find(std::string_view path) const {
    for (int column = 0; column < kColumnCount; ++column) {
      if (names_[static_cast<std::size_t>(column)] == path) return column;
    }
    return -1;
  }
  Row& row_;
  const std::vector<std::string>& names_;
};

// Turns rows into requests; decides the kind of key from the first row.
class RecordBuilder {
 public:
  RecordBuilder(Run& run, std::string name) : run_(run), pool_(run), name_(std::move(name)) {}

  void Add(const Row& row, std::size_t line) {
    if (run_.requests.empty()) {
      run_.key = !row.key[kConversation].empty() ? KeyKind::kConversationTurn
                 : !row.key[kRequestId].empty()  ? KeyKind::kRequestId
                 : !row.key[kPromptHash].empty() ? KeyKind::kPromptHash
                                                 : KeyKind::kIndex;
    }
    Request r;
    std::string key = KeyOf(row);
    if (run_.key == KeyKind::kIndex) {
      key = fmt::format("#{}", run_.requests.size());
    } else if (key.empty()) {
      BadInput(fmt::format("{} line {} has no {}", name_, line, NameOf(run_.key)));
    }
    r.conversation = pool_.Index(key);
    const auto& v = row.value;
    if (run_.key == KeyKind::kConversationTurn && v[kTurn] == v[kTurn]) {
      r.turn = static_cast<std::int32_t>(v[kTurn]);
    }
    r.start_ns = row.start_ns;
    if (r.start_ns == kNoTime && v[kStartNs] == v[kStartNs]) r.start_ns = std::llround(v[kStartNs]);
    if (r.start_ns == kNoTime && v[kStart] == v[kStart]) r.start_ns = std::llround(v[kStart] * 1e9);
    r.ttft_s = v[kTtft];
    r.e2e_s = v[kE2e];
    r.isl = v[kIsl];
    r.osl = v[kOsl];
    r.cached = v[kCached];
    r.accept_length = v[kAccept];
    r.queue_s = v[kQueue];
    if (v[kChunks] == v[kChunks]) r.chunks = static_cast<std::int32_t>(v[kChunks]);
    if (row.phase == "warmup") r.phase = Phase::kWarmup;
    if (!row.error.empty()) {
      r.outcome = row.error == "timeout"     ? Outcome::kTimeout
                  : row.error == "cancelled" ? Outcome::kCancelled
                  : row.error == "overflow"  ? Outcome::kOverflow
                                             : Outcome::kError;
    } else if (std::isnan(r.e2e_s)) {
      BadInput(fmt::format("{} line {} has neither e2e_s nor an error", name_, line));
    }
    for (const double time : {r.ttft_s, r.e2e_s}) {
      if (time < 0)
        BadInput(fmt::format("{} line {} has a negative time of {} s", name_, line, time));
    }
    if (r.ttft_s > r.e2e_s) {
      BadInput(
          fmt::format("{} line {} has ttft_s {} above e2e_s {}", name_, line, r.ttft_s, r.e2e_s));
    }
    roots_.push_back(row.key[kRoot].empty() ? -1 : pool_.Index(row.key[kRoot]));
    run_.requests.push_back(r);
  }

  void Finish() {
    if (run_.requests.empty()) BadInput(name_ + " holds no record");
    AssignPlays(run_, roots_);
    FinishRun(run_);
  }

 private:
  const std::string& KeyOf(const Row& row) const {
    static const std::string none;
    if (run_.key == KeyKind::kConversationTurn) return row.key[kConversation];
    if (run_.key == KeyKind::kRequestId) return row.key[kRequestId];
    return run_.key == KeyKind::kPromptHash ? row.key[kPromptHash] : none;
  }

  Run& run_;
  NamePool pool_;
  std::string name_;
  std::vector<std::int32_t> roots_;
};

std::vector<std::string> UserNames(const LoadOptions& options) {
  std::vector<std::string> names;
  for (std::string_view column : kColumnNames) names.push_back(UserName(options, column));
  return names;
}

}  // namespace

bool LooksLikeRecordLine(const json& line, const LoadOptions& options) {
  if (TextAt(line, "format") == "assay-serving-records") return true;
  return line.contains(UserName(options, "e2e_s")) && line.contains(UserName(options, "ttft_s"));
}

bool LooksLikeRecordCsv(std::string_view head, const LoadOptions& options) {
  const std::vector<std::string> cells = SplitCsv(head.substr(0, head.find('\n')));
  return std::find(cells.begin(), cells.end(), UserName(options, "e2e_s")) != cells.end();
}

void ReadFacts(const json& document, Run& run) {
  for (const auto& [key, value] : Member(document, "facts").items()) {
    run.AddFact(key, NormaliseFact(TextOf(value)));
  }
  for (const auto& [key, value] : Member(document, "numbers").items()) {
    run.AddNumber(key, NumberOf(value));
  }
}

void ReadRecordLines(const std::string& path, const LoadOptions& options, Run& run) {
  const std::string name = BaseName(path);
  const std::vector<std::string> names = UserNames(options);
  LineBlocks blocks(path);
  RecordBuilder builder(run, name);
  std::vector<Row> rows;
  for (const std::vector<Line>* lines = &blocks.Next(); !lines->empty(); lines = &blocks.Next()) {
    rows.assign(lines->size(), {});
    ParallelRanges(static_cast<std::int64_t>(lines->size()), 256, 0,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const auto at = static_cast<std::size_t>(i);
                       RowSink sink(rows[at], names);
                       rows[at].problem = FlattenJsonLine((*lines)[at].text, sink);
                     }
                   });
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Line& line = (*lines)[i];
      if (!rows[i].problem.empty()) {
        if (line.unterminated) {
          run.notes.push_back(
              fmt::format("{} line {} is cut off and was skipped", name, line.number));
          continue;
        }
        BadInput(fmt::format("{} line {} is {}", name, line.number, rows[i].problem));
      }
      if (rows[i].header) {
        const json header = ParseJson(line.text, name);
        if (NumberAt(header, "version") > 1) {
          BadInput(
              fmt::format("{} is version {} of the record form, and this assay reads version 1",
                          name, NumberAt(header, "version")));
        }
        ReadFacts(header, run);
      } else {
        builder.Add(rows[i], line.number);
      }
    }
  }
  builder.Finish();
}

void ReadRecordCsv(const std::string& path, const LoadOptions& options, Run& run) {
  const std::string name = BaseName(path);
  const std::vector<std::string> names = UserNames(options);
  LineBlocks blocks(path);
  RecordBuilder builder(run, name);
  std::vector<int> columns;  // file column -> Column or -1
  for (const std::vector<Line>* lines = &blocks.Next(); !lines->empty(); lines = &blocks.Next()) {
    for (const Line& line : *lines) {
      const std::vector<std::string> cells = SplitCsv(line.text);
      if (columns.empty()) {
        for (const std::string& cell : cells) {
          const auto found = std::find(names.begin(), names.end(), cell);
          columns.push_back(found == names.end() ? -1 : static_cast<int>(found - names.begin()));
        }
        continue;
      }
      if (cells.size() != columns.size()) {
        if (line.unterminated) {
          run.notes.push_back(
              fmt::format("{} line {} is cut off and was skipped", name, line.number));
          continue;
        }
        BadInput(fmt::format("{} line {} has {} cells under a header of {}", name, line.number,
                             cells.size(), columns.size()));
      }
      Row row;
      row.value.fill(kMissing);
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (columns[i] < 0 || cells[i].empty()) continue;
        Store(row, columns[i], cells[i]);
        const bool text = columns[i] <= kRoot ? columns[i] != kTurn : columns[i] >= kPhase;
        if (!text && std::isnan(row.value[static_cast<std::size_t>(columns[i])])) {
          BadInput(fmt::format("{} line {}: {} is \"{}\", not a number", name, line.number,
                               kColumnNames[columns[i]], cells[i]));
        }
      }
      builder.Add(row, line.number);
    }
  }
  builder.Finish();
}

bool LooksLikeServerLog(std::string_view head) {
  return head.find("accept len:") != std::string_view::npos ||
         head.find("max_total_num_tokens") != std::string_view::npos ||
         head.find("Mean acceptance length:") != std::string_view::npos;
}

namespace {

std::optional<double> NumberAfter(std::string_view line, std::string_view sign) {
  const std::size_t at = line.find(sign);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = line.substr(at + sign.size());
  rest = rest.substr(0, rest.find_first_not_of("0123456789.", rest.starts_with(' ') ? 1 : 0));
  const double value = NumberOfText(rest);
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

}  // namespace

void ReadServerLog(std::string_view text, Run& run) {
  std::vector<double> accept;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    for (std::string_view sign : {"accept len:", "Mean acceptance length:"}) {
      if (const auto value = NumberAfter(line, sign)) accept.push_back(*value);
    }
    if (const auto value = NumberAfter(line, "max_total_num_tokens=")) {
      run.AddNumber("kv_pool_tokens", *value);
    }
  }
  if (!accept.empty()) run.AddNumber("accept_length", Mean(accept));
}

bool LooksLikeClocks(std::string_view head) {
  const std::string_view first = head.substr(0, head.find('\n'));
  return first.find("clocks.sm") != std::string_view::npos ||
         first.find("clocks.current.sm") != std::string_view::npos ||
         first.find("sm_clock_mhz") != std::string_view::npos;
}

void ReadClocks(std::string_view text, const std::string& name, Run& run) {
  std::size_t begin = 0, column = 0, count = 0;
  double sum = 0;
  bool header = true;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::vector<std::string> cells = SplitCsv(text.substr(begin, end - begin));
    begin = end + 1;
    if (header) {
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (cells[i].find("clock") != std::string::npos) column = i;
      }
      header = false;
      continue;
    }
    if (column >= cells.size()) continue;
    std::string cell = cells[column];
    if (const std::size_t unit = cell.find(" MHz"); unit != std::string::npos) cell.resize(unit);
    const double value = NumberOfText(cell);
    if (std::isnan(value)) BadInput(name + " holds the clock \"" + cell + "\", not a number");
    sum += value;
    ++count;
  }
  if (count > 0) run.AddNumber("sm_clock_mhz", sum / static_cast<double>(count));
}

}  // namespace assay::serving
