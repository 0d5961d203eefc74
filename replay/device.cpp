#include "replay/device.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "cpu/gemm.h"
#include "io/sha256.h"
#include "replay/build_info.h"

namespace assay {
namespace {

using Clock = std::chrono::steady_clock;

// Value of the first "name : value" line of a /proc file; "" when absent.
std::string ProcValue(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// A ceiling is the best of several tries: anything else running at the moment only takes away.
constexpr int kTries = 5;

double BestSeconds(int tries, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < tries; ++i) {
    const auto start = Clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

constexpr std::int64_t kChunkBytes = 1 << 20;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::int64_t kShareOfMemory = 64;  // shadow memory multiplies what is touched
#else
constexpr std::int64_t kShareOfMemory = 8;  // a buffer takes at most 1/8 of what is available
#endif

// Large buffers, so that the last-level cache (some servers have 256 MiB and more) plays no part.
class Bandwidth {
 public:
  explicit Bandwidth(int threads) : threads_(threads) {
    const std::int64_t available = AvailableMemoryBytes();
    const std::int64_t wanted = 4LL * std::max<std::int64_t>(LastLevelCache(), 64 << 20);
    bytes_ = std::clamp<std::int64_t>(wanted, 64 << 20,
                                      std::max<std::int64_t>(available / kShareOfMemory, 64 << 20));
    bytes_ -= bytes_ % kChunkBytes;
    from_.resize(static_cast<std::size_t>(bytes_) / 8);
    to_.resize(from_.size());
    EachChunk([&](std::uint64_t* from, std::uint64_t* to, std::size_t words) {
      for (std::size_t i = 0; i < words; ++i) from[i] = to[i] = Mix64(1, 0, i);
    });
  }

  double Copy() {
    return 2 * Rate([](std::uint64_t* from, std::uint64_t* to, std::size_t words) {
             std::memcpy(to, from, words * 8);
           });
  }
  double Write() {
    return Rate([](std::uint64_t*, std::uint64_t* to, std::size_t words) {
      std::memset(to, 7, words * 8);
    });
  }
  double Read() {
    return Rate([](std::uint64_t* from, std::uint64_t*, std::size_t words) {
      std::uint64_t sum[8] = {};  // eight chains, so that latency does not limit
      for (std::size_t i = 0; i < words; i += 8) {
        for (std::size_t j = 0; j < 8; ++j) sum[j] += from[i + j];
      }
      for (const std::uint64_t& part : sum) asm volatile("" : : "m"(part));  // keep the sums
    });
  }

 private:
  template <class Body>
  void EachChunk(const Body& body) {
    constexpr std::size_t kWords = kChunkBytes / 8;
    ParallelFor(bytes_ / kChunkBytes, threads_, [&](std::int64_t chunk) {
      const std::size_t at = static_cast<std::size_t>(chunk) * kWords;
      body(from_.data() + at, to_.data() + at, kWords);
    });
  }
  template <class Body>
  double Rate(const Body& body) {
    return static_cast<double>(bytes_) / BestSeconds(kTries, [&] { EachChunk(body); });
  }
  static std::int64_t LastLevelCache() {
    return std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
  }

  int threads_;
  std::int64_t bytes_ = 0;
  std::vector<std::uint64_t> from_, to_;
};

// A product large enough that packing and memory play little part, on random data; with fewer rows
// where all of them would take longer than a second (sanitizers, emulators).
double MatrixRate(int threads, void (*run)(const cpu::GemmBf16Nt&, int)) {
  constexpr std::int64_t kM = 4096, kN = 2048, kK = 4096, kFewRows = 128;
  std::vector<bf16> a(kM * kK), b(kN * kK), c(kM * kN);
  const auto fill = [&](std::vector<bf16>& matrix, std::uint64_t tensor) {
    ParallelFor(static_cast<std::int64_t>(matrix.size()) / kK, threads, [&](std::int64_t row) {
      const auto first = static_cast<std::size_t>(row * kK);
      for (std::size_t i = first; i < first + kK; ++i) matrix[i] = ToBF16(UnitNormal(1, tensor, i));
    });
  };
  fill(a, 0);
  fill(b, 1);
  cpu::GemmBf16Nt args{kFewRows, kN, kK, a.data(), kK, b.data(), kK, c.data(), kN};
  run(args, threads);  // warm-up: builds oneDNN's code
  const double few_s = BestSeconds(1, [&] { run(args, threads); });
  if (few_s * (kM / kFewRows) < 1) args.m = kM;
  run(args, threads);
  const double flops = 2.0 * static_cast<double>(args.m) * kN * kK;
  return flops / BestSeconds(kTries, [&] { run(args, threads); });
}

int EffectiveThreads(int threads) { return threads > 0 ? threads : HardwareThreads(); }

}  // namespace

std::string Timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::string DeviceName(int threads) {
  std::string model = ProcValue("/proc/cpuinfo", "model name");
  if (model.empty()) model = "unknown CPU";
  return fmt::format("{}, {} threads", model, EffectiveThreads(threads));
}

std::string DeviceId(int threads) {
  utsname system{};
  uname(&system);
  return Sha256Hex(fmt::format("{}|{}|{}", DeviceName(threads), system.machine,
                               ProcValue("/proc/cpuinfo", "flags")))
      .substr(0, 16);
}

RunInfo DescribeRun(const std::string& command, int threads) {
  utsname system{};
  uname(&system);
  RunInfo info;
  info.started = Timestamp();
  info.id = fmt::format("{}-{}", info.started, getpid());
  info.command = command;
  info.commit = kBuildCommit;
  info.build = BuildHash();
  info.host = system.nodename;
  info.device = DeviceName(threads);
  info.device_id = DeviceId(threads);
  info.compiler = kBuildCompiler;
  info.os = fmt::format("{} {}", system.sysname, system.release);
  info.threads = EffectiveThreads(threads);
  return info;
}

Ceilings MeasureCeilings(int threads) {
  Ceilings ceilings;
  ceilings.device_id = DeviceId(threads);
  ceilings.device = DeviceName(threads);
  ceilings.measured = Timestamp();
  Bandwidth bandwidth(threads);
  ceilings.copy_bytes = bandwidth.Copy();
  ceilings.read_bytes = bandwidth.Read();
  ceilings.write_bytes = bandwidth.Write();
  ceilings.bf16_flops = MatrixRate(threads, cpu::Run);
  ceilings.f32_flops = MatrixRate(threads, cpu::RunOwnLoops);  // fp32 FMA on widened operands
  return ceilings;
}

std::int64_t AvailableMemoryBytes() {
  const std::string text = ProcValue("/proc/meminfo", "MemAvailable");
  return text.empty() ? 0 : std::stoll(text) * 1024;
}

}  // namespace assay
