"""Drafts by the target's own layers: what of its forward passes is the drafter's time, and what the target's."""

from __future__ import annotations

import pytest

import specframe
from specframe.bench.contest.weights import weigh
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.decoding.clock import Clock, DeviceTimer
from specframe_report.prediction import predicted_speedup_by_weights
from tests.bench.test_bench_clock import Device

LAYERS, DEPTH = 4, 3
CHAIN = {"use": "chain", "depth": DEPTH}


class Timed:
    """Decodes two prompts with a target of which every layer's attention takes a simulated millisecond a node."""

    def __init__(self, drafter, tree=None, layers=LAYERS):
        self.model = random_model(vocab=11, layers=layers, seed=1)
        self.pipeline = specframe.compose(
            target=HFTarget.from_model(self.model),
            drafter=drafter,
            tree=tree,
            sampling={"temperature": 0.0, "max_new_tokens": 12, "ignore_eos": True},
            run={"batch": 2},
        )
        self.pipeline.generate([[1, 2, 3]])  # the LM head's rule is found by two forward passes, once

    def decode(self):
        device = Device()
        clock = Clock(DeviceTimer(device.event))

        def work(module, inputs, named, output):
            device.work(named["hidden_states"].shape[1])

        hooks = [layer.self_attn.register_forward_hook(work, with_kwargs=True) for layer in self.model.model.layers]
        try:
            requests = self.pipeline.requests([[1, 2, 3], [4, 5]], seed=0)
            with clock.phase("session"), self.pipeline.open(requests, slots=2, clock=clock) as session:
                session.run(requests)
        finally:
            for hook in hooks:
                hook.remove()
        clock.settle()
        return clock


def milliseconds(clock, name):
    return round(1000 * clock.seconds[name])


@pytest.mark.parametrize(
    ("options", "whole", "drafting"),
    [
        ({"exit": 2}, 2, 2),
        ({"skip": [2]}, 2, 3),
        ({"skip": {"mlp": [1]}}, 1, 4),
        ({"skip": {"attention": [1]}}, 1, 3),  # a layer's MLP alone is free here
        ({"skip": [0]}, 0, 3),
    ],
)
def test_layers_that_draft_are_the_drafters_time_and_those_that_verify_the_targets(options, whole, drafting):
    clock = Timed({"use": "self", **options}, CHAIN).decode()
    cycles = clock.calls["score"]
    assert cycles > 1
    assert clock.calls["target"] == cycles, "the two parts of a verification are one forward pass"
    assert clock.calls["drafter"] == DEPTH * cycles
    assert milliseconds(clock, "drafter") == drafting * DEPTH * cycles
    nodes = 1 + DEPTH
    above = (LAYERS - whole) * nodes
    below = whole if whole else 0  # over the leaf alone, which nothing was drafted from
    assert milliseconds(clock, "target") == (above + below) * cycles
    assert clock.overhead == pytest.approx(0), "all that takes time is a forward pass of one of the two"


@pytest.mark.parametrize("drafter", [{"use": "del", "stopping": False}, {"use": "del"}])
def test_a_drafter_that_builds_its_own_tree_is_timed(drafter):
    timed = Timed(drafter)
    timed.pipeline.parts.drafter._guess = 0.9  # it drafts from the first cycle on
    choices = timed.pipeline.parts.drafter.choices
    choices.clear()
    clock = timed.decode()
    assert clock.calls["target"] == clock.calls["score"] == choices.total()
    if not drafter.get("stopping", True):
        assert clock.calls["drafter"] == sum(depth * count for (_, depth), count in choices.items()) > 0
        wanted = sum(exit * depth * count for (exit, depth), count in choices.items())
        assert milliseconds(clock, "drafter") == wanted
    assert clock.seconds["drafter"] > 0
    assert clock.overhead == pytest.approx(0)


def test_layers_that_a_search_runs_are_the_drafters_time():
    """Between a commit and the next draft `swift` runs sets of layers over the text."""
    clock = Timed({"use": "swift", "window": 4}, CHAIN, layers=6).decode()
    searched = clock.calls["drafter"] - DEPTH * clock.calls["score"]
    assert searched > 0
    assert clock.calls["target"] == clock.calls["score"]
    assert clock.overhead == pytest.approx(0)


def test_a_fused_drafter_of_own_layers_is_timed():
    first = {"use": "del", "stopping": False}
    timed = Timed({"use": "fused", "first": first, "second": {"use": "suffix"}})
    timed.pipeline.parts.drafter.first._guess = 0.9
    clock = timed.decode()
    assert clock.calls["drafter"] > 0
    assert clock.overhead == pytest.approx(0)


@pytest.mark.parametrize("exit", [1, 2])
def test_native_passes_are_booked_in_both_parts(exit):
    target = HFTarget.from_model(random_model(vocab=32, size=64, layers=3, seed=1).float())
    target._take_native()
    pipeline = specframe.compose(
        target=target,
        drafter={"use": "self", "exit": exit},
        tree=CHAIN,
        sampling={"temperature": 0.0, "max_new_tokens": 9, "ignore_eos": True},
    )
    result = pipeline.generate([[1, 2, 3]])
    clock = result.clock
    assert clock.calls["target"] == clock.calls["score"]
    assert clock.calls["drafter"] == DEPTH * clock.calls["score"]
    assert 0 < clock.seconds["target"] < clock.seconds["score"]


def test_weights_are_those_of_both_parts_of_a_verification():
    pipeline = Timed({"use": "self", "exit": 2}, CHAIN).pipeline
    model = pipeline.parts.target.model
    layer, head = (
        sum(p.numel() for p in part.parameters() if p.dim() > 1) for part in (model.model.layers[0], model.lm_head)
    )
    found = weigh(pipeline, [1, 2, 3])
    assert found == {"target": LAYERS * layer + head, "drafter": 2 * layer + head}
    assert (
        predicted_speedup_by_weights(2, target_weights=found["target"], drafter_weights=found["drafter"], steps=1) > 0
    )


def test_a_failed_forward_pass_leaves_the_clock_as_it_was():
    timed = Timed({"use": "self", "exit": 2}, CHAIN)

    def fail(module, inputs):
        raise RuntimeError("out of memory")

    hook = timed.model.model.layers[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        timed.decode()
    hook.remove()
    assert timed.decode().overhead == pytest.approx(0)
    assert not timed.pipeline.parts.target.computing._forward_hooks


def test_nothing_is_booked_outside_cycles():
    timed = Timed({"use": "none"})
    clock = timed.decode()
    assert clock.calls["drafter"] == 0
    assert clock.calls["target"] == clock.calls["score"]
    assert milliseconds(clock, "target") == LAYERS * clock.calls["score"]
    assert milliseconds(clock, "prefill") == LAYERS * 3
