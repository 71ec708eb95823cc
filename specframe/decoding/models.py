"""Models given in place of recipes, and the generation settings of checkpoints."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe.kernel.interfaces import Target, text_of
from specframe.recipes.folders import shipped_recipes

if TYPE_CHECKING:
    from specframe.recipes.build import Plan
    from specframe.recipes.recipe import Recipe
    from specframe.recipes.source import Key

log = logging.getLogger(__name__)

UNTRAINED = "suffix-recycling"
"""The recipe for a model given in place of a recipe: the best one that needs no training."""
PUBLISHED = "drafter=auto"
"""The value that decodes a model of the Hub with the drafter that others have published for it."""
HUB = re.compile(r"[\w.-]+/[\w.-]+")
"""Matches owner/name, a model on the Hub."""

TAKEN = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "min_new_tokens",
    "suppress_tokens",
    "begin_suppress_tokens",
)
"""Settings that also change greedy texts and have the same names in the recipe's section `sampling`."""
SHARED = ("temperature", "top_k", "top_p", "min_p")
"""Further settings of both: they count if the config samples, but a recipe decides by itself whether to sample."""
NEUTRAL = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "min_new_tokens": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "watermarking_config": None,
    "stop_strings": None,
    "token_healing": False,
    "num_beams": 1,
    "penalty_alpha": None,
    "dola_layers": None,
    "constraints": None,
    "force_words_ids": None,
}
"""Settings that change texts, each with its neutral value."""


def names_model(word: str) -> bool:
    """True for a model in place of a recipe: zoo://NAME, a file of weights, a model's folder, or a name on the Hub.

    Recipes take precedence: files, and names in the folders of specframe's own recipes or close to one of theirs.
    """
    path = Path(expanduser(word))
    if word.startswith("zoo:/") or path.suffix in (".gguf", ".safetensors"):
        return True
    if path.is_dir():
        return any(path.glob("*.gguf")) or any((path / f"{n}config.json").exists() for n in ("", "adapter_"))
    if HUB.fullmatch(word) is None or word.startswith(".") or path.suffix in (".yaml", ".yml") or path.exists():
        return False
    recipes = [name for name, _ in shipped_recipes()]
    return path.parts[0] not in {name.partition("/")[0] for name in recipes} and not get_close_matches(
        word, recipes, 1, 0.8
    )


def model_overrides(model: str, overrides: Sequence[str] = ()) -> list[str]:
    """The overrides that make the recipe without training decode this model, followed by the given ones.

    `drafter=auto` stands for the drafter that others have published for the model: InputError where none is known.
    """
    from specframe.recipes.discovery import discover

    found: list[str] = []
    if PUBLISHED in overrides:
        found = discover().extension("published", PUBLISHED, "specframe-zoo")(model)
    plain = ["run.chat=false"] if has_template(model) is False else []
    others = [*plain, *found, *(value for value in overrides if value != PUBLISHED)]
    return [f"target.model={json.dumps(model)}", "target.fallback=null", "target.dtype=stored", *others]


def read_recipe(word: str | Path, overrides: Sequence[str] = (), *, environment: bool = False) -> Recipe:
    """The recipe of a file or name, or the one that decodes a model without training: see `Recipe.read`.

    Raises RecipeError for a word that is neither, and InputError for a GGUF file that cannot be read, or if
    `drafter=auto` finds no drafter.
    """
    from specframe.kernel.errors import InputError
    from specframe.recipes.recipe import Recipe

    if isinstance(word, str | Path) and names_model(str(word)):
        word, overrides = UNTRAINED, model_overrides(str(word), overrides)
    elif PUBLISHED in overrides:
        raise InputError(f"{PUBLISHED} is for a model; {word} is a recipe, which names its drafter")
    return Recipe.read(word, overrides, environment=environment)


def has_template(model: str) -> bool | None:
    """Returns whether a model on this machine has a chat template; None if that is unknown until it is loaded.

    Raises InputError for a GGUF file that cannot be read.
    """
    from specframe.components.targets.source import find_template
    from specframe.recipes.zoo import ZOO

    return None if model.startswith(ZOO) else find_template(model)


def asked_of(target: Target) -> dict[str, Any]:
    """The settings of a checkpoint's generation config that change texts."""
    config = text_of(target).generation_config
    given = {} if config is None else vars(config)
    asked = {name: given.get(name) for name, neutral in NEUTRAL.items() if given.get(name) not in (None, neutral, [])}
    if given.get("do_sample"):
        asked |= {"do_sample": True} | {name: given[name] for name in SHARED if given.get(name) is not None}
    return asked


def with_defaults(plan: Plan, target: Target) -> Plan:
    """The plan with the bans and penalties of the target's generation config that the recipe does not set."""
    asked, named = asked_of(target), plan.recipe.data.get("sampling") or {}
    taken = {name: asked[name] for name in TAKEN if name in asked and name not in named}
    if not taken:
        return plan
    origins: dict[Key, str] = {("sampling", name): "the checkpoint's generation_config.json" for name in taken}
    recipe = replace(
        plan.recipe,
        data=plan.recipe.data | {"sampling": {**named, **taken}},
        origins={**plan.recipe.origins, **origins},
    )
    sampling = replace(plan.settings["sampling"], **taken)
    return replace(plan, recipe=recipe, settings=plan.settings | {"sampling": sampling})


def report_defaults(target: Target, named: Collection[str], taken: Collection[str] = TAKEN) -> None:
    """Logs, in one line, the settings of a generation config that are adopted, and those that are ignored.

    Settings `named` in the recipe are not listed.
    """
    asked = asked_of(target)
    sampling = [] if set(SHARED) & set(named) else ["do_sample", *SHARED]
    adopted = [name for name in asked if name in taken and name not in named]
    left = [name for name in asked if name in NEUTRAL and name not in (*taken, *named)]
    left += [name for name in sampling if name in asked]
    shown = [
        f"{_listed(asked, names)}, which {what}"
        for names, what in (
            (adopted, "is taken over where the section `sampling` names no other"),
            (left, "is not used: a recipe decodes by its section `sampling`, and `specframe.decoder` by all of them"),
        )
        if names
    ]
    if shown:
        log.warning("the checkpoint's generation config asks for %s", "; and for ".join(shown))


def _listed(asked: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={asked[name]}" for name in names)
