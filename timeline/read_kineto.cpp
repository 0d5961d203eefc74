// PyTorch / Kineto Chrome trace JSON. Times are decimal microseconds; they are parsed from their
// text so that no nanosecond is lost. A broken event costs that event only.
#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"
#include "timeline/json_cursor.h"
#include "timeline/read.h"

namespace assay::timeline {
namespace {

enum class Kind { kKernel, kMemcpy, kMemset, kApi, kRange, kIgnored, kUnknown };

Kind KindOf(std::string_view category) {
  static const std::map<std::string_view, Kind> kKinds = {{"kernel", Kind::kKernel},
                                                          {"gpu_memcpy", Kind::kMemcpy},
                                                          {"gpu_memset", Kind::kMemset},
                                                          {"cuda_runtime", Kind::kApi},
                                                          {"cuda_driver", Kind::kApi},
                                                          {"cpu_op", Kind::kRange},
                                                          {"user_annotation", Kind::kRange},
                                                          {"Kernel", Kind::kKernel},
                                                          {"Memcpy", Kind::kMemcpy},
                                                          {"Memset", Kind::kMemset},
                                                          {"Runtime", Kind::kApi},
                                                          {"Operator", Kind::kRange},
                                                          {"python_function", Kind::kIgnored},
                                                          {"gpu_user_annotation", Kind::kIgnored},
                                                          {"cuda_sync", Kind::kIgnored},
                                                          {"overhead", Kind::kIgnored},
                                                          {"ac2g", Kind::kIgnored},
                                                          {"Trace", Kind::kIgnored},
                                                          {"fwdbwd", Kind::kIgnored},
                                                          {"cpu_instant_event", Kind::kIgnored},
                                                          {"async_gpu", Kind::kIgnored},
                                                          {"async_cpu_to_gpu", Kind::kIgnored},
                                                          {"", Kind::kIgnored}};
  const auto found = kKinds.find(category);
  return found == kKinds.end() ? Kind::kUnknown : found->second;
}

struct Event {
  char phase = 0;
  Kind kind = Kind::kIgnored;
  std::string_view category, name, pid, tid, ts, duration;
  std::string_view device, stream, correlation, bytes, registers, shared_memory, elements, sequence;
  std::string_view collective;
  bool name_escaped = false;
  KernelConfig config;
};

class KinetoReader {
 public:
  KinetoReader(const std::string& path, std::string_view json, const ReadOptions& options)
      : json_(json), options_(options), build_(trace_) {
    trace_.sources.emplace_back();
    source().path = path;
    source().format = "kineto";
    text_ = json;
  }

  Trace Read() {
    if (json_.Peek('[')) {
      ReadEvents();
    } else if (json_.Peek('{')) {
      ReadHeader();
    } else {
      BadInput(source().path + " is neither a JSON object nor a JSON list");
    }
    if (!saw_events_) {
      BadInput(source().path + " is JSON without a traceEvents list: it is not a Chrome trace");
    }
    Finish();
    return std::move(trace_);
  }

 private:
  SourceInfo& source() { return trace_.sources.front(); }

  void ReadHeader() {
    const bool whole = ForEachMember(json_, [&](std::string_view key) {
      std::string_view value;
      if (key == "traceEvents") return ReadEvents();
      if (key == "schemaVersion" && json_.Scalar(value)) {
        source().schema = std::string(value);
        return true;
      }
      if (key == "baseTimeNanoseconds" && json_.Scalar(value)) {
        base_ = Integer(value);
        return true;
      }
      if (key == "deviceProperties" && json_.Peek('[')) return ReadDevices();
      if (key == "distributedInfo" && json_.Peek('{')) return ReadRank();
      return json_.Skip();
    });
    if (!whole) source().warnings.push_back("the JSON is incomplete: its end is missing or broken");
  }

