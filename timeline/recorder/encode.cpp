// Activity buffers to segment records.
#include "timeline/recorder/encode.h"

#include <algorithm>
#include <cstring>

namespace assay::timeline::recorder {
namespace {

std::int64_t Signed(std::uint64_t ns) { return static_cast<std::int64_t>(ns); }

}  // namespace

template <class Payload>
void Encoder::Put(RecordType type, const Payload& payload, const char* text,
                  std::size_t text_bytes) {
  const RecordHeader header{type, static_cast<std::uint32_t>(sizeof payload + text_bytes)};
  out_.append(reinterpret_cast<const char*>(&header), sizeof header);
  out_.append(reinterpret_cast<const char*>(&payload), sizeof payload);
  if (text_bytes) out_.append(text, text_bytes);
}

void Encoder::Start(std::uint32_t pid, std::int64_t monotonic_ns, std::int64_t utc_ns,
                    std::uint32_t cupti_version, bool graph_level) {
  Put(RecordType::kStart, StartRecord{kSegmentMagic, kSegmentVersion, pid, monotonic_ns, utc_ns,
                                      cupti_version, graph_level ? 1u : 0u});
}

void Encoder::Buffer(std::uint8_t* buffer, std::size_t bytes) {
  CUpti_Activity* record = nullptr;
  while (next_(buffer, bytes, &record) == CUPTI_SUCCESS) Record(record);
}

void Encoder::Dropped(std::uint64_t records) {
  if (records == 0) return;
  dropped_ += records;
  Put(RecordType::kDropped, DroppedRecord{records});
}

void Encoder::End() { Put(RecordType::kEnd, EndRecord{last_gpu_, last_call_, dropped_}); }

std::string Encoder::Take() {
  std::string taken;
  taken.swap(out_);
  return taken;
}

std::uint32_t Encoder::NameId(const char* text) {
  if (!text) return 0;
  Recent& recent = recent_[(reinterpret_cast<std::uintptr_t>(text) >> 3) % 256];
  if (recent.pointer == text && recent.text == text) return recent.id;
  const auto [it, added] = names_.try_emplace(text, static_cast<std::uint32_t>(names_.size() + 1));
  if (added) {
    Put(RecordType::kName, NameRecord{it->second}, it->first.data(), it->first.size());
  }
  recent = {text, it->second, it->first};
  return it->second;
}

std::uint32_t Encoder::CallNameId(CUpti_CallbackDomain domain, std::uint32_t id) {
  const std::uint64_t key = (static_cast<std::uint64_t>(domain) << 32) | id;
  const auto [it, added] = calls_.try_emplace(key, 0);
  if (added) {
    const char* name = nullptr;
    if (call_name_(domain, id, &name) != CUPTI_SUCCESS || !name) name = "unknown call";
    it->second = NameId(name);
  }
  return it->second;
}

void Encoder::Record(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return Kernel(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return Copy(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return PeerCopy(*reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return Memset(*reinterpret_cast<const CUpti_ActivityMemset4*>(record));
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE:
      return Graph(*reinterpret_cast<const CUpti_ActivityGraphTrace2*>(record));
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return Call(*reinterpret_cast<const CUpti_ActivityAPI*>(record),
                  record->kind == CUPTI_ACTIVITY_KIND_DRIVER);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return Sync(*reinterpret_cast<const CUpti_ActivitySynchronization2*>(record));
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
      return Overhead(*reinterpret_cast<const CUpti_ActivityOverhead3*>(record));
    case CUPTI_ACTIVITY_KIND_MARKER:
      return Marker(*reinterpret_cast<const CUpti_ActivityMarker2*>(record));
    case CUPTI_ACTIVITY_KIND_DEVICE:
      return Device(*reinterpret_cast<const CUpti_ActivityDevice5*>(record));
    default:
      return;
  }
}

void Encoder::Kernel(const CUpti_ActivityKernel10& k) {
  const std::uint32_t name = NameId(k.name);
  last_gpu_ = std::max(last_gpu_, Signed(k.end));
  Put(RecordType::kKernel,
      KernelRecord{Signed(k.start),
                   Signed(k.end),
                   k.deviceId,
                   k.contextId,
                   k.streamId,
                   k.correlationId,
                   name,
                   {k.gridX, k.gridY, k.gridZ},
                   {k.blockX, k.blockY, k.blockZ},
                   {static_cast<std::int32_t>(k.clusterX), static_cast<std::int32_t>(k.clusterY),
                    static_cast<std::int32_t>(k.clusterZ)},
                   k.registersPerThread,
                   k.staticSharedMemory,
                   k.dynamicSharedMemory,
                   k.graphId,
                   k.graphNodeId,
                   k.gridId});
}

void Encoder::Copy(const CUpti_ActivityMemcpy6& c) {
  last_gpu_ = std::max(last_gpu_, Signed(c.end));
  Put(RecordType::kCopy,
      CopyRecord{Signed(c.start), Signed(c.end), c.bytes, c.graphNodeId, c.deviceId, c.contextId,
                 c.streamId, c.correlationId, -1, -1, c.copyKind, c.srcKind, c.dstKind, 0});
}

void Encoder::PeerCopy(const CUpti_ActivityMemcpyPtoP4& c) {
  last_gpu_ = std::max(last_gpu_, Signed(c.end));
  Put(RecordType::kCopy,
      CopyRecord{Signed(c.start), Signed(c.end), c.bytes, c.graphNodeId, c.deviceId, c.contextId,
                 c.streamId, c.correlationId, static_cast<std::int32_t>(c.srcDeviceId),
                 static_cast<std::int32_t>(c.dstDeviceId), c.copyKind, c.srcKind, c.dstKind, 0});
}

void Encoder::Memset(const CUpti_ActivityMemset4& s) {
  last_gpu_ = std::max(last_gpu_, Signed(s.end));
  Put(RecordType::kMemset,
      MemsetRecord{Signed(s.start), Signed(s.end), s.bytes, s.graphNodeId, s.deviceId, s.contextId,
                   s.streamId, s.correlationId, s.value, 0});
}

void Encoder::Graph(const CUpti_ActivityGraphTrace2& g) {
  last_gpu_ = std::max(last_gpu_, Signed(g.end));
  Put(RecordType::kGraph, GraphRecord{Signed(g.start), Signed(g.end), g.deviceId, g.contextId,
                                      g.streamId, g.correlationId, g.graphId, 0});
}

void Encoder::Call(const CUpti_ActivityAPI& c, bool driver) {
  const std::uint32_t name =
      CallNameId(driver ? CUPTI_CB_DOMAIN_DRIVER_API : CUPTI_CB_DOMAIN_RUNTIME_API, c.cbid);
  last_call_ = std::max(last_call_, Signed(c.end));
  Put(RecordType::kCall,
      CallRecord{Signed(c.start), Signed(c.end), c.threadId, c.correlationId, name,
                 driver ? 1u : 0u, static_cast<std::int32_t>(c.returnValue), 0});
}

void Encoder::Sync(const CUpti_ActivitySynchronization2& s) {
  Put(RecordType::kSync,
      SyncRecord{Signed(s.start), Signed(s.end), static_cast<std::uint32_t>(s.type), s.contextId,
                 s.streamId, s.correlationId, s.cudaEventId, 0});
}

void Encoder::Overhead(const CUpti_ActivityOverhead3& o) {
  Put(RecordType::kOverhead,
      OverheadRecord{Signed(o.start), Signed(o.end), static_cast<std::uint32_t>(o.overheadKind),
                     o.objectId.pt.threadId});
}

void Encoder::Marker(const CUpti_ActivityMarker2& m) {
  const std::uint32_t name = NameId(m.name), domain = NameId(m.domain);
  const std::uint32_t kind = m.flags & CUPTI_ACTIVITY_FLAG_MARKER_START ? MarkerRecord::kBegin
                             : m.flags & CUPTI_ACTIVITY_FLAG_MARKER_END ? MarkerRecord::kEnd
                                                                        : MarkerRecord::kInstant;
  Put(RecordType::kMarker,
      MarkerRecord{Signed(m.timestamp), kind, m.id, name, domain, m.objectId.pt.threadId, 0});
}

void Encoder::Device(const CUpti_ActivityDevice5& d) {
  DeviceRecord record{d.id, d.numMultiprocessors, {}, d.globalMemorySize};
  std::memcpy(record.uuid, &d.uuid, sizeof record.uuid);
  const char* name = d.name ? d.name : "";
  Put(RecordType::kDevice, record, name, std::strlen(name));
}

}  // namespace assay::timeline::recorder
