// The thread pool of the passes: each thread has a share of every stage's items and takes over items that others have not begun.
//
// A descheduled thread delays the pass only while it holds claimed items: on a machine whose cores are busy, a stage goes on
// with the threads that run, and a pass ends without those that have not joined.

#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr int SPINS = 4000;  // pauses of a waiting thread, some hundred microseconds
constexpr int MOST = 63;     // passes by the calling thread alone, between two that try the pool

// A function of the OpenMP that PyTorch has brought into this process, or null. The library links to none of its own, which
// would have another number of threads than PyTorch's, and which a machine may lack.
template <typename Function>
Function* openmp(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// As many threads as PyTorch's operators have.
inline int wanted_threads() {
  static const auto most = openmp<int()>("omp_get_max_threads");
  return most ? most() : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// What is left of a thread's share of a stage: the items from `first` to before `end`, in one word that is exchanged whole.
struct Share {
  uint64_t stage : 22, first : 21, end : 21;
};

static_assert(sizeof(Share) == sizeof(uint64_t), "a share is one word");

using Time = std::chrono::steady_clock;

// Waits until `done` holds, and returns how long that took beyond a short while. A thread that spins may hold the very core
// that another one needs: it soon yields.
template <typename Done>
inline Time::duration wait_until(Done done) {
  for (int tries = 0; tries < SPINS; ++tries) {
    if (done()) return {};
    pause();
  }
  const Time::time_point from = Time::now();
  while (!done()) sched_yield();
  return Time::now() - from;
}

// The state that the threads of one pass share.
struct ThreadGroup {
  struct alignas(64) ThreadShare {
    std::atomic<Share> left{Share{0, 0, 0}};
  };

  std::vector<ThreadShare> shares;           // of each thread
  alignas(64) std::atomic<int64_t> done{0};  // items of all stages so far

  explicit ThreadGroup(int threads) : shares(threads) {}
};

// One thread of a group. All of them go through the same stages.
struct Worker {
  int id, threads;
  ThreadGroup& group;
  uint64_t stage = 0;
  int64_t total = 0;         // items of the stages so far
  Time::duration waited{0};  // for items that others had begun

  Worker(ThreadGroup& shared, int number) : id(number), threads(static_cast<int>(shared.shares.size())), group(shared) {}

  // Calls `work` with each of the items 0 .. count - 1, in one of the threads; returns when all are done.
  template <typename Work>
  void share(int64_t count, Work work) {
    if (threads == 1) {
      for (int64_t item = 0; item < count; ++item) work(item);
      return;
    }
    ++stage;
    total += count;
    int64_t finished = 0;
    for (int turn = 0; turn < threads; ++turn)
      for (Run run; (run = take((id + turn) % threads, count)).first < run.end; finished += run.end - run.first)
        for (int64_t item = run.first; item < run.end; ++item) work(item);
    group.done.fetch_add(finished, std::memory_order_acq_rel);
    waited += wait_until([&] { return group.done.load(std::memory_order_acquire) >= total; });
  }

 private:
  struct Run {
    int64_t first, end;
  };

  // The next items of this thread's own share, or the last of another's: half of what is left of it; none when that is
  // empty. A thread that has not come to this stage yet has its whole share left. Items are taken many at a time, since the
  // exchange waits until all that was written before it is in the cache, and delays all reads after it.
  Run take(int owner, int64_t count) {
    std::atomic<Share>& left = group.shares[owner].left;
    Share seen = left.load(std::memory_order_acquire);
    while (seen.stage <= stage) {
      Share rest = seen;
      if (seen.stage < stage) {
        rest.stage = stage;
        rest.first = count * owner / threads;
        rest.end = count * (owner + 1) / threads;
      }
      if (rest.first == rest.end) break;
      const int64_t first = rest.first, end = rest.end, half = (end - first + 1) / 2;
      const Run run = owner == id ? Run{first, first + half} : Run{end - half, end};
      if (owner == id) rest.first = run.end;
      else rest.end = run.first;
      if (left.compare_exchange_weak(seen, rest, std::memory_order_acq_rel, std::memory_order_acquire)) return run;
    }
    return {0, 0};  // nothing is left, or the others have gone on without this thread
  }
};

// Ends the threads with which this one's OpenMP has run PyTorch's operators: some milliseconds long they wait for more work in
// a busy loop, on a core that a pool thread needs, and a thread is begun anew in far less. A program that has set how they wait, as
// specframe does where it is imported before torch, keeps them.
inline void end_busy_threads() {
  static const bool busy = !std::getenv("GOMP_SPINCOUNT") && !std::getenv("OMP_WAIT_POLICY");
  static const auto pause = openmp<int(int, int)>("omp_pause_resource");  // of OpenMP 5.0
  static const auto device = openmp<int()>("omp_get_initial_device");
  constexpr int SOFT = 1;
  if (busy && pause && device) pause(SOFT, device());
}

// The threads that join the one that calls a pass: one pool a process, asleep between passes. A pass would wait for OpenMP's
// threads at its end, whether or not the system has let them run, and they spin for milliseconds after it.
class ThreadPool {
 public:
  // Calls `work` with a worker in this thread, and in each pool thread that joins before it is done; returns when all that
  // joined have left. This thread works alone while another one uses the pool, where the system grants no threads, and, for
  // up to MOST passes, after a pass of which it waited more than a quarter: its cores are needed elsewhere.
  template <typename Work>
  static void run(ThreadGroup& group, Work work) {
    ThreadPool& all = get();
    Worker first(group, 0);
    const std::unique_lock<std::mutex> turn(all.turn_, std::try_to_lock);
    if (first.threads == 1 || !turn) return work(first);
    if (all.alone_ > 0) {
      --all.alone_;
      return work(first);
    }
    all.begin(first.threads - 1);
    auto help = [&](int number) {
      Worker other(group, number);
      work(other);
    };
    all.call_ = [](void* what, int number) { (*static_cast<decltype(help)*>(what))(number); };
    all.what_ = &help;
    const Time::time_point from = Time::now();
    all.gate_.store(Gate{static_cast<uint32_t>(first.threads - 1), 0, 0}, std::memory_order_release);
    {
      const std::lock_guard<std::mutex> lock(all.guard_);
      all.passes_.fetch_add(1, std::memory_order_release);
    }
    all.bell_.notify_all();
    work(first);
    all.change([](Gate& gate) { gate.wanted = 0; });
    first.waited += wait_until([&] { return all.gate_.load(std::memory_order_acquire).inside == 0; });
    all.penalty_ = first.waited * 4 > Time::now() - from ? std::min(MOST, 2 * all.penalty_ + 1) : 0;
    all.alone_ = all.penalty_;
  }

 private:
  struct Gate {
    uint32_t wanted;         // pool threads; 0 when none may join any more
    uint16_t taken, inside;  // numbers given out; threads that have not left
  };

  std::mutex turn_, guard_;
  std::condition_variable bell_;
  std::atomic<uint32_t> passes_{0};
  std::atomic<Gate> gate_{Gate{0, 0, 0}};
  void (*call_)(void*, int) = nullptr;
  void* what_ = nullptr;
  int begun_ = 0;
  int alone_ = 0, penalty_ = 0;  // passes without the pool: still to come, and after the last one with it

  // Never freed: a thread may be asleep in it when the process ends. A forked process starts with an empty pool.
  static ThreadPool& get() {
    static ThreadPool* all = [] {
      pthread_atfork(nullptr, nullptr, [] { all = new ThreadPool; });
      return new ThreadPool;
    }();
    return *all;
  }

  void begin(int count) {
    try {
      for (; begun_ < count; ++begun_) std::thread([this] { help(); }).detach();
    } catch (const std::system_error&) {  // the system grants no more threads
    }
  }

  template <typename Change>
  void change(Change what) {
    Gate now = gate_.load(std::memory_order_acquire), then;
    do what(then = now);
    while (!gate_.compare_exchange_weak(now, then, std::memory_order_acq_rel, std::memory_order_acquire));
  }

  // The number of this thread in the pass that is open, or 0 when there is none or it is complete.
  int enter() {
    Gate now = gate_.load(std::memory_order_acquire);
    while (now.taken < now.wanted) {
      const Gate then{now.wanted, static_cast<uint16_t>(now.taken + 1), static_cast<uint16_t>(now.inside + 1)};
      if (gate_.compare_exchange_weak(now, then, std::memory_order_acq_rel, std::memory_order_acquire)) return then.taken;
    }
    return 0;
  }

  void help() {
    for (uint32_t seen = 0;;) {
      const auto called = [&] { return passes_.load(std::memory_order_acquire) != seen; };
      for (int tries = 0; tries < SPINS && !called(); ++tries) pause();
      if (!called()) {
        std::unique_lock<std::mutex> lock(guard_);
        // As bell_.wait does, but that one needs the C++ library of GCC 12 where the system may have an older one.
        while (!called()) pthread_cond_wait(bell_.native_handle(), guard_.native_handle());
      }
      seen = passes_.load(std::memory_order_acquire);
      if (const int number = enter()) {
        call_(what_, number);
        change([](Gate& gate) { --gate.inside; });
      }
    }
  }
};

}  // namespace