  bool ReadDevices() {
    return ForEachElement(json_, [&] {
      if (!json_.Peek('{')) return json_.Skip();
      std::int64_t id = -1;
      std::string name;
      const bool ok = ForEachMember(json_, [&](std::string_view key) {
        std::string_view value;
        if (key == "id" && json_.Scalar(value)) {
          id = Integer(value).value_or(-1);
          return true;
        }
        if (key == "name" && json_.Peek('"')) return json_.String(name);
        return json_.Skip();
      });
      models_[id] = ValidUtf8(name);
      return ok;
    });
  }

  bool ReadRank() {
    return ForEachMember(json_, [&](std::string_view key) {
      std::string_view value;
      if ((key == "rank" || key == "world_size") && json_.Scalar(value)) {
        (key == "rank" ? source().rank : source().world_size) = Integer(value).value_or(-1);
        return true;
      }
      return json_.Skip();
    });
  }

  bool ReadEvents() {
    saw_events_ = true;
    if (!json_.Take('[')) return json_.Skip();
    if (json_.Take(']')) return true;
    for (;;) {
      json_.Peek('{');  // skips white space: a failed event must not be found again
      const char* const first = json_.at();
      Event event;
      if (ReadEvent(event)) {
        Add(event);
        if (json_.Take(',')) continue;
        if (json_.Take(']')) return true;
      }
      ++trace_.rejected_events;
      if (!Resynchronise(first)) {
        source().warnings.push_back("the event list ends in the middle of an event");
        return false;
      }
    }
  }

  // Moves to the next `{"ph"` behind the event that failed.
  bool Resynchronise(const char* first) {
    const std::string_view rest = text_;
    std::size_t at = static_cast<std::size_t>(first - rest.data()) + 1;
    while ((at = rest.find('{', at)) != rest.npos) {
      std::size_t next = at + 1;
      while (next < rest.size() && std::isspace(static_cast<unsigned char>(rest[next]))) ++next;
      if (rest.compare(next, 4, "\"ph\"") == 0) {
        json_.MoveTo(rest.data() + at);
        return true;
      }
      ++at;
    }
    return false;
  }

  bool ReadEvent(Event& event) {
    return ForEachMember(json_, [&](std::string_view key) {
      if (key == "args" && json_.Peek('{')) return ReadArgs(event);
      std::string_view* target = key == "ts"    ? &event.ts
                                 : key == "dur" ? &event.duration
                                 : key == "pid" ? &event.pid
                                 : key == "tid" ? &event.tid
                                 : key == "cat" ? &event.category
                                                : nullptr;
      if (target) return json_.Scalar(*target);
      if (key == "name" && json_.Peek('"')) return json_.String(event.name, event.name_escaped);
      if (key == "ph") {
        std::string_view phase;
        if (!json_.Scalar(phase)) return false;
        event.phase = phase.size() == 1 ? phase[0] : 0;
        return true;
      }
      return json_.Skip();
    });
  }

  bool ReadArgs(Event& event) {
    return ForEachMember(json_, [&](std::string_view key) {
      std::string_view* target = nullptr;
      switch (key.empty() ? 0 : key[0]) {
        case 'd':
          target = key == "device" ? &event.device : nullptr;
          break;
        case 's':
          target = key == "stream"          ? &event.stream
                   : key == "shared memory" ? &event.shared_memory
                   : key == "seq"           ? &event.sequence
                                            : nullptr;
          break;
        case 'c':
          target = key == "correlation" ? &event.correlation : nullptr;
          break;
        case 'b':
          if (key == "bytes") target = &event.bytes;
          if (key == "block" && json_.Peek('[')) return ReadTriple(event.config.block);
          break;
        case 'g':
          if (key == "grid" && json_.Peek('[')) return ReadTriple(event.config.grid);
          break;
        case 'r':
          target = key == "registers per thread" ? &event.registers : nullptr;
          break;
        case 'C':
          target = key == "Collective name" ? &event.collective : nullptr;
          break;
        case 'I':
          target = key == "In msg nelems" ? &event.elements : nullptr;
          break;
        default:
          break;
      }
      if (target && !json_.Peek('{') && !json_.Peek('[')) return json_.Scalar(*target);
      return json_.Skip();
    });
  }

