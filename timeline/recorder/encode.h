// CUPTI activity records to segment records. Knows the record layouts of the headers that it was
// compiled with, and nothing about where buffers come from, so tests feed it buffers of their own.
#pragma once

#include <cupti_activity.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "timeline/recorder/segment.h"

namespace assay::timeline::recorder {

// cuptiActivityGetNextRecord or a stand-in.
using NextRecord = CUptiResult (*)(std::uint8_t* buffer, std::size_t bytes,
                                   CUpti_Activity** record);
// cuptiGetCallbackName or a stand-in.
using CallName = CUptiResult (*)(CUpti_CallbackDomain domain, std::uint32_t id, const char** name);

class Encoder {
 public:
  Encoder(NextRecord next, CallName call_name) : next_(next), call_name_(call_name) {}

  void Start(std::uint32_t pid, std::int64_t monotonic_ns, std::int64_t utc_ns,
             std::uint32_t cupti_version, bool graph_level);
  // All records of one completed buffer. Names are copied at once: CUPTI may free them later.
  void Buffer(std::uint8_t* buffer, std::size_t bytes);
  void Dropped(std::uint64_t records);
  void End();

  // What was encoded since the last call; the caller writes it out.
  std::string Take();

 private:
  void Record(const CUpti_Activity* record);
  void Kernel(const CUpti_ActivityKernel10& kernel);
  void Copy(const CUpti_ActivityMemcpy6& copy);
  void PeerCopy(const CUpti_ActivityMemcpyPtoP4& copy);
  void Memset(const CUpti_ActivityMemset4& set);
  void Graph(const CUpti_ActivityGraphTrace2& graph);
  void Call(const CUpti_ActivityAPI& call, bool driver);
  void Sync(const CUpti_ActivitySynchronization2& sync);
  void Overhead(const CUpti_ActivityOverhead3& overhead);
  void Marker(const CUpti_ActivityMarker2& marker);
  void Device(const CUpti_ActivityDevice5& device);

  std::uint32_t NameId(const char* text);
  std::uint32_t CallNameId(CUpti_CallbackDomain domain, std::uint32_t id);
  template <class Payload>
  void Put(RecordType type, const Payload& payload, const char* text = nullptr,
           std::size_t text_bytes = 0);

  NextRecord next_;
  CallName call_name_;
  std::string out_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::unordered_map<std::uint64_t, std::uint32_t> calls_;
  // Kernel names come as the same pointer again and again; the text behind it is compared, because
  // a module may be unloaded and its memory used anew.
  struct Recent {
    const char* pointer = nullptr;
    std::uint32_t id = 0;
    std::string text;
  };
  Recent recent_[256];
  std::int64_t last_gpu_ = 0, last_call_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace assay::timeline::recorder
