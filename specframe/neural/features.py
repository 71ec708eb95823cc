"""The target's features that a drafter pairs with tokens, and committed pairs that wait to be taken in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Committed, Frontier, PairSpec, Predicted
from specframe.neural.transfer import tensor_on


class KeptFeatures(Mapping[str, Tensor]):
    """The features of the nodes that a commit keeps, [B, M, D] by tap, each gathered once it is asked for.

    Args:
        scored: the features of all nodes that were scored, [B, N, D].
        paths: the nodes of each row, the root first.
        nodes: makes the same as a tensor, [B, M], with any node after a row's last.
    """

    def __init__(
        self, scored: Mapping[str, Tensor], paths: Sequence[Sequence[int]], nodes: Callable[[], Tensor]
    ) -> None:
        self.scored, self.paths = scored, paths
        self._nodes = nodes
        self._found: dict[str, Tensor] = {}

    def __getitem__(self, tap: str) -> Tensor:
        """Those of a row alone are taken whole, or as they stand: sooner done than element by element."""
        if tap not in self._found:
            values, path = self.scored[tap], self.paths[0]
            if len(self.paths) > 1:
                found = values.gather(1, self._nodes()[..., None].expand(-1, -1, values.shape[-1]))
            elif path[-1] == len(path) - 1:
                found = values.narrow(1, 0, len(path))
            else:
                found = values.index_select(1, self._nodes()[0])
            self._found[tap] = found
        return self._found[tap]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scored)

    def __len__(self) -> int:
        return len(self.scored)


def gather(spec: PairSpec, features: Mapping[str, Tensor]) -> Tensor:
    """The features of a spec's taps side by side, those `given` at the end: [.., A D] of [.., D] each."""
    parts = [features[tap] for tap in spec.reads]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class TapFusion(nn.Module):
    """Several taps fused into one: a root mean square norm of each, then a linear map (EAGLE-3.1's `fc_norm`, `fc`).

    Args:
        taps: how many, A.
        size: the width of each, D, and of the result.
        eps: of the norms.
    """

    def __init__(self, taps: int, size: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps=eps) for _ in range(taps))
        self.fc = nn.Linear(taps * size, size, bias=False)
        self.epsilon = eps

    @property
    def weights(self) -> Tensor:
        """The norms' weights, [A, D]."""
        return torch.stack([norm.get_parameter("weight") for norm in self.norms])

    def forward(self, features: Tensor) -> Tensor:
        """[.., A D] -> [.., D]."""
        parts = features.chunk(len(self.norms), -1)
        fused: Tensor = self.fc(torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], -1))
        return fused


class LastFeature:
    """The feature of the token before the root, of every row.

    Args:
        expand: the predictions below each frontier node, given these features [B, D].
        spec: which features.
    """

    def __init__(self, expand: Callable[[Tensor, Frontier], Predicted], spec: PairSpec) -> None:
        self._expand = expand
        self._spec = spec
        self._features: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """The features [B, D]. Raises CompositionError before anything was committed."""
        if self._features is None:
            raise CompositionError("a drafter was asked for a draft before anything was committed")
        return self._features

    def commit(self, committed: Committed) -> None:
        """Keeps the last of the committed features; rows that come with a prompt follow the others."""
        features = gather(self._spec, committed.features)
        last = features[torch.arange(len(features), device=features.device), committed.count - 1]
        joins = committed.prompt is not None and self._features is not None
        self._features = torch.cat([self.features, last]) if joins else last

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._features = self.features[rows]

    def expand(self, frontier: Frontier) -> Predicted:
        """The predictions below each frontier node."""
        return self._expand(self.features, frontier)


@dataclass(frozen=True)
class Pending:
    """Newly committed pairs of the last B rows, which the next draft's first forward takes in."""

    first: int  # rows before this one have nothing pending
    pairs: tuple[Tensor, ...]  # [B, M, ..] each, as entries
    fresh: list[int]  # how many of the M are a row's
    starts: list[int]  # how many each row had before
    held: list[int]  # and has with them

    def after(self, others: Tensor, own: Tensor, dim: int = 0) -> Tensor:
        """Returns the state of all rows, given that of the others and that of these rows now."""
        return own if self.first == 0 else torch.cat([others.narrow(dim, 0, self.first), own], dim)


@dataclass(frozen=True)
class PendingCommit:
    """A commit whose entries no draft has read yet; its rows may move and leave until then."""

    rows: Sequence[int | None]  # the session's row of each of the B; None: it has left
    fresh: list[int]  # how many entries are a row's
    committed: Committed
    entries: tuple[Tensor, ...] | None = (
        None  # [B, M, ..] each; None: the committed pairs, read once a draft is asked for
    )

    def pairs(self, spec: PairSpec) -> tuple[Tensor, ...]:
        """The entries, [B, M, ..] each: tokens and features side by side, if they are the committed pairs."""
        if self.entries is not None:
            return self.entries
        longest, features = max(self.fresh), self.committed.features
        if self.committed.tokens.shape[1] > longest:
            features = {tap: values[:, :longest] for tap, values in features.items()}
        return self.committed.tokens[:, :longest], gather(spec, features)

    def moved(self, places: Mapping[int, int]) -> PendingCommit | None:
        """The commit after rows moved to these places; None if all of them have left."""
        rows = [None if row is None else places.get(row) for row in self.rows]
        return None if set(rows) == {None} else replace(self, rows=rows)


def by_row(commits: Sequence[PendingCommit], counts: list[int], spec: PairSpec) -> tuple[Tensor, ...]:
    """The entries of several commits by row, each row's in their order: [B, M, ..] each.

    They are of a session's last B rows, `counts` of each.
    """
    first = min(row for commit in commits for row in commit.rows if row is not None)
    entries = [commit.pairs(spec) for commit in commits]
    if len(commits) == 1 and list(commits[0].rows) == list(range(first, first + len(counts))):
        return entries[0]
    filled, start, places = [0] * len(counts), 0, list[tuple[int, int, int]]()
    for commit, pairs in zip(commits, entries, strict=True):
        for row, fresh in zip(commit.rows, commit.fresh, strict=True):
            if row is not None:
                before = filled[row - first]
                places += [(start + entry, row - first, before + entry) for entry in range(fresh)]
                filled[row - first] += fresh
            start += pairs[0].shape[1]
    sources, rows, columns = tensor_on(entries[0][0].device, list(zip(*places, strict=True)))
    joined = []
    for parts in zip(*entries, strict=True):
        wide = parts[0].new_zeros(len(counts), max(counts), *parts[0].shape[2:])
        wide[rows, columns] = torch.cat([part.flatten(0, 1) for part in parts])[sources]
        joined.append(wide)
    return tuple(joined)
