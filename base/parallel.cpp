#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace assay {
namespace {

thread_local bool inside_parallel_loop = false;

// One loop in flight: threads claim ranges from `next` until it passes `count`.
struct Loop {
  Loop(std::int64_t count_, std::int64_t grain_,
       const std::function<void(std::int64_t, std::int64_t)>& body_)
      : count(count_), grain(grain_), body(body_) {}

  const std::int64_t count, grain;
  const std::function<void(std::int64_t, std::int64_t)>& body;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;

  void Work() {
    inside_parallel_loop = true;
    try {
      for (std::int64_t begin = next.fetch_add(grain); begin < count;
           begin = next.fetch_add(grain)) {
        body(begin, std::min(begin + grain, count));
      }
    } catch (...) {
      next.store(count);
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    inside_parallel_loop = false;
  }
};

// Sleeping helper threads, started on first use and joined at exit. `wanted_` tickets are handed
// out per loop, so a loop may use fewer threads than exist.
class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Loop& loop, int helpers) {
    const std::lock_guard one_loop_at_a_time(loop_mutex_);
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(threads_.size()) < helpers)
        threads_.emplace_back([this] { Serve(); });
      loop_ = &loop;
      wanted_ = helpers;
      active_ = 0;
    }
    wake_.notify_all();
    loop.Work();
    std::unique_lock lock(mutex_);
    wanted_ = 0;  // helpers that have not woken yet are no longer needed
    idle_.wait(lock, [this] { return active_ == 0; });
    loop_ = nullptr;
  }

 private:
  void Serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || wanted_ > 0; });
      if (stop_) return;
      --wanted_;
      ++active_;
      Loop* loop = loop_;
      lock.unlock();
      loop->Work();
      lock.lock();
      if (--active_ == 0) idle_.notify_all();
    }
  }

  std::mutex loop_mutex_, mutex_;
  std::condition_variable wake_, idle_;
  std::vector<std::thread> threads_;
  Loop* loop_ = nullptr;
  int wanted_ = 0, active_ = 0;
  bool stop_ = false;
};

}  // namespace

int HardwareThreads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

void ParallelRanges(std::int64_t count, std::int64_t grain, int threads,
                    const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  if (threads <= 0) threads = HardwareThreads();
  const std::int64_t ranges = (count + grain - 1) / grain;
  threads = static_cast<int>(std::min<std::int64_t>(threads, ranges));
  if (threads <= 1 || inside_parallel_loop) {
    for (std::int64_t begin = 0; begin < count; begin += grain) {
      body(begin, std::min(begin + grain, count));
    }
    return;
  }
  static Pool pool;
  Loop loop(count, grain, body);
  pool.Run(loop, threads - 1);
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace assay
