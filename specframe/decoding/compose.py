"""Pipelines around models in memory: `specframe.compose(target=model, drafter="lookup")`, and `specframe.decoder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from specframe.components.targets.architectures import choose_context, farthest
from specframe.components.targets.hf import HFTarget
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.kernel.errors import RecipeError
from specframe.kernel.types import Cycle
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import Registry

Section = str | Mapping[str, Any]
"""A component's name, or its recipe section: `{"use": "dynamic", "depth": 4}`."""

METHODS = {"target": "score", "drafter": "propose", "tree": "grow", "verifier": "verify"}
"""The method that identifies each kind of part."""


def compose(
    *,
    target: object,
    drafter: object = "none",
    tree: object | None = None,
    verifier: object = "match",
    sampling: SamplingSettings | Mapping[str, Any] | None = None,
    run: RunSettings | Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    registry: Registry | None = None,
) -> Pipeline:
    """Composes a pipeline of these parts, each an object, a component's name or its recipe section as a mapping.

    `target` is a model of transformers, a Target, a mapping, or the folder, Hub name or `zoo://` name of a model.
    `tokenizer` is that of a model in memory; without one, prompts are token ids. `sampling` and `run` are the recipe's
    sections of these names. The parts are checked as a recipe's are, before anything is loaded.

    Raises RecipeError with a list of all problems, MisfitError for parts that do not fit together, and the errors of
    loading the target.
    """
    if isinstance(target, nn.Module):
        target = HFTarget.from_model(target, tokenizer)
    elif isinstance(target, str | Path):
        target = {"use": "hf", "model": str(target)}
    parts = {"target": target, "drafter": drafter, "tree": tree, "verifier": verifier}
    given = {kind: part for kind, part in parts.items() if part is not None and not isinstance(part, str | Mapping)}
    for kind, part in given.items():
        _require_part(kind, part)
    settings = {"sampling": sampling, "run": run}
    written = {name: part for name, part in {**parts, **settings}.items() if isinstance(part, str | Mapping)}
    read = Recipe(Path("compose"), {name: _plain(section) for name, section in written.items()})
    planned = plan(read, registry or discover(), given=given)
    for name, value in settings.items():
        if isinstance(value, SamplingSettings | RunSettings):
            planned.settings[name] = value
            planned.recipe.data[name] = dict(vars(value))  # such an object sets every option
    pipeline = Pipeline.build(planned)
    return pipeline if tokenizer is None else replace(pipeline, tokenizer=tokenizer)


def decoder(
    recipe: str | Path,
    *,
    overrides: Sequence[str] = (),
    registry: Registry | None = None,
    watch: Callable[[Cycle], None] | None = None,
) -> Callable[..., Any]:
    """A decoding loop for `model.generate(custom_generate=...)`, from a recipe's drafter, tree and verifier.

    The recipe's target section is ignored except for `context`: the model that generates is the target, and its rows
    go on past the config's `max_position_embeddings` if its rotary embedding does. All settings are those of the
    `generate` call; the seed is drawn from torch's generator, so `torch.manual_seed` sets it. A call returns the same
    output as without the loop, or raises InputError with the reason (docs/reference/generate.md lists every argument).
    The drafter is built at the first call and kept for later ones. `watch` is called with every cycle, admissions
    excluded, for figures such as `Acceptance`. Raises PluginError without specframe-transformers, which
    `pip install "specframe[methods]"` installs.
    """
    planned = plan(Recipe.read(recipe, overrides), registry or discover())
    make_loop: Callable[[Callable[[nn.Module], Pipeline], Callable[[Cycle], None] | None], Callable[..., Any]]
    make_loop = discover().extension("decoder", "specframe.decoder", "specframe-transformers")

    def build(model: nn.Module) -> Pipeline:
        context = planned.parts["target"].options.get("context")
        target = HFTarget.from_model(model)
        config = target.config  # `generate` goes on past its positions
        target.context = farthest(config) if context is None else choose_context(config, context)
        pipeline = Pipeline.build(planned, target)
        return replace(pipeline, sampling=SamplingSettings())

    return make_loop(build, watch)


def _plain(section: Section) -> Any:
    return dict(section) if isinstance(section, Mapping) else section


def _require_part(kind: str, part: object) -> None:
    """Raises RecipeError for an object that is not a part of this kind, such as a class in place of an object."""
    if isinstance(part, type) or not hasattr(part, METHODS[kind]):
        shown = f"the class {part.__name__}" if isinstance(part, type) else f"of the type {type(part).__name__}"
        raise RecipeError(
            f"compose: {kind} is {shown}; give an object with the method '{METHODS[kind]}', a component's name, or its "
            "section as a mapping"
        )
