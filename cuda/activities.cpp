#include "cuda/activities.h"

#include <algorithm>
#include <mutex>

#include "cuda/accelerator.h"
#include "cuda/cupti_library.h"

namespace assay {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

// CUPTI calls back without an argument of ours, from whatever thread and until the process ends.
struct Collected {
  CuptiLibrary cupti;
  std::mutex mutex;
  std::vector<Activity> activities;
  std::size_t dropped = 0;
};
Collected& TheCollected() {
  static auto* const collected = new Collected;
  return *collected;
}

template <class Record>
Activity Make(const CUpti_Activity* record, const char* name) {
  const auto* typed = reinterpret_cast<const Record*>(record);
  return {static_cast<std::int64_t>(typed->start), static_cast<std::int64_t>(typed->end), name};
}

void Collect(Collected& to, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const char* name = reinterpret_cast<const CUpti_ActivityKernel10*>(record)->name;
      to.activities.push_back(
          Make<CUpti_ActivityKernel10>(record, name != nullptr ? name : "kernel"));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      to.activities.push_back(Make<CUpti_ActivityMemcpy6>(record, "memcpy"));
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      to.activities.push_back(Make<CUpti_ActivityMemset4>(record, "memset"));
      break;
    default:
      break;
  }
}

void CUPTIAPI BufferRequested(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most) {
  *most = 0;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
}

void CUPTIAPI BufferCompleted(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                              std::size_t, std::size_t valid) {
  Collected& to = TheCollected();
  std::size_t dropped = 0;
  to.cupti.dropped(context, stream, &dropped);
  const std::lock_guard lock(to.mutex);
  to.dropped += dropped;
  CUpti_Activity* record = nullptr;
  while (valid > 0 && to.cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    Collect(to, record);
  }
  std::free(buffer);
}

class CuptiRecorder : public ActivityRecorder {
 public:
  CuptiRecorder() = default;
  CuptiRecorder(const CuptiRecorder&) = delete;
  CuptiRecorder& operator=(const CuptiRecorder&) = delete;
  ~CuptiRecorder() override {
    for (const CUpti_ActivityKind kind : kKinds) from_.cupti.disable(kind);
    from_.cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  }

  std::vector<Activity> Take() override {
    from_.cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(from_.mutex);
    std::vector<Activity> taken;
    taken.swap(from_.activities);
    if (from_.dropped > 0) {
      throw DeviceError("CUPTI lost " + std::to_string(from_.dropped) + " records");
    }
    std::sort(taken.begin(), taken.end(),
              [](const Activity& a, const Activity& b) { return a.start_ns < b.start_ns; });
    return taken;
  }

 private:
  Collected& from_ = TheCollected();
};

}  // namespace

std::unique_ptr<ActivityRecorder> RecordCudaActivities(std::string& why_not) {
  Collected& collected = TheCollected();
  CuptiLibrary& cupti = collected.cupti;
  if (cupti.library == nullptr) {
    if (!cupti.Open()) {
      const char* error = dlerror();
      why_not = std::string("CUPTI could not be loaded: ") + (error != nullptr ? error : "?");
      cupti = CuptiLibrary{};
      return nullptr;
    }
    if (cupti.register_callbacks(BufferRequested, BufferCompleted) != CUPTI_SUCCESS) {
      why_not = "CUPTI takes no second tool beside the one that traces this process already";
      return nullptr;
    }
  }
  collected.activities.clear();
  collected.dropped = 0;
  auto recorder = std::make_unique<CuptiRecorder>();
  for (const CUpti_ActivityKind kind : kKinds) {
    const CUptiResult result = cupti.enable(kind);
    if (result == CUPTI_SUCCESS) continue;
    why_not = "CUPTI does not trace here (CUptiResult " + std::to_string(result) + ")";
    return nullptr;
  }
  return recorder;
}

}  // namespace assay
