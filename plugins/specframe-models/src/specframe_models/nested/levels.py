"""Levels of a cascade, which propose tokens after a chain: copies, steps of a drafter, reviews of another level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specframe.plugin import AllLaws, Draw, Proposal, TokenTree, follow_argmax
from specframe_models.nested.sketch import Proposed

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Context, Verifier
    from specframe_models.nested.sketch import Reader, Sketch


class CopyingProposer:
    """Lowest level that copies tokens; without a drafter it proposes none."""

    def __init__(self, continued: Callable[[Sequence[Sequence[int]]], list[list[int]]] | None) -> None:
        self._continue = continued

    def propose(self, sketch: Sketch, ends: Sequence[int], counts: Sequence[int]) -> Proposed:
        """Returns the copies, cut to their counts."""
        if self._continue is None or not any(counts):
            return Proposed([[] for _ in ends])
        found = self._continue(sketch.texts(ends))
        return Proposed([_hung(sketch, row, ends[row], found[row][:count]) for row, count in enumerate(counts)])


class StepwiseProposer:
    """Lowest level that runs a drafter token by token."""

    def __init__(self, reader: Reader, draw: Draw, context: Context) -> None:
        self._reader, self._draw, self._context = reader, draw, context

    def propose(self, sketch: Sketch, ends: Sequence[int], counts: Sequence[int]) -> Proposed:
        """Returns the drafter's best tokens, or draws from its distributions."""
        nodes: list[list[int]] = [[] for _ in ends]
        laws: list[Tensor] = []
        for step in range(max(counts)):
            paths = [[row[-1] if row else end] for row, end in zip(nodes, ends, strict=True)]
            proposal, places = self._reader.read(sketch, paths)
            going = [step < count for count in counts]
            if self._draw is Draw.TOP:
                tokens = best_of(proposal)[:, 0].tolist()
            else:
                law = certain(self._context.sampling.law(proposal.whole.logits[:, :, 0], sketch.tree, places), going)
                tokens = self._context.random.categorical(law[:, 0]).tolist()
                laws.append(law * law.new_tensor(going)[:, None, None])
            for row, token in enumerate(tokens):
                if going[row]:
                    nodes[row].append(sketch.add(row, paths[row][0], token))
        return Proposed(nodes, torch.cat(laws, 1) if laws else None)


@dataclass
class ReviewCounts:
    """Statistics of a reviewing drafter: rows in its forward passes, and tokens."""

    passes: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0

    def figures(self) -> dict[str, float]:
        """Returns the tokens per forward pass and the share of proposals kept; empty before the first pass."""
        if not self.passes:
            return {}
        share = {"accepted": self.accepted / self.proposed} if self.proposed else {}
        return {"forwards": self.passes, "tokens a forward": self.tokens / self.passes, **share}


