// rocprofv3 output: the JSON of rocprofiler-sdk-tool and the CSV files kernel_trace,
// memory_copy_trace and hip_*_trace. Rows are not sorted; grids are in work items.
#include <map>

#include "base/error.h"
#include "timeline/csv.h"
#include "timeline/json_cursor.h"
#include "timeline/read.h"

namespace assay::timeline {
namespace {

class RocprofReader {
 public:
  RocprofReader(const std::string& path, std::string_view text, const char* format,
                const ReadOptions& options)
      : json_(text), options_(options), build_(trace_) {
    trace_.sources.emplace_back();
    source().path = path;
    source().format = format;
    process_ = build_.ProcessId(0, 0, 0);
  }

  Trace ReadJson() {
    bool found = false;
    const bool whole = ForEachMember(json_, [&](std::string_view key) {
      if (key != "rocprofiler-sdk-tool" || !json_.Peek('[')) return json_.Skip();
      found = true;
      return ForEachElement(json_, [&] { return ReadTool(); });
    });
    if (!found) BadInput(source().path + " is JSON without a rocprofiler-sdk-tool list");
    if (!whole) source().warnings.push_back("the JSON is incomplete: its end is missing or broken");
    // Names follow the rows in the file, so they are put in now.
    for (GpuRow& row : trace_.gpu) {
      if (static_cast<Category>(row.category) != Category::kCompute) continue;
      const auto name = symbols_.find(row.name);
      row.name = name == symbols_.end() ? trace_.names.Intern("kernel " + std::to_string(row.name))
                                        : name->second;
      row.category = static_cast<std::uint32_t>(CategoryOf(row.name));
    }
    Finish();
    return std::move(trace_);
  }

  Trace ReadCsv(std::string_view text) {
    CsvTable table = ParseCsv(text);
    const auto column = [&](const char* name) { return table.Column(name); };
    if (column("Kernel_Name") >= 0) {
      ReadKernelRows(table);
    } else if (column("Direction") >= 0) {
      ReadCopyRows(table);
    } else if (column("Function") >= 0) {
      ReadApiRows(table);
    } else {
      BadInput(
          source().path +
          " is CSV without a Kernel_Name, Direction or Function column: not a rocprofv3 trace");
    }
    Finish();
    return std::move(trace_);
  }

 private:
  SourceInfo& source() { return trace_.sources.front(); }

  Category CategoryOf(std::uint32_t name) {
    if (comm_.size() <= name) comm_.resize(name + 1, -1);
    if (comm_[name] < 0) comm_[name] = options_.comm.Matches(trace_.names[name]);
    return comm_[name] ? Category::kComm : Category::kCompute;
  }

  std::uint32_t DeviceId(std::int64_t agent) {
    const auto [it, added] =
        devices_.try_emplace(agent, static_cast<std::uint32_t>(trace_.devices.size()));
    if (added) {
      Device device;
      device.ordinal = agent;
      device.key = device.label = std::to_string(agent);
      trace_.devices.push_back(device);
    }
    return it->second;
  }

  bool ReadTool() {
    return ForEachMember(json_, [&](std::string_view key) {
      if (key == "kernel_symbols" && json_.Peek('[')) return ReadSymbols();
      if (key == "agents" && json_.Peek('[')) return ReadAgents();
      if (key == "buffer_records" && json_.Peek('{')) {
        return ForEachMember(json_, [&](std::string_view kind) {
          if (kind == "kernel_dispatch" && json_.Peek('[')) {
            return ForEachElement(json_, [&] { return ReadDispatch(); });
          }
          return json_.Skip();
        });
      }
      return json_.Skip();
    });
  }

  // N or {"handle": N}; no deeper, a file may nest further than the stack reaches.
  bool Number(std::int64_t& value) {
    if (json_.Peek('{')) {
      return ForEachMember(json_, [&](std::string_view key) {
        if ((key == "handle" || key == "internal") && !json_.Peek('{')) return Plain(value);
        return json_.Skip();
      });
    }
    return Plain(value);
  }

