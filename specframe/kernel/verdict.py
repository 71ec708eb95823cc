"""A verifier's verdict on a draft, on the device and on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specframe.kernel.transfer import integers_like

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.tree import TokenTree


@dataclass(frozen=True)
class HostVerdict:
    """A verdict on the host, row by row."""

    paths: list[list[int]]  # the nodes accepted, from level 1 down
    tokens: list[list[int]]  # the tokens committed, path then bonus
    gaps: list[int | None] | None = None  # tokens before the first without mass, or None; None for all: not checked


@dataclass(frozen=True)
class Verdict:
    """The outcome of verification: an accepted path below the root, and the bonus token after it."""

    path: Tensor  # [B, A] int64 node indices from level 1 down, -1 padded
    length: Tensor  # [B] int64, nodes accepted; 0 .. A
    bonus: Tensor  # [B] int64, the token that follows the path
    _packed: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _host: HostVerdict | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def unpack(cls, packed: Tensor) -> Verdict:
        """The verdict whose fields are views of [B, 2 (A + 1) + 3] int64, in the layout of `packed`."""
        verdict = cls(packed.narrow(1, 1, packed.shape[1] // 2 - 2), packed.select(1, -3), packed.select(1, -1))
        object.__setattr__(verdict, "_packed", packed)
        return verdict

    @classmethod
    def of(cls, host: HostVerdict, tree: TokenTree) -> Verdict:
        """A verdict computed on the host, copied once to the device of its tree."""
        verdict = cls.unpack(integers_like(tree.tokens, packed_rows(host, tree.levels)))
        object.__setattr__(verdict, "_host", host)
        return verdict

    @property
    def count(self) -> Tensor:
        """Tokens committed by the cycle, the bonus included: [B] int64."""
        return self.length + 1 if self._packed is None else self._packed.select(1, -2)

    @property
    def slots(self) -> Tensor:
        """The nodes that stay, the root and the path: [B, A + 1] int64, -1 padded."""
        if self._packed is not None:
            return self._packed.narrow(1, 0, self.path.shape[1] + 1)
        from_root = self.path.new_zeros(len(self.path), self.path.shape[1] + 1)
        from_root[:, 1:] = self.path
        return from_root

    def packed(self, tree: TokenTree) -> Tensor:
        """The whole verdict on a tree as one tensor, made by the first call: [B, 2 (A + 1) + 3] int64.

        A row has the nodes that stay, the root first, -1 padded; the tokens committed, 0 padded; `length`, `count` and
        `bonus`.
        """
        if self._packed is None:
            width = self.path.shape[1] + 1
            packed = self.path.new_zeros(len(self.path), 2 * width + 3)
            packed[:, 1:width] = self.path
            packed[:, width : 2 * width - 1] = tree.tokens.gather(1, self.path.clamp(min=0)) * (self.path >= 0)
            packed[:, -3], packed[:, -2], packed[:, -1] = self.length, self.length + 1, self.bonus
            packed.scatter_(1, self.length[:, None] + width, self.bonus[:, None])
            object.__setattr__(self, "_packed", packed)
            return packed
        return self._packed

    def emitted(self, tree: TokenTree) -> Tensor:
        """The tokens committed, path then bonus: [B, A + 1] int64, 0 beyond `count`."""
        width = self.path.shape[1] + 1
        return self.packed(tree).narrow(1, width, width)

    def to_host(self, tree: TokenTree) -> HostVerdict:
        """The verdict on the host; the first call makes the only copy of a cycle."""
        if self._host is not None:
            return self._host
        width, host = self.path.shape[1] + 1, HostVerdict([], [])
        for row in self.packed(tree).tolist():
            host.paths.append(row[1 : 1 + row[-3]])
            host.tokens.append(row[width : width + row[-2]])
        object.__setattr__(self, "_host", host)
        return host


def packed_rows(host: HostVerdict, levels: int) -> list[Sequence[int]]:
    """The rows of `Verdict.packed`, of a verdict on trees of `levels` levels."""
    rows = list[Sequence[int]]()
    for path, tokens in zip(host.paths, host.tokens, strict=True):
        tail = levels - len(path)
        rows.append([0, *path, *[-1] * tail, *tokens, *[0] * tail, len(path), len(tokens), tokens[-1]])
    return rows
