"""Weights that the forwards of a composition read, for CORAL's estimate of its speedup (Weng et al. 2025, Eq. 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specframe.decoding.clock import Clock
from specframe.decoding.pipeline import Pipeline
from specframe.kernel.interfaces import text_of

CYCLES = 2
"""Number of cycles watched: one may read what later ones don't, the prompt's drafts for instance."""
aten: Any = torch.ops.aten
FLAT = {aten.mm, aten.addmm, aten.mv, aten.addmv}
VECTORS = {aten.mv, aten.addmv}
"""Products with a vector, which name the matrix first."""
STACKED = {aten.bmm, aten.baddbmm, aten._grouped_mm}
FORWARDS = {"target": "score", "drafter": "drafter"}
"""Phase that takes as long as a model's forward, by model: a verification may run in two parts."""


def weigh(pipeline: Pipeline, row: Sequence[int]) -> dict[str, int]:
    """`target` and `drafter`: how many parameters stand in the matrices that one forward of each multiplies by.

    Each counts once a forward, however often that reads it (an LSTM does at every step), and of a mixture the
    experts that got tokens; a mean over the forwards of the first cycles after a prompt. An embedding is looked
    up, not multiplied by, so it is out. An LM head is in, and it counts for a drafter that uses the target's,
    too: its forward reads that head from memory once more. A model without forwards has 0.
    """
    clock = Clock()
    requests = pipeline.requests([row], seed=0)
    parameters = {_storage(parameter) for parameter in _parameters(pipeline)}
    with Scale(clock, parameters) as scale, pipeline.open(requests, clock=clock) as session:
        session.admit(requests)
        for _ in range(CYCLES):
            if session.live:
                session.step()
    return {model: round(scale.read[model] / (clock.calls[model] or 1)) for model in ("target", "drafter")}


class Scale(TorchDispatchMode):
    """Counts in `read`, inside the with block, the weights that the products of a model's forwards read.

    A weight is an operand of a product that is a parameter or part of one, or a right-hand matrix that existed before
    the product: the rows of an LM head that a drafter has copied. Products of activations, and products with keys and
    values, are not counted.
    """

    def __init__(self, clock: Clock, parameters: set[int]) -> None:
        super().__init__()
        self.read: Counter[str] = Counter()
        self._clock = clock
        self._parameters = parameters
        self._made: set[int] = set()  # the storages of tensors computed since
        self._seen: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = func.overloadpacket
        if kind not in FLAT | STACKED:
            with self:  # in inference mode `linear` and its like arrive whole
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        output = func(*args, **kwargs)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if kind in FLAT | STACKED:
            last = given[-2] if kind in VECTORS else given[-1]  # the matrix that comes second in x W
            for operand in given:
                known = _storage(operand) in self._parameters
                copied = operand is last and _storage(operand) not in self._made
                if operand.dim() > 1 and (known or copied):
                    self._note(operand, args[2] if kind is aten._grouped_mm else None)
        places = {_storage(each) for each in given}
        fresh = {_storage(each) for each in tree_leaves(output) if isinstance(each, Tensor)}
        self._made |= fresh - places
        return output

    def _note(self, weight: Tensor, groups: Tensor | None) -> None:
        """Counts a weight that is read, once a forward; `groups` are the ends of its experts' tokens [E]."""
        model = self._clock.running
        if model not in FORWARDS:
            return
        count = prod(size for size, stride in zip(weight.shape, weight.stride(), strict=True) if stride)
        if groups is not None:
            count = count // len(groups) * (len({0, *groups.tolist()}) - 1)
        which = (model, self._clock.calls[FORWARDS[model]], _storage(weight), weight.storage_offset(), count)
        if which not in self._seen:
            self._seen.add(which)
            self.read[model] += count


def _parameters(pipeline: Pipeline) -> Iterator[nn.Parameter]:
    """The parameters of target and drafter, where they have modules to ask."""
    modules = (text_of(pipeline.parts.target).model, getattr(pipeline.parts.drafter, "module", None))
    for module in modules:
        if isinstance(module, nn.Module):
            yield from module.parameters()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
