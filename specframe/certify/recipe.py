"""Certificates by recipe: its composition by enumeration, then its own model against plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from traceback import walk_tb

from specframe.certify.certificate import Certificate
from specframe.certify.certify import Listener, certify_plan
from specframe.certify.compositions.counterexample import call_of
from specframe.certify.compositions.enumeration import EnumerationProgress
from specframe.certify.guarantees import measure_departure, measure_distance
from specframe.certify.real import certify_real
from specframe.decoding.models import read_recipe
from specframe.decoding.pipeline import Pipeline, Prompt
from specframe.files.provenance import named_weights
from specframe.kernel.capabilities import Shrinkable, Untrained, is_approximate
from specframe.kernel.errors import InputError, SpecframeError, WeightsError, raised_at
from specframe.neural.weights.locate import find_place
from specframe.recipes.build import Plan, plan
from specframe.recipes.discovery import discover
from specframe.recipes.zoo import ZOO, fetch_model

RULES = (".verify", ".observe", ".grow")
"""Calls that do not depend on a drafter's size."""
BUDGET = 100_000
"""Largest number of branches enumerated per case."""


def certify(
    recipe: str | Path,
    *,
    overrides: Sequence[str] = (),
    budget: int = BUDGET,
    exact_only: bool = False,
    seconds: float | None = None,
    listener: Listener | None = None,
    local_code: bool = True,
) -> Certificate:
    """Certifies a recipe as `specframe certify` does: every random outcome of its real code, on small vocabularies.

    Args:
        recipe: a file, or the name of a recipe that comes with specframe.
        overrides: `key=value` texts that replace values of the recipe.
        budget: the largest number of branches enumerated per case.
        exact_only: only enumerate; do not load the recipe's own model.
        seconds: end the enumeration after this time; cases that were not run are not reported.
        listener: called with the name of a case and the progress of its enumeration.
        local_code: allow components from `./file.py:Name`.

    Returns the certificate: `lossless`, and in `as_dict()` all cases. Raises RecipeError for an invalid recipe,
    InputError for one that fails on a small target.
    """
    asked = plan(read_recipe(recipe, overrides), discover(), local_code)
    prompts = [] if exact_only else asked.settings["run"].prompts
    return certify_recipe(asked, prompts, budget=budget, seconds=seconds, listener=listener)


def certify_recipe(
    plan: Plan,
    prompts: Sequence[Prompt],
    *,
    budget: int = BUDGET,
    seconds: float | None = None,
    listener: Listener | None = None,
    announce: Callable[[str], None] | None = None,
) -> Certificate:
    """The certificate of a plan; with prompts, its own model decodes them, and `announce` gets each step of that.

    The enumeration is interrupted after `seconds`, if there is such a limit.

    Raises InputError for a composition that fails on a small target, WeightsError for weights that do not exist.
    """
    if budget < 1:
        raise InputError(f"a budget of {budget} branches runs nothing; use 1 or more")
    weights = named_weights(plan)
    _require_places(weights)
    if prompts:
        fetch_model(plan.parts["target"].options.get("model"))  # now, and not after minutes of enumeration
    if seconds is not None:
        listener = _until(monotonic() + seconds, listener)
    try:
        certificate = certify_plan(plan, budget=budget, listener=listener)
    except SpecframeError:
        raise
    except Exception as error:  # a part under development may raise anything
        call = call_of(reversed([frame for frame, _ in walk_tb(error.__traceback__)]))
        advice = "" if call is not None and call.endswith(RULES) else _advice(plan)
        reason = (
            f"the composition fails on a small target{f', in {call}' if call else ''}, at {raised_at(error)}{advice}"
        )
        raise InputError(reason) from error
    failed = certificate.promised and not certificate.exact
    if prompts and not certificate.interrupted and not failed:
        pipeline = Pipeline.build(plan)
        if is_approximate(target := pipeline.parts.target):
            return replace(certificate, distance=asdict(measure_distance(pipeline, target, prompts, announce)))
        report = certify_real(pipeline, prompts, listener=announce)
        departure = None if certificate.promised else measure_departure(pipeline, prompts, announce)
        certificate = replace(certificate, real=report.as_dict(), departure=departure)
    if certificate.real is None:
        certificate = replace(certificate, unread=tuple(sorted(weights.values())))
    return certificate


def _until(end: float, listener: Listener | None) -> Listener:
    """A listener that interrupts the enumeration at time `end`, like Ctrl-C."""

    def listen(name: str, progress: EnumerationProgress) -> None:
        if listener is not None:
            listener(name, progress)
        if monotonic() > end:
            raise KeyboardInterrupt

    return listen


def _require_places(weights: Mapping[str, str]) -> None:
    """Raises WeightsError for weights, by their options, of a folder that does not exist; nothing is loaded."""
    for option, name in weights.items():
        if not name.startswith(ZOO) and find_place(name) is None:
            raise WeightsError(f"{option}: there is no folder {name}; a certificate needs no weights: leave them out")


def _advice(plan: Plan) -> str:
    """The methods whose absence makes parts of any size fail over a small vocabulary."""
    drafter = plan.parts["drafter"].build()
    missing = {"untrained (Untrained)": Untrained, "smaller (Shrinkable)": Shrinkable}
    names = [name for name, protocol in missing.items() if not isinstance(drafter, protocol)]
    if not names:
        return ""
    return (
        "; a certificate decodes with a vocabulary of a few tokens: a drafter with models or tables of another size "
        f"needs a form for it, see specframe.plugin; this one has no {' and no '.join(names)}"
    )
