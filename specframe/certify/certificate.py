"""The certificate: proves a recipe's composition lossless by enumeration, and tests the proof with controls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specframe.certify.compositions.audit import Audit
from specframe.certify.compositions.counterexample import Counterexample
from specframe.certify.compositions.emission import Comparison
from specframe.files.text import render_table

EXACT = 1e-9
"""Total variation below this is float64 rounding; every known error is a million times larger."""
REDUCED = ", small tree"
"""Suffix of the name of a case that replaces one too large to be exhausted."""


@dataclass(frozen=True)
class Case:
    """One enumerated composition, sampling and target."""

    name: str
    comparison: Comparison
    reduced: tuple[str, ...] = ()
    """Reductions from the recipe, in words."""
    tokens: int = 0
    """Number of tokens whose joint distribution was compared."""
    among_others: bool = False
    """True if the row was decoded with others."""
    forced: int = 0
    """Number of forced first tokens."""
    partly: bool = False
    """True if the case counts although some branches were not run; its coverage is printed."""

    @property
    def exact(self) -> bool:
        """True if the observed distribution is the target's."""
        return self.comparison.tv < EXACT

    @property
    def settled(self) -> bool:
        """True if no smaller case needs to be run."""
        run = self.comparison.enumeration
        return run.exhausted or run.interrupted or not self.exact

    def as_dict(self) -> dict[str, Any]:
        """The case as plain data."""
        comparison, run = self.comparison, self.comparison.enumeration
        return {
            "name": self.name,
            "tv": comparison.tv,
            "first_token_tv": comparison.first_tv,
            "tv_at_most": comparison.bound,
            "exhausted": run.exhausted,
            "branches": run.branches,
            "mass": run.mass,
            "branches_per_second": run.rate,
            "side_by_side": run.rows > 1,
            "among_other_rows": self.among_others,
            "worst_sequence": list(comparison.worst),
            "wanted": comparison.wanted,
            "got": comparison.got,
            "first_differing_prefix": list(comparison.prefix),
            "reduced": list(self.reduced),
            "tokens": self.tokens,
            "forced": self.forced,
        }


@dataclass(frozen=True)
class Reach:
    """Reach of a certificate's guided texts: the deepest accepted level, and cycles decoded."""

    accepted: int = 0
    """Drafted tokens accepted in them."""
    levels: int = 0
    cycles: int = 0


@dataclass(frozen=True)
class Guarantee:
    """A property of a composition with a lossy verifier, and whether every branch had it."""

    name: str
    held: bool
    branches: int
    complete: bool
    """True if all branches were run."""


