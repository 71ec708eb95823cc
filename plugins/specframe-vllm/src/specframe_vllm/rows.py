"""Rows of a drafter's session, kept in step with an engine's requests."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specframe import Sampling
from specframe.plugin import (
    Committed,
    Context,
    Cycle,
    Drafter,
    Observer,
    Prompts,
    Scores,
    SeededRandom,
    TokenTree,
    TreePolicy,
    Verdict,
)

GREEDY = Sampling(temperature=0.0)
"""Sampling of the drafts: the most likely tokens, because the engine does not receive draft probabilities."""


@dataclass(frozen=True)
class Read:
    """A request in one forward pass of the engine: the tokens that were read, and the new ones."""

    name: str
    text: Sequence[int]
    """All tokens, including new ones."""
    new: int
    """Number of new tokens; 0 while a prompt is read in pieces."""
    start: int
    """Position of the first token that was read."""
    place: int
    """Index of this token among all that the pass read."""
    count: int
    """Number of tokens that were read."""
    drafts: Sequence[int] = ()
    """The drafted tokens among them, which are last."""
    left: int = 0
    """Number of tokens that the request may still generate."""

    def part(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the features of the tokens that were read, [count, D] by tap."""
        return {tap: values[self.place : self.place + self.count] for tap, values in features.items()}


