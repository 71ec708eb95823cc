"""Makes certificates: the cases to enumerate, their order, and the rule for stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from specframe.certify.certificate import REDUCED, Case, Certificate, Guarantee, Reach
from specframe.certify.compositions.audit import Audit, audit_drafts
from specframe.certify.compositions.batch import BATCHES, LEAVES, SIZES, Accompanied
from specframe.certify.compositions.controls import Parent, WrongBonus, defects
from specframe.certify.compositions.emission import Comparison, Emission
from specframe.certify.compositions.enumeration import EnumerationProgress
from specframe.certify.compositions.guided import CYCLES, Guide, decode, forced, guide
from specframe.certify.compositions.shortcuts import check_search, check_shortcuts
from specframe.certify.compositions.shrink import reduced, smaller_versions
from specframe.certify.compositions.small import CHEAP, EOS, LENGTH, VOCAB, SmallComposition, small_sampling
from specframe.certify.guarantees import guarantees
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.composition import will_approximate
from specframe.kernel.types import Cycle, TokenTree
from specframe.recipes.build import Plan
from specframe.sampling.laws import Sampling

Listener = Callable[[str, EnumerationProgress], None]
"""Callback that gets the name of the case and the progress of its enumeration."""

ALONE = 250
"""The most branches of a case whose branches change each other's draws: one at a time is a thousand times slower."""
FEW = 12
"""The most branches of a case in a batch of one size: what is wrong there is wrong in the first ones."""
PAIRS = 500
"""The most branches of two levels."""
PLAIN = Sampling(temperature=1.0)
"""Leaves every token possible, so that deliberately broken copies differ from the original."""


def certify_plan(plan: Plan, *, budget: int = 100_000, seeds: int = 3, listener: Listener | None = None) -> Certificate:
    """The exact part of a recipe's certificate: its drafter, tree, verifier and sampling in small form.

    Cases: a row between two others that are admitted before and after it, because a part may mix rows up; the recipe's
    sampling over `seeds` targets; the same with an end of sequence; the same after texts that are certain, which lead
    to the deepest level that a draft is accepted to, and to a late cycle; and where that sampling leaves one token
    possible everywhere, temperature 1 as well, because such a run has one branch only. A case too large to be exhausted
    with a fifth of `budget` branches is complemented by smaller ones, the first that `budget` branches exhaust. A
    composition that promises to be lossless and fails a case is not looked at any further.
    """
    certifier = _Certifier(smaller_versions(SmallComposition.of(plan)), budget, seeds, listener)
    settings: SamplingSettings = plan.settings["sampling"]
    promised = plan.parts["verifier"].build().lossless
    cases: list[Case] = []
    interrupted = failed = False
    for case in certifier.cases(settings):
        cases.append(case)
        interrupted = case.comparison.enumeration.interrupted
        failed = promised and not case.exact
        if interrupted or failed:
            break
    return Certificate(
        promised=promised,
        cases=tuple(cases),
        controls=() if interrupted or failed else tuple(certifier.controls(settings)),
        audit=None if interrupted else certifier.audit(),
        interrupted=interrupted,
        reach=certifier.reach,
        drafts=(certifier.versions[0].promise.nodes or 2) > 1,
        shortcuts=() if interrupted or not promised else tuple(certifier.shortcuts(settings)),
        guarantees=() if interrupted or promised else tuple(certifier.guarantees(settings)),
        approximate=will_approximate(plan.parts["target"]),
    )


