"""In a greedy cycle the host waits for the device once: for the verdict."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.components.targets.forward.compiled import CompiledForward
from specframe.components.targets.hf import HFTarget
from tests.decoding.fake_device import FakeDevice
from tests.small_model import make_model

PROMPTS = [[5, 6, 7, 8, 5, 6], [11, 12, 13], [9] * 7]
VERDICT = "greedy.py:follow_argmax tolist"
AT_HOME = "network.py:inputs cpu"
"""The lengths that Falcon's LSTM packs are made on the host: the fake device cannot know."""


def looks(target, drafter, tree, cycles: int = 4) -> list[list[str]]:
    """The host's looks in each of some cycles of three rows, of which none ends, but the first.

    There the first forward pass of a shape is compiled, and compared with the model's own.
    """
    sampling = {"temperature": 0.0, "max_new_tokens": 100, "ignore_eos": True}
    parts = {"drafter": drafter} if tree is None else {"drafter": drafter, "tree": tree}
    pipeline = specframe.compose(target=target, sampling=sampling, run={"batch": 3}, **parts)
    requests = pipeline.requests(PROMPTS, seed=0)
    found = []
    with pipeline.open(requests, slots=3) as session:
        session.admit(requests)
        for _ in range(cycles):
            with FakeDevice() as device:
                session.step()
            found.append(device.looks)
    return found[1:]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [
        ({"use": "none"}, None),
        ({"use": "falcon", "block": 2}, {"use": "dynamic", "depth": 4, "width": 3, "nodes": 8}),
        ({"use": "eagle"}, {"use": "chain", "depth": 3}),
        ({"use": "medusa", "heads": 3}, {"use": "fixed", "widths": [2, 2, 1]}),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_verdict_alone_is_copied_to_the_host(drafter, tree, compiled):
    target = HFTarget.from_model(make_model())
    if compiled:
        target.computing.inner = CompiledForward(target.parts.eager, target.dtype, "eager")
    for cycle in looks(target, drafter, tree):
        assert [look for look in cycle if look != AT_HOME] == [VERDICT]


def test_a_look_of_a_drafter_is_found():
    """Drafters that keep their memory on the host do look: the test above can fail."""
    for cycle in looks(HFTarget.from_model(make_model()), {"use": "recycling", "nodes": 6}, None):
        assert len(cycle) > 1


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: bool(x[0] > 2),
        lambda x: x[x > 1],
        lambda x: (x > 1).nonzero(),
        lambda x: x[x.argmax()],
        lambda x: list(range(x.max())),
        lambda x: torch.tensor([1], device=x.device),
    ],
)
def test_the_fake_device_finds(look):
    with FakeDevice() as device:
        assert not torch.arange(3).is_cpu and not device.looks
        look(torch.arange(3))
    assert len(device.looks) >= 1
