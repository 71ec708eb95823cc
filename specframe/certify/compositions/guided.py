"""Guided texts: the first tokens of a case are forced, so that few branches reach a deep level or a late cycle.

An enumeration from the first token on compares three or four tokens, while shipped trees have 3 to 15 levels. The
composition is therefore first run with a verifier that always accepts the deepest path, which gives a text that the
drafter drafts. In a case this text is forced up to a place of choice, for both target and drafter; branches and
comparison begin there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specframe.certify.compositions.emission import Emission
from specframe.decoding.requests import Request
from specframe.decoding.session import Session
from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Cycle, TokenTree, Verdict

CYCLES, TOKENS, MOST_CYCLES = 8, 36, 16
"""Fewest cycles and tokens of a guided text, and the most cycles, which count first."""


@dataclass(frozen=True)
class Forced:
    """A logits processor that forces the first tokens after a prompt."""

    prompt: int
    """Length of the prompt in tokens."""
    tokens: tuple[int, ...]
    free: int | None = None
    """Number of tokens after these that are left as they are, before the text is certain again; None: all."""

    def __call__(self, texts: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] after texts [R, T]: -inf but for the forced token, or as they are where none is."""
        place = texts.shape[1] - self.prompt
        after = place - len(self.tokens)
        if place < 0 or 0 <= after < (math.inf if self.free is None else self.free):
            return logits
        certain = torch.full_like(logits, -math.inf)
        certain[:, self.tokens[place] if after < 0 else 0] = 0.0
        return certain


@dataclass(frozen=True)
class Deepest:
    """A verifier that accepts the first of the deepest paths, whatever the target's distribution is.

    Its bonus is the last token's successor in the numbering of the vocabulary. So the text goes round the vocabulary
    as the prompt does, which drafters that copy can follow, and no bonus equals the token before it.
    """

    lossless = False
    needs = Needs()

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The path, and the bonus."""
        p = laws.all
        node = tree.depth.where(tree.valid, -1).argmax(1)  # [B]
        length = tree.depth.gather(1, node[:, None])[:, 0]
        bonus = (tree.tokens.gather(1, node[:, None])[:, 0] + 1) % p.shape[-1]
        path = torch.full((len(node), tree.levels), -1)
        rows = torch.arange(len(node))
        for level in range(tree.levels, 0, -1):
            reached = length >= level
            path[rows[reached], level - 1] = node[reached]
            node = tree.parent.gather(1, node[:, None])[:, 0].where(reached, node)
        return Verdict(path=path, length=length, bonus=bonus)


@dataclass(frozen=True)
class Guide:
    """A text that a composition drafts: its tokens, and how many of them each cycle committed."""

    tokens: tuple[int, ...]
    counts: tuple[int, ...]
    """The first one is the admission's, which is 1."""

    @property
    def accepted(self) -> int:
        """Number of drafted tokens that were accepted."""
        return sum(count - 1 for count in self.counts)

    @property
    def levels(self) -> int:
        """The deepest level that a draft was accepted to."""
        return max(self.counts) - 1

    def before(self, cycle: int) -> int:
        """The tokens that are committed when a cycle begins, the admission being cycle 0."""
        return sum(self.counts[:cycle])

    @property
    def deep(self) -> int:
        """The tokens before the last level of the deepest draft."""
        cycle = self.counts.index(max(self.counts))
        return max(1, self.before(cycle) + self.levels - 1)


def guide(make: Callable[..., Emission], *, cycles: int = CYCLES, tokens: int = TOKENS) -> Guide:
    """The text of a composition's first cycles; `make` builds its emission, with `broken` around the verifier."""
    return decode(make(broken=lambda verifier: Deepest()), cycles=cycles, tokens=tokens)


def decode(
    emission: Emission, watch: Callable[[Cycle], None] | None = None, *, cycles: int = CYCLES, tokens: int = TOKENS
) -> Guide:
    """The tokens of an emission's first cycles, by one seed's random numbers; `watch` is called with every cycle."""
    parts = emission.parts()
    room = min(len(emission.prompt) + (MOST_CYCLES + 1) * parts.nodes + 1, parts.target.context)
    request = Request(
        tokens=emission.prompt, sampling=emission.sampling, max_new_tokens=room - parts.nodes - len(emission.prompt)
    )
    session = Session(parts, 1, room, watch=watch)
    [entry] = session.admit([request])
    counts = [len(entry.tokens)]
    while entry.ended is None and len(counts) <= MOST_CYCLES and (len(counts) <= cycles or len(entry.tokens) < tokens):
        session.step()
        counts.append(len(entry.tokens) - sum(counts))
    return Guide(tuple(entry.tokens), tuple(counts))


def forced(emission: Emission, tokens: Sequence[int], free: int, ending: bool = False) -> Emission:
    """The emission with its first tokens certain, and `free` further ones compared.

    If it is `ending`, what is drafted beyond these is certain, too: few branches, and nothing seen of deeper levels.
    """
    processor = Forced(len(emission.prompt), tuple(tokens), free if ending else None)
    sampling = replace(emission.sampling, processors=(*emission.sampling.processors, processor))
    return replace(emission, sampling=sampling, length=len(tokens) + free)
