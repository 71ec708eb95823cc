"""Every known way to lose losslessness, each one small broken composition, with its exact error.

`joint` is the total variation on the instance P, Q of instances.py (P3, Q3 where stated), known in advance.
The first token of the loop comes from the prompt alone, so that a trap of L tokens shows in L + 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.kernel.interfaces import TreePolicy
from specframe.testing.tables import GivenDrafter
from tests.certify.traps.drafts import (
    OneNoise,
    Reranked,
    best,
    best_two_of_three,
    chain,
    deduplicated,
    drawn_then_retrieved,
    exhausted,
    foreseen,
    greedy_and_random,
    iid_pair,
    iid_sorted_by_q,
    likelier_of_two,
    more_confident_drafter,
    one,
    one_sharp,
    one_truncated,
    recorded,
    retrieved_then_drawn,
    shuffled,
    stops_after,
    stops_before,
    top_two,
    truncated,
    two,
    two_drafters,
    weak_dropped,
    weak_dropped_and_named,
    wor_sorted_by_id,
    wor_sorted_by_p,
    wor_sorted_by_q,
    wor_sorted_keeping_laws,
)
from tests.certify.traps.instances import IID, P3, Q3, TOP, WOR, Drafts, P, Q, Rejection
from tests.certify.traps.rules import (
    BonusElsewhere,
    CorrectionFromTarget,
    CorrectionWithout,
    CutAtShortest,
    DrawPerPath,
    DropsBonus,
    DropsCorrection,
    FreshDraft,
    FullResidual,
    LastResidual,
    LongerOfTwo,
    MatchRedraws,
    OneCoinPerNode,
    OneCoinPerRequest,
    RefusesUnknown,
    ResidualFromTest,
    RoundsDown,
    SharedWithDraft,
)

Composition = tuple[Any, TreePolicy | None, Any]
"""Drafter, tree policy, verifier."""


@dataclass(frozen=True)
class Trap:
    """A broken composition, or with `joint` 0 one that looks broken and is not."""

    row: str
    what: str
    joint: float
    length: int
    make: Callable[[], Composition]
    p: Tensor = P
    wrong: bool = False
    """The drafter records a law that is not the law of its token: the audit must find it."""


def drafted(make: Any, verifier: Any = Recursive, q: Tensor = Q) -> Callable[[], Composition]:
    """A drafter of context-free trees under a verifier."""
    return lambda: (Drafts(make, q), None, verifier())


def grown(tree: Any, verifier: Any, q: Tensor = Q) -> Callable[[], Composition]:
    """A tree policy over the context-free law."""
    return lambda: (GivenDrafter(q), tree(), verifier())


def both(make: Callable[[], Any]) -> Callable[[], Composition]:
    """Drafter and verifier are one object."""

    def parts() -> Composition:
        single = make()
        return single, None, single

    return parts


TRAPS = [
    Trap(
        "1",
        "siblings sorted by q after drawing, laws in the new order",
        0.1167,
        1,
        drafted(wor_sorted_by_q),
        wrong=True,
    ),
    Trap(
        "2",
        "siblings sorted by q, each with the law it was drawn from",
        0.1471,
        1,
        drafted(wor_sorted_keeping_laws),
        wrong=True,
    ),
    Trap("3", "siblings sorted by token id", 0.1167, 1, drafted(wor_sorted_by_id), wrong=True),
    Trap("4", "independent siblings sorted by q", 0.0600, 1, drafted(iid_sorted_by_q), wrong=True),
    Trap("5", "siblings sorted by the target's law", 0.1417, 1, drafted(wor_sorted_by_p), wrong=True),
    Trap("7", "siblings without replacement in random order", 0.0125, 1, drafted(shuffled(WOR, two)), wrong=True),
    Trap("8", "independent draws de-duplicated (2), law q", 0.0268, 1, drafted(deduplicated(2, IID)), wrong=True),
    Trap("8, k=3", "independent draws de-duplicated (3), law q", 0.0435, 1, drafted(deduplicated(3, IID)), wrong=True),
    Trap("9", "the better two of three draws", 0.0770, 1, drafted(best_two_of_three), wrong=True),
    Trap(
        "10", "a sampled tree re-ranked by cumulative q", 0.0374, 2, grown(lambda: Reranked(3), Recursive), wrong=True
    ),
    Trap("11", "unlikely children dropped after drawing", 0.1698, 1, drafted(weak_dropped), wrong=True),
    Trap("14", "without replacement, recorded as independent", 0.0434, 1, drafted(recorded(two, IID)), wrong=True),
    Trap("15", "residual with the original q", 0.0168, 1, drafted(recorded(two, WOR), FullResidual)),
    Trap("16", "top tokens recorded as independent draws", 0.4464, 1, drafted(recorded(top_two, IID)), wrong=True),
    Trap("16, wor", "top tokens recorded as if drawn", 0.5000, 1, drafted(recorded(top_two, WOR)), wrong=True),
    Trap("16, chain", "the argmax recorded as a draw", 0.3125, 1, drafted(recorded(best, IID)), wrong=True),
    Trap(
        "16b", "greedy and random, both recorded without replacement", 0.3125, 1, drafted(greedy_and_random), wrong=True
    ),
    Trap("17", "the bonus drawn at another temperature", 0.0800, 2, drafted(chain(1), BonusElsewhere)),
    Trap(
        "18", "unrecorded token refused", 0.0900, 1, drafted(recorded(one, IID, truncated), RefusesUnknown), wrong=True
    ),
    Trap("19", "unrecorded token accepted", 0.1100, 1, drafted(recorded(one, IID, truncated), Rejection), wrong=True),
    Trap("19b", "drawn truncated, recorded in full", 0.1571, 1, drafted(recorded(one_truncated, IID)), wrong=True),
    Trap("19c", "drawn at temperature 1/2, recorded at 1", 0.0417, 1, drafted(recorded(one_sharp, IID)), wrong=True),
    Trap(
        "20",
        "two drafters, the mean law recorded",
        0.0857,
        1,
        drafted(lambda *a: two_drafters(*a, mean=True), q=Q3),
        p=P3,
        wrong=True,
    ),
    Trap("21", "q used up, the filler recorded as uniform", 0.3000, 1, drafted(exhausted), wrong=True),
    Trap("22", "correction drawn from p", 0.1400, 1, drafted(chain(1), CorrectionFromTarget)),
    Trap(
        "22, without",
        "correction drawn from p without the refused token",
        0.1167,
        1,
        drafted(chain(1), CorrectionWithout),
    ),
    Trap("22, last", "correction from the last residual alone", 0.0801, 1, drafted(recorded(two, WOR), LastResidual)),
    Trap("22b", "a fresh draft tested against the old p", 0.1400, 1, drafted(recorded(iid_pair, IID), FreshDraft)),
    Trap("23", "correction dropped after an acceptance", 0.0840, 2, drafted(chain(2), DropsCorrection)),
    Trap("24", "accepted length rounded down to even", 0.1066, 3, drafted(chain(2), RoundsDown)),
    Trap("25", "a batch cut at its shortest row", 0.0742, 2, drafted(chain(2), CutAtShortest)),
    Trap("26", "the mismatching target token redrawn", 0.0900, 1, drafted(recorded(best, TOP), MatchRedraws)),
    Trap("27", "draft and acceptance share a uniform", 0.2167, 1, both(lambda: SharedWithDraft(True))),
    Trap("28", "residual drawn with the acceptance uniform", 0.1000, 1, drafted(chain(1), ResidualFromTest)),
    Trap("29", "one uniform for all siblings", 0.0155, 1, drafted(recorded(two, WOR), OneCoinPerNode)),
    Trap("29b", "the drafter has seen the target's draw half of the time", 0.0708, 1, drafted(foreseen), wrong=True),
    Trap("30", "chain that stops before an unlikely token", 0.1622, 2, drafted(stops_before), wrong=True),
    Trap(
        "31",
        "two chains verified separately, the longer kept",
        0.1400,
        1,
        drafted(recorded(iid_pair, IID), LongerOfTwo),
    ),
    Trap("32", "the likelier of two draws alone", 0.0975, 1, drafted(likelier_of_two), wrong=True),
    Trap(
        "33", "the more confident of two drafters", 0.0900, 1, drafted(more_confident_drafter, q=Q3), p=P3, wrong=True
    ),
    Trap(
        "40",
        "retrieved token first, an equal draw skipped",
        0.0240,
        1,
        drafted(lambda *a: retrieved_then_drawn(*a, skip=True)),
        wrong=True,
    ),
    Trap("41", "a target token per path", 0.2360, 2, drafted(recorded(top_two, TOP), DrawPerPath)),
    Trap("60", "draft noise drawn once per request", 0.4350, 3, lambda: (OneNoise(), None, Recursive()), p=P3),
    Trap(
        "62", "a sampled draft kept and verified again with q", 0.4350, 3, lambda: (OneNoise(), None, Rejection()), p=P3
    ),
    Trap("61", "acceptance uniform drawn once per request", 0.1380, 3, both(OneCoinPerRequest), p=P3),
]

CONTROLS = [
    Trap("6", "independent siblings in random order", 0, 2, drafted(shuffled(IID, iid_pair))),
    Trap(
        "5, match",
        "siblings sorted by the target's law, under match",
        0,
        1,
        drafted(wor_sorted_by_p, Match),
        wrong=True,
    ),
    Trap(
        "8, laws", "de-duplicated draws with the laws of draws without replacement", 0, 1, drafted(deduplicated(3, WOR))
    ),
    Trap("10, match", "a re-ranked sampled tree under match", 0, 2, grown(lambda: Reranked(3), Match), wrong=True),
    Trap("11, law", "unlikely children dropped, the conditional law recorded", 0, 1, drafted(weak_dropped_and_named)),
    Trap("16c", "sampled siblings under match", 0, 2, drafted(recorded(two, WOR), Match)),
    Trap(
        "18, skip",
        "token outside the recorded law is taken as given",
        0,
        1,
        drafted(recorded(one, IID, truncated)),
        wrong=True,
    ),
    Trap(
        "20, own", "two drafters, each law recorded", 0, 1, drafted(lambda *a: two_drafters(*a, mean=False), q=Q3), p=P3
    ),
    Trap("23, bonus", "the bonus dropped", 0, 2, drafted(chain(2), DropsBonus)),
    Trap("28b", "residual drawn with the draft's uniform", 0, 1, both(lambda: SharedWithDraft(False, Q3)), p=P3),
    Trap("30, after", "chain that stops after an unlikely token", 0, 2, drafted(stops_after)),
    Trap(
        "40, slot",
        "retrieved token first, an equal draw kept",
        0,
        1,
        drafted(lambda *a: retrieved_then_drawn(*a, skip=False)),
    ),
    Trap("40, order", "the draw first, an equal retrieved token skipped", 0, 1, drafted(drawn_then_retrieved)),
    Trap("62, match", "the same draft every cycle, under match", 0, 3, lambda: (OneNoise(), None, Match()), p=P3),
    Trap("honest, wor", "siblings without replacement in draw order", 0, 2, drafted(recorded(two, WOR))),
    Trap("honest, chain", "a sampled chain, second implementation", 0, 3, drafted(chain(2), Rejection)),
]
