"""Makes certificates: the cases to enumerate, their order, and the rule for stopping."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

from specframe.certify.cases import BatchCases, TextCases
from specframe.certify.certificate import EXACT, REDUCED, Case, Certificate, Guarantee
from specframe.certify.compositions.audit import Audit, audit_drafts
from specframe.certify.compositions.controls import Parent, WellFormed, WrongBonus, defects
from specframe.certify.compositions.counterexample import Counterexample, definition, find_counterexample
from specframe.certify.compositions.emission import Comparison, Emission
from specframe.certify.compositions.enumeration import EnumerationProgress
from specframe.certify.compositions.guided import decode
from specframe.certify.compositions.shortcuts import (
    RULE,
    Astray,
    ShortcutProbe,
    check_search,
    check_shortcuts,
    probe_session,
)
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
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.laws import Sampling

Listener = Callable[[str, EnumerationProgress], None]
"""Callback that gets the name of the case and the progress of its enumeration."""

ALONE = 120
"""Largest number of branches of a case that must be run one at a time, which is a thousand times slower."""
DRAWN = 4
"""Cycles of unforced texts whose trees are also used by the checks at temperature 0."""
CONTROL = "control: "
"""Prefix of the name of a deliberately broken copy."""
PLAIN = Sampling(temperature=1.0)
"""Leaves every token possible, so that deliberately broken copies differ from the original."""


def certify_plan(plan: Plan, *, budget: int = 100_000, seeds: int = 3, listener: Listener | None = None) -> Certificate:
    """The exact part of a recipe's certificate: its drafter, tree, verifier and sampling in small form.

    Cases: a row between two others that are admitted before and after it, as a part may mix up rows; the recipe's
    sampling over `seeds` targets; the same with an end of sequence; the same after forced texts, which lead to the
    deepest accepted level of a draft and to a late cycle; and, if the sampling leaves only one possible token
    everywhere, temperature 1 as well, since such a run has a single branch. A case that a fifth of `budget` branches
    does not exhaust is complemented by the first smaller version that `budget` branches exhaust. The certificate ends
    if a composition that promises to be lossless fails a case.
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
    shortcuts = [] if interrupted or not promised else certifier.shortcuts(settings)
    return Certificate(
        promised=promised,
        cases=tuple(cases),
        controls=() if interrupted or failed else tuple(certifier.controls(settings)),
        audit=None if interrupted else certifier.audit(),
        interrupted=interrupted,
        reach=certifier.texts.reach,
        drafts=(certifier.versions[0].promise.nodes or 2) > 1,
        shortcuts=tuple(shortcuts),
        counterexample=certifier.example(),
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
    """True if the verifier promises to be lossless: then a case ends at the first error."""
    version: int = 1
    """Index of the largest reduced composition that has not proved too large so far."""
    failed: tuple[Emission, Comparison] | None = None
    """The case that should emit the target's distribution but does not."""
    astray: Counterexample | None = None
    """An error at temperature 0."""

    @cached_property
    def texts(self) -> TextCases:
        """The cases after texts that are certain, and what these reach."""
        own = self.versions[0]
        whole = own if own.costs is None else replace(own, costs=CHEAP)
        return TextCases(whole, self.compare, self.as_case, self.budget)

    def cases(self, settings: SamplingSettings) -> Iterator[Case]:
        """Yields all cases, starting with the cheap ones that find most errors."""
        samplings = self.samplings(settings)
        label, hot = list(samplings.items())[-1]
        batches = BatchCases(self.versions, self.compare, self.as_case)
        yield from batches.small(label, hot)
        for label, sampling in samplings.items():
            yield from self.texts.after_certain_text(label, sampling)
        yield from batches.large(label, hot)
        for label, sampling in samplings.items():
            yield from self.case(f"{label}, end of sequence", sampling, seed=0, eos=EOS)
            for seed in range(self.seeds):
                yield from self.case(f"{label}, target {seed}", sampling, seed=seed)

    def check_form(self, settings: SamplingSettings) -> None:
        """Raises CompositionError if a verdict in a text of the composition is malformed."""
        hot = list(self.samplings(settings).values())[-1]
        decode(self.texts.after("", hot, self.texts.guided(hot).tokens, 0, broken=WellFormed))
        decode(self.texts.whole.emission("", hot, broken=WellFormed), cycles=DRAWN, tokens=0)

    def samplings(self, settings: SamplingSettings) -> dict[str, Sampling]:
        """The recipe's sampling, and temperature 1 if the former is deterministic."""
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
        """Yields the case with the recipe's own tree and, if that is too large, the first exhausted smaller one."""

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

    def shortcuts(self, settings: SamplingSettings) -> list[str]:
        """The session's argmax following and the native search, on trees of guided texts and on some drawn ones."""
        trees: dict[tuple[object, ...], TokenTree] = {}

        def keep(cycle: Cycle) -> None:
            tree = cycle.draft
            columns = (tree.tokens, tree.parent, tree.valid)
            trees.setdefault(tuple(tuple(column[0].tolist()) for column in columns), tree)

        for sampling in self.samplings(settings).values():
            decode(self.texts.after("", sampling, self.texts.guided(sampling).tokens, 0), keep)
            for seed in range(self.seeds):
                decode(self.texts.whole.emission("", sampling, seed=seed), keep, cycles=DRAWN, tokens=0)
        verifier = self.texts.whole.verifier.build()
        found: dict[str, Astray] = {}
        if isinstance(verifier, Observer):
            hot = list(self.samplings(settings).values())[-1]
            probe = partial(ShortcutProbe, vocab=VOCAB, found=found)
            probe_session(self.texts.after("", hot, self.texts.guided(hot).tokens, 0, broken=probe), VOCAB)
        asked = None if isinstance(verifier, Observer) else verifier
        found = check_shortcuts(asked, trees.values(), VOCAB) | found
        for words, astray in found.items():
            place = definition(verifier.verify if words.startswith(RULE) else follow_argmax)
            self.astray = self.astray or astray.example(words, VOCAB, place)
        return [*found, *check_search(self.versions[0])]

    def example(self) -> Counterexample | None:
        """The error that was found, as a tree."""
        return find_counterexample(*self.failed) if self.failed is not None else self.astray

    def controls(self, settings: SamplingSettings) -> Iterator[Case]:
        """Yields broken copies of the composition; each must fail.

        A defect may have no effect over one target, such as an error after rejections if all drafts are accepted. Then
        it is run over another one, and left out if it never has an effect. Most fail within a fifth of the budget.
        """
        small = self.versions[self.version]
        for name, broken in defects():
            differed: list[bool] = []
            lengths = (2, 3, LENGTH)  # a refusal may come late
            for share, length, seed in product((5, 1), lengths, range(self.seeds)):
                small = replace(small, length=length)
                emission = broken(partial(small.emission, CONTROL + name, PLAIN, seed=seed), differed)
                case = self.as_case(emission, self.compare(emission, self.budget // share), small)
                if not case.exact or case.comparison.enumeration.interrupted:
                    break
            if any(differed):
                yield case
        yield from self.too_early(settings)

    def too_early(self, settings: SamplingSettings) -> Iterator[Case]:
        """A copy whose bonus comes one node too early, by the recipe's own sampling, if it accepts anything."""
        sampling, differed = small_sampling(settings), list[bool]()
        text = self.texts.guided(sampling).tokens
        broken = partial(WrongBonus, wrong=Parent(), differed=differed)
        emission = self.texts.after(CONTROL + Parent.name, sampling, text, 0, broken=broken)
        case = self.texts.case_after(emission, text, 0)
        if any(differed):
            yield case

    def guarantees(self, settings: SamplingSettings) -> Iterator[Guarantee]:
        """Properties that a lossy composition keeps, over a tree that can be exhausted."""
        hot = list(self.samplings(settings).values())[-1]
        yield from guarantees(partial(self.versions[self.version].emission, sampling=hot), self.compare)

    def audit(self) -> Audit:
        """The drafter audit, which names the slot whose recorded law is wrong."""
        emission = self.versions[self.version].emission("audit", PLAIN)
        return audit_drafts(emission.parts, PLAIN, prompt=emission.prompt, budget=self.budget, alone=ALONE)

    def compare(self, emission: Emission, budget: int | None = None, rows: int = 4096) -> Comparison:
        """The comparison, within a budget of at least one branch."""

        def progress(now: EnumerationProgress) -> None:
            if self.listener is not None:
                self.listener(emission.name, now)

        budget = max(1, budget or self.budget)
        comparison = emission.compare(budget=budget, rows=rows, alone=ALONE, progress=progress, early=self.promised)
        if self.promised and comparison.tv >= EXACT and not emission.name.startswith(CONTROL):
            self.failed = emission, comparison
        return comparison

    def as_case(self, emission: Emission, comparison: Comparison, small: SmallComposition) -> Case:
        """The comparison with the reductions made for it."""
        return Case(emission.name, comparison, reduced(self.versions[0], small), small.length)