class Rows:
    """Admits, commits and releases rows of a drafter as an engine's requests begin and end.

    A drafter commits all of its rows in every cycle. A request that a pass leaves out, because it was preempted or
    there was no room for it, therefore loses its row. It is admitted again once all of its text has been read again;
    with a drafter without taps immediately, because the text suffices.

    Args:
        drafter: bound to the target.
        tree: the policy that it grows, a chain; None for a drafter that builds its own drafts.
        logits: the target's logits of features of the tap `last`, for drafters that observe scores.
        slots: maximum number of requests in a pass.
        room: maximum number of tokens of a request.
        length: maximum number of tokens of a draft.
    """

    def __init__(
        self,
        drafter: Drafter,
        tree: TreePolicy | None,
        logits: Callable[[Tensor], Tensor],
        *,
        slots: int,
        room: int,
        length: int,
    ) -> None:
        self.drafter, self.tree, self.length = drafter, tree, length
        self.names: list[str] = []
        """Requests that have a row, in row order."""
        self._logits = logits
        self._sizes = slots, room + length + 1
        self._lengths: dict[str, int] = {}  # number of committed tokens of each row
        self._read: dict[str, dict[str, Tensor]] = {}  # features of texts that are not completely read
        drafter.open(*self._sizes)

    def draft(
        self, reads: Sequence[Read], features: Mapping[str, Tensor], last: Tensor, unfinished: Container[str]
    ) -> list[list[int]]:
        """Returns the drafts after a pass, one for each request that it read; empty for a request without a row.

        `features` are the drafter's taps, [T, D] each over all tokens that the pass read, and `last` those of the tap
        `last`.
        """
        known = {read.name: read for read in reads}
        self._release([name for name in self.names if self._follows(known.get(name))], last)
        self._read = {name: part for name, part in self._read.items() if name in unfinished}
        if self.names:
            self._commit([known[name] for name in self.names], features, last)
        waiting = [read for read in reads if read.name not in self._lengths]
        for read in waiting:
            self._collect(read, features)
        if new := [read for read in waiting if read.new and (read.name in self._read or not self.drafter.taps)]:
            self._admit(new, last)
        if not self.names:
            return [[] for _ in reads]
        chains = dict(zip(self.names, self._propose([known[name] for name in self.names], last.device), strict=True))
        return [chains.get(read.name, [])[: self.length] for read in reads]

    def _follows(self, read: Read | None) -> bool:
        """Returns whether a pass continued where the request's row ends."""
        if read is None or not read.new:
            return False
        return len(read.text) - read.new == self._lengths[read.name] == read.start + 1

    def _release(self, remaining: list[str], last: Tensor) -> None:
        """Keeps the rows of these requests."""
        if remaining == self.names:
            return
        if remaining:
            self.drafter.keep(_tensor([self.names.index(name) for name in remaining], last))
        else:
            self.drafter.open(*self._sizes)
        self.names, self._lengths = remaining, {name: self._lengths[name] for name in remaining}

    def _collect(self, read: Read, features: Mapping[str, Tensor]) -> None:
        """Adds the features of a text that is being read; those of a text with a gap are dropped."""
        part, earlier = read.part(features), self._read.pop(read.name, {})
        if read.start and {len(values) for values in earlier.values()} != {read.start}:
            return
        if read.start:
            part = {tap: torch.cat([earlier[tap], values]) for tap, values in part.items()}
        self._read[read.name] = part

    def _commit(self, reads: list[Read], features: Mapping[str, Tensor], last: Tensor) -> None:
        """Commits the accepted drafts of all rows, and the token after them."""
        tokens = [_tensor(read.text[-read.new :], last) for read in reads]
        parts = [{tap: values[: read.new] for tap, values in read.part(features).items()} for read in reads]
        drafts = TokenTree.of_rows(
            tokens[0],
            [[int(read.text[read.start]), *read.drafts] for read in reads],
            [list(range(-1, len(read.drafts))) for read in reads],
            max(len(read.drafts) for read in reads),
        )
        self._take(_committed(tokens, parts), drafts, reads, last)

    def _admit(self, reads: list[Read], last: Tensor) -> None:
        """Admits requests whose texts are completely read; all tokens but the newest are a row's prompt."""
        texts = [_tensor(read.text, last) for read in reads]
        heads = [text[:-1] for text in texts]
        counts = torch.tensor([len(head) for head in heads], device=last.device)
        parts = [
            {tap: values[: len(head)] for tap, values in self._read.pop(read.name, {}).items()}
            for read, head in zip(reads, heads, strict=True)
        ]
        prompts = Prompts(pad_sequence(heads, batch_first=True), counts)
        ends = TokenTree.root_only(torch.stack([head[-1] for head in heads]))
        self.names += [read.name for read in reads]
        self._take(_committed([text[1:] for text in texts], parts, prompts), ends, reads, last)

    def _take(self, committed: Committed, drafts: TokenTree, reads: list[Read], last: Tensor) -> None:
        self._lengths.update({read.name: len(read.text) for read in reads})
        self.drafter.commit(committed)
        if not isinstance(self.drafter, Observer):
            return
        admission = committed.prompt is not None
        accepted = [0 if admission else read.new - 1 for read in reads]
        offsets = [len(read.text) - read.new - 1 if not admission else len(read.text) - 2 for read in reads]
        steps = torch.arange(drafts.shape[1], device=last.device)
        places = _tensor([read.place + offset - read.start for read, offset in zip(reads, offsets, strict=True)], last)
        nodes = (places[:, None] + steps).clamp(max=len(last) - 1)  # [B, N]; scores of padding are arbitrary
        length = _tensor(accepted, last)
        path = torch.where(steps[1:] <= length[:, None], steps[1:], -1)
        scores = Scores(self._logits(last[nodes]), dict.fromkeys(self.drafter.taps & {"last"}, last[nodes]))
        self.drafter.observe(Cycle(drafts, scores, Verdict(path, length, committed.root), committed))

    def _propose(self, reads: list[Read], device: torch.device) -> list[list[int]]:
        """Returns the drafts of all rows."""
        root = torch.tensor([int(read.text[-1]) for read in reads], device=device)
        random = SeededRandom(0, len(reads), device)
        context = Context(GREEDY, random.draft, left=[read.left for read in reads])
        tree = self.drafter.propose(root, self.tree, context)
        return [chain_of(*row) for row in zip(*tree.columns, strict=True)]


def chain_of(valid: Sequence[bool], parents: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Returns the tokens of a draft's first path, without the root."""
    path, end = list[int](), 0
    for node in range(1, len(tokens)):
        if valid[node] and parents[node] == end:
            path.append(tokens[node])
            end = node
    return path


def _tensor(numbers: Sequence[int], like: Tensor) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.int64, device=like.device)


def _committed(tokens: list[Tensor], parts: list[dict[str, Tensor]], prompt: Prompts | None = None) -> Committed:
    """Returns the commit of these rows, each with the features of the tokens before its own."""
    features = {tap: pad_sequence([part[tap] for part in parts], batch_first=True) for tap in parts[0]}
    count = _tensor([len(row) for row in tokens], tokens[0])
    root = torch.stack([row[-1] for row in tokens])
    return Committed(pad_sequence(tokens, batch_first=True), count, features, root, prompt)
