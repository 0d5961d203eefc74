// Stands in for libnvidia-ml.so.1 in tests. The variable FAKE_NVML names the call to fail or the
// nonsense to tell; WITHOUT_POWER, at compile time, leaves a function out.
#include <cstdlib>
#include <cstring>

namespace {

bool Told(const char* what) {
  const char* fault = std::getenv("FAKE_NVML");
  return fault != nullptr && std::strcmp(fault, what) == 0;
}

constexpr int kNotSupported = 3, kNotFound = 6, kGpuIsLost = 15;

}  // namespace

extern "C" {

struct FakeDevice {};
FakeDevice the_device;

int nvmlInit_v2() { return Told("init") ? 9 : 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int result) {
  switch (result) {
    case kNotSupported:
      return "Not Supported";
    case kNotFound:
      return "Not Found";
    case 9:
      return "Driver Not Loaded";
    case kGpuIsLost:
      return "GPU is lost";
    default:
      return nullptr;
  }
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, FakeDevice** device) {
  *device = &the_device;
  return std::strcmp(id, "0000:1B:00.0") == 0 ? 0 : kNotFound;
}
int nvmlDeviceGetHandleByUUID(const char* id, FakeDevice** device) {
  *device = &the_device;
  return std::strcmp(id, "GPU-0123") == 0 ? 0 : kNotFound;
}
int nvmlDeviceGetClockInfo(FakeDevice* device, int which, unsigned* mhz) {
  if (Told("clock") || device != &the_device) return kGpuIsLost;
  if (Told("no text")) return 999;
  *mhz = which == 1 ? 1755 : which == 2 ? 3201 : 1;
  if (Told("wild SM clock") && which == 1) *mhz = 4294967295u;
  if (Told("zero memory clock") && which == 2) *mhz = 0;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(FakeDevice*, int which, unsigned* mhz) {
  *mhz = which == 1 ? 1980 : 1;
  return Told("max clock") ? kGpuIsLost : 0;
}
#ifndef WITHOUT_POWER
int nvmlDeviceGetPowerUsage(FakeDevice*, unsigned* milliwatts) {
  *milliwatts = Told("wild power") ? 4000000000u : 693250;
  return Told("power") ? kNotSupported : 0;
}
#endif
int nvmlDeviceGetTemperature(FakeDevice*, int sensor, unsigned* celsius) {
  *celsius = Told("wild temperature") ? 65535 : 61;
  return Told("temperature") || sensor != 0 ? kNotSupported : 0;
}
// The old driver has only the old name.
int nvmlDeviceGetCurrentClocksThrottleReasons(FakeDevice*, unsigned long long* reasons) {
  *reasons = 0x4 | 0x20;
  return Told("reasons") ? kNotSupported : 0;
}

}  // extern "C"
