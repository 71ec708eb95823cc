// The threads of a pass: each has a share of every stage's items and takes over what others have not begun.
//
// A thread that the system has put aside holds up nobody, unless it was put aside in the middle of an item: on a machine
// whose cores are busy, a stage goes on with the threads that run.

#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace {

constexpr int SPINS = 4000;  // pauses of a waiting thread, some hundred microseconds

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

// What the threads of a pass have in common.
struct Team {
  struct alignas(64) Place {
    std::atomic<Share> left{Share{0, 0, 0}};
  };

  std::vector<Place> places;                  // of each thread
  alignas(64) std::atomic<int64_t> done{0};   // items of all stages so far

  explicit Team(int threads = omp_get_max_threads()) : places(threads) {}
};

// One thread of a team. All of them go through the same stages.
struct Worker {
  int id, threads;
  Team& team;
  uint64_t stage = 0;
  int64_t total = 0;  // items of the stages so far

  explicit Worker(Team& shared) : id(omp_get_thread_num()), threads(omp_get_num_threads()), team(shared) {}

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
      for (int64_t item; (item = take((id + turn) % threads, count)) >= 0; ++finished) work(item);
    team.done.fetch_add(finished, std::memory_order_acq_rel);
    for (int tries = 0; team.done.load(std::memory_order_acquire) < total; ++tries) {
      if (tries > SPINS) sched_yield();  // a thread that spins may hold the very core that another one needs
      else pause();
    }
  }

 private:
  // The next item of this thread's own share, or the last of another's; -1 when that share is empty. A thread that has not
  // come to this stage yet has its whole share left.
  int64_t take(int owner, int64_t count) {
    std::atomic<Share>& left = team.places[owner].left;
    Share seen = left.load(std::memory_order_acquire);
    while (seen.stage <= stage) {
      Share rest = seen;
      if (seen.stage < stage) {
        rest.stage = stage;
        rest.first = count * owner / threads;
        rest.end = count * (owner + 1) / threads;
      }
      if (rest.first == rest.end) return -1;
      const int64_t item = owner == id ? rest.first++ : --rest.end;
      if (left.compare_exchange_weak(seen, rest, std::memory_order_acq_rel, std::memory_order_acquire)) return item;
    }
    return -1;  // the others have gone on without this thread
  }
};

}  // namespace
