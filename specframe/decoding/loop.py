"""The method on one screen: draft, score, verify, commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from specframe.components.verifiers.greedy import GreedyVerifier
from specframe.decoding.clock import Clock
from specframe.decoding.ledger import Ledger
from specframe.kernel.interfaces import Drafter, Observer, RandomSource, Target, TreePolicy, Verifier
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.sampling.laws import Sampling


class Streams(Protocol):
    """A session's random streams; `SeededRandom` in production, an enumerator in a certificate."""

    @property
    def draft(self) -> RandomSource:
        """The drafter's noise, independent of the verifier's."""
        ...

    @property
    def verify(self) -> RandomSource:
        """The verifier's noise."""
        ...

    def advance(self) -> None:
        """Starts a new cycle: fresh noise in every stream."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps the streams of these rows."""
        ...


@dataclass(frozen=True)
class Parts:
    """What a recipe composes."""

    target: Target
    drafter: Drafter
    tree: TreePolicy | None
    verifier: Verifier


@dataclass(frozen=True)
class Cycle:
    """What one cycle did. The first verifies a stump, the prompt's last token alone."""

    draft: TokenTree
    verdict: Verdict


def decode(
    parts: Parts, sampling: Sampling, prompts: Prompts, random: Streams, ledger: Ledger, clock: Clock
) -> Iterator[Cycle]:
    """Yields cycles until the ledger has closed every row; a closed row leaves the batch at once."""
    target, drafter = parts.target, parts.drafter
    deciding: tuple[object, ...] = (parts.tree, parts.verifier)
    observers: list[Observer] = [part for part in deciding if isinstance(part, Observer)]
    for observer in observers:
        observer.begin(prompts)
    greedy = parts.verifier if sampling.greedy and isinstance(parts.verifier, GreedyVerifier) else None
    with clock.phase("prefill"):
        draft, scores = target.prefill(prompts, ledger.room)
    while True:
        random.advance()
        with clock.phase("verify"):
            if greedy is not None:
                verdict = greedy.follow(draft, ledger.follow(sampling).said(scores.logits, draft))
            else:
                verdict = parts.verifier.verify(draft, ledger.follow(sampling).law(scores.logits, draft), random.verify)
        with clock.phase("commit"):
            news = target.commit(draft, verdict)
            for observer in observers:
                observer.hear(draft, verdict)
            alive = ledger.enter(draft, verdict)
        yield Cycle(draft, verdict)
        if not alive:
            return
        with clock.phase("commit"):
            drafter.commit(news)
            root = news.root
            if len(alive) < len(root):
                rows = torch.tensor(alive, device=root.device)
                for part in (target, drafter, random):
                    part.keep(rows)
                for observer in observers:
                    observer.keep(rows)
                root = root[rows]
        with clock.phase("draft"):
            draft = drafter.propose(root, parts.tree, ledger.follow(sampling), random.draft)
        with clock.phase("score"):
            scores = target.score(draft)
