"""The values exchanged with plugins: frozen dataclasses of tensors, batch first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from specframe.kernel.costs import Costs as Costs
from specframe.kernel.predictions import Chunks as Chunks
from specframe.kernel.predictions import Drafts as Drafts
from specframe.kernel.predictions import PairSpec as PairSpec
from specframe.kernel.predictions import Predicted as Predicted
from specframe.kernel.predictions import Student as Student
from specframe.kernel.predictions import Teacher as Teacher
from specframe.kernel.tree import ALL_DRAWS as ALL_DRAWS
from specframe.kernel.tree import Draw as Draw
from specframe.kernel.tree import TokenTree as TokenTree
from specframe.kernel.verdict import HostVerdict as HostVerdict
from specframe.kernel.verdict import Verdict as Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.sampling import RandomSource, SamplingRule


@dataclass(frozen=True)
class KnownPrefix:
    """The beginning of a text that a target has read in a session, for rows whose texts begin with it, too."""

    tokens: Sequence[int]
    memory: Tensor  # [2 * layers, H, L, D], from `CommittedMemory.copy`
    features: Mapping[str, Tensor]  # tap -> [1, L, D]

    def head(self, count: int) -> KnownPrefix:
        """Its first `count` tokens."""
        features = {tap: values[:, :count] for tap, values in self.features.items()}
        return KnownPrefix(self.tokens[:count], self.memory[:, :, :count], features)


@dataclass(frozen=True)
class Prompts:
    """The prompts of a batch, right-padded with 0.

    `inputs` are tensors that the target reads with the tokens, such as the pixels of images, by the target's own names
    for them; only the target uses them.
    """

    tokens: Tensor  # [B, L] int64
    count: Tensor  # [B] int64, tokens of each row, at least 1
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    prefixes: Sequence[KnownPrefix] = ()
    """The beginning of each prompt that the target need not read again, all of one length, shorter than any prompt."""
    predicted: Sequence[Sequence[int]] = ()
    """A likely continuation of each prompt, empty for a row without one: see `Request.predicted`."""


@dataclass(frozen=True)
class Scores:
    """Output of one target forward pass for every node of a tree."""

    logits: Tensor  # [B, N, V], raw; only Sampling makes the law from them
    features: Mapping[str, Tensor]  # tap -> [B, N, D]


@dataclass(frozen=True)
class GreedyScores:
    """Scores of a target that finds the argmax token after every node without logits."""

    best: Tensor  # [B, N] int64, the first token of the largest logit; -1 where that is not a number
    features: Mapping[str, Tensor]  # tap -> [B, N, D]
    head: Callable[[], Tensor]  # computes the logits [B, N, V], in which `best` are the largest
    verdict: Verdict | None = None  # accepts the path of `best`; None: not known, or `best` is -1 on the path

    @cached_property
    def logits(self) -> Tensor:
        """The logits [B, N, V], computed by the LM head at the first access."""
        return self.head()

    @property
    def has_logits(self) -> bool:
        """True if the LM head has run."""
        return "logits" in vars(self)


@dataclass(frozen=True)
class Committed:
    """Newly committed tokens, each with the feature of the token before it.

    `features[tap][:, i]` belongs to the token just before `tokens[:, i]`: the pair (f_i, token_(i+1)). After a cycle
    that is [f_root, f_path...] with [path..., bonus].

    An admission commits the prompts of new rows, which join the session after its other rows: the prompt's features
    with the prompt shifted by one plus the first generated token, and the prompts themselves in `prompt`. Such a commit
    holds the new rows alone.
    """

    tokens: Tensor  # [B, M] int64, 0 beyond count
    count: Tensor  # [B] int64, at least 1
    features: Mapping[str, Tensor]  # tap -> [B, M, D]
    root: Tensor  # [B] int64, the last committed token: root of the next tree
    prompt: Prompts | None = None

    @classmethod
    def of(cls, verdict: Verdict, tree: TokenTree, features: Mapping[str, Tensor]) -> Committed:
        """The commit of a verdict on a tree; its tensors are views of `Verdict.packed`."""
        texts = verdict.to_host(tree).tokens
        counts = [*map(len, texts)]
        tokens = verdict.emitted(tree).narrow(1, 0, max(counts))
        committed = cls(tokens, verdict.count, features, verdict.bonus)
        vars(committed).update(texts=texts, counts=counts)  # they need not be copied again
        return committed

    @cached_property
    def counts(self) -> list[int]:
        """`count` on the host."""
        counts: list[int] = self.count.tolist()
        return counts

    @cached_property
    def texts(self) -> list[list[int]]:
        """The tokens of each row, on the host."""
        return [row[:count] for row, count in zip(self.tokens.tolist(), self.counts, strict=True)]


@dataclass(frozen=True)
class Cycle:
    """One cycle of a session: its draft, scores, verdict and commit.

    An admission is a cycle of the new rows alone, over their last prompt tokens; there `committed.prompt` is set.
    """

    draft: TokenTree
    scores: Scores | GreedyScores
    verdict: Verdict
    committed: Committed


@dataclass(frozen=True)
class BeamSearch:
    """Settings of a beam search below the root; its rules are those of the tree policy `dynamic`."""

    depth: int
    width: int  # parents per level, and children per parent
    nodes: int  # the most nodes of a tree, the root included
    gain: float = 0.0  # a level that adds no more expected tokens than this is the last
    powers: tuple[float, ...] | None = None  # of the drafter's laws, level by level; None: they stay as they are
    costs: Costs | None = None  # None: everything pays


@dataclass(frozen=True)
class Context:
    """Inputs of a draft in addition to the committed text."""

    sampling: SamplingRule
    random: RandomSource
    costs: Costs | None = None  # times of forward passes; None: every node that may be drafted is worth it
    search: SearchBeam | None = None  # the drafter's own beam search; None: it is asked level by level
    left: Sequence[int] = ()  # tokens that each row may still generate; empty: not known

    def with_search(self, search: SearchBeam | None) -> Context:
        """Returns a copy with another search."""
        return Context(self.sampling, self.random, self.costs, search, self.left)


@dataclass(frozen=True)
class Frontier:
    """Nodes that a tree policy wants expanded, with the tree grown so far.

    Contract: every frontier node is the root, or lies exactly K levels below a node expanded earlier in the same draft,
    where K is the number of levels of that proposal. The first frontier is the root alone. Node indices do not change
    while a tree grows. If a drafter promises `path_in_frontier`, a node's parent may stand before it in the same
    frontier, and the first frontier begins with the root.
    """

    tree: TokenTree
    nodes: Tensor  # [B, F] int64


@dataclass(frozen=True)
class Proposal:
    """The drafter's answer for the next K levels below each frontier node."""

    logits: Tensor  # [B, F, K, v], raw; a policy that samples makes the law through Sampling
    confidence: Tensor | None = None  # [B, F, K], the drafter's own estimate that a level is accepted
    support: Tensor | None = None  # [v] int64, the tokens of the logits' columns; None: the whole vocabulary
    vocab: int | None = None  # V, the size of the whole vocabulary; needed with a support, where tokens are drawn

    def tokens(self, columns: Tensor) -> Tensor:
        """The tokens of these columns of the logits, [..] int64; -1 stays."""
        if self.support is None:
            return columns
        return self.support[columns].where(columns >= 0, columns)

    @property
    def whole(self) -> Proposal:
        """The proposal with logits over the whole vocabulary, -inf outside the support, for drawing tokens.

        Raises ValueError for a support without `vocab`.
        """
        if self.support is None:
            return self
        if self.vocab is None:
            raise ValueError("a proposal with a support needs `vocab`, the size of the whole vocabulary")
        logits = self.logits.new_full((*self.logits.shape[:-1], self.vocab), -inf)
        logits[..., self.support] = self.logits
        return Proposal(logits, self.confidence)


Expand = Callable[[Frontier], Proposal]
"""A drafter's forward pass, as a tree policy calls it."""
SearchBeam = Callable[[BeamSearch, "Tensor"], tuple[TokenTree, int]]
"""A drafter's whole search below root [B]: the tree, and the number of forward passes that it took."""
