// String pool, dense ids and merging of traces.
#include "timeline/trace.h"

#include <algorithm>
#include <cctype>

namespace assay::timeline {

const char* CategoryName(Category category) {
  static constexpr const char* kNames[kCategories] = {"compute", "comm", "memcpy", "memset",
                                                      "graph"};
  return kNames[static_cast<int>(category)];
}

std::uint32_t StringPool::Intern(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  texts_.emplace_back(text);
  const std::uint32_t id = size() - 1;
  ids_.emplace(texts_.back(), id);
  return id;
}

namespace {

// Length of the valid UTF-8 sequence at text[at], or 0.
std::size_t SequenceLength(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(at + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(at + 1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string ValidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = SequenceLength(text, at);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
    } else {
      out.append(text, at, length);
      at += length;
    }
  }
  return out;
}

std::uint32_t TraceBuilder::ConfigId(const KernelConfig& config) {
  std::size_t hash = config.graph_node ? 1469598103934665603u : 0xCBF29CE484222325u;
  const auto mix = [&](std::int32_t value) {
    hash = (hash ^ static_cast<std::uint32_t>(value)) * 1099511628211u;
  };
  for (int axis = 0; axis < 3; ++axis) {
    mix(config.grid[axis]);
    mix(config.block[axis]);
    mix(config.cluster[axis]);
  }
  mix(config.registers);
  mix(config.static_smem_bytes);
  mix(config.dynamic_smem_bytes);
  std::uint32_t& recent = recent_configs_[(hash ^ (hash >> 32)) % kRecentConfigs];
  if (recent < trace_.configs.size() && trace_.configs[recent] == config) return recent;
  auto& bucket = configs_[hash];
  for (const std::uint32_t id : bucket) {
    if (trace_.configs[id] == config) return recent = id;
  }
  trace_.configs.push_back(config);
  recent = static_cast<std::uint32_t>(trace_.configs.size() - 1);
  bucket.push_back(recent);
  return recent;
}

std::uint32_t TraceBuilder::ProcessId(std::int64_t pid, std::int64_t host, std::uint32_t file) {
  const std::uint64_t key = static_cast<std::uint64_t>(pid) * 0x9E3779B97F4A7C15u ^
                            static_cast<std::uint64_t>(host) << 20 ^ file;
  const auto [it, added] = processes_.try_emplace(key, 0);
  if (added) {
    it->second = static_cast<std::uint32_t>(trace_.processes.size());
    trace_.processes.push_back({pid, host, file, -1, ""});
  }
  return it->second;
}

std::uint16_t TraceBuilder::ThreadId(std::uint32_t process, std::int64_t tid) {
  LastThread& last = last_threads_[(static_cast<std::uint64_t>(tid) ^ process) % 16];
  if (last.process == process && last.tid == tid) return last.result;
  const std::uint64_t key =
      static_cast<std::uint64_t>(tid) * 0x9E3779B97F4A7C15u ^ static_cast<std::uint64_t>(process);
  const auto [it, added] = threads_.try_emplace(key, 0);
  if (added) {
    if (trace_.threads.size() < 0xFFFF) trace_.threads.push_back({process, tid, ""});
    it->second = static_cast<std::uint32_t>(trace_.threads.size() - 1);
  }
  last = {process, tid, static_cast<std::uint16_t>(it->second)};
  return last.result;
}

std::uint32_t TraceBuilder::StreamId(std::uint32_t device, std::uint32_t process, std::int64_t id) {
  LastStream& last = last_streams_[(static_cast<std::uint64_t>(id) + device * 5u) % 16];
  if (last.device == device && last.process == process && last.id == id) return last.result;
  std::uint64_t key = static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15u;
  key = (key ^ device) * 0xBF58476D1CE4E5B9u ^ process;
  const auto [it, added] = streams_.try_emplace(key, 0);
  if (added) {
    constexpr std::size_t kMost = (1u << 24) - 1;
    if (trace_.streams.size() < kMost) trace_.streams.push_back({device, process, id});
    it->second = static_cast<std::uint32_t>(trace_.streams.size() - 1);
  }
  last = {device, process, id, it->second};
  return it->second;
}

std::uint16_t TraceBuilder::ApiName(std::string_view raw) {
  if (trace_.api_names.size() >= 0xFFFE)
    return static_cast<std::uint16_t>(
        trace_.api_names.size() >= 0xFFFF ? 0xFFFE : trace_.api_names.Intern("(other)"));
  return static_cast<std::uint16_t>(trace_.api_names.Intern(NormalApiName(raw)));
}

bool CommRules::Matches(std::string_view name) const {
  std::string lower(name);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::any_of(parts_.begin(), parts_.end(),
                     [&](const std::string& part) { return lower.find(part) != lower.npos; });
}

std::string_view NormalApiName(std::string_view raw) {
  const std::size_t mark = raw.rfind("_v");
  if (mark != raw.npos && mark + 2 < raw.size() &&
      std::all_of(raw.begin() + static_cast<std::ptrdiff_t>(mark) + 2, raw.end(),
                  [](char c) { return c >= '0' && c <= '9'; })) {
    raw = raw.substr(0, mark);
  }
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (raw.size() > suffix.size() && raw.substr(raw.size() - suffix.size()) == suffix) {
      return raw.substr(0, raw.size() - suffix.size());
    }
  }
  return raw;
}

void SortByStart(std::vector<GpuRow>& rows) {
  const auto by_start = [](const GpuRow& a, const GpuRow& b) { return a.start < b.start; };
  // Tables are mostly sorted already, one run each: merging runs beats sorting.
  std::vector<std::ptrdiff_t> runs = {0};
  constexpr std::size_t kMostRuns = 16;
  for (auto at = rows.begin(); at != rows.end() && runs.size() <= kMostRuns;) {
    at = std::is_sorted_until(at, rows.end(), by_start);
    runs.push_back(at - rows.begin());
  }
  if (runs.size() > kMostRuns) {
    std::stable_sort(rows.begin(), rows.end(), by_start);
    return;
  }
  // From the back, so that the short tables meet first.
  for (std::size_t k = runs.size(); k-- > 2;) {
    std::inplace_merge(rows.begin() + runs[k - 2], rows.begin() + runs[k - 1], rows.end(),
                       by_start);
  }
}

void FinishTrace(Trace& trace) {
  SortByStart(trace.gpu);
  const std::optional<Ns> stop =
      trace.sources.empty() ? std::nullopt : trace.sources[0].session_end;
  for (const GpuRow& row : trace.gpu) {
    trace.reversed_rows += row.end < row.start;
    // Trace times count from the start of the recording.
    trace.outside_session += stop.has_value() && (row.start < 0 || row.end > *stop);
  }
}

namespace {

template <class T>
std::uint32_t Move(std::vector<T>& into, std::vector<T>& from) {
  const auto base = static_cast<std::uint32_t>(into.size());
  into.insert(into.end(), from.begin(), from.end());
  return base;
}

// Devices with a physical identity are one device in all files; others belong to their file.
std::vector<std::uint32_t> MergeDevices(Trace& into, const Trace& other) {
  std::vector<std::uint32_t> map;
  for (const Device& device : other.devices) {
    std::uint32_t found = static_cast<std::uint32_t>(into.devices.size());
    if (!device.uuid.empty()) {
      for (std::uint32_t k = 0; k < into.devices.size(); ++k) {
        if (into.devices[k].uuid == device.uuid) found = k;
      }
    }
    if (found == into.devices.size()) {
      into.devices.push_back(device);
      Device& added = into.devices.back();
      if (device.uuid.empty()) {
        added.key = "file" + std::to_string(into.sources.size()) + ":" + device.key;
        added.label = (device.rank >= 0 ? "rank " + std::to_string(device.rank)
                                        : "file " + std::to_string(into.sources.size())) +
                      " device " + std::to_string(device.ordinal);
      }
    }
    map.push_back(found);
  }
  return map;
}

// Where the tables of an appended trace have gone.
struct Renumbering {
  Ns shift = 0;
  std::vector<std::uint32_t> devices, names;
  std::vector<std::uint16_t> api_names;
  std::uint32_t config = 0, copy = 0, process = 0, thread = 0, stream = 0;  // added to numbers

