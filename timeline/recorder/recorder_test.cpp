// The recorder without a GPU: activity buffers made here, encoded, converted, and read back by the
// same reader that reads Nsight's exports.
#include <cupti_runtime_cbid.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "timeline/coverage.h"
#include "timeline/read.h"
#include "timeline/recorder/encode.h"
#include "timeline/segments.h"

namespace assay::timeline {
namespace {

namespace fs = std::filesystem;
using recorder::Encoder;

// Records one after the other, as CUPTI packs them.
class Buffer {
 public:
  template <class Record>
  void Add(const Record& record) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(&record);
    bytes_.insert(bytes_.end(), first, first + sizeof record);
  }
  std::vector<std::uint8_t>& bytes() { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

std::size_t SizeOf(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return sizeof(CUpti_ActivityMemcpyPtoP4);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
      return sizeof(CUpti_ActivityGraphTrace2);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_MARKER:
      return sizeof(CUpti_ActivityMarker2);
    case CUPTI_ACTIVITY_KIND_DEVICE:
      return sizeof(CUpti_ActivityDevice5);
    default:
      return sizeof(CUpti_ActivityMemset4);  // any unknown kind of this test
  }
}

CUptiResult Next(std::uint8_t* buffer, std::size_t bytes, CUpti_Activity** record) {
  std::uint8_t* at = buffer;
  if (*record) {
    at = reinterpret_cast<std::uint8_t*>(*record);
    at += SizeOf((*record)->kind);
  }
  if (at >= buffer + bytes) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(at);
  return CUPTI_SUCCESS;
}

CUptiResult CallName(CUpti_CallbackDomain, std::uint32_t id, const char** name) {
  if (id == CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000) {
    *name = "cudaLaunchKernel_v7000";
    return CUPTI_SUCCESS;
  }
  return CUPTI_ERROR_INVALID_PARAMETER;
}

constexpr std::int64_t kZero = 7'000'000'000;  // CLOCK_MONOTONIC at the start

CUpti_ActivityKernel10 Kernel(std::uint32_t correlation, std::int64_t start, std::int64_t length,
                              const char* name) {
  CUpti_ActivityKernel10 kernel{};
  kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  kernel.start = static_cast<std::uint64_t>(kZero + start);
  kernel.end = kernel.start + static_cast<std::uint64_t>(length);
  kernel.streamId = 7;
  kernel.contextId = 1;
  kernel.correlationId = correlation;
  kernel.name = name;
  kernel.gridX = 132;
  kernel.gridY = kernel.gridZ = 1;
  kernel.blockX = 256;
  kernel.blockY = kernel.blockZ = 1;
  kernel.registersPerThread = 96;
  kernel.dynamicSharedMemory = 65'536;
  return kernel;
}

CUpti_ActivityAPI Call(std::uint32_t correlation, std::int64_t start) {
  CUpti_ActivityAPI call{};
  call.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  call.cbid = CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000;
  call.start = static_cast<std::uint64_t>(kZero + start);
  call.end = call.start + 4'000;
  call.threadId = 0x12345678;  // the export keeps 24 bits
  call.correlationId = correlation;
  return call;
}

Buffer Sample() {
  Buffer buffer;
  CUpti_ActivityDevice5 device{};
  device.kind = CUPTI_ACTIVITY_KIND_DEVICE;
  device.name = "Test GPU";
  device.numMultiprocessors = 132;
  std::memset(&device.uuid, 0xAB, sizeof device.uuid);
  buffer.Add(device);
  CUpti_ActivityMarker2 marker{};
  marker.kind = CUPTI_ACTIVITY_KIND_MARKER;
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_START;
  marker.timestamp = kZero + 500;
  marker.id = 1;
  marker.objectId.pt.threadId = 0x12345678;
  marker.name = "step";
  buffer.Add(marker);
  for (std::uint32_t k = 0; k < 100; ++k) {
    buffer.Add(Call(k + 1, k * 10'000 + 1'000));
    buffer.Add(
        Kernel(k + 1, k * 10'000 + 8'000, 5'000, k % 2 ? "_Z4fillPfi" : "ncclDevKernel_AllReduce"));
  }
  CUpti_ActivityMemset4 set{};
  set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  set.start = kZero + 2'000'000;
  set.end = set.start + 300;
  set.streamId = 7;
  set.bytes = 4'096;
  buffer.Add(set);
  CUpti_ActivityMemcpy6 copy{};
  copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
  copy.start = kZero + 2'001'000;
  copy.end = copy.start + 700;
  copy.streamId = 7;
  copy.bytes = 1 << 20;
  buffer.Add(copy);
  CUpti_ActivityGraphTrace2 graph{};
  graph.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
  graph.start = kZero + 2'100'000;
  graph.end = graph.start + 40'000;
  graph.streamId = 7;
  graph.graphId = 3;
  buffer.Add(graph);
  marker.flags = CUPTI_ACTIVITY_FLAG_MARKER_END;
  marker.timestamp = kZero + 2'500'000;
  marker.name = nullptr;
  buffer.Add(marker);
  return buffer;
}

std::string Encoded(bool end) {
  Encoder encoder(Next, CallName);
  encoder.Start(4'242, kZero, 1'790'000'000'000'000'000, 130'001, true);
  Buffer buffer = Sample();
  encoder.Buffer(buffer.bytes().data(), buffer.bytes().size());
  if (end) encoder.End();
  return encoder.Take();
}

class Recorder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("assay_recorder_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Write(const std::string& bytes) const {
    const std::string path = (folder_ / "a.segment").string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string Output() const { return (folder_ / "out.sqlite").string(); }
  fs::path folder_;
};

TEST_F(Recorder, BuffersBecomeAnExportThatOurReaderReads) {
  const SegmentTotals totals = ConvertSegments({Write(Encoded(true))}, Output());
  EXPECT_EQ(totals.kernels, 100);
  EXPECT_EQ(totals.calls, 100);
  EXPECT_EQ(totals.unfinished, 0);
  const Trace trace = ReadTrace(Output());
  EXPECT_EQ(trace.sources[0].schema, "3.25.0");
  EXPECT_EQ(trace.sources[0].product, "Assay recorder 1");
  EXPECT_EQ(trace.sources[0].system_clock, kZero);
  ASSERT_EQ(trace.devices.size(), 1u);
  EXPECT_EQ(trace.devices[0].uuid, "GPU-abababab-abab-abab-abab-abababababab");
  EXPECT_EQ(trace.devices[0].model, "Test GPU");
  ASSERT_EQ(trace.gpu.size(), 103u);
  EXPECT_EQ(trace.gpu[0].start, 8'000);
  EXPECT_EQ(trace.names[trace.gpu[1].name], "fill(float*, int)");
  const KernelConfig& config = trace.configs[trace.gpu[0].detail];
  EXPECT_EQ(config.grid[0], 132);
  EXPECT_EQ(config.registers, 96);
  EXPECT_EQ(config.dynamic_smem_bytes, 65'536);
  const LaunchIndex index(trace);
  const ScopeUse use = Analyze(trace, index, FullScope(trace));
  EXPECT_EQ(use.devices[0].compute(), 50 * 5'000);
  EXPECT_EQ(use.devices[0].comm(), 50 * 5'000);
  EXPECT_EQ(use.devices[0].memcpy(), 700);
  EXPECT_EQ(use.devices[0].memset(), 300);
  EXPECT_EQ(use.devices[0].graph(), 40'000);
  EXPECT_EQ(use.devices[0].launch.without_call, 0);
  EXPECT_EQ(use.devices[0].launch.queue_delay.p50, 3'000);
  ASSERT_EQ(trace.ranges.size(), 1u);
  EXPECT_EQ(trace.names[trace.ranges[0].name], "step");
  EXPECT_EQ(trace.ranges[0].end - trace.ranges[0].start, 2'499'500);
  ASSERT_EQ(trace.segments.size(), 1u);
  EXPECT_TRUE(trace.segments[0].flushed);
  EXPECT_TRUE(AuditCoverage(trace, index, use).complete());
}

TEST_F(Recorder, TornTailsAreKeptAndMarked) {
  const std::string whole = Encoded(true);
  for (std::size_t length = 80; length < whole.size(); length += 997) {
    const SegmentTotals totals = ConvertSegments({Write(whole.substr(0, length))}, Output());
    EXPECT_EQ(totals.unfinished, 1);
    const Trace trace = ReadTrace(Output());
    ASSERT_EQ(trace.segments.size(), 1u);
    EXPECT_FALSE(trace.segments[0].flushed);
    if (trace.gpu.empty()) continue;
    const LaunchIndex index(trace);
    const ScopeCoverage coverage =
        AuditCoverage(trace, index, Analyze(trace, index, FullScope(trace)));
    EXPECT_EQ(coverage.devices[0].verdict, Coverage::kTruncated);
  }
}

TEST_F(Recorder, DroppedRecordsAreToldByTheAudit) {
  Encoder encoder(Next, CallName);
  encoder.Start(4'242, kZero, 0, 130'001, false);
  Buffer buffer = Sample();
  encoder.Buffer(buffer.bytes().data(), buffer.bytes().size());
  encoder.Dropped(17);
  encoder.End();
  EXPECT_EQ(ConvertSegments({Write(encoder.Take())}, Output()).dropped, 17u);
  const Trace trace = ReadTrace(Output());
  const LaunchIndex index(trace);
  EXPECT_FALSE(AuditCoverage(trace, index, Analyze(trace, index, FullScope(trace))).complete());
  ASSERT_EQ(trace.diagnostics.size(), 1u);
  EXPECT_EQ(trace.diagnostics[0].text, "17 CUPTI records were dropped");
}

TEST_F(Recorder, RandomDamageIsSurvivedAndForeignFilesAreRefused) {
  const std::string whole = Encoded(true);
  std::uint64_t state = 9;
  for (int round = 0; round < 40; ++round) {
    std::string bad = whole;
    for (int k = 0; k < 30; ++k) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bad[40 + (state >> 33) % (bad.size() - 40)] = static_cast<char>(state >> 20);
    }
    try {
      ConvertSegments({Write(bad)}, Output());
      ReadTrace(Output());
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::kInput);
    }
  }
  EXPECT_THROW(
      ConvertSegments({Write("not a segment at all, but long enough to be read as one")}, Output()),
      Error);
  EXPECT_THROW(ConvertSegments({}, Output()), Error);
}

}  // namespace
}  // namespace assay::timeline
