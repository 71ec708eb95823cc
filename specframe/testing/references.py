"""Slow, literal versions of fast code, to hold the two together: verifiers, and a drafter's decoder layer.

Verifiers, top-down and bottom-up, judge one row in plain Python numbers. The layer is Llama's, number by number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import torch
from torch import Tensor

from specframe.kernel.types import Draw, TokenTree

Number = float | Fraction
Law = Sequence[Number]


class Coins(Protocol):
    """A RandomSource for one row and plain numbers."""

    def categorical(self, law: Law) -> int:
        """An index drawn from the law."""
        ...

    def bernoulli(self, p: Number) -> bool:
        """Draws a bool that is true with this probability."""
        ...


@dataclass(frozen=True)
class Row:
    """One row of a TokenTree as lists."""

    tokens: Sequence[int]
    parent: Sequence[int]
    valid: Sequence[bool]
    draw: Sequence[int]
    q: Sequence[Law] = ()
    q_row: Sequence[int] = ()

    @classmethod
    def of(cls, tree: TokenTree, row: int) -> Row:
        """The lists of one row."""
        return cls(
            tokens=tree.tokens[row].tolist(),
            parent=tree.parent[row].tolist(),
            valid=tree.valid[row].tolist(),
            draw=tree.draw[row].tolist(),
            q=() if tree.q is None else tree.q[row].tolist(),
            q_row=() if tree.q_row is None else tree.q_row[row].tolist(),
        )

    def children(self, node: int) -> list[int]:
        """The valid children of a node, in slot order."""
        return [i for i in range(1, len(self.tokens)) if self.valid[i] and self.parent[i] == node]


def match_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Match`."""
    path: list[int] = []
    node = 0
    while True:
        token = coins.categorical(p[node])
        same = [child for child in row.children(node) if row.tokens[child] == token]
        if not same:
            return path, token
        node = same[0]
        path.append(node)


def recursive_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Recursive`."""
    if not row.q:
        return match_reference(row, p, coins)
    path: list[int] = []
    node = 0
    while True:
        left, accepted = p[node], None
        for child in row.children(node):
            token, q = row.tokens[child], recorded_law(row, child, len(p[node]))
            if coins.bernoulli(min(1, left[token] / q[token])):
                accepted = child
                break
            left = residual(left, q)
        if accepted is None:
            return path, coins.categorical(left)
        node = accepted
        path.append(node)


def recorded_law(row: Row, node: int, vocab: int) -> Law:
    """The law that the token of a node was drawn from, given its earlier siblings."""
    token, draw = row.tokens[node], row.draw[node]
    one_hot = [int(i == token) for i in range(vocab)]
    if draw == Draw.TOP:
        return one_hot
    law = list(row.q[row.q_row[node]])
    if draw == Draw.WITHOUT_REPLACEMENT:
        for sibling in row.children(row.parent[node]):
            if sibling < node and row.draw[sibling] == draw and row.q_row[sibling] == row.q_row[node]:
                law[row.tokens[sibling]] = 0
    if law[token] <= 0:
        return one_hot
    total = sum(law)
    return [mass / total for mass in law]


def residual(law: Law, q: Law) -> Law:
    """norm([law - q]+); the law itself where rounding has left nothing."""
    excess = [max(a - b, 0) for a, b in zip(law, q, strict=True)]
    total = sum(excess)
    return [mass / total for mass in excess] if total > 0 else law


def traversal_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Traversal`."""

    def visit(node: int, accept: Number) -> tuple[list[int], int] | None:
        law: Law = p[node]
        for child in row.children(node):
            token, q = row.tokens[child], recorded_law(row, child, len(law))
            enter = min(1, accept * law[token] / q[token])
            if enter > 0 and (found := visit(child, enter)) is not None:
                return [child, *found[0]], found[1]
            left = [max(accept * a - b, 0) for a, b in zip(law, q, strict=True)]
            mass = sum(left)
            if mass == 0 and (node or accept < 1):
                return None
            if mass > 0:
                accept, law = mass / (mass + 1 - accept), [share / mass for share in left]
        return ([], coins.categorical(law)) if node == 0 or coins.bernoulli(accept) else None

    found = visit(0, 1)
    assert found is not None, "the root is always accepted"
    return found


def block_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Block`, for a chain.

    All tests are made, first to last, and the last one that is passed counts.
    """
    chain = [node for node in range(1, len(row.tokens)) if row.valid[node]]
    reach: Number = 1
    longest, bonus = 0, p[0]
    for length in range(len(chain) + 1):
        if length:
            token, q = row.tokens[chain[length - 1]], recorded_law(row, chain[length - 1], len(bonus))
            reach = min(1, reach * p[chain[length - 2] if length > 1 else 0][token] / q[token])
        here = p[chain[length - 1] if length else 0]
        if length == len(chain):
            passes, law = reach, here
        else:
            q = recorded_law(row, chain[length], len(here))
            left = [max(reach * a - b, 0) for a, b in zip(here, q, strict=True)]
            mass = sum(left)
            passes = mass / (mass + 1 - reach) if mass + 1 - reach > 0 else 1
            law = [share / mass for share in left] if mass > 0 else here
        if length == 0 or coins.bernoulli(passes):
            longest, bonus = length, law
    return chain[:longest], coins.categorical(bonus)