  std::uint16_t ThreadNumber(std::uint16_t number) const {
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(number + thread, 0xFFFF));
  }
};

Renumbering MoveTables(Trace& into, Trace& other, Ns shift) {
  Renumbering moved;
  moved.shift = shift;
  moved.devices = MergeDevices(into, other);
  for (std::uint32_t k = 0; k < other.names.size(); ++k) {
    moved.names.push_back(into.names.Intern(other.names[k]));
  }
  for (std::uint32_t k = 0; k < other.api_names.size(); ++k) {
    moved.api_names.push_back(static_cast<std::uint16_t>(
        std::min<std::uint32_t>(into.api_names.Intern(other.api_names[k]), 0xFFFF)));
  }
  moved.config = Move(into.configs, other.configs);
  moved.copy = Move(into.copies, other.copies);
  for (Process& process : other.processes) {
    process.file += static_cast<std::uint32_t>(into.sources.size());
  }
  moved.process = Move(into.processes, other.processes);
  for (Thread& thread : other.threads) thread.process += moved.process;
  moved.thread = Move(into.threads, other.threads);
  for (Stream& stream : other.streams) {
    stream.device = moved.devices[stream.device];
    stream.process += moved.process;
  }
  moved.stream = Move(into.streams, other.streams);
  return moved;
}

void MoveGpuRows(Trace& into, const Trace& other, const Renumbering& moved) {
  for (GpuRow row : other.gpu) {
    row.start += moved.shift;
    row.end += moved.shift;
    row.name = moved.names[row.name];
    const auto category = static_cast<Category>(row.category);
    const bool kernel = category == Category::kCompute || category == Category::kComm;
    row.detail += kernel ? moved.config : moved.copy;
    row.stream = (row.stream + moved.stream) & 0xFFFFFFu;
    into.gpu.push_back(row);
  }
  for (Collective row : other.collectives) {
    row.start += moved.shift;
    row.end += moved.shift;
    row.name = moved.names[row.name];
    row.process += moved.process;
    into.collectives.push_back(row);
  }
}

void MoveHostRows(Trace& into, const Trace& other, const Renumbering& moved) {
  for (ApiRow row : other.api) {
    row.start += moved.shift;
    row.end += moved.shift;
    row.name = moved.api_names[row.name];
    row.thread = moved.ThreadNumber(row.thread);
    into.api.push_back(row);
  }
  for (RangeRow row : other.ranges) {
    row.start += moved.shift;
    if (row.end != kOpenEnd) row.end += moved.shift;
    row.name = moved.names[row.name];
    row.domain = moved.names[row.domain];
    row.thread = moved.ThreadNumber(row.thread);
    into.ranges.push_back(row);
  }
  for (OsRow row : other.os) {
    row.start += moved.shift;
    row.end += moved.shift;
    row.name = moved.names[row.name];
    row.thread = moved.ThreadNumber(row.thread);
    into.os.push_back(row);
  }
}

// What the trace says of itself: sources, segments, complaints, counts.
void MoveFacts(Trace& into, Trace& other, Ns shift) {
  for (Diagnostic& row : other.diagnostics) {
    row.time += shift;
    into.diagnostics.push_back(std::move(row));
  }
  for (Segment row : other.segments) {
    row.last_gpu += shift;
    row.last_api += shift;
    into.segments.push_back(row);
  }
  for (SourceInfo& source : other.sources) {
    source.shift = shift;
    if (source.session_end) *source.session_end += shift;
    into.sources.push_back(std::move(source));
  }
  if (into.graph_mode.empty()) into.graph_mode = other.graph_mode;
  into.graphs_untimed += other.graphs_untimed;
  into.api_other_class += other.api_other_class;
  into.rejected_events += other.rejected_events;
  into.reversed_rows += other.reversed_rows;
  into.outside_session += other.outside_session;
  into.overhead_ns += other.overhead_ns;
  into.overhead_rows += other.overhead_rows;
  for (std::string& category : other.unknown_categories) {
    into.unknown_categories.push_back(std::move(category));
  }
}

}  // namespace

void Append(Trace& into, Trace&& other, Ns shift) {
  const Renumbering moved = MoveTables(into, other, shift);
  MoveGpuRows(into, other, moved);
  MoveHostRows(into, other, moved);
  MoveFacts(into, other, shift);
  SortByStart(into.gpu);
}

}  // namespace assay::timeline
