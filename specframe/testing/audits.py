"""The drafter audit, for tests: needs no verifier, and no model but a table."""

from __future__ import annotations

from collections.abc import Callable

from specframe.certify.compositions.audit import Audit, audit_drafts
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.kernel.interfaces import Drafter, Target, TreePolicy
from specframe.sampling.laws import Sampling


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
