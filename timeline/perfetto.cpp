// Perfetto trace in its protobuf form. Only the dozen fields that a timeline needs are written,
// so the encoder is by hand: field numbers are in the spec and next to each constant.
#include <algorithm>
#include <unordered_map>

#include "timeline/result.h"

namespace assay::timeline {
namespace {

class Proto {
 public:
  void Varint(int field, std::uint64_t value) {
    Raw(static_cast<std::uint64_t>(field) << 3);
    Raw(value);
  }
  void Fixed64(int field, std::uint64_t value) {
    Raw((static_cast<std::uint64_t>(field) << 3) | 1);
    for (int k = 0; k < 8; ++k) bytes_ += static_cast<char>(value >> (8 * k));
  }
  void Bytes(int field, std::string_view value) {
    Raw((static_cast<std::uint64_t>(field) << 3) | 2);
    Raw(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Raw(std::uint64_t value) {
    while (value >= 0x80) {
      bytes_ += static_cast<char>(value | 0x80);
      value >>= 7;
    }
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// Field numbers: Trace, TracePacket, TrackEvent, TrackDescriptor, InternedData.
constexpr int kTracePacket = 1;
constexpr int kPacketTimestamp = 8, kPacketSequence = 10, kPacketEvent = 11, kPacketInterned = 12,
              kPacketFlags = 13, kPacketTrack = 60;
constexpr int kEventType = 9, kEventNameId = 10, kEventTrack = 11, kEventFlow = 47,
              kEventEndFlow = 48;
constexpr int kTrackUuid = 1, kTrackName = 2, kTrackProcess = 3, kTrackParent = 5;
constexpr int kProcessPid = 1, kProcessName = 6;
constexpr int kInternedNames = 2, kInternedId = 1, kInternedText = 2;
constexpr std::uint64_t kSequence = 1, kBegin = 1, kEnd = 2, kInstant = 3;
constexpr std::uint64_t kCleared = 1, kNeedsState = 2;

class PerfettoWriter {
 public:
  explicit PerfettoWriter(const TimelineResult& result)
      : trace_(result.trace), index_(result.index) {}

  std::string Write() {
    zero_ = 0;
    if (!trace_.gpu.empty()) zero_ = std::min<Ns>(0, trace_.gpu.front().start);
    for (const ApiRow& row : trace_.api) zero_ = std::min(zero_, row.start);
    WriteGpu();
    WriteApi();
    return std::move(out_);
  }

 private:
  std::uint64_t Stamp(Ns time) const { return static_cast<std::uint64_t>(time - zero_); }

  void Packet(const Proto& packet) {
    Proto outer;
    outer.Bytes(kTracePacket, packet.bytes());
    out_ += outer.bytes();
  }

  void Track(std::uint64_t uuid, std::uint64_t parent, const std::string& name, bool process,
             std::int64_t pid) {
    Proto track;
    track.Varint(kTrackUuid, uuid);
    if (parent) track.Varint(kTrackParent, parent);
    if (process) {
      Proto info;
      info.Varint(kProcessPid, static_cast<std::uint64_t>(pid));
      info.Bytes(kProcessName, name);
      track.Bytes(kTrackProcess, info.bytes());
    } else {
      track.Bytes(kTrackName, name);
    }
    Proto packet;
    packet.Varint(kPacketSequence, kSequence);
    packet.Bytes(kPacketTrack, track.bytes());
    Packet(packet);
  }

  void Event(Ns time, std::uint64_t type, std::uint64_t track, const std::string* name,
             std::uint64_t flow, bool ends_flow) {
    Proto packet;
    packet.Varint(kPacketTimestamp, Stamp(time));
    packet.Varint(kPacketSequence, kSequence);
    Proto event;
    event.Varint(kEventType, type);
    event.Varint(kEventTrack, track);
    if (name) {
      const auto [it, added] = names_.try_emplace(*name, names_.size() + 1);
      if (added) {
        Proto entry, interned;
        entry.Varint(kInternedId, it->second);
        entry.Bytes(kInternedText, *name);
        interned.Bytes(kInternedNames, entry.bytes());
        packet.Bytes(kPacketInterned, interned.bytes());
      }
      event.Varint(kEventNameId, it->second);
    }
    if (flow) event.Fixed64(ends_flow ? kEventEndFlow : kEventFlow, flow);
    packet.Varint(kPacketFlags, first_ ? kCleared | kNeedsState : kNeedsState);
    first_ = false;
    packet.Bytes(kPacketEvent, event.bytes());
    Packet(packet);
  }

  struct Slice {
    Ns start, end;
    const std::string* name;
    std::uint64_t flow;
  };

  // Slices of one row of the picture, into as many lanes as are needed for none to overlap.
  void Lanes(std::vector<Slice>& slices, std::uint64_t parent, const std::string& name,
             bool ends_flow) {
    std::stable_sort(slices.begin(), slices.end(),
                     [](const Slice& a, const Slice& b) { return a.start < b.start; });
    std::vector<Ns> free_at;
    std::vector<std::uint64_t> tracks;
    for (const Slice& slice : slices) {
      std::size_t lane = 0;
      while (lane < free_at.size() && free_at[lane] > slice.start) ++lane;
      if (lane == free_at.size()) {
        free_at.push_back(0);
        tracks.push_back(next_uuid_++);
        Track(tracks.back(), parent,
              lane == 0 ? name : name + " (overlap " + std::to_string(lane) + ")", false, 0);
      }
      if (slice.end > slice.start) {
        Event(slice.start, kBegin, tracks[lane], slice.name, slice.flow, ends_flow);
        Event(slice.end, kEnd, tracks[lane], nullptr, 0, false);
        free_at[lane] = slice.end;
      } else {
        Event(slice.start, kInstant, tracks[lane], slice.name, slice.flow, ends_flow);
      }
    }
  }

  // A flow is the launching call's number; 0 means none.
  static std::uint64_t Flow(std::uint32_t call) {
    return call == LaunchIndex::kNone ? 0 : std::uint64_t{call} + 1;
  }

  void WriteGpu() {
    std::vector<std::vector<Slice>> streams(trace_.streams.size());
    for (std::size_t k = 0; k < trace_.gpu.size(); ++k) {
      const GpuRow& row = trace_.gpu[k];
      streams[row.stream].push_back(
          {row.start, row.end, &trace_.names[row.name], Flow(index_.CallOf(k))});
    }
    for (std::uint32_t d = 0; d < trace_.devices.size(); ++d) {
      const std::uint64_t device = next_uuid_++;
      Track(device, 0, "GPU " + trace_.devices[d].label, true, 1'000'000 + d);
      for (std::size_t k = 0; k < streams.size(); ++k) {
        if (trace_.streams[k].device != d) continue;
        Lanes(streams[k], device, "stream " + std::to_string(trace_.streams[k].id), true);
      }
    }
  }

  void WriteApi() {
    std::vector<std::vector<Slice>> threads(trace_.threads.size() + 1);
    for (std::size_t k = 0; k < trace_.api.size(); ++k) {
      const ApiRow& row = trace_.api[k];
      threads[row.thread].push_back({row.start, row.end, &trace_.api_names[row.name],
                                     index_.HasRow(k) ? Flow(static_cast<std::uint32_t>(k)) : 0});
    }
    for (std::uint32_t p = 0; p < trace_.processes.size(); ++p) {
      const Process& info = trace_.processes[p];
      const std::uint64_t process = next_uuid_++;
      Track(process, 0, info.name.empty() ? "process " + std::to_string(info.pid) : info.name, true,
            info.pid);
      for (std::size_t t = 0; t < trace_.threads.size(); ++t) {
        if (trace_.threads[t].process != p || threads[t].empty()) continue;
        const Thread& thread = trace_.threads[t];
        Lanes(threads[t], process,
              "CUDA API " + std::to_string(thread.tid) +
                  (thread.name.empty() ? "" : " " + thread.name),
              false);
      }
    }
  }

  const Trace& trace_;
  const LaunchIndex& index_;
  std::unordered_map<std::string, std::uint64_t> names_;
  std::string out_;
  std::uint64_t next_uuid_ = 1;
  Ns zero_ = 0;
  bool first_ = true;
};

}  // namespace

std::string ResultToPerfetto(const TimelineResult& result) {
  return PerfettoWriter(result).Write();
}

}  // namespace assay::timeline
