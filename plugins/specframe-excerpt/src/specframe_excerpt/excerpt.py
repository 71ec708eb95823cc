"""A drafter that reads an excerpt of a long prompt, and all that follows it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specframe import CompositionError, InputError
from specframe.plugin import (
    Committed,
    Context,
    Cycle,
    Drafter,
    Observer,
    Promise,
    Prompts,
    Shrinkable,
    Target,
    TokenTree,
    TreePolicy,
    Untrained,
    text_of,
)
from specframe_excerpt.selection import Bm25, Embeddings, PieceRanking, select

log = logging.getLogger("specframe.excerpt")


@runtime_checkable
class Bounded(Protocol):
    """A drafter with a context of its own."""

    @property
    def context(self) -> int:
        """Number of tokens it can read."""


class Excerpt:
    """Another drafter, which reads the best-fitting pieces of a prompt, in their order, and its end, the question.

    The target reads everything, so a lossless verifier stays lossless. A prompt of no more than `tokens` tokens is read
    as it is. A drafting model, also the target's own checkpoint, so drafts behind a long prompt at the price of a short
    one, and reads it sooner.

    Pieces are ranked by BM25 over tokens and pairs of tokens, or by the cosine between mean embeddings. The first piece
    and special tokens, such as a chat template's, are always read.

    Source: RAPID (Chen et al. 2025, arXiv 2502.20330), whose drafter reads what a retrieval model finds.

    Options:
        drafter: the drafter, one that reads tokens alone
        tokens: how many tokens of a prompt are read at most
        chunk: how many tokens a piece has
        question: how many tokens at the prompt's end are the question
        embeddings: a safetensors file with one tensor, a vector for each of the target's tokens; none: BM25
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        drafter: Drafter,
        tokens: int = 1024,
        chunk: int = 128,
        question: int = 128,
        embeddings: str | None = None,
    ) -> None:
        if min(chunk, question) < 1 or tokens <= question:
            raise InputError(
                "excerpt needs chunk and question of at least 1, and more tokens than the question's, got "
                f"{chunk}, {question} and {tokens}"
            )
        if drafter.taps or drafter.promise.borrows or drafter.promise.ahead:
            raise CompositionError(
                "the drafter of excerpt reads another prompt than the target, so it cannot use the target's features, "
                "layers or keys, nor draft ahead; try a `model`"
            )
        self.drafter, self.tokens, self.chunk, self.question = drafter, tokens, chunk, question
        self._ranking: PieceRanking = Bm25() if embeddings is None else Embeddings.read(embeddings)
        self._special: frozenset[int] = frozenset()
        self._warned = False

    @property
    def promise(self) -> Promise:
        """The drafter's promise."""
        return self.drafter.promise

    def untrained(self, vocab: int) -> Excerpt:
        """A small excerpt by BM25, its drafter for a target of `vocab` tokens, whose context may be small, too."""
        return _small(self.drafter.untrained(vocab) if isinstance(self.drafter, Untrained) else self.drafter)

    def smaller(self) -> Excerpt:
        """A small excerpt around the drafter's small form, if it has one."""
        return _small(self.drafter.smaller() if isinstance(self.drafter, Shrinkable) else self.drafter)

    def bind(self, target: Target) -> None:
        """Binds the drafter.

        Raises InputError for embeddings of another vocabulary, CompositionError for excerpts beyond the drafter's
        context.
        """
        if isinstance(self._ranking, Embeddings):
            self._ranking.require(target.vocab_size)
        text = text_of(target)
        marks = [] if text.tokenizer is None else text.tokenizer.all_special_ids
        self._special = frozenset(marks) | frozenset(text.ends)
        self.drafter.bind(target)
        if isinstance(self.drafter, Bounded) and self.tokens >= self.drafter.context:
            raise CompositionError(
                f"an excerpt of {self.tokens} tokens leaves no room in the drafter's context of {self.drafter.context}"
            )

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self.drafter.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The drafter's draft below root [B]."""
        return self.drafter.propose(root, tree, context)

    def commit(self, committed: Committed) -> None:
        """Passes the commit on, of new rows the excerpts of their prompts."""
        if committed.prompt is not None:
            committed = self._admitted(committed, committed.prompt)
        self.drafter.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Passes the cycle to a drafter that observes."""
        if isinstance(self.drafter, Observer):
            self.drafter.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.drafter.keep(rows)

    def _admitted(self, committed: Committed, prompts: Prompts) -> Committed:
        """The admission of the same rows with their prompts' excerpts."""
        texts = zip(prompts.tokens.tolist(), prompts.count.tolist(), strict=True)
        excerpts = [self._excerpt(text[:count]) for text, count in texts]
        firsts = committed.root.tolist()
        following = [[*text[1:], first] for text, first in zip(excerpts, firsts, strict=True)]
        device = prompts.tokens.device
        counts = [len(text) for text in excerpts]
        count = torch.tensor(counts, device=device)
        tokens, shifted = _padded(excerpts, device), _padded(following, device)  # [B, M]
        return Committed(shifted, count, {}, committed.root, Prompts(tokens, count), counts)

    def _excerpt(self, prompt: list[int]) -> list[int]:
        """The tokens of a prompt that are read."""
        if len(prompt) <= self.tokens:
            return prompt
        found = select(prompt, self.tokens, self.chunk, self.question, self._special, self._ranking)
        if not found.fitting and not self._warned:
            self._warned = True
            log.warning("no piece of a prompt fits its question: the drafter reads its first and last pieces")
        return [prompt[place] for place in found.places]


def _small(drafter: Drafter) -> Excerpt:
    return Excerpt(drafter=drafter, tokens=3, chunk=1, question=1)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True)
