// NVML has no header in the toolkit: the prototypes and numbers here are those of its reference
// manual, unchanged since driver 319 except where a comment says so.
#include "cuda/clocks.h"

#include <cstdio>

namespace assay {
namespace {

constexpr int kSmClock = 1, kMemoryClock = 2;  // nvmlClockType_t
constexpr int kGpuSensor = 0;                  // nvmlTemperatureSensors_t

// Beyond these a number is an error of the library or of our prototypes, not a reading.
constexpr double kMaxMhz = 20000, kMaxWatts = 5000, kMaxCelsius = 150;

struct ReasonName {
  std::uint64_t bit;
  const char* name;
};
constexpr ReasonName kReasonNames[] = {
    {kGpuIdle, "idle"},
    {kApplicationClocks, "application clocks"},
    {kPowerCap, "power cap"},
    {kHardwareSlowdown, "hardware slowdown"},
    {kSyncBoost, "sync boost"},
    {kThermalSlowdown, "thermal slowdown"},
    {kHardwareThermalSlowdown, "hardware thermal slowdown"},
    {kPowerBrake, "power brake"},
    {kDisplayClocks, "display clocks"},
};

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f", value);
  return text;
}

}  // namespace

std::string ThrottleText(std::uint64_t reasons) {
  if (reasons == 0) return "none";
  std::string text;
  const auto add = [&](const std::string& name) { text += (text.empty() ? "" : ", ") + name; };
  for (const ReasonName& reason : kReasonNames) {
    if ((reasons & reason.bit) != 0) add(reason.name);
    reasons &= ~reason.bit;
  }
  if (reasons != 0) {
    char rest[24];
    std::snprintf(rest, sizeof rest, "0x%llx", static_cast<unsigned long long>(reasons));
    add(rest);
  }
  return text;
}

ClockReader::ClockReader(const std::string& library) : library_(SharedLibrary::Open({library})) {
  if (!library_.loaded()) {
    why_unknown_ = library_.why_not();
    return;
  }
  Load();
}

ClockReader::~ClockReader() {
  if (initialised_) shutdown_();
}

void ClockReader::Load() {
  const auto find = [&](auto& function, const char* symbol) {
    library_.Load(function, symbol, why_unknown_);
  };
  Result (*init)() = nullptr;
  find(init, "nvmlInit_v2");
  find(shutdown_, "nvmlShutdown");
  find(error_text_, "nvmlErrorString");
  find(by_bus_id_, "nvmlDeviceGetHandleByPciBusId_v2");
  find(by_uuid_, "nvmlDeviceGetHandleByUUID");
  find(clock_, "nvmlDeviceGetClockInfo");
  find(max_clock_, "nvmlDeviceGetMaxClockInfo");
  find(power_, "nvmlDeviceGetPowerUsage");
  find(temperature_, "nvmlDeviceGetTemperature");
  // The name of driver 535 and later first, then the older one.
  reasons_ = library_.Find<Mask>("nvmlDeviceGetCurrentClocksEventReasons");
  if (reasons_ == nullptr) find(reasons_, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (!why_unknown_.empty()) return;
  const Result result = init();
  initialised_ = result == 0;
  if (!initialised_) why_unknown_ = Describe("nvmlInit_v2", result);
}

std::string ClockReader::Describe(const char* call, Result result) const {
  const char* text = error_text_(result);
  return std::string(call) + " failed with " + std::to_string(result) + " (" +
         (text == nullptr ? "no text" : text) + ")";
}

ClockReading ClockReader::Read(const std::string& device) const {
  ClockReading reading;
  reading.why_unknown = why_unknown_.empty() ? ReadInto(reading, device) : why_unknown_;
  reading.known = reading.why_unknown.empty();
  return reading;
}

// Returns why the reading is unknown, or "".
std::string ClockReader::ReadInto(ClockReading& reading, const std::string& device) const {
  const bool uuid = device.starts_with("GPU-") || device.starts_with("MIG-");
  Device handle = nullptr;
  if (const Result result = (uuid ? by_uuid_ : by_bus_id_)(device.c_str(), &handle); result != 0) {
    return "device " + device + ": " +
           Describe(uuid ? "nvmlDeviceGetHandleByUUID" : "nvmlDeviceGetHandleByPciBusId_v2",
                    result);
  }
  std::string why;
  const auto number = [&](const char* call, double least, double most, double unit,
                          const char* what, auto&& read) {
    if (!why.empty()) return 0.0;
    unsigned raw = 0;
    if (const Result result = read(&raw); result != 0) {
      why = "device " + device + ": " + Describe(call, result);
      return 0.0;
    }
    const double value = unit * raw;
    if (value < least || value > most) {
      why = "device " + device + ": " + call + " gave " + what + " of " + NumberText(value);
    }
    return value;
  };
  const auto mhz = [&](NumberOf* call, const char* name, int which, const char* what) {
    return number(name, 1, kMaxMhz, 1, what,
                  [&](unsigned* raw) { return call(handle, which, raw); });
  };
  reading.sm_mhz = mhz(clock_, "nvmlDeviceGetClockInfo", kSmClock, "an SM clock in MHz");
  reading.memory_mhz = mhz(clock_, "nvmlDeviceGetClockInfo", kMemoryClock, "a memory clock in MHz");
  reading.max_sm_mhz =
      mhz(max_clock_, "nvmlDeviceGetMaxClockInfo", kSmClock, "a highest SM clock in MHz");
  reading.power_w = number("nvmlDeviceGetPowerUsage", 0, kMaxWatts, 1e-3, "a power in W",
                           [&](unsigned* raw) { return power_(handle, raw); });
  reading.temperature_c =
      number("nvmlDeviceGetTemperature", 0, kMaxCelsius, 1, "a temperature in C",
             [&](unsigned* raw) { return temperature_(handle, kGpuSensor, raw); });
  if (!why.empty()) return why;
  unsigned long long mask = 0;
  if (const Result result = reasons_(handle, &mask); result != 0) {
    return "device " + device + ": " + Describe("nvmlDeviceGetCurrentClocksEventReasons", result);
  }
  reading.throttle_reasons = mask;
  return "";
}

ClockReading ReadClocks(const std::string& device) {
  static const ClockReader reader;  // opens the driver's library once
  return reader.Read(device);
}

}  // namespace assay