def literal_layer(
    weights: Mapping[str, Tensor],
    config: Any,
    x: Tensor,
    place: int,
    seen: Sequence[Tensor],
    *,
    norm_input: bool = True,
) -> Tensor:
    """The output [D] of a decoder layer for its input x [D] at `place`, which sees the inputs `seen` at 0, 1, 2, ...

    No batch, no mask and no cache: every given entry is visible. `weights` are the layer's own by transformers' names
    (`self_attn.q_proj.weight`, ...), attention biases and Qwen3's query and key norms where there are any; `config` is
    the target's. `norm_input=False` leaves out the norm before attention, as EAGLE does.
    """
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps = config.rms_norm_eps

    def project(values: Tensor, which: str, count: int) -> Tensor:
        if norm_input:
            values = _norm(values, weights["input_layernorm.weight"], eps)
        out = weights[f"self_attn.{which}_proj.weight"] @ values
        out = (out + weights.get(f"self_attn.{which}_proj.bias", 0)).view(count, size)
        scale = weights.get(f"self_attn.{which}_norm.weight")
        return out if scale is None else torch.stack([_norm(head, scale, eps) for head in out])

    query = _rotate(project(x, "q", heads), place, config)
    keys = [_rotate(project(other, "k", groups), i, config) for i, other in enumerate(seen)]
    values = [project(other, "v", groups) for other in seen]
    mixed = []
    for head in range(heads):
        group = head * groups // heads
        scores = torch.stack([query[head] @ key[group] for key in keys]) / math.sqrt(size)
        shares = zip(scores.softmax(0), values, strict=True)
        mixed.append(torch.stack([share * value[group] for share, value in shares]).sum(0))
    x = x + weights["self_attn.o_proj.weight"] @ torch.cat(mixed)
    normed = _norm(x, weights["post_attention_layernorm.weight"], eps)
    gate, up, down = (weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + down @ (torch.nn.functional.silu(gate @ normed) * (up @ normed))


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm, in float32 as transformers has it whatever the weights' dtype."""
    short = x.float()
    return weight * (short * torch.rsqrt(short.square().mean() + eps)).to(x.dtype)


def _rotate(x: Tensor, place: int, config: Any) -> Tensor:
    """Rotary embedding of heads [H, d]: pairs (i, i + d/2) turned by place * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    theta = config.rope_parameters["rope_theta"]
    # transformers keeps the frequencies in float32, and rounds the angles there
    angle = place * (1.0 / theta ** (torch.arange(half, dtype=torch.float32) * 2 / x.shape[-1]))
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