@dataclass
class _Certifier:
    versions: list[SmallComposition]
    budget: int
    seeds: int
    listener: Listener | None
    version: int = 1
    """The largest of the smaller compositions that was not found to be too large yet."""
    reach: Reach = field(default_factory=Reach)
    """Reach of the guided texts so far."""
    texts: dict[Sampling, Guide] = field(default_factory=dict)
    """The text that the composition drafts under each sampling."""

    def cases(self, settings: SamplingSettings) -> Iterator[Case]:
        """Yields all cases, the cheap ones that find most first."""
        samplings = self.samplings(settings)
        label, hot = list(samplings.items())[-1]
        yield from self.among_others(label, hot)
        for label, sampling in samplings.items():
            yield from self.case(f"{label}, end of sequence", sampling, seed=0, eos=EOS)
            for seed in range(self.seeds):
                yield from self.case(f"{label}, target {seed}", sampling, seed=seed)
            yield from self.after_certain_text(label, sampling)

    def samplings(self, settings: SamplingSettings) -> dict[str, Sampling]:
        """The recipe's sampling, and temperature 1 if that leaves nothing to chance."""
        own = small_sampling(settings)
        truncated = settings.temperature and (own.top_k or own.top_p < 1 or own.min_p)
        label = f"temperature {settings.temperature:g}" + (", truncated" if truncated else "")
        kind = "penalties" if settings.grammar is None else "a grammar"
        found = {label + (f", with {kind}" if own.processors else ""): own}
        laws = (self.versions[-1].emission("", own, seed=seed).target_law() for seed in range(self.seeds))
        if all(len(law) == 1 for law in laws):
            found["temperature 1"] = replace(PLAIN, processors=own.processors)
        return found

    def case(self, name: str, sampling: Sampling, *, seed: int, eos: int | None = None) -> Iterator[Case]:
        """The case with the recipe's own tree, and the first smaller one that is exhausted if that was too large."""

        def run(small: SmallComposition, suffix: str, budget: int) -> Case:
            emission = small.emission(name + suffix, sampling, seed=seed, eos=eos)
            return self.as_case(emission, self.compare(emission, budget), small)

        own = run(self.versions[0], "", self.budget // 5)
        yield own
        while not own.settled and self.version < len(self.versions):
            small = run(self.versions[self.version], REDUCED, self.budget)
            if small.settled or self.version + 1 == len(self.versions):
                yield small
                return
            self.version += 1

    def among_others(self, label: str, sampling: Sampling) -> Iterator[Case]:
        """A row with others, whose random numbers are different ones every time; at last with one other alone."""
        batch, version = 0, 1
        while batch < BATCHES and version < len(self.versions):
            case = self.in_batch(f"{label}, among other rows {batch + 1}", sampling, batch, version)
            if case.settled or version + 1 == len(self.versions):
                yield case
                batch += 1
            else:
                version += 1
        # An earlier row left then; elsewhere it may leave too late.
        yield self.after_first_cycle(f"{label}, after another row left", sampling, LEAVES)
        pair = self.in_batch(f"{label}, with one other row", sampling, BATCHES, -1)
        yield replace(pair, partly=True)
        for place, rows in enumerate(SIZES):
            yield self.after_first_cycle(f"{label}, in a batch of {rows} rows", sampling, BATCHES + 1 + place, FEW)

    def in_batch(self, name: str, sampling: Sampling, batch: int, version: int) -> Case:
        """A row of one of the smaller compositions with others."""
        small = self.versions[version]
        emission = small.emission(name, sampling)
        accompanied = Accompanied.of(emission, batch)
        # A batch of two rows has one branch.
        comparison = self.compare(accompanied, ALONE, rows=1) if accompanied.pair else self.compare(accompanied)
        return replace(self.as_case(emission, comparison, small), among_others=True)

    def after_first_cycle(self, name: str, sampling: Sampling, batch: int, branches: int | None = None) -> Case:
        """Two tokens after a certain first cycle; one where the branches, a few at most, run one at a time."""
        small, free = self.versions[-1], 1 if branches else 2
        text = guide(partial(small.emission, "", sampling))
        certain = text.tokens[: text.before(2)]
        accompanied = Accompanied.of(forced(small.emission(name, sampling), certain, free), batch)
        comparison = self.compare(accompanied, branches, rows=1 if branches else 4096)
        case = self.as_case(accompanied, comparison, small)
        return replace(case, among_others=True, partly=True, forced=len(certain), tokens=free)

    def after_certain_text(self, label: str, sampling: Sampling) -> Iterator[Case]:
        """Cases after a text that is certain: to the deepest level of a draft, to a late cycle, and to its end."""
        text = self.guided(sampling)
        whole = self.after(f"{label}, certain text", sampling, text.tokens, 0)
        reached = decode(whole)
        self.reach = Reach(
            accepted=self.reach.accepted + reached.accepted,
            levels=max(self.reach.levels, reached.levels),
            cycles=max(self.reach.cycles, len(reached.counts) - 1),
        )
        yield replace(self.case_after(whole, text.tokens, 0), partly=True)
        if sampling.greedy:
            return
        places = {f"from level {text.levels} on": text.deep, f"from cycle {CYCLES} on": text.before(CYCLES)}
        for where, count in places.items():
            if count < len(text.tokens):
                yield from self.from_place(f"{label}, {where}", sampling, text.tokens[:count])
        if text.levels > 2:
            yield self.two_levels(f"{label}, two levels at a time", sampling, text)

    def two_levels(self, name: str, sampling: Sampling, text: Guide) -> Case:
        """Every level of the deepest draft that is drawn together with the next one: the case that is farthest off.

        After a level that is certain, its distribution in the place of the next one's goes unnoticed.
        """
        cases = []
        for count in range(text.deep - text.levels + 2, text.deep):
            certain = text.tokens[:count]
            emission = forced(self.whole.emission(name, sampling), certain, 2, ending=True)
            case = self.case_after(emission, certain, 2, min(PAIRS, self.budget))
            if not case.exact or case.comparison.enumeration.interrupted:
                return case
            cases.append(case)
        return replace(max(cases, key=lambda case: case.comparison.tv), partly=True)

    def from_place(self, name: str, sampling: Sampling, text: tuple[int, ...]) -> Iterator[Case]:
        """Two tokens after a certain text, or one where two have too many branches."""
        for free in (2, 1):
            case = self.case_after(self.after(name, sampling, text, free), text, free)
            if case.settled:
                break
        yield replace(case, partly=True)

    def case_after(self, emission: Emission, text: tuple[int, ...], free: int, budget: int | None = None) -> Case:
        """The case of an emission that a certain text begins."""
        case = self.as_case(emission, self.compare(emission, budget or self.budget // 5), self.whole)
        return replace(case, forced=len(text), tokens=free)

    @property
    def whole(self) -> SmallComposition:
        """The recipe's own composition; where a draft's cost decides, one so low that all nodes pay."""
        own = self.versions[0]
        return own if own.costs is None else replace(own, costs=CHEAP)

    def guided(self, sampling: Sampling) -> Guide:
        """The text that the composition drafts."""
        if sampling not in self.texts:
            self.texts[sampling] = guide(partial(self.whole.emission, "", sampling))
        return self.texts[sampling]

    def after(self, name: str, sampling: Sampling, text: tuple[int, ...], free: int, **options: Any) -> Emission:
        """The composition's emission after a certain text; options as in `SmallComposition.emission`."""
        return forced(self.whole.emission(name, sampling, **options), text, free)

    def shortcuts(self, settings: SamplingSettings) -> list[str]:
        """The session's argmax following and the native search, on trees of guided texts and on some drawn ones."""
        trees: dict[tuple[object, ...], TokenTree] = {}

        def keep(cycle: Cycle) -> None:
            tree = cycle.draft
            columns = (tree.tokens, tree.parent, tree.valid)
            trees.setdefault(tuple(tuple(column[0].tolist()) for column in columns), tree)

        for sampling in self.samplings(settings).values():
            decode(self.after("", sampling, self.guided(sampling).tokens, 0), keep)
            for seed in range(self.seeds):
                decode(self.whole.emission("", sampling, seed=seed), keep)
        return check_shortcuts(self.whole.verifier.build(), trees.values(), VOCAB) + check_search(self.versions[0])

    def controls(self, settings: SamplingSettings) -> Iterator[Case]:
        """Yields broken copies of the composition; each must fail.

        A copy may have nothing to do wrong over one target, such as after a refusal where all drafts are accepted: then
        it is run over another one, and left out if it never has. Most fail within a fifth of the budget.
        """
        small = self.versions[self.version]
        for name, broken in defects():
            differed: list[bool] = []
            lengths = (2, 3, LENGTH)  # a refusal may come late
            for share, length, seed in product((5, 1), lengths, range(self.seeds)):
                small = replace(small, length=length)
                emission = broken(partial(small.emission, f"control: {name}", PLAIN, seed=seed), differed)
                case = self.as_case(emission, self.compare(emission, self.budget // share), small)
                if not case.exact or case.comparison.enumeration.interrupted:
                    break
            if any(differed):
                yield case
        yield from self.too_early(settings)

    def too_early(self, settings: SamplingSettings) -> Iterator[Case]:
        """A copy whose bonus comes one node too early, by the recipe's own sampling, if it accepts anything."""
        sampling, differed = small_sampling(settings), list[bool]()
        text = self.guided(sampling).tokens
        broken = partial(WrongBonus, wrong=Parent(), differed=differed)
        emission = self.after(f"control: {Parent.name}", sampling, text, 0, broken=broken)
        case = self.case_after(emission, text, 0)
        if any(differed):
            yield case

    def guarantees(self, settings: SamplingSettings) -> Iterator[Guarantee]:
        """Properties that a lossy composition keeps, over a tree that can be exhausted."""
        hot = list(self.samplings(settings).values())[-1]
        yield from guarantees(partial(self.versions[self.version].emission, sampling=hot), self.compare)

    def audit(self) -> Audit:
        """The drafter audit, which names the guilty slot when a recorded law is wrong."""
        emission = self.versions[self.version].emission("audit", PLAIN)
        return audit_drafts(emission.parts, PLAIN, prompt=emission.prompt, budget=self.budget, alone=ALONE)

    def compare(self, emission: Emission, budget: int | None = None, rows: int = 4096) -> Comparison:
        """The comparison, within a budget of at least one branch."""

        def progress(now: EnumerationProgress) -> None:
            if self.listener is not None:
                self.listener(emission.name, now)

        return emission.compare(budget=max(1, budget or self.budget), rows=rows, alone=ALONE, progress=progress)

    def as_case(self, emission: Emission, comparison: Comparison, small: SmallComposition) -> Case:
        """The comparison with the reductions made for it."""
        return Case(emission.name, comparison, reduced(self.versions[0], small), small.length)
