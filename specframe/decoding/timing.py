"""Observes forward passes from outside: their times, and whether a drafter's logits are numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.trees.recording import WatchedTree, WrapExpand, WrapSearch, watched
from specframe.decoding.clock import Clock
from specframe.decoding.session import Parts
from specframe.kernel.interfaces import text_of
from specframe.kernel.types import BeamSearch, Cycle, Expand, Frontier, Proposal, SearchBeam, TokenTree

FORWARDS = {"score": "target", "draft": "drafter", "commit": "drafter"}
"""Model to which a forward pass of the target is charged, by phase: some of its layers may draft."""


log = logging.getLogger(__name__)

IDLE = 4
"""Cycles without an accepted draft after which the logits are checked again; doubled each time."""
SHALLOW = 16
"""Cycles without an accepted second level after which they are checked: only the first level may be numbers."""


@contextmanager
def watch(parts: Parts, clock: Clock, numbers: DraftNumbers | None = None) -> Iterator[Parts]:
    """The parts, with every forward pass of target and drafter timed on the clock within the context.

    Work of the target's layers for a draft counts as the drafter's, work for its verification as the target's. The
    drafter's proposals are also passed to `numbers`.
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

    def wrap(expand: Expand) -> Expand:
        return timed(expand) if numbers is None else numbers.expand(timed(expand))

    def wrap_whole(search: SearchBeam) -> SearchBeam | None:
        return timed_whole(search) if numbers is None else numbers.search(timed_whole(search))

    computing = text_of(parts.target).computing
    hooks = _time_forwards(computing, clock) if computing is not None else []
    try:
        yield wrapped(parts, wrap, wrap_whole)
    finally:
        for hook in hooks:
            hook.remove()


def wrapped(parts: Parts, wrap: WrapExpand, wrap_search: WrapSearch) -> Parts:
    """The parts, with the drafter's forward passes wrapped by `wrap`, and its whole searches by `wrap_search`."""
    tree = WatchedTree(parts.tree, wrap, wrap_search) if parts.tree is not None else None
    return replace(parts, tree=tree, drafter=watched(parts.drafter, wrap, wrap_search))


def _time_forwards(computing: nn.Module, clock: Clock) -> list[Any]:
    spans: list[AbstractContextManager[Any]] = []

    def before(module: nn.Module, inputs: Any) -> None:
        name = FORWARDS.get(clock.running or "")
        spans.append(nullcontext() if name is None else clock.phase(name))
        spans[-1].__enter__()

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        spans.pop().__exit__(None, None, None)
        if clock.running == "score":  # a pass that goes on from a draft's layers runs in two parts, which count as one
            clock.calls["target"] = clock.calls["score"] + 1

    return [computing.register_forward_pre_hook(before), computing.register_forward_hook(after, always_call=True)]


class DraftNumbers:
    """Warns once of a drafter whose logits are not numbers.

    It checks the logits of the very first draft, and again in sessions whose drafts are never accepted. The host reads
    the result at the end of the cycle, when it has waited for the verdict anyway. A draft that is checked is expanded
    level by level instead of in one native call; the draft is the same.
    """

    def __init__(self) -> None:
        self._looking = True
        self._warned = False
        self._found: list[Tensor] = []
        self.open("")

    def open(self, drafter: str) -> None:
        """Starts counting the cycles of a session, whose drafter has this name."""
        self._drafter = drafter
        self._cycles = 0
        self._lacking = [0, 0]  # cycles in a row without an accepted first, and second, level
        self._patience = [IDLE, SHALLOW]
        self._found.clear()

    def expand(self, expand: Expand) -> Expand:
        """The drafter's forward pass, with a check of its logits when one is due."""
        return self._looked_at(expand) if self._looking else expand

    def search(self, search: SearchBeam) -> SearchBeam | None:
        """The drafter's own search; None while its logits are to be checked."""
        return None if self._looking else search

    def see(self, cycle: Cycle) -> None:
        """Counts a cycle, and warns if the logits of its draft were not numbers."""
        if self._warned or cycle.committed.prompt is not None:
            return
        self._cycles += 1
        if self._found:
            level = min(found.item() for found in self._found)
            self._found.clear()
            self._looking = False
            if level < inf:
                self._warned = True
                log.warning(
                    "drafter %s: its logits are not numbers from level %d of the draft on, in cycle %d: its weights "
                    "are NaN or infinite, or its values overflow, as they do in float16; such drafts cost time and "
                    "are not accepted",
                    self._drafter,
                    level,
                    self._cycles,
                )
                return
        longest = max(map(len, cycle.verdict.to_host(cycle.draft).paths), default=0)
        for place, levels in enumerate((1, 2)):
            missed = cycle.draft.levels >= levels > longest
            self._lacking[place] = self._lacking[place] + 1 if missed else 0
            if self._lacking[place] >= self._patience[place]:
                self._looking = True
                self._lacking[place] = 0
                self._patience[place] *= 2

    def before(self, watch: Callable[[Cycle], None] | None) -> Callable[[Cycle], None]:
        """A function of cycles that calls `see` and then `watch`."""
        if watch is None:
            return self.see

        def both(cycle: Cycle) -> None:
            self.see(cycle)
            watch(cycle)

        return both

    def _looked_at(self, expand: Expand) -> Expand:
        def run(frontier: Frontier) -> Proposal:
            proposal = expand(frontier)
            self._found.append(_first_fault(frontier, proposal.logits))
            return proposal

        return run


def _first_fault(frontier: Frontier, logits: Tensor) -> Tensor:
    """The first level with a logit that is NaN or +inf below a valid node; inf if there is none.

    logits [B, F, K, v] are those of the next K levels below the frontier's nodes.
    """
    largest = logits.detach().amax(-1)  # [B, F, K]; NaN where one is
    tree, nodes = frontier.tree, frontier.nodes
    offsets = torch.arange(1, largest.shape[2] + 1, device=largest.device)
    level = tree.depth.gather(1, nodes)[..., None] + offsets
    fault = (largest.isnan() | (largest == inf)) & tree.valid.gather(1, nodes)[..., None]
    return torch.where(fault, level.float(), inf).amin()
