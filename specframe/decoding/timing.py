"""Times the forward passes of target and drafter from outside: neither part knows of the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from specframe.components.trees.recording import WatchedTree, watched
from specframe.decoding.clock import Clock
from specframe.decoding.session import Parts
from specframe.kernel.interfaces import text_of
from specframe.kernel.types import BeamSearch, Expand, Frontier, Proposal, SearchBeam, TokenTree

FORWARDS = {"score": "target", "draft": "drafter", "commit": "drafter"}
"""Model to which a forward pass of the target is charged, by phase: some of its layers may draft."""


@contextmanager
def watch(parts: Parts, clock: Clock) -> Iterator[Parts]:
    """The parts, with every forward of target and drafter booked on the clock while the context lasts.

    Work of the target's layers for a draft is charged to the drafter, work for its verification to the target.
    """

    def timed(expand: Expand) -> Expand:
        def run(frontier: Frontier) -> Proposal:
            with clock.phase("drafter"):
                return expand(frontier)

        return run

    def timed_whole(search: SearchBeam) -> SearchBeam:
        def run(plan: BeamSearch, root: Tensor) -> tuple[TokenTree, int]:
            with clock.phase("drafter"):
                tree, passes = search(plan, root)
            clock.calls["drafter"] += passes - 1
            return tree, passes

        return run

    tree = WatchedTree(parts.tree, timed, timed_whole) if parts.tree is not None else None
    drafter = watched(parts.drafter, timed, timed_whole)
    computing = text_of(parts.target).computing
    hooks = _time_forwards(computing, clock) if computing is not None else []
    try:
        yield replace(parts, tree=tree, drafter=drafter)
    finally:
        for hook in hooks:
            hook.remove()


def _time_forwards(computing: nn.Module, clock: Clock) -> list[Any]:
    spans: list[AbstractContextManager[Any]] = []

    def before(module: nn.Module, inputs: Any) -> None:
        name = FORWARDS.get(clock.running or "")
        spans.append(nullcontext() if name is None else clock.phase(name))
        spans[-1].__enter__()

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        spans.pop().__exit__(None, None, None)
        if clock.running == "score":  # above a draft's layers it runs in two parts, which are one forward pass
            clock.calls["target"] = clock.calls["score"] + 1

    return [computing.register_forward_pre_hook(before), computing.register_forward_hook(after, always_call=True)]
