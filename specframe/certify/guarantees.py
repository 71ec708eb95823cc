"""Properties that a lossy verifier keeps, enumerated: the origin of its tokens, its rows, and its strict form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import torch

from specframe.certify.certificate import EXACT, Guarantee
from specframe.certify.compositions.batch import COMPANIES, Accompanied
from specframe.certify.compositions.emission import Comparison, Emission, distance
from specframe.kernel.composition import Relaxed
from specframe.kernel.interfaces import Verifier
from specframe.kernel.types import Cycle
from specframe.sampling.laws import Sampling

Compare = Callable[[Emission], Comparison]

ORIGIN = "every token was drafted or is the target's own"
APART = "no row depends on another"
STRICT = "its strict form emits the target's distribution"


def guarantees(make: Callable[..., Emission], compare: Compare) -> Iterator[Guarantee]:
    """Yields what can be enumerated of a composition; its strict form, where the verifier has one.

    `make` builds its emission of a name, with `broken` around the verifier.
    """
    aliens: list[bool] = []
    emission = make(ORIGIN)
    watched = replace(emission, watch=lambda cycle: aliens.append(has_alien(cycle, emission.sampling)))
    alone = compare(watched)
    yield _guarantee(ORIGIN, not any(aliens), alone)
    company = _in_company(emission, compare)
    same = [distance(alone.enumeration.law, each.enumeration.law) < EXACT for each in company]
    yield _guarantee(APART, all(same), *company)
    if isinstance(emission.parts().verifier, Relaxed):
        strict = compare(make(STRICT, broken=_strict))
        yield _guarantee(STRICT, strict.tv < EXACT, strict)


def has_alien(cycle: Cycle, sampling: Sampling) -> bool:
    """Returns whether a token of the cycle is neither on a path of the draft nor one that the target could emit."""
    tree, verdict = cycle.draft, cycle.verdict
    slots = verdict.slots  # [B, A + 1], the root first
    above, here = slots[:, :-1], slots[:, 1:]
    kept = here.clamp(min=0)
    chained = (tree.parent.gather(1, kept) == above) & tree.valid.gather(1, kept) | (here < 0)
    last = slots.gather(1, verdict.length[:, None])[:, 0]  # [B]
    law = replace(sampling, processors=()).law(cycle.scores.logits, tree)  # [B, N, V]
    own = law[torch.arange(len(last)), last].gather(1, verdict.bonus[:, None]) > 0
    return not bool(chained.all() and own.all())


def _in_company(emission: Emission, compare: Compare) -> list[Comparison]:
    """The comparisons of the row among others of different kinds."""
    given = {each.name: getattr(emission, each.name) for each in fields(emission)} | {"name": APART}
    return [compare(Accompanied(**given, company=company)) for company in (0, COMPANIES - 1)]


def _strict(verifier: Verifier) -> Verifier:
    return verifier.strict() if isinstance(verifier, Relaxed) else verifier


def _guarantee(name: str, held: bool, *comparisons: Comparison) -> Guarantee:
    runs = [comparison.enumeration for comparison in comparisons]
    return Guarantee(name, held, sum(run.branches for run in runs), all(run.exhausted for run in runs))
