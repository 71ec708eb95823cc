"""Known ways to break the rules that look at more than one token at a time, each with its exact error.

The rows are numbered on from traps.py. Errors are those on the instance P, Q of instances.py unless another is
given; those of rows 50, 53, 57 and 63 were found here, by enumeration. The
traversal's own rows (48 to 50) stand on a chain, where the first two are rows 44 and 45.
"""

from __future__ import annotations

from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from tests.certify.traps.drafts import chain, iid_pair, recorded, wor_sorted_by_q
from tests.certify.traps.instances import IID, law
from tests.certify.traps.rules_bottom_up import (
    AcceptedPath,
    BestLooking,
    BonusFromTarget,
    Common,
    CommonTokenResidual,
    Cumulative,
    FullParent,
    GreedyBlock,
    KeyedByPosition,
    ReachAsTest,
    StaleAccept,
    StopsAtFailure,
    Tests,
    TokenResidual,
    Visits,
    Weighed,
    WeighedHonestly,
    correlated,
    two_paths,
)
from tests.certify.traps.traps import Trap, both, drafted

LOW, HIGH = 1.484375, 1.5
"""The interval that six halvings leave for rho on P, Q and two siblings."""
P_FAR, Q_FAR = law(0.3, 0.3, 0.4), law(0.1, 0.8, 0.1)
P_COIN, Q_COIN = law(0.6, 0.4), law(0.3, 0.7)

PAIR = recorded(iid_pair, IID)

TRAPS = [
    Trap("43", "block: the scan ends at the first failed test", 0.2600, 2, drafted(chain(2), StopsAtFailure)),
    Trap("44", "block: the residual forgets r", 0.0125, 2, drafted(chain(2), TokenResidual)),
    Trap("45", "block: r in place of h", 0.1331, 2, drafted(chain(2), ReachAsTest)),
    Trap("46", "cumulated ratio, token residual, early stop", 0.0462, 2, drafted(chain(2), Cumulative)),
    Trap("47", "greedy block, the changed target not carried", 0.0843, 3, drafted(chain(2), GreedyBlock)),
    Trap("48", "traversal: the parent's residual as if a were 1", 0.0125, 2, drafted(chain(2), FullParent)),
    Trap("49", "traversal: a is not updated", 0.1331, 2, drafted(chain(2), StaleAccept)),
    Trap("50", "traversal: the bonus from the target's law", 0.1860, 2, drafted(chain(2), BonusFromTarget)),
    Trap(
        "51",
        "traversal on siblings sorted after drawing",
        0.1167,
        1,
        drafted(wor_sorted_by_q, Traversal),
        wrong=True,
    ),
    Trap("53", "a branch that copies another, bottom-up", 0.0127, 2, drafted(correlated, Traversal, Q_FAR), P_FAR),
    Trap("54", "K-SEQ: rho = 1, the residual cut off at 0", 0.1200, 1, drafted(PAIR, lambda: Common(1.0))),
    Trap("55", "K-SEQ: the lower end of a coarse interval", 0.0027, 1, drafted(PAIR, lambda: Common(LOW))),
    Trap("56", "K-SEQ: the token rule's residual", 0.0625, 1, drafted(PAIR, lambda: CommonTokenResidual(HIGH))),
    Trap(
        "57",
        "K-SEQ: the survivor that looks best",
        0.0471,
        2,
        drafted(two_paths, lambda: BestLooking(HIGH), Q_COIN),
        P_COIN,
    ),
    Trap("58", "a weighed pick accepted as a draw from q", 0.0511, 1, drafted(PAIR, Weighed)),
    Trap("63", "block: numbers keyed by position", 0.03125, 3, both(lambda: KeyedByPosition(Q_FAR)), P_FAR),
]

CONTROLS = [
    Trap("43, scan", "block, second implementation", 0, 2, drafted(chain(2), Tests)),
    Trap("48, left", "traversal, second implementation", 0, 2, drafted(two_paths, Visits, Q_COIN), P_COIN),
    Trap("53, down", "a branch that copies another, top-down", 0, 2, drafted(correlated, Recursive, Q_FAR), P_FAR),
    Trap("55, upper", "K-SEQ: the upper end", 0, 1, drafted(PAIR, lambda: Common(HIGH))),
    Trap(
        "57, accepted",
        "K-SEQ: the survivor accepted",
        0,
        2,
        drafted(two_paths, lambda: AcceptedPath(HIGH), Q_COIN),
        P_COIN,
    ),
    Trap("58, law", "a weighed pick accepted with its law", 0, 1, drafted(PAIR, WeighedHonestly)),
]