@dataclass(frozen=True)
class Certificate:
    """Evidence of a composition's losslessness, by enumeration of the real code."""

    promised: bool
    """True if the verifier declares itself lossless."""
    cases: tuple[Case, ...]
    controls: tuple[Case, ...]
    audit: Audit | None
    interrupted: bool = False
    """True if interrupted by Ctrl-C before the remaining cases."""
    reach: Reach = field(default_factory=Reach)
    drafts: bool = True
    """True if the composition drafts at all: then a certificate without accepted tokens proves nothing."""
    shortcuts: tuple[str, ...] = ()
    """Differences between argmax following and the verifier's rule, or between a native search and the drafter's."""
    counterexample: Counterexample | None = None
    """The first error as a tree, with the draws that led to it."""
    guarantees: tuple[Guarantee, ...] = ()
    """Properties that a lossy composition keeps."""
    unread: tuple[str, ...] = ()
    """The recipe's weights that were not loaded."""
    approximate: bool = False
    """True if the recipe's target reads only parts of prompts: the cases then refer to these parts only."""
    distance: dict[str, Any] | None = field(default=None)
    """Distance of such a target from the full one, on the recipe's own model and prompts (`Distance`)."""
    real: dict[str, Any] | None = field(default=None)
    """Report on the recipe's own model, if requested."""
    departure: dict[str, Any] | None = field(default=None)
    """Share and cost of a lossy rule's tokens that differ from the target's argmax, on the same model (`Departure`)."""

    @property
    def control_failed(self) -> bool | None:
        """True if every deliberately broken copy failed, as it must; otherwise the certificate proves nothing.

        None if no copy was run, because the composition itself had failed.
        """
        return not any(case.exact for case in self.controls) if self.controls else None

    @property
    def exhausted(self) -> bool:
        """True if the certificate is based on complete enumerations (larger trees may be added in part)."""
        needed = [case for case in self.cases if not case.partly]
        complete = {case.name.removesuffix(REDUCED) for case in needed if case.comparison.enumeration.exhausted}
        return {case.name.removesuffix(REDUCED) for case in needed} <= complete

    @property
    def batches(self) -> bool:
        """True if all cases of a row among others are complete, which the result for batches depends on."""
        runs = [case.comparison.enumeration for case in self.cases if case.among_others and not case.partly]
        return bool(runs) and all(run.exhausted for run in runs)

    @property
    def exact(self) -> bool:
        """True if no case departs from the target's law and no shortcut from its rule."""
        return bool(self.cases) and all(case.exact for case in self.cases) and not self.shortcuts

    @property
    def accepting(self) -> bool:
        """True if drafted tokens were accepted in the guided texts, if the composition drafts at all."""
        return self.reach.accepted > 0 or not self.drafts

    @property
    def smaller(self) -> tuple[str, ...]:
        """Differences of the complete enumerations from the recipe, where its own trees were too large."""
        own = {case.name for case in self.cases if not case.reduced and case.comparison.enumeration.exhausted}
        stand_ins = [case for case in self.cases if case.reduced and not case.among_others]
        return next((case.reduced for case in stand_ins if case.name.removesuffix(REDUCED) not in own), ())

    @property
    def lossless(self) -> bool:
        """True if every case is complete and emits the target's distribution, and all controls failed."""
        return self.composed and not self.approximate

    @property
    def composed(self) -> bool:
        """True if the composition emits the target's distribution given the tokens that the target reads."""
        shown = self.exhausted and self.batches and self.accepting and bool(self.control_failed)
        return self.exact and shown and not self.interrupted

    @property
    def guarantees_hold(self) -> bool:
        """True unless a branch violated a property that the lossy rule must keep."""
        return all(guarantee.held for guarantee in self.guarantees)

    @property
    def passed(self) -> bool:
        """True unless decoding the recipe's own model gave different output, or a guarantee does not hold."""
        return self.guarantees_hold and (self.real is None or bool(self.real["passed"]))

    @property
    def worst(self) -> Case:
        """The case farthest from the target's law."""
        return max(self.cases, key=lambda case: case.comparison.tv)

    def as_dict(self) -> dict[str, Any]:
        """The certificate as one plain object."""
        worst = self.worst.comparison
        return {
            "lossless": self.lossless,
            "promised": self.promised and not self.approximate,
            "approximate": self.approximate,
            "composed": self.composed,
            "distance": self.distance,
            "tv": worst.tv,
            "exhausted": self.exhausted,
            "batches": self.batches,
            "accepted": self.reach.accepted,
            "levels": self.reach.levels,
            "cycles": self.reach.cycles,
            "accepting": self.accepting,
            "smaller": list(self.smaller),
            "shortcuts": list(self.shortcuts),
            "counterexample": self.counterexample and self.counterexample.as_dict(),
            "weights_unread": list(self.unread),
            "interrupted": self.interrupted,
            "branches": sum(case.comparison.enumeration.branches for case in self.cases),
            "mass": min(case.comparison.enumeration.mass for case in self.cases),
            "control_failed": self.control_failed,
            "worst_sequence": list(worst.worst),
            "guarantees": [vars(guarantee) for guarantee in self.guarantees],
            "real": self.real,
            "departure": self.departure,
            "cases": [case.as_dict() for case in self.cases],
            "controls": [case.as_dict() for case in self.controls],
            "audit": [str(finding) for finding in self.audit.findings] if self.audit else [],
        }

    def _repr_html_(self) -> str:
        """The cases as a table, for notebooks."""
        rows = [
            (case.name, f"{case.comparison.tv:.1e}", f"{case.comparison.enumeration.branches:,}")
            for case in (*self.cases, *self.controls)
        ]
        word = "lossless" if self.lossless and self.passed else "not shown" if self.exact else "not lossless"
        return render_table(("case", "total variation", "branches"), rows, word)
