"""The drafter audit: checks that a draft's recorded law of every slot is the law of the slot's token.

It needs no verifier and no target law. Recursive rejection is exact if, for every slot, the recorded law is
the law of the token given everything known to the verifier when it tries the slot: the path, the siblings
tried earlier on every level of the path, their recorded laws, and the existence of the slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specframe.certify.compositions.branches import Forks
from specframe.certify.compositions.enumeration import Enumeration, Outcome, enumerate_outcomes
from specframe.decoding.session import Parts
from specframe.kernel.interfaces import drafting_ahead
from specframe.kernel.types import Context, Cycle, Draw, GreedyScores, Prompts, Scores, TokenTree, Verdict
from specframe.sampling.laws import Sampling

FIELDS = 5
"""Numbers per node of an outcome: token, parent, valid, draw, id of the recorded law."""

DIGITS = 9
"""Number of digits to which equal recorded laws agree."""


@dataclass(frozen=True)
class Slot:
    """A slot with everything known to the verifier when it tries it."""

    path: tuple[tuple[int, ...], ...]
    """Tokens tried at each level, the accepted one last; at the last level, the earlier siblings of the slot alone."""
    seen: tuple[int, ...]
    """The ids of the laws recorded for these tokens, in the same order."""
    law: int
    draw: int

    def describe(self) -> str:
        """The slot in words."""
        levels = [level[-1] for level in self.path[:-1]]
        place = f"below the path {levels}" if levels else "below the root"
        earlier_siblings = list(self.path[-1])
        after = f", after the siblings {earlier_siblings}" if earlier_siblings else ""
        return f"slot {len(earlier_siblings) + 1} {place}{after} (drawn {Draw(self.draw).name.lower()})"


@dataclass(frozen=True)
class Finding:
    """A slot whose recorded law is not the law of its token."""

    slot: str
    tv: float
    """Total variation distance between the two distributions."""
    recorded: tuple[float, ...]
    actual: tuple[float, ...]
    mass: float
    """Probability that a draft has this slot."""

    def __str__(self) -> str:
        """One line: the slot, and both laws."""
        recorded, actual = (", ".join(f"{x:.4f}" for x in law) for law in (self.recorded, self.actual))
        return f"{self.slot}: recorded [{recorded}], but its token follows [{actual}] (off by {self.tv:.4f})"


@dataclass(frozen=True)
class Audit:
    """The outcome of an audit."""

    tv: float
    """The largest distance between a recorded law and the law of the token."""
    findings: tuple[Finding, ...]
    """The slots with wrong laws, largest distance first."""
    slots: int
    """Number of different slots compared."""
    enumeration: Enumeration

    @property
    def passed(self) -> bool:
        """True if every slot records the distribution of its token."""
        return not self.findings


def audit_drafts(
    parts: Callable[[], Parts],
    sampling: Sampling,
    *,
    prompt: tuple[int, ...] = (0,),
    first: int = 1,
    budget: int = 200_000,
    alone: int | None = None,
    tolerance: float = 1e-9,
) -> Audit:
    """Enumerates the drafts after `prompt` and the token `first`, and compares every slot's two laws.

    `budget` and `alone` are those of `enumerate_outcomes`.
    """
    laws: dict[tuple[float, ...], int] = {}

    def program(random: Forks, rows: int) -> Tensor:
        made = parts()
        draft = first_draft(made, sampling, random, rows, prompt, first)
        return encode(draft.whole(made.target.vocab_size), laws)

    with torch.inference_mode():
        enumeration = enumerate_outcomes(program, budget=budget, alone=alone)
    tokens: dict[Slot, dict[int, list[float]]] = {}
    for outcome, mass in enumeration.law.items():
        for slot, token in slots_of(outcome):
            tokens.setdefault(slot, {}).setdefault(token, []).append(mass)
    by_id = {number: law for law, number in laws.items()}
    findings = [found for slot, drawn in tokens.items() if (found := _check(slot, drawn, by_id)).tv > tolerance]
    if not enumeration.exhausted:  # a law seen in part proves nothing
        findings = []
    findings.sort(key=lambda finding: finding.tv, reverse=True)
    return Audit(max((f.tv for f in findings), default=0.0), tuple(findings), len(tokens), enumeration)


def first_draft(
    parts: Parts, sampling: Sampling, random: Forks, rows: int, prompt: tuple[int, ...], first: int
) -> TokenTree:
    """The draft after a prompt and one given token, in `rows` rows.

    For a drafter that drafts ahead, whose first draft is empty, the draft after a second, uniformly drawn token.
    """
    tokens = torch.tensor(prompt).expand(rows, -1)
    prompts = Prompts(tokens, torch.full((rows,), len(prompt)))
    for part in parts.stateful:
        part.open(rows, len(prompt) + parts.nodes + 1)
    tree, scores = parts.target.admit(prompts)
    bonus = torch.full((rows,), first)
    verdict = Verdict(path=tree.tokens[:, :0], length=torch.zeros_like(bonus), bonus=bonus)
    context = Context(sampling, random)
    draft = _next_draft(parts, tree, scores, verdict, context)
    if (run_ahead := drafting_ahead(parts.drafter)) is None:
        return draft
    run_ahead(draft, context)
    scores = parts.target.score(draft)
    drawn = random.categorical(torch.full_like(scores.logits[:, 0], 1 / scores.logits.shape[-1]))
    return _next_draft(parts, draft, scores, replace(verdict, bonus=drawn), context)


def _next_draft(
    parts: Parts, tree: TokenTree, scores: Scores | GreedyScores, verdict: Verdict, context: Context
) -> TokenTree:
    """Commits a verdict and drafts."""
    committed = parts.target.commit(tree, verdict)
    parts.drafter.commit(committed)
    for observer in parts.observers:
        observer.observe(Cycle(tree, scores, verdict, committed))
    return parts.drafter.propose(committed.root, parts.tree, context)


def recorded_laws(tree: TokenTree) -> Tensor | None:
    """The recorded law of each node's token, [B, N, V]; None for a draft of `top` nodes only.

    The tree must have its laws over the whole vocabulary (`TokenTree.whole`).

    One-hot for `top`, q for `iid`, and for `without_replacement` q without the valid earlier siblings drawn
    that way from the same row of q, renormalised.
    """
    if tree.q is None or tree.q_row is None:
        return None
    count, vocab = tree.tokens.shape[1], tree.q.shape[-1]
    unreplaced = tree.draw == Draw.WITHOUT_REPLACEMENT
    q = tree.q.double().gather(
        1, tree.q_row.clamp(0, tree.q.shape[1] - 1)[..., None].expand(-1, -1, vocab)
    )  # [B, N, V]
    earlier = torch.ones(count, count, dtype=torch.bool).tril(-1)  # [N, N]
    same = (tree.parent[:, :, None] == tree.parent[:, None]) & (tree.q_row[:, :, None] == tree.q_row[:, None])
    gone = earlier & same & (unreplaced & tree.valid)[:, None] & unreplaced[:, :, None]  # [B, N, N]
    one_hot = torch.zeros_like(q).scatter(2, tree.tokens[..., None], 1.0)
    taken = gone.double() @ one_hot  # [B, N, V]
    rest = q.masked_fill(taken > 0, 0.0)
    mass = rest.sum(-1, keepdim=True)
    rest = torch.where(mass > 0, rest / mass.clamp(min=1e-300), one_hot)
    return torch.where((tree.draw == Draw.TOP)[..., None], one_hot, rest)


def encode(tree: TokenTree, laws: dict[tuple[float, ...], int]) -> Tensor:
    """The tree as numbers, [B, N * FIELDS]; new recorded laws get the next ids in `laws`."""
    law = recorded_laws(tree)
    number = torch.zeros_like(tree.tokens)
    if law is not None:
        rounded = law.mul(10**DIGITS).round()
        distinct, which = rounded.flatten(0, 1).unique(dim=0, return_inverse=True)
        ids = [laws.setdefault(tuple(row), len(laws)) for row in (distinct / 10**DIGITS).tolist()]
        number = torch.tensor(ids)[which].reshape(tree.tokens.shape)
    number = torch.where(tree.draw == Draw.TOP, -1, number)  # its law is its token
    columns = [tree.tokens, tree.parent, tree.valid.long(), tree.draw.long(), number]
    return torch.stack([column.expand_as(tree.tokens) for column in columns], -1).flatten(1)


def slots_of(outcome: Outcome) -> list[tuple[Slot, int]]:
    """Returns every sampled slot of a draft, with its token."""
    nodes = [outcome[i : i + FIELDS] for i in range(0, len(outcome), FIELDS)]
    paths: list[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = [((), ())]
    found = []
    for index, (token, parent, valid, draw, law) in enumerate(nodes):
        if index == 0:
            continue
        path, seen = paths[parent]
        earlier_siblings = [node for node in nodes[1:index] if node[1] == parent and node[2]]
        tried = tuple(node[0] for node in earlier_siblings)
        seen = (*seen, *(node[4] for node in earlier_siblings))
        paths.append(((*path, (*tried, token)), (*seen, law)))
        if valid and draw != Draw.TOP:
            found.append((Slot((*path, tried), seen, law, draw), token))
    return found


def _check(slot: Slot, drawn: dict[int, list[float]], laws: dict[int, tuple[float, ...]]) -> Finding:
    recorded = laws[slot.law]
    masses = {token: math.fsum(parts) for token, parts in drawn.items()}
    total = math.fsum(masses.values())
    actual = tuple(masses.get(token, 0.0) / total for token in range(len(recorded)))
    tv = math.fsum(abs(a - b) for a, b in zip(actual, recorded, strict=True)) / 2
    return Finding(slot.describe(), tv, recorded, actual, total)
