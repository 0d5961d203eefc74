// Stands in for libcudnn.so.9 in tests: the variable FAKE_CUDNN names what fails. It is built
// without NVIDIA's header, with the values of its enumerations.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef VERSION
#define VERSION 91900
#endif

namespace {

bool Told(const char* what) {
  const char* fault = std::getenv("FAKE_CUDNN");
  return fault != nullptr && std::strcmp(fault, what) == 0;
}

constexpr int kNotInitialized = 1001, kBadParameter = 2000, kUnsupportedPattern = 3001;
constexpr int kSdpaForward = 41, kExecutionPlan = 5;  // cudnnBackendDescriptorType_t
constexpr int kHeuristicResults = 202;                // cudnnBackendAttributeName_t
int descriptors[64];                                  // one for each type

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() { return VERSION; }
const char* cudnnGetErrorString(int status) {
  switch (status) {
    case kNotInitialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case kBadParameter:
      return "CUDNN_STATUS_BAD_PARAM";
    default:
      return "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN";
  }
}
void cudnnGetLastErrorString(char* message, std::size_t size) {
  std::snprintf(message, size, "%s", Told("create") ? "" : "what cuDNN said last");
}
int cudnnCreate(void** handle) {
  *handle = Told("create") ? nullptr : &descriptors[63];
  return Told("create") ? kNotInitialized : 0;
}
int cudnnDestroy(void*) { return 0; }
int cudnnSetStream(void*, void*) { return 0; }
int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  *descriptor = &descriptors[type];
  return 0;
}
int cudnnBackendDestroyDescriptor(void*) { return 0; }
int cudnnBackendSetAttribute(void*, int, int, std::int64_t, const void*) {
  return Told("set") ? kBadParameter : 0;
}
int cudnnBackendGetAttribute(void*, int name, int, std::int64_t, std::int64_t* count, void*) {
  *count = name == kHeuristicResults && !Told("no engine") ? 2 : 0;
  return 0;
}
int cudnnBackendFinalize(void* descriptor) {
  if (Told("operation") && descriptor == &descriptors[kSdpaForward]) return kBadParameter;
  if (Told("plan") && descriptor == &descriptors[kExecutionPlan]) return kUnsupportedPattern;
  return 0;
}
#ifndef WITHOUT_EXECUTE
int cudnnBackendExecute(void*, void*, void*) { return 0; }
#endif

}  // extern "C"
