"""Times the forward passes of target and drafter from outside: neither part knows of the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from specframe.components.drafters.fused import Fused
from specframe.components.trees.watched import WatchedTree
from specframe.decoding.clock import Clock
from specframe.decoding.session import Parts
from specframe.kernel.types import Expand, Frontier, Proposal


@contextmanager
def watch(parts: Parts, clock: Clock) -> Iterator[Parts]:
    """The parts, with every forward of target and drafter booked on the clock while the context lasts."""

    def timed(expand: Expand) -> Expand:
        def run(frontier: Frontier) -> Proposal:
            with clock.phase("drafter"):
                return expand(frontier)

        return run

    tree = WatchedTree(parts.tree, timed) if parts.tree is not None else None
    drafter = parts.drafter.watched(timed) if isinstance(parts.drafter, Fused) else parts.drafter
    computing = getattr(parts.target, "computing", None)
    hooks = _time_forwards(computing, clock) if isinstance(computing, nn.Module) else []
    try:
        yield replace(parts, tree=tree, drafter=drafter)
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