  bool Plain(std::int64_t& value) {
    std::string_view text;
    if (!json_.Scalar(text)) return false;
    value = Integer(text).value_or(0);
    return true;
  }

  bool ReadSymbols() {
    return ForEachElement(json_, [&] {
      std::int64_t id = 0;
      std::string name, demangled;
      const bool ok = ForEachMember(json_, [&](std::string_view key) {
        if (key == "kernel_id") return Number(id);
        if (key == "formatted_kernel_name" && json_.Peek('"')) return json_.String(demangled);
        if (key == "kernel_name" && json_.Peek('"')) return json_.String(name);
        return json_.Skip();
      });
      symbols_[static_cast<std::uint32_t>(id)] =
          trace_.names.Intern(ValidUtf8(demangled.empty() ? name : demangled));
      return ok;
    });
  }

  bool ReadAgents() {
    return ForEachElement(json_, [&] {
      std::int64_t handle = 0;
      std::string name;
      const bool ok = ForEachMember(json_, [&](std::string_view key) {
        if (key == "id") return Number(handle);
        if (key == "name" && json_.Peek('"')) return json_.String(name);
        return json_.Skip();
      });
      models_[handle] = ValidUtf8(name);
      return ok;
    });
  }

  bool ReadTriple(std::int32_t (&values)[3]) {
    return ForEachMember(json_, [&](std::string_view key) {
      std::int64_t value = 0;
      if (!Number(value)) return false;
      if (key.size() == 1 && key[0] >= 'x' && key[0] <= 'z') {
        values[key[0] - 'x'] = static_cast<std::int32_t>(value);
      }
      return true;
    });
  }

  bool ReadDispatch() {
    std::int64_t start = 0, end = 0, correlation = 0, agent = 0, queue = 0, kernel = 0;
    KernelConfig config;
    const bool ok = ForEachMember(json_, [&](std::string_view key) {
      if (key == "start_timestamp") return Number(start);
      if (key == "end_timestamp") return Number(end);
      if (key == "correlation_id") return Number(correlation);
      if (key == "dispatch_info" && json_.Peek('{')) {
        return ForEachMember(json_, [&](std::string_view field) {
          if (field == "agent_id") return Number(agent);
          if (field == "queue_id") return Number(queue);
          if (field == "kernel_id") return Number(kernel);
          if (field == "workgroup_size" && json_.Peek('{')) return ReadTriple(config.block);
          if (field == "grid_size" && json_.Peek('{')) return ReadTriple(config.grid);
          return json_.Skip();
        });
      }
      return json_.Skip();
    });
    if (!ok) return false;
    AddKernel(start, end, correlation, agent, queue, static_cast<std::uint32_t>(kernel), config);
    return true;
  }

  void AddKernel(std::int64_t start, std::int64_t end, std::int64_t correlation, std::int64_t agent,
                 std::int64_t queue, std::uint32_t name, KernelConfig config) {
    for (int axis = 0; axis < 3; ++axis) {  // work items to groups
      if (config.block[axis] > 0) config.grid[axis] /= config.block[axis];
    }
    GpuRow row;
    row.start = start;
    row.end = end;
    row.name = name;
    row.correlation = correlation > 0 ? static_cast<std::uint32_t>(correlation) : kNoCorrelation;
    row.detail = build_.ConfigId(config);
    row.stream = build_.StreamId(DeviceId(agent), process_, queue) & 0xFFFFFFu;
    row.category = static_cast<std::uint32_t>(Category::kCompute);
    trace_.gpu.push_back(row);
  }

  // The timestamp columns, or a sentence naming the row that has none.
  std::pair<Ns, Ns> Times(const CsvTable& table, std::size_t row) {
    const auto start = Integer(table.Cell(row, table.Column("Start_Timestamp")));
    const auto end = Integer(table.Cell(row, table.Column("End_Timestamp")));
    if (!start || !end) {
      BadInput(source().path + ": row " + std::to_string(row + 2) +
               " has no number in Start_Timestamp or End_Timestamp");
    }
    return {*start, *end};
  }
  std::int64_t IntegerAt(const CsvTable& table, std::size_t row, const char* name) {
    return Integer(table.Cell(row, table.Column(name))).value_or(0);
  }

