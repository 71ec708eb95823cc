"""Makes certificates: the cases to enumerate, their order, and the rule for stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from specframe.certify.batches import BatchCases
from specframe.certify.certificate import REDUCED, Case, Certificate, Guarantee, Reach
from specframe.certify.compositions.audit import Audit, audit_drafts
from specframe.certify.compositions.controls import Parent, WellFormed, WrongBonus, defects
from specframe.certify.compositions.emission import Comparison, Emission
from specframe.certify.compositions.enumeration import EnumerationProgress
from specframe.certify.compositions.guided import CYCLES, Guide, decode, forced, guide
from specframe.certify.compositions.shortcuts import ShortcutProbe, check_search, check_shortcuts, probe_session
from specframe.certify.compositions.small import (
    CHEAP,
    EOS,
    LENGTH,
    VOCAB,
    SmallComposition,
    reduced,
    small_sampling,
    smaller_versions,
)
from specframe.certify.guarantees import guarantees
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.composition import will_approximate
from specframe.kernel.interfaces import Observer
from specframe.kernel.types import Cycle, TokenTree
from specframe.recipes.build import Plan
from specframe.sampling.laws import Sampling

Listener = Callable[[str, EnumerationProgress], None]
"""Callback that gets the name of the case and the progress of its enumeration."""

ALONE = 120
"""The most branches of a case whose branches change each other's draws: one at a time is a thousand times slower."""
PAIRS = 500
"""The most branches of two levels."""
DRAWN = 4
"""Cycles of texts without force, whose trees the checks at temperature 0 take, too."""
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
    settings: SamplingSettings = plan.settings["sampling"]
    promised = plan.parts["verifier"].build().lossless
    certifier = _Certifier(smaller_versions(SmallComposition.of(plan)), budget, seeds, listener, promised)
    certifier.check_form(settings)
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
    promised: bool
    """The verifier's promise to be lossless: then a case ends where it is broken."""
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
        batches = BatchCases(self.versions, self.compare, self.as_case)
        yield from batches.small(label, hot)
        for label, sampling in samplings.items():
            yield from self.after_certain_text(label, sampling)
        yield from batches.large(label, hot)
        for label, sampling in samplings.items():
            yield from self.case(f"{label}, end of sequence", sampling, seed=0, eos=EOS)
            for seed in range(self.seeds):
                yield from self.case(f"{label}, target {seed}", sampling, seed=seed)

    def check_form(self, settings: SamplingSettings) -> None:
        """Raises CompositionError where a verdict, in a text of the composition's own, has a wrong form."""
        hot = list(self.samplings(settings).values())[-1]
        decode(self.after("", hot, self.guided(hot).tokens, 0, broken=WellFormed))
        decode(self.whole.emission("", hot, broken=WellFormed), cycles=DRAWN, tokens=0)

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
        if text.deep < len(text.tokens):
            yield from self.from_place(f"{label}, from level {text.levels} on", sampling, text.tokens[: text.deep])
        if text.levels > 2:
            # After a level that is certain, its distribution in the place of the next one's goes unnoticed.
            between = range(text.deep - text.levels + 2, text.deep)
            yield self.pairs(f"{label}, two levels at a time", sampling, text, between)
        last = len(text.counts) - 1
        begun = [text.before(cycle) for cycle in {*range(1, min(CYCLES, last)), last}]
        yield self.pairs(f"{label}, each cycle to number {last}", sampling, text, begun)

    def pairs(self, name: str, sampling: Sampling, text: Guide, places: Iterable[int]) -> Case:
        """Two tokens at each of these places of a text that is otherwise certain: the case that is farthest off."""
        cases = []
        for count in places:
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
                decode(self.whole.emission("", sampling, seed=seed), keep, cycles=DRAWN, tokens=0)
        verifier = self.whole.verifier.build()
        if not isinstance(verifier, Observer):
            return check_shortcuts(verifier, trees.values(), VOCAB) + check_search(self.versions[0])
        found: dict[str, None] = {}
        hot = list(self.samplings(settings).values())[-1]
        probe = partial(ShortcutProbe, vocab=VOCAB, found=found)
        probe_session(self.after("", hot, self.guided(hot).tokens, 0, broken=probe), VOCAB)
        return [*check_shortcuts(None, trees.values(), VOCAB), *found, *check_search(self.versions[0])]

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

        budget = max(1, budget or self.budget)
        return emission.compare(budget=budget, rows=rows, alone=ALONE, progress=progress, early=self.promised)

    def as_case(self, emission: Emission, comparison: Comparison, small: SmallComposition) -> Case:
        """The comparison with the reductions made for it."""
        return Case(emission.name, comparison, reduced(self.versions[0], small), small.length)
