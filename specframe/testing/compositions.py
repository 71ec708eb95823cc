"""Drawn recipes, put to the test: refused with a sentence, or lossless in every random outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import yaml

from specframe.certify.certificate import EXACT
from specframe.certify.compositions.batch import BATCHES, LEAVES_TWICE, Accompanied, RowsOfBatch
from specframe.certify.compositions.emission import Comparison, Emission
from specframe.certify.compositions.small import EOS, SmallComposition, small_sampling, smaller_versions
from specframe.certify.guarantees import guarantees
from specframe.components.drafters.none import NoDrafter
from specframe.components.verifiers.match import Match
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.kernel.errors import RecipeError, SpecframeError, raised_at
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import Registry
from specframe.sampling.laws import Sampling

BUDGET = 2_000
"""Branches to enumerate of a recipe's output, at most; beyond them follow smaller trees of the same policy."""
ALONE = 60
"""The most branches that are run one at a time, where neighbours change what is drawn."""
PROMPTS = ((0, 1, 2, 0, 1), (2,), (1, 1, 0, 2, 1, 1, 0), (0, 2))
LENGTH = 9
"""Tokens of each prompt's continuation at temperature 0."""
AMONG = (*BATCHES, LEAVES_TWICE)
"""Batches in which a row is enumerated: others join late, leave or have another sampling. A recipe has one of them."""
FILE = "drawn.yaml"


@dataclass(frozen=True)
class Examined:
    """Findings on a recipe that broke no promise."""

    refusal: str | None = None
    """The sentences with which it was refused; None where it decoded."""
    loaded: bool = False
    """True where its drafter was refused by the small target, which was loaded by then."""
    branches: int = 0
    exhausted: bool = True
    """True if every branch was run, of a smaller tree where the recipe's own has too many."""


def text_of(recipe: Mapping[str, Any]) -> str:
    """A drawn recipe as its file would be written."""
    return yaml.safe_dump(dict(recipe), sort_keys=False, default_flow_style=None, width=110)


def check_recipe(recipe: Mapping[str, Any], *, budget: int = BUDGET, registry: Registry | None = None) -> Examined:
    """Returns the findings on a recipe, given as data; raises AssertionError, with its text, for a broken promise.

    It must be refused with one sentence a problem, before anything loads, or decode on small targets: at temperature 0
    as plain decoding does, while rows join, are cancelled and end, and with every random outcome run, in the target's
    distribution, alone with an end of sequence and among rows that come and go. `budget` is the most branches of each.
    Of a lossy verifier, the properties that it keeps are enumerated instead.
    """
    try:
        return _examine(recipe, budget, registry or discover())
    except Exception as error:
        where = f"{error}" if isinstance(error, AssertionError) else f"{raised_at(error)}: {error}"
        command = f"specframe certify {FILE} --exact-only --budget {budget}"
        raise AssertionError(f"{where}\n\nrepeat it: {command}\n--- {FILE}\n{text_of(recipe)}") from error


def _examine(recipe: Mapping[str, Any], budget: int, registry: Registry) -> Examined:
    try:
        valid = plan(Recipe(Path(FILE), dict(recipe)), registry, local_code=False)
    except RecipeError as refusal:
        _require_sentences(str(refusal))
        return Examined(str(refusal))
    own = SmallComposition.of(valid)
    try:
        own.emission("", Sampling())
    except SpecframeError as refusal:
        _require_sentences(str(refusal))
        return Examined(str(refusal), loaded=True)
    sampling = small_sampling(valid.settings["sampling"])
    if not own.verifier.build().lossless:
        return _examine_lossy(own, sampling, budget)
    _check_greedy(own)
    return _enumerate(own, sampling, budget, AMONG[crc32(text_of(recipe).encode()) % len(AMONG)])


def _require_sentences(refusal: str) -> None:
    """Each problem is one line that a user can act on, not another exception's text."""
    for line in refusal.splitlines():
        assert line.strip() and "cannot be built" not in line, f"refused without a sentence: {line!r}"


def _check_greedy(small: SmallComposition) -> None:
    """Text at temperature 0 is plain decoding's: rows join late, one is cancelled, and others end by a token."""
    parts = small.emission("", Sampling(), eos=EOS).parts()
    plain = Parts(parts.target, NoDrafter(), None, Match())
    requests = [Request(tokens=prompt, max_new_tokens=LENGTH, ends=frozenset({EOS})) for prompt in PROMPTS]
    wanted = [entry.tokens for entry in Session(plain, len(PROMPTS), _room(plain)).run(requests)]
    session = Session(parts, 3, _room(parts))
    entries = session.admit(requests[:2])
    _step(session)
    entries += session.admit(requests[2:3])
    _step(session)
    session.cancel(entries[0])
    entries += session.admit(requests[3:])
    while session.live:
        session.step()
    for number, (entry, tokens) in enumerate(zip(entries, wanted, strict=True)):
        due = tokens[: len(entry.tokens)] if entry.ended == "cancelled" else tokens
        assert entry.tokens == due, f"prompt {number + 1} at temperature 0: {entry.tokens}, plain decoding {tokens}"


def _step(session: Session) -> None:
    if session.live:
        session.step()


def _room(parts: Parts) -> int:
    return max(map(len, PROMPTS)) + LENGTH * (parts.nodes + 1)


def _enumerate(own: SmallComposition, sampling: Sampling, budget: int, batch: RowsOfBatch) -> Examined:
    """The recipe's output alone, of the largest tree that can be exhausted, then among the other rows of a batch."""
    branches, exhausted = 0, False
    small = own
    for small in smaller_versions(own):
        emission = small.emission("", sampling, seed=2, eos=EOS)
        alone = _compare(emission, budget, "alone")
        branches += alone.enumeration.branches
        if exhausted := alone.enumeration.exhausted:
            break
    emission = replace(small, length=min(small.length, 3)).emission("", sampling, seed=2)
    among = _compare(Accompanied.of(emission, batch), budget, "among other rows")
    branches += among.enumeration.branches
    exhausted = exhausted and among.enumeration.exhausted
    return Examined(branches=branches, exhausted=exhausted)


def _compare(emission: Emission, budget: int, where: str) -> Comparison:
    comparison = emission.compare(budget=budget, alone=ALONE)
    assert comparison.tv < EXACT, (
        f"not lossless {where}: total variation {comparison.tv:.4g}; {list(comparison.worst)} has probability "
        f"{comparison.got:.6f} instead of {comparison.wanted:.6f}"
    )
    return comparison


def _examine_lossy(own: SmallComposition, sampling: Sampling, budget: int) -> Examined:
    """The properties that a lossy composition keeps, over the smallest tree."""
    small = replace(own, small=True, length=2)

    def compare(emission: Emission) -> Comparison:
        return emission.compare(budget=budget, alone=ALONE)

    found = list(guarantees(partial(small.emission, sampling=sampling, seed=2), compare))
    for each in found:
        assert each.held, f"does not hold: {each.name}"
    return Examined(branches=sum(each.branches for each in found), exhausted=all(each.complete for each in found))
