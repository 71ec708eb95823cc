"""Scans of recurrent layers over texts and trees: Mamba-2 with an ancestor mask, other recurrences along tree paths.

STree (arXiv 2505.14969) writes Mamba-2's recurrence over a tree as one product. With S the sum of dt A from the root to
a node, L_ij = exp(S_i - S_j) for j on the path to i, and H0 the state before the root: y = (L o C B^T)(dt x) + exp(S) C
H0 + D x. Only the inputs are stored per node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from specframe.native.visibility import Causal
from specframe.neural.recurrent import Ancestry, RecurrentStates
from specframe.neural.transfer import tensor_on

CHUNK = 64
"""Number of text positions that are scanned at once."""

Scan = Callable[[RecurrentStates, int, Mapping[str, Any]], tuple[Tensor, Tensor]]
"""The recurrence of a kind of layers, called with the arguments of transformers' function for it.

Returns the outputs [B, T, ..] and the states: after a text, or before a tree. A layer's pending tree stays in its
memory.
"""


@dataclass(frozen=True)
class ScanInputs:
    """Inputs of Mamba-2's recurrence, in the dtype that its sums are computed in."""

    x: Tensor  # [B, T, H, P]
    dt: Tensor  # [B, T, H], step sizes; 0 leaves the state unchanged
    a: Tensor  # [H]
    b: Tensor  # [B, T, G, S], for groups of heads
    c: Tensor  # [B, T, G, S]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ScanInputs:
        """Reads the arguments of transformers' `mamba2_chunk_scan`."""
        x, dt = given["hidden_states"], given["dt"]
        wide = torch.promote_types(x.dtype, torch.float32)
        dt = dt.to(wide)
        if given.get("dt_bias") is not None:
            dt = dt + given["dt_bias"].to(wide)
        if given.get("dt_softplus"):
            dt = softplus(dt)
        dt = dt.clamp(*given.get("dt_limit", (0.0, float("inf"))))
        return cls(x.to(wide), dt, *(given[name].to(wide) for name in "ABC"))

    def part(self, start: int, end: int) -> ScanInputs:
        """Returns the inputs of positions `start` to `end`."""
        x, dt, b, c = (part[:, start:end] for part in (self.x, self.dt, self.b, self.c))
        return ScanInputs(x, dt, self.a, b, c)

    def ended(self, lengths: Tensor) -> ScanInputs:
        """Returns the inputs with step size 0 after the rows' lengths [B]."""
        inside = torch.arange(self.dt.shape[1], device=lengths.device) < lengths[:, None]  # [B, T]
        return replace(self, dt=self.dt * inside[..., None])

    def gather_paths(self, paths: Tensor) -> ScanInputs:
        """Returns the inputs gathered at nodes [B, A]."""
        rows = torch.arange(len(paths), device=paths.device)[:, None]
        x, dt, b, c = (part[rows, paths] for part in (self.x, self.dt, self.b, self.c))
        return ScanInputs(x, dt, self.a, b, c)


def scan_nodes(steps: ScanInputs, sees: Tensor, state: Tensor | None) -> Tensor:
    """Returns the outputs [B, T, H, P] of nodes with visibility [B or 1, T, T], after a state [B, H, P, S] if given."""
    decay = (sees.to(steps.dt.dtype) @ (steps.dt * steps.a)).transpose(1, 2)  # [B, H, T], S in the module's formula
    mask = (decay[..., None] - decay[..., None, :]).masked_fill(~sees[:, None], -torch.inf).exp()  # [B, H, T, T], L
    groups = steps.b.shape[2]
    scores = steps.c.transpose(1, 2) @ steps.b.permute(0, 2, 3, 1)  # [B, G, T, T]
    weights = mask.unflatten(1, (groups, -1)) * scores[:, :, None]  # [B, G, H/G, T, T]
    inputs = (steps.x * steps.dt[..., None]).transpose(1, 2)  # [B, H, T, P]
    y = weights.flatten(1, 2) @ inputs
    if state is not None:
        before = state.unflatten(1, (groups, -1)).transpose(3, 4)  # [B, G, H/G, S, P]
        old = steps.c.transpose(1, 2)[:, :, None] @ before  # [B, G, H/G, T, P]
        y = y + decay.exp()[..., None] * old.flatten(1, 2)
    return y.transpose(1, 2)


def advance(steps: ScanInputs, state: Tensor | None) -> Tensor:
    """Returns the state [B, H, P, S] after consecutive steps: exp(S) H0 plus the contribution of each step."""
    total = (steps.dt * steps.a).cumsum(1)  # [B, T, H]
    inputs = steps.x * (steps.dt * (total[:, -1:] - total).exp())[..., None]  # [B, T, H, P]
    grouped = inputs.unflatten(2, (steps.b.shape[2], -1))  # [B, T, G, H/G, P]
    added = torch.einsum("btgrp,btgs->bgrps", grouped, steps.b).flatten(1, 2)
    return added if state is None else added + total[:, -1, :, None, None].exp() * state