  void ReadKernelRows(const CsvTable& table) {
    for (std::size_t k = 0; k < table.rows.size(); ++k) {
      const auto [start, end] = Times(table, k);
      KernelConfig config;
      const char axes[] = {'X', 'Y', 'Z'};
      for (int axis = 0; axis < 3; ++axis) {
        const std::string suffix(1, axes[axis]);
        config.block[axis] =
            static_cast<std::int32_t>(IntegerAt(table, k, ("Workgroup_Size_" + suffix).c_str()));
        config.grid[axis] =
            static_cast<std::int32_t>(IntegerAt(table, k, ("Grid_Size_" + suffix).c_str()));
      }
      const std::uint32_t name =
          trace_.names.Intern(ValidUtf8(table.Cell(k, table.Column("Kernel_Name"))));
      AddKernel(start, end, IntegerAt(table, k, "Correlation_Id"), IntegerAt(table, k, "Agent_Id"),
                IntegerAt(table, k, "Queue_Id"), name, config);
      trace_.gpu.back().category = static_cast<std::uint32_t>(CategoryOf(name));
    }
  }

  void ReadCopyRows(const CsvTable& table) {
    for (std::size_t k = 0; k < table.rows.size(); ++k) {
      const auto [start, end] = Times(table, k);
      const std::int64_t from = IntegerAt(table, k, "Source_Agent_Id");
      const std::int64_t to = IntegerAt(table, k, "Destination_Agent_Id");
      std::string direction(table.Cell(k, table.Column("Direction")));
      const bool to_host = direction.find("DEVICE_TO_HOST") != direction.npos;
      GpuRow row;
      row.start = start;
      row.end = end;
      row.name = trace_.names.Intern(to_host ? "Device-to-Host"
                                     : direction.find("HOST_TO_DEVICE") != direction.npos
                                         ? "Host-to-Device"
                                         : "Device-to-Device");
      row.detail = static_cast<std::uint32_t>(trace_.copies.size());
      trace_.copies.push_back({0, static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
      row.stream = build_.StreamId(DeviceId(to_host ? from : to), process_, -1) & 0xFFFFFFu;
      row.category = static_cast<std::uint32_t>(Category::kMemcpy);
      trace_.gpu.push_back(row);
    }
  }

  void ReadApiRows(const CsvTable& table) {
    for (std::size_t k = 0; k < table.rows.size(); ++k) {
      const auto [start, end] = Times(table, k);
      const std::int64_t correlation = IntegerAt(table, k, "Correlation_Id");
      trace_.api.push_back(
          {start, end, correlation > 0 ? static_cast<std::uint32_t>(correlation) : kNoCorrelation,
           build_.ApiName(ValidUtf8(table.Cell(k, table.Column("Function")))),
           build_.ThreadId(process_, IntegerAt(table, k, "Thread_Id"))});
    }
  }

  void Finish() {
    for (Device& device : trace_.devices) {
      const auto model = models_.find(device.ordinal);
      if (model != models_.end()) device.model = model->second;
    }
    FinishTrace(trace_);
  }

  JsonCursor json_;
  const ReadOptions& options_;
  Trace trace_;
  TraceBuilder build_;
  std::uint32_t process_ = 0;
  std::map<std::int64_t, std::uint32_t> devices_;
  std::map<std::int64_t, std::string> models_;
  std::map<std::uint32_t, std::uint32_t> symbols_;
  std::vector<signed char> comm_;
};

}  // namespace

Trace ReadRocprofJson(const std::string& path, std::string_view json, const ReadOptions& options) {
  return RocprofReader(path, json, "rocprofv3-json", options).ReadJson();
}

Trace ReadRocprofCsv(const std::string& path, std::string_view text, const ReadOptions& options) {
  return RocprofReader(path, text, "rocprofv3-csv", options).ReadCsv(text);
}

}  // namespace assay::timeline
