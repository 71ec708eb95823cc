"""Cycles of real code for a test: one's law against the target's, the audit of its draft, and replays of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from specframe.certify.compositions.audit import Audit, audit_drafts
from specframe.certify.compositions.branches import Forks, HiddenState, UnnormalisedLaw
from specframe.certify.compositions.emission import END, Comparison, compare
from specframe.certify.compositions.enumeration import Enumeration, Outcome, enumerate_outcomes
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.kernel.interfaces import Drafter, Observer, Target, TreePolicy, Verifier
from specframe.kernel.types import Committed, Context, Cycle, Scores, Verdict
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.testing.tables import GivenDrafter

ROOT = 0
"""The token every enumerated cycle starts from."""


def compare_cycle(
    tree: TreePolicy,
    verifier: Verifier,
    p: Tensor,
    q: Tensor,
    *,
    temperature: float = 1.0,
    budget: int = 1_000_000,
    rows: int = 16384,
) -> Comparison:
    """The law of one cycle's tokens, continued by the target's own law, against the target's law.

    p [V, V] and q [V, V] (or [K, V, V] for a drafter of K levels) are the laws after each token. All of levels + 1
    tokens are compared, so that a cycle's length cannot depend on later tokens.
    """
    drafter = GivenDrafter(q)
    sampling = Sampling(temperature=temperature)
    vocab = p.shape[-1]

    def program(random: Forks, count: int) -> Tensor:
        draft = tree.grow(drafter.expand, torch.full((count,), ROOT), Context(sampling, random))
        verdict = verifier.verify(draft, AllLaws(p[draft.tokens]), random)
        emitted = verdict.emitted(draft)  # [B, levels + 1]
        return emitted.where(torch.arange(emitted.shape[1]) < verdict.count[:, None], END)

    with torch.inference_mode():
        enumeration = enumerate_outcomes(program, budget=budget, rows=rows)
    levels = max((len(outcome) for outcome in enumeration.law), default=1)
    wanted = continued({(): 1.0}, p, levels)
    got = continued({_trimmed(outcome): mass for outcome, mass in enumeration.law.items()}, p, levels)
    assert all(token < vocab for outcome in got for token in outcome)
    return compare(wanted, _with_law(enumeration, got))


def continued(law: dict[Outcome, float], p: Tensor, length: int) -> dict[Outcome, float]:
    """A law of texts of up to `length` tokens, each continued to `length` by the target's law p [V, V]."""
    rows = p.tolist()
    finished: dict[Outcome, float] = {}
    queue = list(law.items())
    while queue:
        tokens, mass = queue.pop()
        if len(tokens) == length:
            finished[tokens] = finished.get(tokens, 0.0) + mass
            continue
        after = rows[tokens[-1] if tokens else ROOT]
        queue += [((*tokens, token), mass * share) for token, share in enumerate(after) if share > 0]
    return finished


def _trimmed(outcome: Outcome) -> Outcome:
    return tuple(token for token in outcome if token != END)


def _with_law(enumeration: Enumeration, law: dict[Outcome, float]) -> Enumeration:
    from dataclasses import replace

    return replace(enumeration, law=law)


@contextmanager
def objections() -> Iterator[None]:
    """Turns hidden state and unnormalised laws into an AssertionError with the same message."""
    try:
        yield
    except (HiddenState, UnnormalisedLaw) as error:
        raise AssertionError(str(error)) from error


def audit(
    drafter: Callable[[], Drafter],
    tree: TreePolicy | None = None,
    *,
    target: Callable[[], Target] = lambda: TableTarget(vocab=3),
    sampling: Sampling | None = None,
    prompt: tuple[int, ...] = (0, 1, 2, 0, 1),
    budget: int = 200_000,
) -> Audit:
    """Enumerates the drafts of `drafter` (made afresh, bound to `target`) with `tree`, and audits every slot.

    For each slot the law that the draft records is compared with the law that the slot's token really has,
    given the path, the siblings before it and that the slot exists. `findings` names the slots that lie.
    """

    def parts() -> Parts:
        model, maker = target(), drafter()
        maker.bind(model)
        return Parts(model, maker, tree, Match())

    return audit_drafts(parts, sampling or Sampling(temperature=1.0), prompt=prompt, budget=budget)


def replay(parts: Parts, cycle: Cycle) -> None:
    """Takes the target and the drafter through a cycle that others went through."""
    if cycle.committed.prompt is None:
        parts.target.score(cycle.draft)
    else:
        parts.target.admit(cycle.committed.prompt)
    parts.target.commit(cycle.draft, cycle.verdict)
    take_in(parts.drafter, cycle)


def take_in(drafter: Drafter, cycle: Cycle) -> None:
    """Commits a cycle to the drafter, which also observes it if it is an Observer."""
    drafter.commit(cycle.committed)
    if isinstance(drafter, Observer):
        drafter.observe(cycle)


def chosen(cycle: Cycle, rows: torch.Tensor) -> Cycle:
    """The cycle of these rows alone; not that of an admission."""
    committed, verdict = cycle.committed, cycle.verdict
    features = {tap: feature[rows] for tap, feature in committed.features.items()}
    return Cycle(
        draft=cycle.draft.take(rows),
        scores=Scores(cycle.scores.logits[rows], {}),
        verdict=Verdict(verdict.path[rows], verdict.length[rows], verdict.bonus[rows]),
        committed=Committed(committed.tokens[rows], committed.count[rows], features, committed.root[rows]),
    )
