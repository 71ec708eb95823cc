"""The certificate: a recipe's composition proved lossless by enumeration, and the proof put to the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from specframe.certify.own.audit import Audit, audit_drafts
from specframe.certify.own.company import Accompanied
from specframe.certify.own.controls import SkippedResidual, UnprocessedBonus
from specframe.certify.own.emission import Comparison, Emission
from specframe.certify.own.enumeration import Progress
from specframe.certify.own.miniature import EOS, LENGTH, Miniature, small_sampling
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.build import Plan
from specframe.sampling.laws import Sampling

EXACT = 1e-9
"""A total variation below this is rounding in float64; every known mistake is a million times larger."""

Listener = Callable[[str, Progress], None]
"""Called with the name of the case and how far its enumeration has come."""


@dataclass(frozen=True)
class Case:
    """One enumerated composition, sampling and target."""

    name: str
    comparison: Comparison
    reduced: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether what was seen is the target's law."""
        return self.comparison.tv < EXACT

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
            "worst_sequence": list(comparison.worst),
            "wanted": comparison.wanted,
            "got": comparison.got,
            "first_differing_prefix": list(comparison.prefix),
            "reduced": list(self.reduced),
        }


@dataclass(frozen=True)
class Certificate:
    """What is known about a composition's losslessness, by enumeration of the real code."""

    promised: bool
    """What the verifier declares."""
    cases: tuple[Case, ...]
    controls: tuple[Case, ...]
    audit: Audit | None
    interrupted: bool = False
    """Ctrl-C: the rest was not looked at."""
    real: dict[str, Any] | None = field(default=None)
    """What happened on the recipe's own model, where that was asked for."""

    @property
    def control_failed(self) -> bool:
        """Whether every deliberately broken copy failed, as it must; else the certificate proves nothing."""
        return bool(self.controls) and not any(case.exact for case in self.controls)

    @property
    def exhausted(self) -> bool:
        """Whether the certificate rests on complete enumerations (a larger tree may have been added in part)."""
        complete = {case.name.removesuffix(REDUCED) for case in self.cases if case.comparison.enumeration.exhausted}
        return {case.name.removesuffix(REDUCED) for case in self.cases} <= complete

    @property
    def lossless(self) -> bool:
        """Whether every case emits the target's law, was run to its end, and the controls failed."""
        exact = bool(self.cases) and all(case.exact for case in self.cases)
        return exact and self.exhausted and self.control_failed and not self.interrupted

    @property
    def worst(self) -> Case:
        """The case that is farthest off."""
        return max(self.cases, key=lambda case: case.comparison.tv)

    def as_dict(self) -> dict[str, Any]:
        """The certificate as one plain object."""
        worst = self.worst.comparison
        return {
            "lossless": self.lossless,
            "promised": self.promised,
            "tv": worst.tv,
            "exhausted": self.exhausted,
            "interrupted": self.interrupted,
            "branches": sum(case.comparison.enumeration.branches for case in self.cases),
            "mass": min(case.comparison.enumeration.mass for case in self.cases),
            "control_failed": self.control_failed,
            "worst_sequence": list(worst.worst),
            "real": self.real,
            "cases": [case.as_dict() for case in self.cases],
            "controls": [case.as_dict() for case in self.controls],
            "audit": [str(finding) for finding in self.audit.findings] if self.audit else [],
        }


REDUCED = ", small tree"
COMPANIES, COMPANY = 4, 250
"""So many times the other rows draw other numbers; and the most branches of a row then, run one at a time, twice."""


