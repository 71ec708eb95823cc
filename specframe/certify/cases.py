"""The partly enumerated cases of a certificate: after forced texts, and in batches with other rows.

Small batches of every size come first, then batches that rows leave and join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from specframe.certify.certificate import Case, Reach
from specframe.certify.compositions.batch import BATCHES, LEAVES_TWICE, Accompanied, RowsOfBatch
from specframe.certify.compositions.emission import Comparison, Emission
from specframe.certify.compositions.guided import CYCLES, Guide, decode, forced, guide
from specframe.certify.compositions.small import SmallComposition
from specframe.sampling.laws import Sampling

FEW = 16
"""Largest number of branches of a case in a batch of one size; errors already show in the first ones."""
SIZES, CROWD = range(2, 10), 5
"""Batch sizes in which a row is decoded, itself included, and the largest size in which it takes every place."""
OPENING = 3
"""Number of forced cycles, the admission included, before the first free choice in a small batch."""
SIDE_BY_SIDE = 4096
"""Number of branches per call for batches without a fixed size."""
SESSIONS = 2
"""Number of sessions that the parts of a case have decoded before."""


PAIRS = 500
"""Largest number of branches over two levels."""
Compare = Callable[[Emission, int | None, int], Comparison]
"""Function of an emission, its largest number of branches (None: the certificate's budget), and branches per call."""
AsCase = Callable[[Emission, Comparison, SmallComposition], Case]
"""Function that makes a case, with the reductions of the composition relative to the recipe's."""


@dataclass
class TextCases:
    """The cases of a composition after forced texts, and the reach of these texts."""

    whole: SmallComposition
    """The recipe's own composition; if costs limit drafts, with costs so low that all nodes pay."""
    compare: Compare
    as_case: AsCase
    budget: int
    reach: Reach = field(default_factory=Reach)
    """Reach of the guided texts so far."""
    texts: dict[Sampling, Guide] = field(default_factory=dict)
    """The text that the composition drafts under each sampling."""

    def after_certain_text(self, label: str, sampling: Sampling) -> Iterator[Case]:
        """Yields cases after a forced text: to the deepest level of a draft, a late cycle, and the end of the text."""
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
            # After a forced level, using its distribution instead of the next level's would go unnoticed.
            between = range(text.deep - text.levels + 2, text.deep)
            yield self.pairs(f"{label}, two levels at a time", sampling, text, between)
        last = len(text.counts) - 1
        begun = [text.before(cycle) for cycle in {*range(1, min(CYCLES, last)), last}]
        yield self.pairs(f"{label}, each cycle to number {last}", sampling, text, begun)

    def pairs(self, name: str, sampling: Sampling, text: Guide, places: Iterable[int]) -> Case:
        """The case farthest from the target's law, with two free tokens at each of these places of a forced text."""
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
        """Yields cases of two free tokens after a forced text, or of one if two have too many branches."""
        for free in (2, 1):
            case = self.case_after(self.after(name, sampling, text, free), text, free)
            if case.settled:
                break
        yield replace(case, partly=True)

    def case_after(self, emission: Emission, text: tuple[int, ...], free: int, budget: int | None = None) -> Case:
        """The case of an emission that starts with a forced text."""
        case = self.as_case(emission, self.compare(emission, budget or self.budget // 5, SIDE_BY_SIDE), self.whole)
        return replace(case, forced=len(text), tokens=free)

    def guided(self, sampling: Sampling) -> Guide:
        """The text that the composition drafts."""
        if sampling not in self.texts:
            self.texts[sampling] = guide(partial(self.whole.emission, "", sampling))
        return self.texts[sampling]

    def after(self, name: str, sampling: Sampling, text: tuple[int, ...], free: int, **options: Any) -> Emission:
        """The composition's emission after a forced text; options as in `SmallComposition.emission`."""
        return forced(self.whole.emission(name, sampling, **options), text, free)


@dataclass
class BatchCases:
    """The cases of a composition, and of its smaller versions, whose row is decoded with or after other rows.

    The random numbers of the other rows are fixed, and differ between batches.
    """

    versions: Sequence[SmallComposition]
    compare: Compare
    as_case: AsCase
    openings: dict[Sampling, tuple[int, ...]] = field(default_factory=dict)
    """The first tokens that the smallest version drafts under each sampling."""

    def small(self, label: str, sampling: Sampling) -> Iterator[Case]:
        """Yields the cases with few branches, the smallest batches first."""
        for size in SIZES:
            for before, where in ((0, "first"), (size - 1, "last")):
                batch = RowsOfBatch.of_size(size, before, mixed=before > 0)
                case = self.in_small_batch(f"{label}, {where} of {size} rows", sampling, batch)
                yield case
                if case.comparison.enumeration.rows == 1 < size - 1 and not before:
                    for place in range(1, size - 1) if size <= CROWD else (1, size // 2, size - 2):
                        moved = replace(batch, before=place)
                        yield self.in_small_batch(f"{label}, place {place + 1} of {size} rows", sampling, moved, 1)
        greedy = replace(sampling, temperature=0.0)
        yield self.in_small_batch("temperature 0, among sampled rows", greedy, RowsOfBatch.of_size(4, 2, mixed=True))
        yield self.in_small_batch(f"{label}, after other rows left", sampling, LEAVES_TWICE, SIDE_BY_SIDE, 2)
        yield self.after_sessions(f"{label}, after earlier sessions", sampling)

    def large(self, label: str, sampling: Sampling) -> Iterator[Case]:
        """Yields the cases in which the row is fully enumerated, among others that leave and join."""
        number, version = 0, 1
        while number < len(BATCHES) and version < len(self.versions):
            case = self.in_batch(f"{label}, among other rows {number + 1}", sampling, BATCHES[number], version)
            if case.settled or version + 1 == len(self.versions):
                yield case
                number += 1
            else:  # one at a time takes a thousand times longer
                version = version + 1 if case.comparison.enumeration.rows > 1 else len(self.versions) - 1

    def in_batch(self, name: str, sampling: Sampling, batch: RowsOfBatch, version: int) -> Case:
        """A row of one of the smaller compositions with others."""
        small = self.versions[version]
        emission = small.emission(name, sampling)
        return replace(
            self.as_case(emission, self.compare(Accompanied.of(emission, batch), None, SIDE_BY_SIDE), small),
            among_others=True,
        )

    def in_small_batch(
        self, name: str, sampling: Sampling, batch: RowsOfBatch, rows: int | None = None, free: int = 1
    ) -> Case:
        """The case of tokens after a forced first cycle, with as many parallel branches as the batch's size allows."""
        small = self.versions[-1]
        certain = self.opening(sampling)
        emission = forced(small.emission(name, sampling), certain, free, ending=True)
        rows = rows or max(1, (batch.size or 2) - 1)
        comparison = self.compare(Accompanied.of(emission, batch), FEW if batch.size else None, rows)
        case = self.as_case(emission, comparison, small)
        return replace(case, among_others=True, partly=True, forced=len(certain), tokens=free)

    def opening(self, sampling: Sampling) -> tuple[int, ...]:
        """The tokens of the smallest composition's admission and first cycles."""
        if sampling not in self.openings:
            text = guide(partial(self.versions[-1].emission, "", sampling), cycles=OPENING, tokens=0)
            self.openings[sampling] = text.tokens[: text.before(OPENING)]
        return self.openings[sampling]

    def after_sessions(self, name: str, sampling: Sampling) -> Case:
        """The case of a row whose parts have decoded other rows before, in this session and in earlier ones."""
        small = self.versions[-1]
        emission = replace(small.emission(name, sampling), sessions=SESSIONS)
        return replace(self.as_case(emission, self.compare(emission, None, SIDE_BY_SIDE), small), partly=True)
