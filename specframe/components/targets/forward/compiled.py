"""transformers' forward passes over trees, compiled for a few shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from specframe.components.targets.forward.passes import Found
from specframe.components.targets.forward.state import State
from specframe.components.targets.forward.static import StaticStep, padded, power, width_of
from specframe.components.targets.forward.taps import Taps
from specframe.components.targets.forward.transformers import ModelPasses
from specframe.components.targets.rounding import agree
from specframe.components.targets.source import first_line
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree

log = logging.getLogger(__name__)
SHAPES = 64
"""Largest number of shapes of a model's forward pass that are compiled; further ones run as they are."""


class Steps:
    """The compiled forward passes of a model, which are made when they are first needed."""

    def __init__(self, passes: ModelPasses, dtype: torch.dtype, backend: str = "inductor") -> None:
        self.refused = False
        """True if the model could not be compiled, or computed something else then."""
        self._passes = passes
        self._dtype = dtype
        self._backend = backend
        self._steps: dict[frozenset[str], Callable[..., tuple[Tensor, ...]]] = {}
        self._checked: set[tuple[object, ...]] = set()

    def run(
        self, taps: Taps, inputs: tuple[Tensor, ...], planes: list[Tensor], eager: Callable[[], Found]
    ) -> Found | None:
        """Runs a step, with padding; returns None, with a warning, if it cannot be compiled or differs from `eager`.

        `eager` returns the expected output, without padding, and is called only for the first step of a shape.
        """
        shape = (taps.wanted, *planes[0].shape, *inputs[0].shape)
        if shape in self._checked:
            return self._call(taps, inputs, planes)
        if len(self._checked) == SHAPES:
            return None
        wanted = eager()[0]
        batch, count = wanted.shape[:2]
        width, (rows, nodes) = planes[0].shape[2], inputs[0].shape
        log.warning("compile: a forward pass over %d x %d nodes in %d positions ..", rows, nodes, width)
        most = 8 * SHAPES  # of all models in this process
        try:
            with torch._dynamo.config.patch(recompile_limit=most, accumulated_recompile_limit=most):
                found = self._call(taps, inputs, planes)
        except Exception as error:  # of many kinds: a graph that breaks, no compiler, a disk that is full
            self._refuse(f"cannot be compiled ({type(error).__name__}: {first_line(error)})")
            return None
        if not agree(found[0][:batch, :count], wanted):
            self._refuse("computes something else when it is compiled")
            return None
        self._checked.add(shape)
        return found

    def _call(self, taps: Taps, inputs: tuple[Tensor, ...], planes: list[Tensor]) -> Found:
        graphs = inputs[0].device.type == "cuda" and self._backend == "inductor"
        if taps.wanted not in self._steps:
            step = StaticStep(self._passes.model, taps, self._passes.views, self._dtype)
            mode = "reduce-overhead" if graphs else None
            self._steps[taps.wanted] = torch.compile(
                step, dynamic=False, fullgraph=True, backend=self._backend, mode=mode
            )
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        logits, *features = self._steps[taps.wanted](*inputs, *planes)
        if graphs:  # the next replay overwrites a graph's outputs
            logits, features = logits.clone(), [values.clone() for values in features]
        return logits, dict(zip(sorted(taps.wanted), features, strict=True))

    def _refuse(self, why: str) -> None:
        log.warning("compile: the model %s, so its forward pass is transformers' own", why)
        self.refused = True


class CompiledPasses:
    """Forward passes over trees by torch.compile; prompts, and some of the layers alone, as transformers has them.

    Rows and nodes are padded to powers of two, and the positions that a node may see are storage in powers of two.
    """

    widths: Callable[[int], int] | None = staticmethod(width_of)

    def __init__(self, eager: ModelPasses, steps: Steps) -> None:
        self.computing = eager.computing
        self.masked = eager.masked
        self.head = eager.head
        self._eager = eager
        self._steps = steps

    def around(self, taps: Taps) -> CompiledPasses:
        """The same with other taps; compiled code is shared."""
        return CompiledPasses(self._eager.around(taps), self._steps)

    def read(self, tokens: Tensor, state: State, last: Tensor, start: int = 0) -> Found:
        """Reads prompts with transformers' own forward: every prompt has another length."""
        return self._eager.read(tokens, state, last, start)

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Scores a tree."""
        found: Found = self.computing(lambda: self._score(tree, state, positions))
        return found

    def below(
        self, tree: TokenTree, nodes: Tensor, state: State, positions: Tensor, chosen: LayerChoice
    ) -> Mapping[str, Tensor]:
        """Runs some layers over nodes of a tree."""
        return self._eager.below(tree, nodes, state, positions, chosen)

    def above(self, tree: TokenTree, state: State, positions: Tensor, entry: Tensor, chosen: LayerChoice) -> Found:
        """Runs the last layers over a tree."""
        return self._eager.above(tree, state, positions, entry, chosen)

    def _score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Scores a tree, compiled where possible and where no dispatch mode needs to see every operator."""
        eager = self._steps.refused or _get_current_dispatch_mode() is not None
        found = None if eager else self._run(tree, state, positions)
        return self._eager.score(tree, state, positions) if found is None else found

    def _run(self, tree: TokenTree, state: State, positions: Tensor) -> Found | None:
        (batch, count), slots = tree.tokens.shape, state.cache.rows or 1
        rows, nodes = min(power(batch), slots), power(count)
        if state.ahead and batch < rows == slots:
            return None  # the last row is no padding: it holds the part of a prompt read ahead
        state.cache.grow(width_of(state.base + nodes))
        with torch.inference_mode():  # always, so that no shape is compiled twice
            planes = state.cache.planes(rows)
            inputs = padded(tree, state, positions, rows, nodes)
            found = self._steps.run(self._eager.taps, inputs, planes, lambda: self._eager.score(tree, state, positions))
        if found is None:
            return None
        logits, features = found
        return logits[:batch, :count], {tap: values[:batch, :count] for tap, values in features.items()}
