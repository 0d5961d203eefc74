// What a GPU ran and when, as CUPTI tells it: a clock beside that of events.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace assay {

// A kernel, a copy or a memset.
struct Activity {
  std::int64_t start_ns = 0, end_ns = 0;
  std::string name;
};

// Records while it lives. One at a time in a process.
class ActivityRecorder {
 public:
  virtual ~ActivityRecorder() = default;
  // Everything that ran since the last call, in order of its start; the device must be idle. Throws
  // DeviceError when records were lost.
  virtual std::vector<Activity> Take() = 0;
};

// Null with a reason where there is no CUPTI, or where it may not trace.
std::unique_ptr<ActivityRecorder> RecordCudaActivities(std::string& why_not);

}  // namespace assay
