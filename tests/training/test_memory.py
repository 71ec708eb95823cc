"""Memory that a step frees, kept for the next one."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from specframe.training.processes import keep_freed

if sys.argv[1] == "kept" and not keep_freed():
    sys.exit(3)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.zeros(50_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(faults())
"""


def faults(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=False)
    if run.returncode == 3:
        pytest.skip("another C library than glibc")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_large_tensors_are_not_mapped_anew() -> None:
    assert faults("kept") < 0.5 * faults("mapped")
