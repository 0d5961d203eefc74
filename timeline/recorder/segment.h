// What the injected recorder writes: one append-only file per process, fixed-size records in the
// machine's byte order. The recorded process must not carry a database, and a file that only grows
// survives a kill: everything in front of the torn end is good. `assay timeline record` turns the
// files into one SQLite export afterwards.
#pragma once

#include <cstdint>

namespace assay::timeline::recorder {

inline constexpr std::uint64_t kSegmentMagic = 0x31474553'59415341u;  // "ASAYSEG1"
inline constexpr std::uint32_t kSegmentVersion = 1;

enum class RecordType : std::uint32_t {
  kStart = 1,
  kName = 2,
  kKernel = 3,
  kCopy = 4,
  kMemset = 5,
  kGraph = 6,
  kCall = 7,
  kSync = 8,
  kOverhead = 9,
  kDevice = 10,
  kMarker = 11,
  kDropped = 12,
  kEnd = 13,
};

// Precedes every payload.
struct RecordHeader {
  RecordType type;
  std::uint32_t bytes;  // of the payload
};

// All times are CLOCK_MONOTONIC ns.
struct StartRecord {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t pid;
  std::int64_t monotonic_ns, utc_ns;  // taken together at the start
  std::uint32_t cupti_version, graph_level;
};

// Followed by the text, without a terminator. Ids are per file, from 1.
struct NameRecord {
  std::uint32_t id;
};

struct KernelRecord {
  std::int64_t start, end;
  std::uint32_t device, context, stream, correlation, name;
  std::int32_t grid[3], block[3], cluster[3];
  std::uint32_t registers;
  std::int32_t static_smem, dynamic_smem;
  std::uint32_t graph_id;
  std::uint64_t graph_node;
  std::int64_t grid_id;
};

struct CopyRecord {
  std::int64_t start, end;
  std::uint64_t bytes, graph_node;
  std::uint32_t device, context, stream, correlation;
  std::int32_t src_device, dst_device;
  std::uint8_t kind, src_kind, dst_kind, pad;
};

struct MemsetRecord {
  std::int64_t start, end;
  std::uint64_t bytes, graph_node;
  std::uint32_t device, context, stream, correlation, value, pad;
};

struct GraphRecord {
  std::int64_t start, end;
  std::uint32_t device, context, stream, correlation, graph_id, pad;
};

struct CallRecord {
  std::int64_t start, end;
  std::uint32_t thread, correlation, name, driver;  // driver: 1 for driver API calls
  std::int32_t result;
  std::uint32_t pad;
};

struct SyncRecord {
  std::int64_t start, end;
  std::uint32_t type, context, stream, correlation, event, pad;
};

struct OverheadRecord {
  std::int64_t start, end;
  std::uint32_t kind, thread;
};

// Followed by the model's name.
struct DeviceRecord {
  std::uint32_t ordinal, multiprocessors;
  unsigned char uuid[16];
  std::uint64_t memory_bytes;
};

// One NVTX event as CUPTI reports it: instant, or the start or end of a range.
struct MarkerRecord {
  enum Kind : std::uint32_t { kInstant, kBegin, kEnd };
  std::int64_t time;
  std::uint32_t kind, id, name, domain, thread, pad;
};

struct DroppedRecord {
  std::uint64_t records;
};

// The tail of the file is whole only behind this record.
struct EndRecord {
  std::int64_t last_gpu, last_call;
  std::uint64_t dropped;
};

}  // namespace assay::timeline::recorder
