"""Decision of a verifier about a draft."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
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
    gaps: list[int | None] | None = None  # how many of them stand before one that had no mass; None: not looked at yet


@dataclass(frozen=True)
class Verdict:
    """The outcome of verification: an accepted path below the root, and the bonus token after it."""

    path: Tensor  # [B, A] int64 node indices from level 1 down, -1 padded
    length: Tensor  # [B] int64, nodes accepted; 0 .. A
    bonus: Tensor  # [B] int64, the token that follows the path
    _emitted: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _on_host: HostVerdict | None = field(default=None, init=False, repr=False, compare=False)
    _like: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _levels: int = field(default=0, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, host: HostVerdict, tree: TokenTree) -> Verdict:
        """The verdict on a tree that was found on the host; its tensors are made where the tree's are, once asked for.

        Greedy decoding asks for few of them, and a kernel takes longer than a small tree's walk.
        """
        verdict = cls.__new__(cls)
        vars(verdict).update(_on_host=host, _like=tree.tokens, _levels=tree.levels)
        return verdict

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            """The fields of a verdict that was found on the host."""
            if name not in ("path", "length", "bonus"):
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            made, place = self._made, {"length": -3, "bonus": -1}.get(name)
            found = made.narrow(1, 1, self._levels) if place is None else made.select(1, place)
            return vars(self).setdefault(name, found)

    @cached_property
    def _made(self) -> Tensor:
        """All numbers of a host's verdict as one tensor: its nodes, its tokens; their numbers, and the bonus."""
        assert self._on_host is not None and self._like is not None
        width, rows = self._levels, list[list[int]]()
        for path, tokens in zip(self._on_host.paths, self._on_host.tokens, strict=True):
            left = width - len(path)
            rows.append([0, *path, *[-1] * left, *tokens, *[0] * left, len(path), len(tokens), tokens[-1]])
        return integers_like(self._like, rows)  # [B, (A + 1) + (A + 1) + 3]

    @cached_property
    def count(self) -> Tensor:
        """Tokens committed by the cycle, the bonus included: [B] int64."""
        return self.length + 1 if self._like is None else self._made.select(1, -2)

    @property
    def counts(self) -> Tensor | list[int]:
        """The same, as a list where the verdict was found on the host."""
        found = None if self._like is None else self._on_host
        return self.count if found is None else [len(tokens) for tokens in found.tokens]

    @cached_property
    def slots(self) -> Tensor:
        """The nodes that stay, the root and the path: [B, A + 1] int64, -1 padded."""
        if self._like is not None:
            return self._made.narrow(1, 0, self._levels + 1)
        from_root = self.path.new_zeros(len(self.path), self.path.shape[1] + 1)
        from_root[:, 1:] = self.path
        return from_root

    def emitted(self, tree: TokenTree) -> Tensor:
        """The tokens committed, path then bonus: [B, A + 1] int64, 0 beyond `count`."""
        if self._like is not None:
            return self._made.narrow(1, self._levels + 1, self._levels + 1)
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