class ReviewedProposer:
    """A level with the tokens of a better drafter, which reads several proposals of a lower level at once.

    Its forward passes are speculative decoding on a small scale: the rule keeps a prefix of the proposals and adds a
    token. Tokens thus follow the reviewing drafter's distributions, or are its best ones. Their number does not depend
    on them.
    """

    def __init__(
        self,
        proposer: ChainProposer,
        reader: Reader,
        rule: Verifier,
        draw: Draw,
        ask: int,
        context: Context,
        counts: ReviewCounts,
    ) -> None:
        self._counts = counts
        self._proposer, self._reader, self._rule = proposer, reader, rule
        self._draw, self._ask, self._context = draw, ask, context

    def propose(self, sketch: Sketch, ends: Sequence[int], counts: Sequence[int]) -> Proposed:
        """Returns the requested number of tokens, with the reviewing drafter's distributions if they are drawn."""
        nodes: list[list[int]] = [[] for _ in ends]
        laws: list[list[Tensor]] = [[] for _ in ends]
        while any(left := [count - len(row) for row, count in zip(nodes, counts, strict=True)]):
            tips = [row[-1] if row else end for row, end in zip(nodes, ends, strict=True)]
            for row, (added, law) in enumerate(self._round(sketch, tips, left)):
                nodes[row] += added
                laws[row] += law
        return Proposed(nodes, _stacked(laws) if self._draw is Draw.IID and any(counts) else None)

    def _round(self, sketch: Sketch, ends: list[int], left: list[int]) -> list[tuple[list[int], list[Tensor]]]:
        """Returns the nodes that one forward pass adds to each row, up to `left`, and their distributions [V]."""
        proposed = self._proposer.propose(sketch, ends, [max(0, min(self._ask, more - 1)) for more in left])
        paths = [[end, *nodes] for end, nodes in zip(ends, proposed.nodes, strict=True)]
        proposal, places = self._reader.read(sketch, paths)
        part = _chains(sketch, paths, proposed, places)
        law = None
        if self._draw is Draw.TOP:
            verdict = follow_argmax(part, best_of(proposal))
        else:
            law = self._context.sampling.law(proposal.whole.logits[:, :, 0], sketch.tree, places)
            verdict = self._rule.verify(part, AllLaws(certain(law, [more > 0 for more in left])), self._context.random)
        found = verdict.to_host(part)
        made: list[tuple[list[int], list[Tensor]]] = []
        for row, (path, accepted, tokens) in enumerate(zip(paths, found.paths, found.tokens, strict=True)):
            if not left[row]:
                made.append(([], []))
                continue
            nodes = [path[place] for place in accepted]
            self._counts.passes += 1
            self._counts.proposed += len(path) - 1
            self._counts.accepted += len(accepted)
            self._counts.tokens += len(accepted) + 1
            nodes.append(sketch.add(row, nodes[-1] if nodes else path[0], tokens[-1]))
            made.append((nodes, [] if law is None else list(law[row, : len(nodes)])))
        return made


ChainProposer = CopyingProposer | StepwiseProposer | ReviewedProposer
"""A way to propose tokens after chains: `propose` adds up to counts[b] nodes, a path, below node ends[b]."""


def best_of(proposal: Proposal) -> Tensor:
    """Returns the best token after each node, [B, W]."""
    return proposal.tokens(proposal.logits[:, :, 0].argmax(-1))


def certain(law: Tensor, drawing: Sequence[bool]) -> Tensor:
    """Replaces distributions [B, W, V] of rows that draw nothing by certain token 0: a certificate forks on draws."""
    if all(drawing):
        return law
    sure = torch.zeros_like(law)
    sure[..., 0] = 1
    return law.where(torch.tensor(drawing, device=law.device)[:, None, None], sure)


def _hung(sketch: Sketch, row: int, end: int, tokens: Sequence[int]) -> list[int]:
    """Adds nodes with these tokens to a row, one below the other, and returns them."""
    nodes: list[int] = []
    for token in tokens:
        nodes.append(sketch.add(row, nodes[-1] if nodes else end, token))
    return nodes


def _chains(sketch: Sketch, paths: Sequence[Sequence[int]], proposed: Proposed, places: Tensor) -> TokenTree:
    """Returns the ends of the rows' chains and the proposals after them, places [B, W], as separate trees."""
    tokens = sketch.tree.tokens.gather(1, places)
    order = torch.arange(places.shape[1], device=places.device).expand_as(places)
    counts = places.new_tensor([len(path) for path in paths])
    drawn = proposed.laws is not None and places.shape[1] > 1
    return TokenTree(
        tokens=tokens,
        parent=order - 1,
        valid=order < counts[:, None],
        draw=torch.full_like(tokens, Draw.IID if drawn else Draw.TOP),
        levels=places.shape[1] - 1,
        q=proposed.laws if drawn else None,
        q_row=(order - 1).clamp(min=0) if drawn else None,
    )


def _stacked(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Stacks distributions [V] of each row as [B, M, V], with zeros beyond a row's last."""
    width = max(map(len, rows))
    like = next(law for row in rows for law in row)
    return torch.stack([torch.stack([*row, *[torch.zeros_like(like)] * (width - len(row))]) for row in rows])