def certify_plan(plan: Plan, *, budget: int = 100_000, seeds: int = 3, listener: Listener | None = None) -> Certificate:
    """The exact part of a recipe's certificate: its drafter, tree, verifier and sampling in miniature.

    Cases: the recipe's sampling over `seeds` targets; the same with an end of sequence; where the recipe
    is greedy, temperature 1 as well, because a greedy run has one branch only; and a row between two others that are
    admitted before and after it, because a part may mix rows up. A tree too large to be
    exhausted with a fifth of `budget` branches is complemented by a small one of the same policy, which may
    take four times `budget`.
    """
    certifier = _Certifier(budget, listener)
    settings: SamplingSettings = plan.settings["sampling"]
    samplings = {f"temperature {settings.temperature:g}": small_sampling(settings)}
    if settings.temperature == 0:
        samplings["temperature 1"] = small_sampling(replace(settings, temperature=1.0))
    cases: list[Case] = []
    miniature = Miniature.of(plan)
    wanted = [
        (f"{label}, {what}", sampling, seed, eos)
        for label, sampling in samplings.items()
        for what, seed, eos in [*((f"target {i}", i, None) for i in range(seeds)), ("end of sequence", 0, EOS)]
    ]
    for name, sampling, seed, eos in wanted:
        cases += certifier.cases(miniature, name, sampling, seed=seed, eos=eos)
        if cases[-1].comparison.enumeration.interrupted:
            break
    if not cases[-1].comparison.enumeration.interrupted:
        label, sampling = list(samplings.items())[-1]
        cases.append(certifier.among_others(miniature.smaller(), label, sampling))
    interrupted = cases[-1].comparison.enumeration.interrupted
    hot = samplings.get("temperature 1", next(iter(samplings.values())))
    return Certificate(
        promised=plan.parts["verifier"].build().lossless,
        cases=tuple(cases),
        controls=() if interrupted else tuple(certifier.controls(miniature.smaller(), hot)),
        audit=None if interrupted else certifier.audit(miniature.smaller(), hot),
        interrupted=interrupted,
    )


@dataclass(frozen=True)
class _Certifier:
    budget: int
    listener: Listener | None

    def compare(self, emission: Emission, budget: int | None = None) -> Comparison:
        def progress(now: Progress) -> None:
            if self.listener is not None:
                self.listener(emission.name, now)

        return emission.compare(budget=budget or self.budget, progress=progress)

    def cases(
        self, miniature: Miniature, name: str, sampling: Sampling, *, seed: int, eos: int | None = None
    ) -> list[Case]:
        """The case with the recipe's own tree, and with a small one if that was too large."""
        whole = miniature.emission(name, sampling, seed=seed, eos=eos)
        small = miniature.smaller()
        own = Case(name, self.compare(whole, None if not small.reduced else self.budget // 5))
        if own.comparison.enumeration.exhausted or not small.reduced or own.comparison.enumeration.interrupted:
            return [own]
        reduced = small.emission(name + REDUCED, sampling, seed=seed, eos=eos)
        return [own, Case(reduced.name, self.compare(reduced, 4 * self.budget), small.reduced)]

    def among_others(self, miniature: Miniature, label: str, sampling: Sampling) -> Case:
        """A row between two others; fewer tokens are watched where more are out of reach one branch at a time."""
        for length in (LENGTH - 1, LENGTH - 2):
            emission = replace(miniature, length=length).emission(f"{label}, among other rows", sampling)
            given = {field.name: getattr(emission, field.name) for field in fields(emission)}
            found = []
            for company in range(COMPANIES):
                found.append(self.compare(Accompanied(**given, company=company), COMPANY))
                if not found[-1].enumeration.exhausted:
                    break
            else:
                break
        return Case(
            emission.name, max(found, key=lambda each: (not each.enumeration.exhausted, each.tv)), miniature.reduced
        )

    def controls(self, miniature: Miniature, sampling: Sampling) -> list[Case]:
        """Broken copies of the composition, each of which must fail, within two tokens."""
        found = []
        miniature = replace(miniature, length=2)
        for broken in (UnprocessedBonus, SkippedResidual):
            if broken is SkippedResidual and not self.drafts(miniature, sampling):
                continue  # without drafts nothing is ever refused
            name = f"control: {broken.name}"
            emission = miniature.emission(name, sampling, broken=broken)
            found.append(Case(name, self.compare(emission)))
        return found

    def drafts(self, miniature: Miniature, sampling: Sampling) -> bool:
        """Whether the composition drafts anything on the control's target."""
        parts = miniature.emission("", sampling).parts()
        return parts.nodes > 1

    def audit(self, miniature: Miniature, sampling: Sampling) -> Audit:
        """The drafter audit, which names the guilty slot when a recorded law is wrong."""
        emission = miniature.emission("audit", sampling)
        return audit_drafts(emission.parts, sampling, prompt=emission.prompt, budget=self.budget)
