// A library of another party, opened at run time: never on our link line, so that the program
// starts where the library is absent.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace assay {

class SharedLibrary {
 public:
  SharedLibrary() = default;

  // Opens the first of `paths` that loads; a path without a slash is searched as the loader does.
  // On failure `loaded()` is false and `why_not()` says what was tried.
  static SharedLibrary Open(const std::vector<std::string>& paths);

  bool loaded() const { return handle_ != nullptr; }
  const std::string& path() const { return path_; }        // of the file; "" when not loaded
  const std::string& why_not() const { return why_not_; }  // one sentence without a full stop

  // The function `symbol`, or null.
  template <class Function>
  Function* Find(const char* symbol) const {
    return reinterpret_cast<Function*>(FindAddress(symbol));
  }
  // Sets `function`. When the library has no `symbol`, `why_not` says so, unless it already has
  // another reason.
  template <class Function>
  void Load(Function*& function, const char* symbol, std::string& why_not) const {
    function = Find<Function>(symbol);
    if (function == nullptr && why_not.empty()) {
      why_not = path_ + " has no function " + symbol;
    }
  }

 private:
  void* FindAddress(const char* symbol) const;

  std::shared_ptr<void> handle_;  // closed with the last copy
  std::string path_, why_not_;
};

}  // namespace assay