  bool ReadTriple(std::int32_t (&values)[3]) {
    int axis = 0;
    return ForEachElement(json_, [&] {
      std::string_view value;
      if (!json_.Scalar(value)) return false;
      if (axis < 3) values[axis++] = static_cast<std::int32_t>(Integer(value).value_or(0));
      return true;
    });
  }

  // A process or thread id; texts such as "Spans" get numbers of their own below zero.
  std::int64_t Id(std::string_view text) {
    if (const auto number = Integer(text)) return *number;
    return -2 - static_cast<std::int64_t>(texts_.Intern(text));
  }

  std::uint32_t Name(const Event& event) {
    if (event.name_escaped) return trace_.names.Intern(ValidUtf8(Unescape(event.name)));
    // Most names repeat: only a new one is checked for bad bytes.
    const auto known = raw_names_.Intern(event.name);
    if (known == names_.size()) names_.push_back(trace_.names.Intern(ValidUtf8(event.name)));
    return names_[known];
  }

  void Add(Event& event) {
    if (event.phase == 'B' || event.phase == 'E') return AddHalf(event);
    if (event.phase != 'X') return;
    event.kind = KindOf(event.category);
    if (event.kind == Kind::kUnknown) {
      unknown_.Intern(event.category);
      // Unknown categories count as compute when they name a device and a stream.
      event.kind = event.device.empty() || event.stream.empty() ? Kind::kIgnored : Kind::kKernel;
    }
    if (event.kind == Kind::kIgnored) return;
    const auto start = MilliUnits(event.ts);
    const auto length = event.duration.empty() ? 0 : MilliUnits(event.duration);
    if (!start || !length || *length > INT64_MAX / 4 || *length < -INT64_MAX / 4 ||
        *start > INT64_MAX / 4 || *start < -INT64_MAX / 4) {
      ++trace_.rejected_events;
      return;
    }
    const Ns end = *start + *length;
    const std::uint32_t correlation = Correlation(event.correlation);
    if (event.kind == Kind::kApi) {
      trace_.api.push_back({*start, end, correlation, build_.ApiName(ApiText(event)),
                            build_.ThreadId(ProcessId(), Id(event.tid))});
    } else if (event.kind == Kind::kRange) {
      AddRange(event, *start, end);
    } else {
      AddGpu(event, *start, end, correlation);
    }
  }

  std::string ApiText(const Event& event) { return trace_.names[Name(event)]; }

  static std::uint32_t Correlation(std::string_view text) {
    const auto id = Integer(text);
    return id && *id > 0 ? static_cast<std::uint32_t>(*id) : kNoCorrelation;
  }

  std::uint32_t ProcessId() { return build_.ProcessId(0, 0, 0); }

  void AddRange(const Event& event, Ns start, Ns end) {
    if (!event.collective.empty()) {
      trace_.collectives.push_back({start, end, trace_.names.Intern(ValidUtf8(event.collective)),
                                    Integer(event.elements).value_or(0), 0,
                                    Integer(event.sequence).value_or(-1), ProcessId()});
    }
    RangeRow row;
    row.start = start;
    row.end = end;
    row.name = Name(event);
    row.domain = trace_.names.Intern(event.category);
    row.thread = build_.ThreadId(ProcessId(), Id(event.tid));
    trace_.ranges.push_back(row);
  }

  // B and E events of host ranges, matched per thread.
  void AddHalf(const Event& event) {
    const auto time = MilliUnits(event.ts);
    if (!time) {
      ++trace_.rejected_events;
      return;
    }
    auto& open = open_[Id(event.tid)];
    if (event.phase == 'B') {
      AddRange(event, *time, kOpenEnd);
      open.push_back(trace_.ranges.size() - 1);
    } else if (!open.empty()) {
      trace_.ranges[open.back()].end = *time;
      open.pop_back();
    }
  }

