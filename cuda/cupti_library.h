// CUPTI, NVIDIA's tracing interface, opened when it is used: programs start without it. Needs its
// headers, which come with the toolkit.
#pragma once

#include <cupti.h>
#include <dlfcn.h>

#include <cstdlib>

namespace assay {

struct CuptiLibrary {
  void* library = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityEnableRuntimeApi) enable_runtime = nullptr;
  decltype(&cuptiActivityEnableDriverApi) enable_driver = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
  decltype(&cuptiGetVersion) version = nullptr;

  // False when there is none, or one without these functions; dlerror() says more. ASSAY_CUPTI
  // names a file that comes before the usual ones.
  bool Open() {
    const char* named = std::getenv("ASSAY_CUPTI");
    for (const char* path :
         {named, "libcupti.so.13", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
          "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}) {
      if (path && (library = dlopen(path, RTLD_NOW | RTLD_GLOBAL))) break;
    }
    return library && Find(register_timestamp, "cuptiActivityRegisterTimestampCallback") &&
           Find(register_callbacks, "cuptiActivityRegisterCallbacks") &&
           Find(enable, "cuptiActivityEnable") && Find(disable, "cuptiActivityDisable") &&
           Find(enable_runtime, "cuptiActivityEnableRuntimeApi") &&
           Find(enable_driver, "cuptiActivityEnableDriverApi") &&
           Find(flush_all, "cuptiActivityFlushAll") &&
           Find(next_record, "cuptiActivityGetNextRecord") &&
           Find(dropped, "cuptiActivityGetNumDroppedRecords") &&
           Find(callback_name, "cuptiGetCallbackName") && Find(version, "cuptiGetVersion");
  }

 private:
  template <class Function>
  bool Find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
};

}  // namespace assay
