#include "base/parallel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

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

void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Waits a little for `done` without giving up the core: waking a sleeper costs more than most small
// loops take (about 5 us to be woken, 50 us where the host runs virtual cores).
template <class Done>
void Spin(const Done& done) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLongest = std::chrono::microseconds(30);
  constexpr int kPausesPerClockRead = 32;
  const auto deadline = Clock::now() + kLongest;
  do {
    for (int pause = 0; pause < kPausesPerClockRead; ++pause) {
      if (done()) return;
      CpuRelax();
    }
  } while (Clock::now() < deadline);
}

// Helper threads, started on first use, that spin briefly and then sleep between loops. `wanted_`
// tickets are handed out per loop, so a loop may use fewer threads than exist. A pool is never
// destroyed: its detached threads touch nothing else, and a forked child has none to join.
class Pool {
 public:
  void Run(Loop& loop, int helpers) {
    const std::lock_guard one_loop_at_a_time(loop_mutex_);
    {
      const std::lock_guard lock(mutex_);
      StartThreads(helpers);
      loop_ = &loop;
      wanted_ = helpers;
      loops_.fetch_add(1);
    }
    wake_.notify_all();
    loop.Work();
    {
      const std::lock_guard lock(mutex_);
      wanted_ = 0;  // helpers that have not come yet are no longer needed
    }
    Spin([this] { return active_.load() == 0; });
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return active_.load() == 0; });
    loop_ = nullptr;
  }

 private:
  // Fewer threads than wanted only cost time.
  void StartThreads(int helpers) {
    try {
      for (; threads_ < helpers; ++threads_) std::thread([this] { Serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void Serve() {
    for (std::uint64_t seen = 0;;) {
      Spin([&] { return loops_.load() != seen; });
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return loops_.load() != seen; });
      seen = loops_.load();
      if (wanted_ == 0) continue;  // too late, or others were enough
      --wanted_;
      active_.fetch_add(1);
      Loop* loop = loop_;
      lock.unlock();
      loop->Work();
      lock.lock();
      if (active_.fetch_sub(1) == 1) idle_.notify_all();
    }
  }

  // loop_, wanted_ and threads_ change under mutex_ only; so do loops_ and active_, which are
  // atomic for those who spin.
  std::mutex loop_mutex_, mutex_;
  std::condition_variable wake_, idle_;
  int threads_ = 0;
  Loop* loop_ = nullptr;
  int wanted_ = 0;
  std::atomic<std::uint64_t> loops_{0};
  std::atomic<int> active_{0};
};

// The pool of this process. The threads of a parent do not live on in a forked child, which may
// also have inherited a locked mutex: it gets a pool of its own.
Pool& ProcessPool() {
  struct Owned {
    pid_t owner;
    Pool* pool;
    Owned* inherited;  // keeps the parent's pool reachable, for leak checkers
  };
  static std::mutex mutex;
  static std::atomic<Owned*> current{nullptr};
  Owned* owned = current.load();
  if (owned != nullptr && owned->owner == getpid()) return *owned->pool;
  const std::lock_guard lock(mutex);
  owned = current.load();
  if (owned == nullptr || owned->owner != getpid()) {
    owned = new Owned{getpid(), new Pool, owned};
    current.store(owned);
  }
  return *owned->pool;
}

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
  grain = std::clamp<std::int64_t>(grain, 1, count);
  if (threads <= 0) threads = HardwareThreads();
  const std::int64_t ranges = (count - 1) / grain + 1;
  threads = static_cast<int>(std::min<std::int64_t>(threads, ranges));
  if (threads <= 1 || inside_parallel_loop) {
    for (std::int64_t begin = 0; begin < count; begin += grain) {
      body(begin, begin + std::min(grain, count - begin));
    }
    return;
  }
  Loop loop(count, grain, body);
  ProcessPool().Run(loop, threads - 1);
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace assay
