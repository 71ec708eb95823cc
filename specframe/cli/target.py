"""The target that a command decodes with: the recipe's, or its fallback."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from specframe.decoding.models import UNTRAINED, has_template, model_overrides, names_model
from specframe.files.text import printable

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Target
    from specframe.recipes.build import Plan


UNTRAINED_RECIPE = f"the recipe is {UNTRAINED}, the best without training"
"""Message about the recipe for a model without its own drafter."""


def recipes_of(words: list[str], overrides: list[str]) -> tuple[list[str], list[str]]:
    """Returns the contestants and overrides of a bench, with the recipe for a model in place of the model.

    Raises InputError for several models, because the contestants of a bench share a target.
    """
    from specframe.kernel.errors import InputError
    from specframe.recipes.discovery import discover

    contestants = {entry.qualified for entry in discover().of("contestant")}
    models = [word for word in dict.fromkeys(words) if word not in contestants and names_model(word)]
    if not models:
        return words, overrides
    if len(models) > 1:
        raise InputError(f"one model at a time: {' and '.join(models)}; recipes may have targets of their own")
    found = model_overrides(models[0], overrides)
    _report(models[0], UNTRAINED_RECIPE, has_template(models[0]))
    return [UNTRAINED if word == models[0] else word for word in words], found


NEXT = {
    "run": "`specframe bench {model}` measures the gain over your prompts (--data FILE)",
    "bench": "`specframe profile {model} --precisions` finds the fastest settings here",
}
"""Next step after a command that was given a model."""


def report_model(model: str, plan: Plan) -> None:
    """Prints on standard error the recipe, or the published drafter, with which a model is decoded."""
    weights = plan.parts["drafter"].options.get("weights")
    _report(model, f"the drafter is {weights}" if weights else UNTRAINED_RECIPE, plan.settings["run"].chat)


def _report(model: str, recipe: str, chat: bool | None) -> None:
    text = "" if chat is not False else "; it has no chat template, so prompts are continued"
    print(printable(f"{model}: {recipe}{text}"), file=sys.stderr)


def report_next(command: str | None, words: Iterable[str]) -> None:
    """Prints on standard error the next step after a command that was given a model in place of a recipe."""
    model = next((word for word in words if names_model(word)), None)
    if model is not None and command in NEXT:
        print(printable(f"next: {NEXT[command].format(model=shlex.quote(model))}"), file=sys.stderr)


def choose_target(asked: Plan, local_code: bool) -> tuple[Plan, dict[str, Any]]:
    """Returns the plan to decode by, and its `chosen_target`, with `asked` and `reason` of a replaced one.

    A model of the zoo that must be fetched but cannot be reached is replaced by `target.fallback`; the drafter's
    weights are those for the target that is used. Raises FetchError if the recipe names no other target.
    """
    from specframe.kernel.errors import FetchError
    from specframe.recipes.build import plan
    from specframe.recipes.discovery import discover
    from specframe.recipes.zoo import fetch_model

    target, recipe = asked.parts["target"], asked.recipe
    model, fallback = (target.options.get(name) for name in ("model", "fallback"))
    try:
        fetch_model(model)
    except FetchError as error:
        if fallback is None:
            raise
        recipe.data["target"].pop("otherwise", None)  # the option's old name
        recipe.data["target"] |= {"model": fallback, "fallback": None}
        recipe.origins["target", "model"] = recipe.origin(("target", "fallback"))
        chosen = plan(recipe, discover(), local_code)
        return chosen, chosen_target(chosen) | {"asked": model, "reason": str(error)}
    return asked, chosen_target(asked)


def chosen_target(plan: Plan) -> dict[str, Any]:
    """Returns the target's settings in a plan: `model`, and `quantize` and `cache` if it is rounded."""
    target = plan.parts["target"]
    found = {"model": target.options.get("model") or target.entry.name}
    found |= {name: target.options.get(name) for name in ("quantize", "cache")}
    return {name: value for name, value in found.items() if value}


def drafter_of(plan: Plan, target: Target) -> dict[str, str]:
    """Returns `drafter_of`, the target that the drafter was trained for, if known to differ; otherwise nothing."""
    from specframe.files.provenance import named_weights
    from specframe.neural.weights.origin import trained_for_another

    found = [trained_for_another(weights, target) for weights in named_weights(plan).values()]
    others = [theirs for theirs in found if theirs is not None]
    return {"drafter_of": others[0]} if others else {}


def require_template(plan: Plan) -> None:
    """Raises InputError, before loading, if prompts become turns of a chat but the model has no template."""
    from specframe.kernel.errors import InputError

    model = plan.parts["target"].options.get("model")
    if isinstance(model, str) and plan.settings["run"].chat and has_template(model) is False:
        raise InputError(f"run.chat is true, but the tokenizer of {model} has no chat template; set run.chat=false")


def describe_target(chosen: dict[str, Any]) -> str:
    """Returns the first line of a run."""
    rounded = f", quantized to {chosen['quantize']}" if "quantize" in chosen else ""
    rounded += f", keys and values in {chosen['cache']}" if "cache" in chosen else ""
    rounded += ": its distribution is the one kept" if rounded else ""
    because = f", because {chosen['reason']}" if "reason" in chosen else ""
    return f"target: {chosen['model']}{rounded}{because}"
