// Clocks, power, temperature and throttle reasons of a GPU, from the driver's management library
// (NVML), which is opened at run time.
#pragma once

#include <cstdint>
#include <string>

#include "base/shared_library.h"

namespace assay {

struct ClockReading {
  bool known = false;  // everything below was read and is plausible
  double sm_mhz = 0, max_sm_mhz = 0, memory_mhz = 0;
  double power_w = 0, temperature_c = 0;
  std::uint64_t throttle_reasons = 0;  // ThrottleReason bits
  std::string why_unknown;             // one sentence without a full stop; "" when known
};

// What NVML calls clocks event reasons, formerly throttle reasons.
enum ThrottleReason : std::uint64_t {
  kGpuIdle = 0x1,
  kApplicationClocks = 0x2,
  kPowerCap = 0x4,
  kHardwareSlowdown = 0x8,
  kSyncBoost = 0x10,
  kThermalSlowdown = 0x20,
  kHardwareThermalSlowdown = 0x40,
  kPowerBrake = 0x80,
  kDisplayClocks = 0x100,
};
// Those that slow a kernel down while it runs: power, temperature, hardware.
inline constexpr std::uint64_t kSlowingReasons =
    kPowerCap | kHardwareSlowdown | kThermalSlowdown | kHardwareThermalSlowdown | kPowerBrake;

// "power cap, thermal slowdown"; "none" for 0; bits without a name as hexadecimal.
std::string ThrottleText(std::uint64_t reasons);

// The reading of one device: its PCI bus id ("0000:1B:00.0", from cudaDeviceGetPCIBusId) or its
// UUID ("GPU-...", "MIG-..."). Never throws: without a driver, device or function the reading is
// unknown and says why. Safe from several threads.
ClockReading ReadClocks(const std::string& device);

// The same from a library of one's own choice; ReadClocks keeps one for the driver's.
class ClockReader {
 public:
  explicit ClockReader(const std::string& library = "libnvidia-ml.so.1");
  ~ClockReader();
  ClockReader(const ClockReader&) = delete;
  ClockReader& operator=(const ClockReader&) = delete;

  ClockReading Read(const std::string& device) const;

 private:
  using Result = int;           // nvmlReturn_t, 0 = success
  using Device = struct Nvml*;  // nvmlDevice_t
  using Lookup = Result(const char*, Device*);
  using Number = Result(Device, unsigned*);
  using NumberOf = Result(Device, int which, unsigned*);
  using Mask = Result(Device, unsigned long long*);

  void Load();
  std::string Describe(const char* call, Result result) const;
  std::string ReadInto(ClockReading& reading, const std::string& device) const;

  SharedLibrary library_;
  std::string why_unknown_;  // why no reading is possible at all
  bool initialised_ = false;
  Result (*shutdown_)() = nullptr;
  const char* (*error_text_)(Result) = nullptr;
  Lookup *by_bus_id_ = nullptr, *by_uuid_ = nullptr;
  NumberOf *clock_ = nullptr, *max_clock_ = nullptr, *temperature_ = nullptr;
  Number* power_ = nullptr;
  Mask* reasons_ = nullptr;
};

}  // namespace assay
