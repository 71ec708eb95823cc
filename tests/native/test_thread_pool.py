"""Threads take over each other's items: each is done once, and an absent thread delays no pass for long."""

from __future__ import annotations

import ctypes
import os
import subprocess

import pytest
import torch

from specframe.native.build import FLAGS, SOURCE, _compiler
from specframe.native.visibility import Tree
from tests.native.layers import packed_layers, slots_for

PROGRAM = r"""
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>
#include "thread_pool.h"

constexpr int THREADS = 4, STAGES = 200;

// Runs a pass, calling `before` with each worker first. Returns how often an item was not done once at its stage's end.
template <typename Before>
int pass(Before before) {
  static thread_local std::atomic<int> times[STAGES][64];
  auto& all = times;
  for (auto& stage : all)
    for (auto& item : stage) item = 0;
  std::atomic<int> wrong{0};
  ThreadGroup group(THREADS);
  ThreadPool::run(group, [&](Worker& worker) {
    before(worker);
    for (int stage = 0; stage < STAGES; ++stage) {
      const int count = stage % 64;
      worker.share(count, [&](int64_t item) {
        if ((stage + item) % 23 == 0) usleep(20);
        all[stage][item]++;
      });
      for (int item = 0; item < count; ++item) wrong += all[stage][item] != 1;
    }
  });
  return wrong;
}

int passes(int count) {
  int wrong = 0;
  for (int i = 0; i < count; ++i) wrong += pass([](Worker&) {});
  return wrong;
}

int threads() {
  int count = -2;  // "." and ".."
  DIR* tasks = opendir("/proc/self/task");
  while (readdir(tasks)) ++count;
  closedir(tasks);
  return count;
}

int main(int, char** arguments) {
  const char* name = arguments[1];
  int wrong = 0;
  if (!std::strcmp(name, "present")) wrong = passes(20);
  if (!std::strcmp(name, "absent")) {  // a pool thread begins when the first thread is through every stage
    std::atomic<bool> inside{false};
    const auto late = [&](Worker& worker) {
      if (worker.id == 1) inside = true, usleep(300000);
      if (worker.id == 0)
        while (!inside) usleep(100);
    };
    wrong = pass(late);
  }
  if (!std::strcmp(name, "busy")) {  // a thread is descheduled within an item: passes without the pool follow
    ThreadGroup group(THREADS);
    std::atomic<bool> helped{false};
    ThreadPool::run(group, [&](Worker& worker) {
      worker.share(2, [&](int64_t) {
        if (worker.id) helped = true, usleep(100000);
        while (!helped) usleep(100);
      });
    });
    std::atomic<int> others{0};
    wrong = pass([&](Worker& worker) { others += worker.id != 0; });
    wrong += others;
  }
  if (!std::strcmp(name, "forked")) {
    wrong = passes(2);
    const pid_t child = fork();
    if (!child) _exit(passes(5) != 0);
    int status = 1;
    waitpid(child, &status, 0);
    wrong += status != 0;
  }
  if (!std::strcmp(name, "callers")) {
    std::atomic<int> sum{0};
    std::thread other([&] { sum += passes(10); });
    sum += passes(10);
    other.join();
    wrong = sum;
  }
  if (!std::strcmp(name, "openmp")) {  // 1 where OpenMP's second thread ends
#pragma omp parallel num_threads(2)
    sched_yield();
    const int before = threads();
    end_busy_threads();
    for (int tries = 0; tries < 1000 && threads() == before; ++tries) usleep(1000);
    wrong = before - threads();
  }
  std::printf("%d", wrong);
  return wrong != 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    (folder / "pool.cpp").write_text(PROGRAM)
    flags = ["-fopenmp", *(flag for flag in FLAGS if flag not in ("-shared", "-fPIC"))]
    command = [*_compiler(), *flags, f"-I{SOURCE.parent}", str(folder / "pool.cpp"), "-o", str(folder / "pool")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "pool"


@pytest.mark.parametrize("case", ["present", "absent", "busy", "forked", "callers"])
def test_a_stage_ends_when_each_item_was_done_once(program, case):
    done = subprocess.run([str(program), case], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0")


@pytest.mark.parametrize(
    ("given", "ended"), [({}, "1"), ({"GOMP_SPINCOUNT": "100"}, "0"), ({"OMP_WAIT_POLICY": "passive"}, "0")]
)
def test_threads_of_openmp_end_unless_it_is_set_how_they_wait(program, given, ended):
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([program, "openmp"], env=others | given, capture_output=True, text=True, check=False)
    assert done.stdout == ended


def test_the_library_finds_the_threads_of_pytorch():
    """By the name alone, since it links to no OpenMP of its own."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 2)
        assert ctypes.CDLL(None).omp_get_max_threads() == before + 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bits", [4, 16, 32])
def test_more_threads_than_cores_change_no_bit(bits):
    """The system then deschedules threads at any place."""
    packed = packed_layers(bits, 2, 16)
    tree = Tree(torch.ones(2, 5, 5).tril().bool(), torch.tensor([3, 6]), 6)
    hidden, positions = torch.randn(2, 5, 288), torch.arange(6, 11).expand(2, 5)

    def run(threads):
        torch.set_num_threads(threads)
        cache, state = slots_for(packed, 2, 12), hidden.clone()
        cache.tensor.normal_(generator=torch.Generator().manual_seed(0))
        packed.run(state, positions, tree, cache)
        return torch.cat([state.flatten(), cache.tensor.flatten()])

    before = torch.get_num_threads()
    try:
        wanted = run(1)
        for _ in range(20):
            assert torch.equal(run(7), wanted)
    finally:
        torch.set_num_threads(before)
