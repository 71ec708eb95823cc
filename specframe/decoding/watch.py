"""Times the forwards of target and drafter from outside: neither knows that it is watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from specframe.decoding.clock import Clock
from specframe.decoding.loop import Parts
from specframe.kernel.interfaces import Observer, RandomSource, Sampling, TreePolicy
from specframe.kernel.types import Expand, Frontier, Proposal, TokenTree


class TimedTree:
    """A tree policy whose calls of the drafter's forward are timed."""

    def __init__(self, policy: TreePolicy, clock: Clock) -> None:
        self.policy = policy
        self.clock = clock
        self.draws, self.exact, self.nodes = policy.draws, policy.exact, policy.nodes
        if isinstance(policy, Observer):  # then so is this
            self.begin, self.hear, self.keep = policy.begin, policy.hear, policy.keep

    def grow(self, expand: Expand, root: Tensor, sampling: Sampling, random: RandomSource) -> TokenTree:
        """The policy's tree."""

        def timed(frontier: Frontier) -> Proposal:
            with self.clock.phase("drafter"):
                return expand(frontier)

        return self.policy.grow(timed, root, sampling, random)


@contextmanager
def watch(parts: Parts, clock: Clock) -> Iterator[Parts]:
    """The parts, with every forward of target and drafter booked on the clock while the context lasts."""
    tree = TimedTree(parts.tree, clock) if parts.tree is not None else None
    model = getattr(parts.target, "model", None)
    hooks = _time_forwards(model, clock) if isinstance(model, nn.Module) else []
    try:
        yield replace(parts, tree=tree)
    finally:
        for hook in hooks:
            hook.remove()


def _time_forwards(model: nn.Module, clock: Clock) -> list[Any]:
    start: Any = None

    def before(module: nn.Module, inputs: Any) -> None:
        nonlocal start
        if clock.running == "score":
            start = clock.stamp()

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if clock.running == "score":
            clock.book("target", start)

    return [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
