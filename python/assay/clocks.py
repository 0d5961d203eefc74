"""Clocks, power, temperature and throttle reasons of a GPU, from NVML through ctypes."""
import ctypes

SM, MEMORY, TEMPERATURE_GPU = 1, 2, 0
# What slows a kernel while it runs: power cap, hardware and thermal slowdown, power brake (nvml.h).
SLOWING_REASONS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


class Nvml:
    """`why_unknown` says why there are no readings; "" when there are."""

    def __init__(self, uuid, library="libnvidia-ml.so.1"):
        self.device = ctypes.c_void_p()
        self.why_unknown = ""
        try:
            self.nvml = ctypes.CDLL(library)
            self._call("nvmlInit_v2")
            self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))
        except (OSError, AttributeError, RuntimeError) as error:
            self.why_unknown = str(error)

    def _call(self, name, *arguments):
        code = getattr(self.nvml, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with code {code}")

    def _number(self, name, *which, kind=ctypes.c_uint):
        value = kind()
        self._call(name, self.device, *which, ctypes.byref(value))
        return value.value

    def read(self):
        """{sm_mhz, max_sm_mhz, memory_mhz, power_w, temperature_c, throttle_reasons}, or {why_unknown}."""
        if self.why_unknown:
            return {"why_unknown": self.why_unknown}
        try:
            reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
            return {"sm_mhz": self._number("nvmlDeviceGetClockInfo", SM),
                    "max_sm_mhz": self._number("nvmlDeviceGetMaxClockInfo", SM),
                    "memory_mhz": self._number("nvmlDeviceGetClockInfo", MEMORY),
                    "power_w": self._number("nvmlDeviceGetPowerUsage") / 1000,
                    "temperature_c": self._number("nvmlDeviceGetTemperature", TEMPERATURE_GPU),
                    "throttle_reasons": reasons}
        except (AttributeError, RuntimeError) as error:
            self.why_unknown = str(error)
            return {"why_unknown": self.why_unknown}