  void AddGpu(const Event& event, Ns start, Ns end, std::uint32_t correlation) {
    GpuRow row;
    row.start = start;
    row.end = end;
    row.name = Name(event);
    row.correlation = correlation;
    const std::int64_t device = Id(event.device.empty() ? event.pid : event.device);
    const std::int64_t stream = Id(event.stream.empty() ? event.tid : event.stream);
    row.stream = build_.StreamId(DeviceId(device), ProcessId(), stream) & 0xFFFFFFu;
    Category category = Category::kMemcpy;
    if (event.kind == Kind::kKernel) {
      KernelConfig config = event.config;
      config.registers = static_cast<std::int32_t>(Integer(event.registers).value_or(0));
      // Kineto adds static and dynamic shared memory.
      config.dynamic_smem_bytes =
          static_cast<std::int32_t>(Integer(event.shared_memory).value_or(0));
      row.detail = build_.ConfigId(config);
      if (comm_.size() <= row.name) comm_.resize(row.name + 1, -1);
      if (comm_[row.name] < 0) comm_[row.name] = options_.comm.Matches(trace_.names[row.name]);
      category = comm_[row.name] ? Category::kComm : Category::kCompute;
    } else {
      category = event.kind == Kind::kMemcpy ? Category::kMemcpy : Category::kMemset;
      row.detail = static_cast<std::uint32_t>(trace_.copies.size());
      trace_.copies.push_back({Integer(event.bytes).value_or(0), -1, -1});
    }
    row.category = static_cast<std::uint32_t>(category);
    trace_.gpu.push_back(row);
  }

  std::uint32_t DeviceId(std::int64_t ordinal) {
    const auto [it, added] =
        devices_.try_emplace(ordinal, static_cast<std::uint32_t>(trace_.devices.size()));
    if (added) {
      Device device;
      device.ordinal = ordinal;
      device.key = device.label = std::to_string(ordinal);
      trace_.devices.push_back(device);
    }
    return it->second;
  }

  void Finish() {
    for (Device& device : trace_.devices) {
      const auto model = models_.find(device.ordinal);
      if (model != models_.end()) device.model = model->second;
      device.rank = source().rank;
    }
    for (Process& process : trace_.processes) process.rank = source().rank;
    if (trace_.rejected_events > 0) {
      source().warnings.push_back(std::to_string(trace_.rejected_events) +
                                  " events could not be parsed and are left out");
    }
    for (std::uint32_t k = 0; k < unknown_.size(); ++k) {
      trace_.unknown_categories.push_back(ValidUtf8(unknown_[k]));
    }
    FinishTrace(trace_);
    SetWallClock();
  }

  // Wall clock = base + ts * 1000; old files count from 1970 without a base. A base that is off
  // by a factor has been reported, so a year outside 2000 to 2100 is no clock at all.
  void SetWallClock() {
    const Ns first = !trace_.gpu.empty()      ? trace_.gpu.front().start
                     : !trace_.ranges.empty() ? trace_.ranges.front().start
                                              : 0;
    constexpr Ns kYear2000 = 946684800000000000, kYear2100 = 4102444800000000000;
    const Ns base = base_.value_or(0);
    const bool plausible =
        base >= 0 && base < kYear2100 && first > kYear2000 - base && first < kYear2100 - base;
    if (plausible) {
      source().utc_epoch = base;
    } else if (base_) {
      source().warnings.push_back("baseTimeNanoseconds = " + std::to_string(base) +
                                  " puts the events outside the years 2000 to 2100: ignored");
    }
  }

  JsonCursor json_;
  std::string_view text_;
  const ReadOptions& options_;
  Trace trace_;
  TraceBuilder build_;
  StringPool texts_, raw_names_, unknown_;
  std::vector<std::uint32_t> names_;
  std::vector<signed char> comm_;
  std::map<std::int64_t, std::string> models_;
  std::map<std::int64_t, std::uint32_t> devices_;
  std::map<std::int64_t, std::vector<std::size_t>> open_;
  std::optional<std::int64_t> base_;
  bool saw_events_ = false;
};

}  // namespace

Trace ReadKineto(const std::string& path, std::string_view json, const ReadOptions& options) {
  return KinetoReader(path, json, options).Read();
}

}  // namespace assay::timeline
