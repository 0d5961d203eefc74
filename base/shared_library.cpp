#include "base/shared_library.h"

#include <dlfcn.h>
#include <link.h>

namespace assay {
namespace {

// Whether the loader's message says that `path` itself is absent, rather than broken or lacking
// another library.
bool SaysAbsent(const std::string& message, const std::string& path) {
  return message.starts_with(path + ": cannot open shared object file: No such file");
}

// Where the loader found it.
std::string FoundPath(void* handle, const std::string& given) {
  link_map* map = nullptr;
  const bool known = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
  return known && map->l_name != nullptr && map->l_name[0] != '\0' ? map->l_name : given;
}

std::string Joined(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

}  // namespace

SharedLibrary SharedLibrary::Open(const std::vector<std::string>& paths) {
  SharedLibrary library;
  std::string broken;
  for (const std::string& path : paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      library.handle_ = std::shared_ptr<void>(handle, [](void* opened) { dlclose(opened); });
      library.path_ = FoundPath(handle, path);
      return library;
    }
    const char* text = dlerror();
    const std::string message = text == nullptr ? path + ": unknown failure" : text;
    if (broken.empty() && !SaysAbsent(message, path)) broken = path + " does not load: " + message;
  }
  if (!broken.empty()) {
    library.why_not_ = broken;
  } else if (paths.size() == 1) {
    library.why_not_ = paths[0] + " was not found";
  } else {
    library.why_not_ = "the library was not found; tried " + Joined(paths);
  }
  return library;
}

void* SharedLibrary::FindAddress(const char* symbol) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_.get(), symbol);
}

}  // namespace assay
