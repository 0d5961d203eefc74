// Time per busy mask from intervals that arrive in order of their begin.
#pragma once

#include "timeline/analyze.h"

namespace assay::timeline {

class MaskSweep {
 public:
  // `begin` must not be less than that of earlier calls.
  void Add(Category category, Ns begin, Ns end);
  // Ends the sweep at `end`, the length of the window.
  const Buckets& Finish(Ns end) {
    AdvanceTo(end);
    return buckets_;
  }

 private:
  void AdvanceTo(Ns position);
  Buckets buckets_;
  std::array<Ns, kCategories> active_until_{};
  Ns at_ = 0;
};

}  // namespace assay::timeline
