// The parallel loop: coverage, nesting, exceptions, callers in parallel, cost of an empty loop.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/parallel.h"

namespace assay {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr int kTinyLoops = 2'000;
#else
constexpr int kTinyLoops = 10'000;
#endif

TEST(ParallelRanges, CoverEveryIndexOnce) {
  for (const std::int64_t count : {0, 1, 2, 7, 64, 1000, 4097}) {
    for (const std::int64_t grain : {1, 3, 64, 5000}) {
      for (const int threads : {0, 1, 2, 3, 8}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
        ParallelRanges(count, grain, threads, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_LT(begin, end);
          EXPECT_LE(end - begin, grain);
          for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        for (const auto& hit : hits) ASSERT_EQ(hit, 1) << count << ' ' << grain << ' ' << threads;
      }
    }
  }
}

TEST(ParallelRanges, OddArgumentsAreHarmless) {
  int calls = 0;
  ParallelRanges(-5, 1, 2, [&](auto, auto) { ++calls; });
  EXPECT_EQ(calls, 0);
  ParallelRanges(10, INT64_MAX, 2, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
  std::atomic<int> ranges = 0;
  ParallelRanges(10, 0, 2, [&](auto, auto) { ++ranges; });
  EXPECT_EQ(ranges, 10);
}

TEST(ParallelFor, UsesSeveralThreadsAtOnce) {
  std::atomic<int> inside = 0;
  std::atomic<bool> met = false;
  // Both iterations wait for each other: one thread alone could never finish.
  ParallelFor(2, 2, [&](std::int64_t) {
    ++inside;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (inside == 2) met = true;
  });
  EXPECT_TRUE(met);
}

TEST(ParallelFor, NeverUsesMoreThreadsThanAsked) {
  ParallelFor(64, 8, [](std::int64_t) {});  // the pool now has 7 helpers
  std::mutex mutex;
  std::set<std::thread::id> ids;
  ParallelFor(2000, 2, [&](std::int64_t) {
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_LE(ids.size(), 2u);
}

TEST(ParallelFor, RethrowsTheFirstExceptionAndStops) {
  for (const int threads : {1, 2, 4}) {
    std::atomic<int> calls = 0;
    try {
      ParallelFor(1'000'000, threads, [&](std::int64_t i) {
        ++calls;
        if (i == 10) throw std::runtime_error("ten");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "ten");
    }
    EXPECT_LT(calls, 1'000'000);
    // The pool is whole afterwards.
    std::atomic<int> after = 0;
    ParallelFor(100, threads, [&](std::int64_t) { ++after; });
    EXPECT_EQ(after, 100);
  }
}

TEST(ParallelFor, NestedLoopsRunSeriallyInTheirThread) {
  std::atomic<int> total = 0;
  ParallelFor(8, 4, [&](std::int64_t) {
    const auto self = std::this_thread::get_id();
    ParallelFor(50, 4, [&](std::int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      ++total;
    });
  });
  EXPECT_EQ(total, 400);
}

TEST(ParallelFor, NestedExceptionsReachTheOuterCaller) {
  EXPECT_THROW(ParallelFor(4, 2,
                           [&](std::int64_t) {
                             ParallelFor(4, 2, [](std::int64_t i) {
                               if (i == 2) throw std::out_of_range("inner");
                             });
                           }),
               std::out_of_range);
}

TEST(ParallelFor, WritesAreVisibleAfterTheLoop) {
  std::vector<int> plain(10'000);
  for (int round = 1; round <= 20; ++round) {
    ParallelFor(10'000, 3, [&](std::int64_t i) { plain[static_cast<std::size_t>(i)] += round; });
  }
  for (const int value : plain) ASSERT_EQ(value, 210);
}

TEST(ParallelFor, ManyTinyLoops) {
  std::int64_t sum = 0;
  for (int loop = 0; loop < kTinyLoops; ++loop) {
    std::int64_t parts[4] = {};
    ParallelFor(4, 1 + loop % 4, [&](std::int64_t i) { parts[i] = i + 1; });
    sum += parts[0] + parts[1] + parts[2] + parts[3];
  }
  EXPECT_EQ(sum, 10LL * kTinyLoops);
}

TEST(ParallelFor, CallersMayCompete) {
  std::vector<std::thread> callers;
  std::atomic<std::int64_t> total = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int loop = 0; loop < 200; ++loop) {
        ParallelFor(8, 2, [&](std::int64_t) { ++total; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 200 * 8);
}

#ifndef __SANITIZE_THREAD__  // it does not support threads after fork
TEST(ParallelFor, WorksInAForkedChild) {
  ParallelFor(64, 4, [](std::int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> total = 0;
    ParallelFor(64, 4, [&](std::int64_t) { ++total; });
    _exit(total == 64 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}
#endif

TEST(ParallelFor, AnEmptyLoopIsCheap) {
  if (HardwareThreads() < 2) GTEST_SKIP() << "one core only";
  using Clock = std::chrono::steady_clock;
  constexpr int kBatches = 100, kLoops = 100;
  std::vector<double> batch_us;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = Clock::now();
    for (int loop = 0; loop < kLoops; ++loop) ParallelFor(2, 2, [](std::int64_t) {});
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    batch_us.push_back(took.count() / kLoops);
  }
  std::sort(batch_us.begin(), batch_us.end());
  RecordProperty("best_us", std::to_string(batch_us.front()));
  RecordProperty("median_us", std::to_string(batch_us[kBatches / 2]));
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  // The best batch: other work on the machine must not fail the test, sleeping helpers must.
  EXPECT_LT(batch_us.front(), 20);
#endif
}

TEST(HardwareThreads, IsPositive) { EXPECT_GE(HardwareThreads(), 1); }

}  // namespace
}  // namespace assay
