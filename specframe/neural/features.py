"""The target's features that a drafter pairs with tokens, and committed pairs that are not cached yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Committed, Frontier, PairSpec, Predicted
from specframe.neural.transfer import tensor_on


class KeptFeatures(Mapping[str, Tensor]):
    """The features of the nodes that a commit keeps, [B, M, D] by tap, each gathered at the first access.

    Native drafts read `scored` and `paths` without the gather, and cycles without drafts read nothing.

    Args:
        scored: the features of all scored nodes, [B, N, D].
        paths: the kept nodes of each row, the root first.
        nodes: returns the paths as a tensor, [B, M], with arbitrary nodes after a row's last.
    """

    def __init__(
        self, scored: Mapping[str, Tensor], paths: Sequence[Sequence[int]], nodes: Callable[[], Tensor]
    ) -> None:
        self.scored, self.paths = scored, paths
        self._nodes = nodes
        self._found: dict[str, Tensor] = {}

    def __getitem__(self, tap: str) -> Tensor:
        """Gathers a tap's features; a single row is sliced or indexed, which is faster than a gather."""
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
    """Concatenates the features of a spec's taps, those `given` last: [.., D] each -> [.., A D]."""
    parts = [features[tap] for tap in spec.reads]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class TapFusion(nn.Module):
    """Fuses several taps into one: a root mean square norm of each, then a linear map (EAGLE-3.1's `fc_norm`, `fc`).

    Args:
        taps: the number of taps, A.
        size: the width of each tap, D, and of the result.
        eps: the epsilon of the norms.
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
    """The decoding state that consists of each row's feature of the token before the root.

    Args:
        expand: returns the predictions below each frontier node, given these features [B, D].
        spec: the features to keep.
    """

    def __init__(self, expand: Callable[[Tensor, Frontier], Predicted], spec: PairSpec) -> None:
        self._expand = expand
        self._spec = spec
        self._features: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """The features [B, D]. Raises CompositionError before the first commit."""
        if self._features is None:
            raise CompositionError("a drafter was asked for a draft before anything was committed")
        return self._features

    def commit(self, committed: Committed) -> None:
        """Keeps the last committed features; rows that come with a prompt follow the others."""
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
    """Newly committed pairs of the last B rows, which the next draft's first forward pass caches."""

    first: int  # rows before this one have nothing pending
    pairs: tuple[Tensor, ...]  # [B, M, ..] each, as entries
    fresh: list[int]  # number of pending entries of each row, at most M
    starts: list[int]  # number of entries that each row had before
    counts: list[int]  # number of entries that it has with them

    def after(self, others: Tensor, own: Tensor, dim: int = 0) -> Tensor:
        """Returns the state of all rows, given that of the others and the new state of these rows."""
        return own if self.first == 0 else torch.cat([others.narrow(dim, 0, self.first), own], dim)


@dataclass(frozen=True)
class PendingCommit:
    """A commit whose entries no draft has read yet; until then its rows may move or leave."""

    rows: Sequence[int | None]  # the session's row of each of the B; None: it has left
    fresh: list[int]  # number of entries of each row
    committed: Committed
    entries: tuple[Tensor, ...] | None = (
        None  # [B, M, ..] each; None: the committed pairs, read once a draft is requested
    )

    def pairs(self, spec: PairSpec) -> tuple[Tensor, ...]:
        """The entries, [B, M, ..] each: tokens and concatenated features if they are the committed pairs."""
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
    """Merges the entries of several commits by row, in order: [B, M, ..] each.

    They belong to a session's last B rows, `counts` to each.
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
