import time
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from specframe.components.drafters.fused import Fused
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.suffix import Suffix
from specframe.components.trees.fixed import Chain
from specframe.decoding.clock import Clock, DeviceTimer
from specframe.decoding.timing import watch
from specframe.kernel.capabilities import Promise
from specframe.kernel.types import Proposal, TokenTree
from tests.components.sessions import CONTEXT


class Device:
    """A device whose work takes simulated milliseconds after it was queued, and the events on its queue."""

    def __init__(self):
        self.queued = 0.0  # when all that is queued will be done
        self.waits = []
        self.events = 0

    def work(self, milliseconds):
        self.queued += milliseconds

    def event(self):
        self.events += 1
        return Event(self)


@dataclass
class Event:
    device: Device
    time: float | None = None

    def record(self, stream):
        self.time = self.device.queued

    def synchronize(self):
        self.device.waits.append(self.time)

    def elapsed_time(self, end_event):
        assert self.device.waits and self.device.waits[-1] >= end_event.time, "read before the device got there"
        return end_event.time - self.time


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def clock(device):
    return Clock(DeviceTimer(device.event))


def cycle(clock, device):
    with clock.phase("draft"):
        device.work(10)
        with clock.phase("drafter"):
            device.work(30)
    with clock.phase("score"):
        device.work(100)


def test_phases_take_the_devices_time_not_that_of_the_launch(device, clock):
    with clock.phase("session"):
        cycle(clock, device)
    clock.settle()
    assert dict(clock.seconds) == pytest.approx({"draft": 0.04, "drafter": 0.03, "score": 0.1, "session": 0.14})
    assert clock.running is None


def test_a_cycle_waits_once_and_uses_its_events_again(device, clock):
    for _ in range(5):
        cycle(clock, device)
        clock.settle()
    assert len(device.waits) == 5
    assert device.waits == [140, 280, 420, 560, 700]  # each for the end of its cycle
    assert device.events == 6
    assert clock.seconds["score"] == pytest.approx(0.5)
    assert clock.calls["score"] == 5


def test_settling_twice_books_once(device, clock):
    cycle(clock, device)
    clock.settle()
    clock.settle()
    assert clock.seconds["score"] == pytest.approx(0.1) and len(device.waits) == 1


def test_a_stretch_that_is_running_is_booked_when_it_ends(device, clock):
    with clock.phase("session"):
        cycle(clock, device)
        clock.settle()
        assert "session" not in clock.seconds
        cycle(clock, device)
    clock.settle()
    assert clock.seconds["session"] == pytest.approx(0.28)


def test_without_a_device_the_clock_is_the_hosts():
    clock = Clock.on(torch.device("cpu"))
    began = time.perf_counter()
    with clock.phase("score"):
        time.sleep(0.01)
    assert 0.01 <= clock.seconds["score"] <= time.perf_counter() - began
    clock.settle()
    assert clock.calls["score"] == 1


class Model(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.queue = device

    def forward(self):
        self.queue.work(7)


class Policy:
    promise = Promise(frozenset(), 1)

    def grow(self, expand, root, context):
        expand(None)
        return TokenTree.root_only(root)


@dataclass
class Target:
    computing: nn.Module


@dataclass(frozen=True)
class Around:
    target: Target
    tree: Policy | None
    drafter: object = None


def test_forwards_are_timed_on_the_device_too():
    device = Device()
    clock = Clock(DeviceTimer(device.event))
    model = Model(device)

    def expand(frontier):
        device.work(3)
        return Proposal(torch.zeros(1, 1, 1, 2))

    with watch(Around(Target(model), Policy()), clock) as parts:
        model()  # in no phase of scoring: the prefill's, not booked
        parts.tree.grow(expand, torch.zeros(1, dtype=torch.int64), CONTEXT)
        with clock.phase("score"):
            model()
    clock.settle()
    assert clock.seconds["target"] == pytest.approx(0.007) and clock.calls["target"] == 1
    assert clock.seconds["drafter"] == pytest.approx(0.003) and clock.calls["drafter"] == 1
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_a_fused_drafters_forwards_are_timed_though_it_grows_its_own_tree():
    model = ModelDrafter(model="unused")
    fused = Fused(first=Fused(first=model, second=Suffix(), tree=Chain(depth=2)), second=Suffix())
    clock, asked = Clock(), []

    def expand(frontier):
        asked.append(frontier)
        return Proposal(torch.zeros(1, 1, 1, 2))

    with watch(Around(Target(nn.Identity()), None, fused), clock) as parts:
        assert parts.drafter.first.first is model and parts.drafter.second is fused.second
        parts.drafter.first.tree.grow(expand, torch.zeros(1, dtype=torch.int64), CONTEXT)
    assert len(asked) == clock.calls["drafter"] == 2