class AncestorScan:
    """Mamba-2's recurrence: over a tree with an ancestor mask, over a text in chunks."""

    def __call__(self, states: RecurrentStates, index: int, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """See `Scan`."""
        steps = ScanInputs.of(given)
        state = states.before(index, len(steps.x))
        if states.paths is not None:
            y = scan_nodes(steps, states.paths.sees, state)
            states.layer(index).after = lambda paths, counts: advance(steps.gather_paths(paths).ended(counts), state)
            return _skip(y, steps, given), steps.x.new_zeros(0)
        assert isinstance(states.visibility, Causal)
        text = steps.ended(tensor_on(steps.x.device, states.visibility.lengths))
        parts = []
        for start in range(0, text.x.shape[1], CHUNK):
            part = text.part(start, start + CHUNK)
            past = torch.ones(1, part.x.shape[1], part.x.shape[1], dtype=torch.bool, device=part.x.device).tril()
            parts.append(scan_nodes(part, past, state))
            state = advance(part, state)
        assert state is not None
        return _skip(torch.cat(parts, 1), text, given), state


def _skip(y: Tensor, steps: ScanInputs, given: Mapping[str, Any]) -> Tensor:
    """Adds D x to outputs [B, T, H, P]; the result is contiguous."""
    d = given.get("D")
    return (y if d is None else y + d.to(y.dtype)[..., None] * steps.x).contiguous()


class PathScan:
    """Any recurrence by transformers' function: along the paths to a tree's leaves, and once more for a commit.

    The layer's matrix products are still computed once per node. `still` names arguments [B, T, ..] and the values with
    which a position leaves the state unchanged; `initial` names the argument of the state.
    """

    def __init__(self, function: Callable[..., Any], still: Mapping[str, float], initial: str) -> None:
        self._function, self._still, self._initial = function, still, initial
        self._names = inspect.signature(inspect.unwrap(function)).parameters
        final = {"output_final_state", "return_final_states"} & self._names.keys()
        self._final = dict.fromkeys(final, True)

    def __call__(self, states: RecurrentStates, index: int, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """See `Scan`."""
        shape = given[next(iter(self._still))].shape[:2]
        state = states.before(index, shape[0])
        if (paths := states.paths) is None:
            assert isinstance(states.visibility, Causal)
            lengths = tensor_on(given[next(iter(self._still))].device, states.visibility.lengths)
            return self._run(self._ended(given, shape, lengths), state, small=False)
        rows = torch.arange(shape[0], device=paths.sees.device)[:, None]
        leaf = paths.sees.sum(1) == 1  # [B, N]: seen by no other node
        ends = leaf.int().argsort(dim=1, descending=True, stable=True)[:, : int(leaf.sum(1).max())]  # [B, M]
        routes = paths.nodes_by_depth[rows, ends][..., : int(paths.depth.max()) + 1].flatten(1)  # [B, M A]
        along = self._along(given, shape, routes, ends.shape[1])
        wide = None if state is None else state.repeat_interleave(ends.shape[1], 0)
        y = self._run(along, wide, small=True)[0].unflatten(0, (-1, ends.shape[1]))  # [B, M, A, ..]
        on = paths.sees[rows, ends].int().argmax(1)  # [B, N], the first path that contains the node

        def after(chosen: Tensor, counts: Tensor) -> Tensor:
            taken = self._along(given, shape, chosen, 1)
            return self._run(self._ended(taken, chosen.shape, counts), state, small=True)[1]

        states.layer(index).after = after
        return y[rows, on, paths.depth].contiguous(), y.new_zeros(0)

    def _run(self, given: Mapping[str, Any], state: Tensor | None, small: bool) -> tuple[Tensor, Tensor]:
        """Runs transformers' function; over short paths in a single chunk, if the function supports it."""
        more: dict[str, Any] = {self._initial: state, **self._final}
        if small and "chunk_size" in self._names:
            more["chunk_size"] = given[next(iter(self._still))].shape[1]
        found: tuple[Tensor, Tensor] = self._function(**{**given, **more})
        return found

    def _along(self, given: Mapping[str, Any], shape: Any, nodes: Tensor, paths: int) -> dict[str, Any]:
        """Returns the arguments at the nodes [B, M A] of M paths instead of positions: [B M, A, ..]."""
        rows = torch.arange(len(nodes), device=nodes.device)[:, None]
        moved = {
            name: value[rows, nodes].unflatten(1, (paths, -1)).flatten(0, 1)
            for name, value in given.items()
            if self._follows(name, value, shape)
        }
        return {**given, **moved}

    def _ended(self, given: Mapping[str, Any], shape: Any, lengths: Tensor) -> dict[str, Any]:
        """Returns the arguments with positions after the rows' lengths set to leave the state unchanged."""
        later = torch.arange(shape[1], device=lengths.device) >= lengths[:, None]  # [B, T]
        still = {
            name: given[name].masked_fill(later.view(*later.shape, *[1] * (given[name].dim() - 2)), value)
            for name, value in self._still.items()
        }
        return {**given, **still}

    def _follows(self, name: str, value: Any, shape: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 2 and value.shape[:2] == shape and name != self._initial


def convolve(paths: Ancestry, inputs: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Returns a causal convolution over trees: each node reads the inputs on its path, then those before the root.

    Inputs are [B, C, width - 1 + N], the window followed by the tree; weights are [C, width]; outputs are [B, C, N].
    """
    width = weight.shape[-1]
    places = paths.windows(width).flatten(1)  # [B, N width]
    read = inputs.gather(2, places[:, None].expand(-1, inputs.shape[1], -1)).unflatten(
        2, (-1, width)
    )  # [B, C, N, width]
    found = (read.to(weight.dtype) * weight[:, None]).sum(-1)
    if bias is not None:
        found = found + bias[:, None]
    if activation is not None:
        from transformers.activations import ACT2FN

        found = ACT2FN[activation](found)
    return found.to(inputs.dtype)
