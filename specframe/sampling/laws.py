"""The one place where logits become laws, for the target and the drafter alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.kernel.types import TokenTree

FEW = (64, 1024)
"""Numbers of the most probable tokens that are examined first for the nucleus of top_p."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""A transformers LogitsProcessor: (input_ids [R, T], logits [R, V]) -> logits [R, V]."""


@dataclass(frozen=True)
class History:
    """The committed tokens of a batch, the root included as the last one, right-padded."""

    tokens: Tensor  # [B, T] int64
    count: Tensor  # [B] int64, at least 1

    def take(self, rows: Tensor) -> History:
        """The history of these rows, int64 [R]."""
        return History(self.tokens[rows], self.count[rows])


Found = tuple[Tensor, Tensor | None]
"""Values by node, and a mask of nodes after which no token has mass; None: there are none."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Turns logits into laws: processors, temperature, top-k, top-p, min-p, softmax, in this order.

    The order and the treatment of ties are those of Hugging Face's `generate`: top-k keeps every token
    that ties with the k-th, top-p keeps the smallest set whose mass reaches top_p, min-p is relative to
    the most probable token. Temperature 0 gives the one-hot law at the argmax, the lowest id on ties.

    Processors must be pure functions of their arguments: they get the rows of a batch in no fixed order.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    processors: tuple[Processor, ...] = ()
    history: History | None = None

    def __post_init__(self) -> None:
        """Raises InputError for a setting outside its range."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature must be 0 (greedy) or a positive number, not {self.temperature}")
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise InputError(f"top_k must be 0 (off) or a positive whole number, not {self.top_k}")
        if not 0 <= self.top_p <= 1:
            raise InputError(f"top_p must lie between 0 and 1 (1 is off), not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p must lie between 0 (off) and 1, not {self.min_p}")

    @property
    def greedy(self) -> bool:
        """True if every law is one-hot."""
        return self.temperature == 0

    def following(self, history: History) -> Sampling:
        """Returns a copy with these committed tokens, for processors that read the history."""
        return replace(self, history=history)

    def law(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Tensor:
        """The law after each node: logits [B, M, V] of nodes [B, M] (None: all of the tree's) -> [B, M, V].

        In float32, or float64 if the logits are. Where no token has mass, the first token has probability 1. Raises
        InputError if there are processors and no history.
        """
        return self.law_and_gaps(logits, tree, nodes)[0]

    def law_and_gaps(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Found:
        """The laws of `law`, and a mask of nodes after which no token has mass: [B, M, V], [B, M] bool or None.

        A node has no mass if processors ban every token or the logits are not numbers.
        """
        if self.greedy:
            best, gaps = self.argmax_and_gaps(logits, tree, nodes)  # [B, M]
            return torch.zeros_like(logits, dtype=law_dtype(logits)).scatter_(-1, best[..., None], 1.0), gaps
        if self.processors:
            logits = self._processed(at_least_float32(logits), tree, nodes)
        logits = at_least_float32(logits)
        if self.temperature != 1:
            logits = logits / self.temperature
        if self.top_k:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p < 1:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p:
            logits = keep_min_p(logits, self.min_p)
        law = logits.softmax(-1)
        gaps = law[..., 0].isnan()  # a softmax is numbers everywhere or nowhere
        if gaps.is_cpu and not gaps.any():  # elsewhere, the check would wait for the device
            return law, None
        law = law.masked_fill(gaps[..., None], 0.0)
        law[..., 0] += gaps
        return law, gaps

    def argmax(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Tensor:
        """The one token of each law at temperature 0: arguments as in `law` -> [B, M] int64."""
        return self.argmax_and_gaps(logits, tree, nodes)[0]

    def argmax_and_gaps(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Found:
        """The tokens of `argmax`, [B, M] int64, and the mask of `law_and_gaps`, [B, M] bool or None."""
        if self.processors:
            logits = self._processed(at_least_float32(logits), tree, nodes)
        best = first_argmax(logits)  # [B, M]
        values = logits.gather(-1, best[..., None])[..., 0]
        # NaN compares as not above. On a CPU a host read costs less than a kernel; for a device it would be a sync.
        if values.is_cpu and all(value > -math.inf for value in values.flatten().tolist()):
            return best, None
        gaps = ~(values > -math.inf)
        return best.masked_fill(gaps, 0), gaps

    def _processed(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None) -> Tensor:
        # Processors take a rectangle of tokens. Padding would be wrong: a penalty would count the pad
        # token, a minimum length the padding, an n-gram rule would find n-grams in it, and a row's law
        # would depend on its neighbours. So they run once per length, on exactly the tokens of each node.
        context, length = self._contexts(tree, nodes)
        processed = torch.empty_like(logits)
        for size in sorted(set(length.flatten().tolist())):
            same = length == size  # [B, M]
            tokens, scores = context[same][:, :size], logits[same]
            for processor in self.processors:
                scores = processor(tokens, scores)
            processed[same] = scores.to(logits.dtype)
        return processed

    def _contexts(self, tree: TokenTree, nodes: Tensor | None) -> tuple[Tensor, Tensor]:
        # The input_ids of each node, right-padded, and their lengths: [B, M, T + levels], [B, M].
        history = self.history
        if history is None or len(history.tokens) != len(tree.tokens):
            raise InputError(
                "logits processors need the committed tokens of every row: use Sampling.following(history)"
            )
        batch, count = tree.tokens.shape
        if nodes is None:
            nodes = torch.arange(count, device=tree.tokens.device).expand(batch, count)
        node = nodes.clamp(min=0)
        length = history.count[:, None] + tree.depth.gather(1, node)  # [B, M]
        spare = history.tokens.new_zeros(batch, tree.levels)
        context = torch.cat([history.tokens, spare], 1)[:, None].repeat(1, node.shape[1], 1)
        tokens = tree.tokens.where(tree.valid, 0)
        place = length - 1
        for _ in range(tree.levels):  # from each node up to the root, which the history already has
            context.scatter_(2, place[..., None], tokens.gather(1, node)[..., None])
            parent = tree.parent.gather(1, node)
            place = place - (parent >= 0).long()
            node = parent.clamp(min=0)
        return context, length


@dataclass(frozen=True)
class RowSampling:
    """A sampling for each row of a batch; rows with equal settings are processed together."""

    rows: Sequence[Sampling]
    history: History | None = None

    @cached_property
    def groups(self) -> list[tuple[Sampling, Tensor]]:
        """The distinct samplings, each with its rows."""
        distinct: list[tuple[Sampling, list[int]]] = []
        for row, sampling in enumerate(self.rows):
            for known, members in distinct:
                if known == sampling:
                    members.append(row)
                    break
            else:
                distinct.append((sampling, [row]))
        return [(sampling, torch.tensor(members)) for sampling, members in distinct]

    @property
    def greedy(self) -> bool:
        """True if every law of every row is one-hot."""
        return all(sampling.greedy for sampling, _ in self.groups)

    @property
    def processors(self) -> tuple[Processor, ...]:
        """The processors of all rows."""
        return tuple(processor for sampling, _ in self.groups for processor in sampling.processors)

    def following(self, history: History) -> RowSampling:
        """Returns a copy with these committed tokens."""
        return replace(self, history=history)

    def law(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Tensor:
        """The law after each node, as in `Sampling.law`, each row by its own sampling: [B, M, V]."""
        return self.law_and_gaps(logits, tree, nodes)[0]

    def law_and_gaps(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Found:
        """The laws, and a mask of nodes after which no token has mass, as in `Sampling.law_and_gaps`."""
        laws = torch.empty_like(logits, dtype=law_dtype(logits))
        gaps = torch.zeros_like(logits[..., 0], dtype=torch.bool)
        for sampling, rows in self._bound(logits.device):
            own = None if nodes is None else nodes[rows]
            laws[rows], missing = sampling.law_and_gaps(logits[rows], tree.take(rows), own)
            if missing is not None:
                gaps[rows] = missing
        return laws, gaps

    def argmax(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Tensor:
        """The one token of each law at temperature 0: [B, M] int64."""
        return self.argmax_and_gaps(logits, tree, nodes)[0]

    def argmax_and_gaps(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Found:
        """The tokens of `argmax`, [B, M] int64, and the mask of `law_and_gaps`, [B, M] bool."""
        best = torch.zeros_like(logits[..., 0], dtype=torch.int64)
        gaps = torch.zeros_like(best, dtype=torch.bool)
        for sampling, rows in self._bound(logits.device):
            own = None if nodes is None else nodes[rows]
            best[rows], missing = sampling.argmax_and_gaps(logits[rows], tree.take(rows), own)
            if missing is not None:
                gaps[rows] = missing
        return best, gaps

    def _bound(self, device: torch.device) -> Iterator[tuple[Sampling, Tensor]]:
        """Yields each sampling, bound to the history of its rows, with these rows."""
        for sampling, rows in self.groups:
            rows = rows.to(device)
            if self.history is not None and sampling.processors:
                sampling = sampling.following(self.history.take(rows))
            yield sampling, rows


def law_dtype(logits: Tensor) -> torch.dtype:
    """The dtype of laws made from these logits: float64 for float64, otherwise float32."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def first_argmax(logits: Tensor) -> Tensor:
    """The index of the first largest logit, where NaN is the largest: [..., V] -> [...] int64."""
    if not logits.is_cpu:
        return logits.argmax(-1)
    # numpy compares by vector instructions where torch does not: five times as fast for 49,152 tokens in bfloat16.
    return torch.from_numpy(np.asarray(at_least_float32(logits.detach()).numpy().argmax(-1)))


def at_least_float32(logits: Tensor) -> Tensor:
    """The logits in the dtype of their laws."""
    return logits.to(law_dtype(logits))


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Logits [..., V] with -inf below the k-th largest; ties with it stay."""
    threshold = logits.topk(min(k, logits.shape[-1]))[0][..., -1:]
    return logits.masked_fill(logits < threshold, -math.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Logits [..., V] with -inf outside the smallest set of most probable tokens whose mass reaches p."""
    vocab = logits.shape[-1]
    # On a CPU, sorting a tree's laws would take longer than scoring it, and usually few tokens have most of the mass.
    sizes = [size for size in FEW if size < vocab and logits.is_cpu]
    nucleus = _nucleus(logits.reshape(-1, vocab).softmax(-1), p, sizes)
    return logits.masked_fill(~nucleus.view_as(logits), -math.inf)


def _nucleus(law: Tensor, p: float, sizes: Sequence[int]) -> Tensor:
    """Mask of the kept tokens, laws [R, V] -> bool, from the top `sizes` tokens if they suffice, else from a sort."""
    if not sizes:
        ascending, order = law.sort()
        dropped = ascending.cumsum(-1) <= 1 - p  # the tail, summed from the least probable token
        dropped[:, -1] = False
        return ~dropped.scatter(-1, order, dropped)
    best, order = law.topk(sizes[0])
    inside = ~(best.cumsum(-1) - best >= p)  # where the mass before a token is below p, or NaN
    inside[:, 0] = True
    nucleus = torch.zeros_like(law, dtype=torch.bool).scatter_(1, order, inside)
    last = inside.sum(-1, keepdim=True) - 1
    # The sort decides which of equally probable tokens are kept.
    tied = best.gather(1, last) == best.gather(1, (last + 1).clamp(max=sizes[0] - 1))
    unsettled = (inside[:, -1] | tied[:, 0]).nonzero()[:, 0]
    if len(unsettled):
        nucleus[unsettled] = _nucleus(law[unsettled], p, sizes[1:])
    return nucleus


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """Logits [..., V] with -inf where a token is less than p times as probable as the most probable one."""
    law = logits.softmax(-1)
    return logits.masked_fill(law < p * law.amax(-1, keepdim=True), -math.inf)
