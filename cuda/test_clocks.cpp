// The reader of clocks against a library that we wrote: every call that can fail, does.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "cuda/accelerator.h"
#include "cuda/clocks.h"

namespace assay {
namespace {

constexpr const char* kDevice = "0000:1B:00.0";

ClockReading ReadFake(const char* fault, const std::string& device = kDevice) {
  setenv("FAKE_NVML", fault, 1);
  const ClockReader reader(FAKE_NVML);
  return reader.Read(device);
}

TEST(Clocks, ReadsEveryNumberInItsUnit) {
  for (const char* device : {kDevice, "GPU-0123"}) {
    const ClockReading reading = ReadFake("", device);
    EXPECT_TRUE(reading.known) << reading.why_unknown;
    EXPECT_EQ(reading.why_unknown, "");
    EXPECT_EQ(reading.sm_mhz, 1755);
    EXPECT_EQ(reading.max_sm_mhz, 1980);
    EXPECT_EQ(reading.memory_mhz, 3201);
    EXPECT_DOUBLE_EQ(reading.power_w, 693.25);
    EXPECT_EQ(reading.temperature_c, 61);
    EXPECT_EQ(reading.throttle_reasons, kPowerCap | kThermalSlowdown);
  }
}

TEST(Clocks, EachFaultIsOneSentence) {
  const auto why = [](const char* fault, const std::string& device = kDevice) {
    const ClockReading reading = ReadFake(fault, device);
    EXPECT_FALSE(reading.known) << fault;
    return reading.why_unknown;
  };
  const std::string device = "device 0000:1B:00.0: ";
  EXPECT_EQ(why("init"), "nvmlInit_v2 failed with 9 (Driver Not Loaded)");
  EXPECT_EQ(why("", "0000:FF:00.0"),
            "device 0000:FF:00.0: nvmlDeviceGetHandleByPciBusId_v2 failed with 6 (Not Found)");
  EXPECT_EQ(why("", "GPU-9"), "device GPU-9: nvmlDeviceGetHandleByUUID failed with 6 (Not Found)");
  EXPECT_EQ(why("clock"), device + "nvmlDeviceGetClockInfo failed with 15 (GPU is lost)");
  EXPECT_EQ(why("no text"), device + "nvmlDeviceGetClockInfo failed with 999 (no text)");
  EXPECT_EQ(why("max clock"), device + "nvmlDeviceGetMaxClockInfo failed with 15 (GPU is lost)");
  EXPECT_EQ(why("power"), device + "nvmlDeviceGetPowerUsage failed with 3 (Not Supported)");
  EXPECT_EQ(why("temperature"), device + "nvmlDeviceGetTemperature failed with 3 (Not Supported)");
  EXPECT_EQ(why("reasons"),
            device + "nvmlDeviceGetCurrentClocksEventReasons failed with 3 (Not Supported)");
  EXPECT_EQ(why("wild SM clock"),
            device + "nvmlDeviceGetClockInfo gave an SM clock in MHz of 4294967295");
  EXPECT_EQ(why("zero memory clock"),
            device + "nvmlDeviceGetClockInfo gave a memory clock in MHz of 0");
  EXPECT_EQ(why("wild power"), device + "nvmlDeviceGetPowerUsage gave a power in W of 4000000");
  EXPECT_EQ(why("wild temperature"),
            device + "nvmlDeviceGetTemperature gave a temperature in C of 65535");
}

TEST(Clocks, AbsentOrIncompleteLibrariesAreNamed) {
  EXPECT_EQ(ClockReader("libassay-nowhere.so.1").Read(kDevice).why_unknown,
            "libassay-nowhere.so.1 was not found");
  EXPECT_EQ(ClockReader(FAKE_NVML_WITHOUT_POWER).Read(kDevice).why_unknown,
            std::string(FAKE_NVML_WITHOUT_POWER " has no function nvmlDeviceGetPowerUsage"));
  const std::string text_file = ASSAY_SOURCE_DIR "/LICENSE";
  EXPECT_TRUE(
      ClockReader(text_file).Read(kDevice).why_unknown.starts_with(text_file + " does not load: "));
}

TEST(Clocks, ReasonsHaveNames) {
  EXPECT_EQ(ThrottleText(0), "none");
  EXPECT_EQ(ThrottleText(kPowerCap), "power cap");
  EXPECT_EQ(ThrottleText(kGpuIdle | kPowerBrake | 0x10000), "idle, power brake, 0x10000");
  EXPECT_EQ(kSlowingReasons & kGpuIdle, 0u);
  EXPECT_EQ(kSlowingReasons & kThermalSlowdown, kThermalSlowdown);
}

TEST(Clocks, TheRealDeviceByBusIdAndByUuid) {
  std::string why_not;
  const std::unique_ptr<Accelerator> gpu = OpenAccelerator(0, why_not);
  if (gpu == nullptr) GTEST_SKIP() << why_not;
  for (const std::string& id : {gpu->info().pci, gpu->info().uuid}) {
    const ClockReading reading = ReadClocks(id);
    ASSERT_TRUE(reading.known) << reading.why_unknown;
    EXPECT_LE(reading.sm_mhz, reading.max_sm_mhz);
    EXPECT_GT(reading.power_w, 10) << "no GPU of this class idles below that";
    EXPECT_GT(reading.temperature_c, 10);
    std::printf("%s: SM %.0f of %.0f MHz, memory %.0f MHz, %.1f W, %.0f C, throttled by: %s\n",
                id.c_str(), reading.sm_mhz, reading.max_sm_mhz, reading.memory_mhz, reading.power_w,
                reading.temperature_c, ThrottleText(reading.throttle_reasons).c_str());
  }
  const auto start = std::chrono::steady_clock::now();
  constexpr int kReadings = 20;
  for (int i = 0; i < kReadings; ++i) ReadClocks(gpu->info().pci);
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  std::printf("one reading takes %.2f ms\n", spent.count() / kReadings);
}

// With or without a driver on this machine.
TEST(Clocks, ADeviceThatNobodyHasIsUnknownWithAReason) {
  const ClockReading reading = ReadClocks("FFFF:FF:1F.0");
  EXPECT_FALSE(reading.known);
  EXPECT_NE(reading.why_unknown, "");
}

}  // namespace
}  // namespace assay
