"""Threads take over each other's items: none is left out, none is done twice, and an absent thread delays none."""

from __future__ import annotations

import subprocess

import pytest
import torch

from specframe.native.build import FLAGS, SOURCE, _compiler
from specframe.native.sight import Tree
from tests.native.layers import packed_layers, slots_for

PROGRAM = r"""
#include <cstdio>
#include <unistd.h>
#include "team.h"

constexpr int STAGES = 200;
std::atomic<int> times[STAGES][64];

int main(int, char** arguments) {
  const bool absent = arguments[1][0] == 'a';  // the last thread comes when the first has gone through every stage
  std::atomic<bool> over{false};
  std::atomic<int> early{0};
  omp_set_num_threads(4);
  Team team;
#pragma omp parallel
  {
    Worker worker(team);
    if (absent && worker.id == 3)
      while (!over) usleep(100);
    for (int stage = 0; stage < STAGES; ++stage) {
      const int count = stage % 64;
      worker.share(count, [&](int64_t item) {
        if (!absent && (stage + item) % 23 == 0) usleep(50);
        times[stage][item]++;
      });
      for (int item = 0; item < count; ++item) early += times[stage][item] != 1;
    }
    if (worker.id == 0) over = true;
  }
  std::printf("%d", early.load());
  return early != 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("team")
    (folder / "team.cpp").write_text(PROGRAM)
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    command = [*_compiler(), *flags, f"-I{SOURCE.parent}", str(folder / "team.cpp"), "-o", str(folder / "team")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "team"


@pytest.mark.parametrize("case", ["present", "absent"])
def test_a_stage_ends_when_each_item_was_done_once_without_an_absent_thread(program, case):
    done = subprocess.run([str(program), case], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0")


@pytest.mark.parametrize("bits", [4, 16, 32])
def test_more_threads_than_cores_change_no_bit(bits):
    """The system puts threads aside at any place then."""
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
