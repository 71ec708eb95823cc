"""The target that a command decodes with: the recipe's own, or the one that the recipe names in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.kernel.build import Plan
    from specframe.kernel.interfaces import Target


def choose_target(asked: Plan, local_code: bool) -> tuple[Plan, dict[str, Any]]:
    """The plan to decode by, and its target: `model`, `quantize`; `asked` and `reason` of one that was replaced.

    A model of the zoo that has to be fetched and cannot be reached gives way to `target.otherwise`; the drafter's
    weights are those for the target that is taken. Raises FetchError where the recipe names no other target.
    """
    from specframe.kernel.build import plan
    from specframe.kernel.discovery import discover
    from specframe.kernel.errors import FetchError

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
    """Returns the target's settings in a plan: `model`, and `quantize` where its weights are rounded to fewer bits."""
    target = plan.parts["target"]
    found = {"model": target.options.get("model") or target.entry.name, "quantize": target.options.get("quantize")}
    return {name: value for name, value in found.items() if value}


def drafter_of(plan: Plan, target: Target) -> dict[str, str]:
    """`drafter_of`, the target that the drafter was trained for, where that is known to be another; else nothing."""
    from specframe.files.provenance import named_weights
    from specframe.neural.weights.origin import trained_for_another

    found = [trained_for_another(weights, target) for weights in named_weights(plan).values()]
    others = [theirs for theirs in found if theirs is not None]
    return {"drafter_of": others[0]} if others else {}


def fetch_target(plan: Plan) -> None:
    """Fetches the target's model where it is one of the zoo that is not on this machine. Raises FetchError."""
    from specframe.kernel.zoo import ZOO, model_folder

    model = plan.parts["target"].options.get("model")
    if isinstance(model, str) and model.startswith(ZOO):
        model_folder(model)


def describe_target(chosen: dict[str, Any]) -> str:
    """The first line of a run."""
    rounded = f", quantized to {chosen['quantize']}: its distribution is the one kept" if "quantize" in chosen else ""
    because = f", because {chosen['reason']}" if "reason" in chosen else ""
    return f"target: {chosen['model']}{rounded}{because}"
