"""Decision of a verifier about a draft."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from specframe.kernel.transfer import numbers_like

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.tree import TokenTree


@dataclass(frozen=True)
class HostVerdict:
    """A verdict on the host, row by row."""

    paths: list[list[int]]  # the nodes accepted, from level 1 down
    tokens: list[list[int]]  # the tokens committed, path then bonus
    gaps: list[int | None] | None = None  # how many of them stand before one that had no mass; None: not looked at yet


@dataclass(frozen=True)
class Verdict:
    """The outcome of verification: an accepted path below the root, and the bonus token after it."""

    path: Tensor  # [B, A] int64 node indices from level 1 down, -1 padded
    length: Tensor  # [B] int64, nodes accepted; 0 .. A
    bonus: Tensor  # [B] int64, the token that follows the path
    _emitted: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _on_host: HostVerdict | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, host: HostVerdict, tree: TokenTree) -> Verdict:
        """The verdict on a tree that was found on the host, its tensors made where the tree's are."""
        width = tree.levels
        rows = numbers_like(
            tree.tokens,
            [
                [*path, *[-1] * (width - len(path)), *tokens, *[0] * (width - len(path)), len(path), tokens[-1]]
                for path, tokens in zip(host.paths, host.tokens, strict=True)
            ],
        )  # [B, A + (A + 1) + 1 + 1]
        verdict = cls(path=rows[:, :width], length=rows[:, -2], bonus=rows[:, -1])
        object.__setattr__(verdict, "_emitted", rows[:, width:-2])
        object.__setattr__(verdict, "_on_host", host)
        return verdict

    @cached_property
    def count(self) -> Tensor:
        """Tokens committed by the cycle, the bonus included: [B] int64."""
        return self.length + 1

    @cached_property
    def slots(self) -> Tensor:
        """The nodes that stay, the root and the path: [B, A + 1] int64, -1 padded."""
        from_root = self.path.new_zeros(len(self.path), self.path.shape[1] + 1)
        from_root[:, 1:] = self.path
        return from_root

    def emitted(self, tree: TokenTree) -> Tensor:
        """The tokens committed, path then bonus: [B, A + 1] int64, 0 beyond `count`."""
        if self._emitted is not None:
            return self._emitted
        width = self.path.shape[1]
        tokens = tree.tokens.new_zeros(len(self.path), width + 1)
        if width:
            tokens[:, :width] = tree.tokens.gather(1, self.path.clamp(min=0)) * (self.path >= 0)
        emitted = tokens.scatter(1, self.length[:, None], self.bonus[:, None])
        object.__setattr__(self, "_emitted", emitted)
        return emitted

    def to_host(self, tree: TokenTree) -> HostVerdict:
        """The same on the host; the first call makes the one copy of a cycle."""
        if self._on_host is not None:
            return self._on_host
        width = self.path.shape[1]
        rows = self.path.new_zeros(len(self.path), 2 * width + 1)
        rows[:, :width] = self.path
        rows[:, width:] = self.emitted(tree)
        host = HostVerdict([], [])
        for row in rows.tolist():
            path = [node for node in row[:width] if node >= 0]
            host.paths.append(path)
            host.tokens.append(row[width : width + len(path) + 1])
        object.__setattr__(self, "_on_host", host)
        return host
