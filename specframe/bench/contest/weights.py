"""Weights read by a composition's forward passes, for CORAL's speedup estimate (Weng et al. 2025, Eq. 6)."""

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
"""Number of observed cycles, as single cycles may differ, for example the first one after a prompt."""
aten: Any = torch.ops.aten
FLAT = {aten.mm, aten.addmm, aten.mv, aten.addmv}
VECTORS = {aten.mv, aten.addmv}
"""Products with a vector, which name the matrix first."""
STACKED = {aten.bmm, aten.baddbmm, aten._grouped_mm}
FORWARDS = {"target": "score", "drafter": "drafter"}
"""Phase of a forward pass by model; a verification may run in two parts."""


def weigh(pipeline: Pipeline, row: Sequence[int]) -> dict[str, int]:
    """`target` and `drafter`: the number of matrix parameters that one forward pass of each multiplies by.

    Each matrix counts once per forward pass, even if it is read repeatedly (by an LSTM in every step), and of a
    mixture only the experts with tokens; a mean over the forward passes of the first cycles after a prompt.
    Embeddings are looked up, so they do not count. LM heads do, and also for a drafter that uses the target's, as
    its forward pass reads that head from memory again. 0 for a model without forward passes.
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
        """Counts a weight once per forward pass; `groups` are the ends of its experts' tokens [E]."""
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
    """Yields the parameters of target and drafter, if they have modules."""
    modules = (text_of(pipeline.parts.target).model, getattr(pipeline.parts.drafter, "module", None))
    for module in modules:
        if isinstance(module, nn.Module):
            yield from module.parameters()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
