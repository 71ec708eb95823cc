"""The global generators while training: seeded anew at every step, given back afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from specframe.training.schedule import mix


def seed(number: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds Python, numpy and torch for one step of one process.

    So a step's draws depend on no earlier step, and a resumed run continues exactly as an uninterrupted one, with no
    generator state to save.
    """
    mixed = mix(number, step, rank) % 2**32
    random.seed(mixed)
    np.random.seed(mixed)
    torch.default_generator.manual_seed(mixed)  # torch.manual_seed takes milliseconds where CUDA is absent
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(mixed)


@contextmanager
def borrowed(device: torch.device) -> Iterator[None]:
    """Puts the generators back as they were at the end of the with block."""
    python, numbers = random.getstate(), np.random.get_state()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
