// The device sweep. Rows come sorted by start, so one pass keeps, per device and category, only
// the time until which the category stays active; the elapsed time goes to the bucket of the
// categories that are active. No end points are sorted or stored.
#include "timeline/sweep.h"

#include <algorithm>

namespace assay::timeline {

Ns Buckets::Any(unsigned categories) const {
  Ns sum = 0;
  for (unsigned mask = 1; mask < kMasks; ++mask) sum += mask & categories ? ns[mask] : 0;
  return sum;
}

Ns Buckets::Both(unsigned a, unsigned b) const {
  Ns sum = 0;
  for (unsigned mask = 1; mask < kMasks; ++mask) sum += (mask & a) && (mask & b) ? ns[mask] : 0;
  return sum;
}

Ns Buckets::total() const {
  Ns sum = 0;
  for (const Ns bucket : ns) sum += bucket;
  return sum;
}

void MaskSweep::AdvanceTo(Ns position) {
  while (at_ < position) {
    unsigned mask = 0;
    Ns next = position;
    for (unsigned c = 0; c < kCategories; ++c) {
      if (active_until_[c] > at_) {
        mask |= 1u << c;
        next = std::min(next, active_until_[c]);
      }
    }
    buckets_.ns[mask] += next - at_;
    at_ = next;
  }
}

void MaskSweep::Add(Category category, Ns begin, Ns end) {
  AdvanceTo(begin);
  Ns& until = active_until_[static_cast<int>(category)];
  until = std::max(until, end);
}

}  // namespace assay::timeline
