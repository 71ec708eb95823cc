"""The target that a command decodes with: the recipe's own, or the one that the recipe names in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.kernel.build import Plan


def choose_target(asked: Plan, local_code: bool) -> tuple[Plan, dict[str, Any]]:
    """The plan to decode by, and its target: `model`, `quantize`; `asked` and `reason` of one that was replaced.

    A model of the zoo that has to be fetched and cannot be reached gives way to `target.otherwise`; the drafter's
    weights are those for the target that is taken. Raises FetchError where the recipe names no other target.
    """
    from specframe.kernel.build import plan
    from specframe.kernel.errors import FetchError
    from specframe.kernel.plugins.discovery import discover

    target, recipe = asked.parts["target"], asked.recipe
    model, otherwise = (target.options.get(name) for name in ("model", "otherwise"))
    try:
        fetch_target(asked)
    except FetchError as error:
        if otherwise is None:
            raise
        recipe.data["target"] |= {"model": otherwise, "otherwise": None}
        recipe.origins["target", "model"] = recipe.origin(("target", "otherwise"))
        chosen = plan(recipe, discover(), local_code)
        return chosen, chosen_target(chosen) | {"asked": model, "reason": str(error)}
    return asked, chosen_target(asked)


def chosen_target(plan: Plan) -> dict[str, Any]:
    """What a plan decodes with: `model`, `quantize` where its weights are rounded to fewer bits, `drafter_of`.

    The last one is the target that the drafter was trained for, where that is known to be another.
    """
    from specframe.kernel.zoo import trained_for

    target = plan.parts["target"]
    model, weights = target.options.get("model"), plan.parts["drafter"].options.get("weights")
    found = {"model": model or target.entry.name, "quantize": target.options.get("quantize"), "drafter_of": None}
    if isinstance(model, str) and isinstance(weights, str):
        found["drafter_of"] = trained_for(weights, model)
    return {name: value for name, value in found.items() if value}


def fetch_target(plan: Plan) -> None:
    """Fetches the target's model where it is one of the zoo that is not on this machine. Raises FetchError."""
    from specframe.kernel.zoo import ZOO, model_folder

    model = plan.parts["target"].options.get("model")
    if isinstance(model, str) and model.startswith(ZOO):
        model_folder(model)


def describe_target(chosen: dict[str, Any]) -> str:
    """The first line of a run, and a second one where the drafter was trained for another target."""
    rounded = f", quantized to {chosen['quantize']}: its distribution is the one kept" if "quantize" in chosen else ""
    because = f", because {chosen['reason']}" if "reason" in chosen else ""
    warning = ""
    if "drafter_of" in chosen:
        warning = f"\nwarning: the drafter was trained for {chosen['drafter_of']}; few drafts will be accepted"
    return f"target: {chosen['model']}{rounded}{because}{warning}"
