// Stands in for libcublasLt.so.13 in tests: the variable FAKE_CUBLASLT names what fails. It is
// built without NVIDIA's header, with the values of its enumerations.
#include <cstddef>
#include <cstdlib>
#include <cstring>

#ifndef VERSION
#define VERSION 130100
#endif

namespace {

bool Told(const char* what) {
  const char* fault = std::getenv("FAKE_CUBLASLT");
  return fault != nullptr && std::strcmp(fault, what) == 0;
}

constexpr int kNotInitialized = 1, kInvalidValue = 7, kNotSupported = 15;
int anything;  // what every handle and descriptor points to

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return VERSION; }
const char* cublasLtGetStatusString(int status) {
  switch (status) {
    case kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    default:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
}
int cublasLtCreate(void** handle) {
  *handle = Told("create") ? nullptr : &anything;
  return Told("create") ? kNotInitialized : 0;
}
int cublasLtDestroy(void*) { return 0; }
int cublasLtMatmulDescCreate(void** desc, int, int) {
  *desc = &anything;
  return 0;
}
int cublasLtMatmulDescDestroy(void*) { return 0; }
int cublasLtMatmulDescSetAttribute(void*, int, const void*, std::size_t) {
  return Told("set") ? kInvalidValue : 0;
}
int cublasLtMatrixLayoutCreate(void** layout, int, unsigned long, unsigned long, long) {
  *layout = &anything;
  return 0;
}
int cublasLtMatrixLayoutDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = &anything;
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*,
                                   int* found) {
  *found = 0;
  return Told("heuristic") ? kInvalidValue : Told("no algorithm") ? kNotSupported : 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void*, int, void*, std::size_t, std::size_t*) {
  return 0;
}
#ifndef WITHOUT_MATMUL
int cublasLtMatmul() { return kNotSupported; }
#endif

}  // extern "C"
