"""KV selections: the tokens to which the end of the prompt and the likely answer attend."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.plugin import (
    ChosenSlots,
    Committed,
    CommittedMemory,
    Drafter,
    LayeredTarget,
    Prompts,
    Target,
    TokenTree,
    Verdict,
    reader_of,
    untrained_form,
)
from specframe_self.selections.ranking import PromptRanking
from specframe_self.selections.snapkv import shares_of


class SpecKV:
    """For each key head the tokens that a prompt's last queries or a likely answer's attend to most, chosen once.

    The likely answer consists of the most probable tokens after the prompt of a small model, or of the layers that
    draft, restricted to the tokens that the prompt's queries chose. It depends only on the prompt and its first token,
    and not on the drafts for which the choice is used. A token's score is the largest attention to it, over these
    queries and the heads that share the keys; it is then the maximum over its `pool` neighbours (SpecKV in Draft-based
    Approximate Inference, Galim et al. 2025, arXiv 2506.08373). As a drafter's KV selection it preserves the target's
    distribution. The paper drops all other keys and values from the target, as the option `keep` of a target does.

    Options:
        budget: maximum number of tokens that are seen
        lookahead: maximum number of tokens of the likely answer; fewer if the session has no room for them
        window: number of the prompt's last queries that count, at most 64; these tokens are seen, too
        pool: number of neighbours that share a score, an odd number
        drafter: the small model that answers, a drafter `model`; none: the layers that draft, or the target itself
    """

    per_head = queries = True

    def __init__(
        self,
        *,
        budget: int = 512,
        lookahead: int = 32,
        window: int = 32,
        pool: int = 7,
        drafter: Drafter | None = None,
    ) -> None:
        if lookahead < 1:
            raise InputError(f"speckv: the lookahead is at least 1 token, not {lookahead}; without, it is `snapkv`")
        if drafter is not None and reader_of(drafter) is None:
            raise CompositionError(
                f"speckv: a small model drafts the likely answer, and {type(drafter).__name__} has none: "
                "give a `drafter` such as {use: model, weights: ...}, or leave it out"
            )
        self.budget, self.lookahead, self.window, self.pool = budget, lookahead, window, pool
        self._ranking = PromptRanking("speckv", budget, window, pool)
        self.drafter = drafter
        self._answering: tuple[LayeredTarget, int] | None = None  # the small model, and the target's vocabulary
        self._votes = torch.zeros(0)  # [layers, R, key heads, S], of new prompts

    def smaller(self) -> SpecKV:
        """Returns a copy of three tokens, one of them the prompt's last, with one token of lookahead."""
        return SpecKV(budget=3, lookahead=1, window=1, pool=1, drafter=self.drafter)

    def untrained(self, vocab: int) -> SpecKV:
        """Returns a copy whose small model is for a target of `vocab` tokens."""
        small = copy(self)
        small._ranking = PromptRanking("speckv", self.budget, self.window, self.pool)
        small.drafter = untrained_form(self.drafter, vocab)
        return small

    def bind(self, target: Target) -> None:
        """Loads the small model, if there is one."""
        if self.drafter is None:
            return
        as_target = reader_of(self.drafter)
        assert as_target is not None, "the constructor refuses others"
        self.drafter.bind(target)
        self._answering = as_target(), target.vocab_size

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows; drops earlier ones."""
        self._ranking.open(slots)

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Ranks the tokens of new prompts by their own queries; otherwise does nothing."""
        if committed.prompt is not None:
            first = len(memory.counts) - len(committed.count)
            shares = shares_of(memory, first, memory.queries[..., -self.window :, :])
            self._votes = torch.stack([layer.amax((2, 3)) for layer in shares])
            self._ranking.put(self._votes, memory, first)

    @torch.inference_mode()
    def answers(self, committed: Committed) -> Tensor | None:
        """Returns the small model's most probable tokens after new prompts and their roots [R, T], roots first."""
        if self._answering is None:
            return None
        assert committed.prompt is not None
        reader, vocab = self._answering
        rows = []
        for prompt, count, root in zip(
            committed.prompt.tokens, committed.prompt.count.tolist(), committed.root, strict=True
        ):
            read = prompt[max(0, count + self.lookahead - reader.context) : count]  # the end of a long prompt
            rows.append(most_probable(reader, read, root, self.lookahead))
        return torch.stack(rows).clamp(max=vocab - 1)

    def look_ahead(self, queries: Tensor, memory: CommittedMemory) -> None:
        """Ranks the tokens of new prompts again, also by the queries [layers, R, heads, T, D] of the likely answers."""
        first = len(memory.counts) - queries.shape[1]
        shares = shares_of(memory, first, queries, lookahead=queries.shape[3])
        self._votes = torch.maximum(self._votes, torch.stack([layer.amax((2, 3)) for layer in shares]))
        self._ranking.put(self._votes, memory, first)

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the slots of the best-ranked tokens, of the window, and of the answer."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)


def most_probable(reader: LayeredTarget, prompt: Tensor, root: Tensor, count: int) -> Tensor:
    """Returns the root [] of a prompt [L] and the model's most probable tokens after it: [count].

    Tokens that the model does not have are replaced by its last one.
    """
    known = reader.vocab_size - 1
    reader.open(1, len(prompt) + count + 1)
    tree, _ = reader.admit(Prompts(prompt[None].clamp(max=known), torch.full_like(root[None], len(prompt))))
    found = [root[None]]
    while len(found) < count:
        last = found[-1].clamp(max=known)
        reader.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(last), last))
        tree = TokenTree.root_only(last)
        found.append(reader.score(tree).logits[:, 0].argmax(-1))
    reader.open(1, 1)  # drops the prompt
    return torch.cat(found)
