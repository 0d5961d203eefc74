// Data parallelism on the CPU: one loop form, results independent of the thread count.
#pragma once

#include <cstdint>
#include <functional>

namespace assay {

// Cores this process may use (scheduler affinity respected).
int HardwareThreads();

// Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long, on
// up to `threads` threads (0 = HardwareThreads()). Ranges are claimed dynamically. The first
// exception is rethrown to the caller after all threads stopped. Calls may nest: inner loops run
// serially.
void ParallelRanges(std::int64_t count, std::int64_t grain, int threads,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body);

// body(index) for every index in [0, count).
template <class Body>
void ParallelFor(std::int64_t count, int threads, const Body& body) {
  ParallelRanges(count, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t index = begin; index < end; ++index) body(index);
  });
}

}  // namespace assay
