"""The contestants of a bench: parses command-line words into contestants that share targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specframe.bench.contest.own import RecipeContestant
from specframe.bench.contest.settings import Variant, make_variants
from specframe.decoding.models import report_defaults
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.contestant import Contestant
from specframe.kernel.errors import InputError, MisfitError, RecipeError, SpecframeError
from specframe.kernel.interfaces import Target, text_of
from specframe.recipes.build import SECTIONS, Part, Plan, plan
from specframe.recipes.folders import shipped_recipes
from specframe.recipes.options import read_options
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import Registry, suggest

HF = "hf:"
TRANSFORMERS = ("generate", "generate-compiled", "prompt-lookup", "assisted")
"""The built-in contestants that are transformers' own; their words begin with `hf:`."""
PLAIN, GENERATE = "plain", f"{HF}generate"
"""The baseline contestants for speedups."""


@dataclass(frozen=True)
class Selection:
    """The selected contestants as plain data: enough to make the same contestants in another process."""

    words: tuple[str | Variant, ...]
    """Recipe files, `hf:NAME`, or registered contestants; a recipe with a name or values of its own is a variant."""
    overrides: tuple[str, ...] = ()
    """`key=value`, for every recipe."""
    assistant: str | None = None
    """The assistant model of `hf:assisted`."""
    local_code: bool = True
    """True if recipes may name components in Python files of their own folder."""
    variations: tuple[str, ...] = ()
    """`key=a,b,c`: every recipe takes part once with each combination of these values."""
    environment: bool = False
    """True if recipes may read environment variables."""


@dataclass
class Entrant:
    """A contestant with its place in the bench."""

    name: str
    kind: str
    """`recipe`, `plain`, `hf:generate` and its like, or a plugin's contestant as it was named."""
    contestant: Contestant
    plan: Plan
    """Recipe of the contestant; for one without a recipe, the first recipe with its target."""
    label: str
    """Label of the target; equal for contestants that share a target, and for no others."""

    @property
    def target(self) -> str:
        """The identity of its target: the target section's component and options."""
        return describe_target(self.plan)


@dataclass
class Contestants:
    """All contestants, planned and checked as far as possible without loading a model."""

    entrants: list[Entrant]
    sampling: SamplingSettings
    """Common to all."""
    chat: bool | None
    """True if prompts become a user's turn, where a recipe sets it."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template, common to all."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Variants left out because their parts do not fit together: name to reason."""
    targets: dict[str, Target] = field(default_factory=dict)
    """The loaded targets, by `Entrant.target`."""

    def load(self, batch: int) -> None:
        """Loads each target once, and prepares every contestant with it."""
        for entrant in self.entrants:
            first = self.targets.get(entrant.target)
            if first is None:
                first = self.targets[entrant.target] = entrant.plan.parts["target"].build()
                report_defaults(first, entrant.plan.recipe.data.get("sampling") or (), taken=())
            entrant.contestant.prepare(_sibling(first, entrant.plan), self.sampling, batch)


def plan_contestants(selection: Selection, registry: Registry) -> Contestants:
    """The selected contestants.

    Raises RecipeError with all problems of all recipes, InputError for words that name nothing, or recipes
    whose settings do not let them be compared.
    """
    selected = _read_selection(selection, registry)
    plans, misfits = selected.plans, selected.misfits
    if not plans:
        raise InputError("give at least one recipe: it names the target that all contestants decode with")
    if selection.assistant is not None and f"{HF}assisted" not in selected.others:
        raise InputError(f"--assistant is for the contestant {HF}assisted, which does not take part; add it")
    sampling, chat, variables = _agree(list(plans.values()))
    names = _name([*plans, *misfits])
    targets: dict[str, Plan] = {}
    for p in plans.values():
        targets.setdefault(describe_target(p), p)
    labels = label_targets(targets)
    entrants = []
    for word in dict.fromkeys(selection.words):
        for variant in selected.variants.get(word, ()):
            name, p = names[variant], plans[variant]
            entrants.append(Entrant(name, "recipe", RecipeContestant(name, p), p, labels[describe_target(p)]))
        if isinstance(word, Variant) or word not in selected.others:
            continue
        for target, p in targets.items():
            contestant = selected.others[word] if len(targets) == 1 else _build(word, registry, selection.assistant)
            name = contestant.name if len(targets) == 1 else f"{contestant.name} of {labels[target]}"
            entrants.append(Entrant(name, _kind(word), contestant, p, labels[target]))
    _require_names([entrant.name for entrant in entrants])
    return Contestants(entrants, sampling, chat, variables, {names[variant]: why for variant, why in misfits.items()})


@dataclass
class _Selected:
    """Parsed words of a selection."""

    plans: dict[Variant, Plan] = field(default_factory=dict)
    variants: dict[str | Variant, list[Variant]] = field(default_factory=dict)
    """Those that have a plan, by the word that they are variants of."""
    misfits: dict[Variant, str] = field(default_factory=dict)
    others: dict[str, Contestant] = field(default_factory=dict)


def _read_selection(selection: Selection, registry: Registry) -> _Selected:
    """Reads the selection. Raises RecipeError with all problems; where nothing is left, with the misfits, too."""
    selected, problems = _Selected(), list[str]()
    for word in dict.fromkeys(selection.words):
        try:
            if isinstance(word, str) and not is_recipe(word, registry):
                selected.others[word] = _build(word, registry, selection.assistant)
                continue
        except SpecframeError as error:
            problems += str(error).splitlines()
            continue
        for variant in make_variants(Variant(word) if isinstance(word, str) else word, selection.variations):
            try:
                changes = [*selection.overrides, *variant.overrides, *variant.changes]
                recipe = Recipe.read(variant.recipe, changes, environment=selection.environment)
                _require_values(recipe, variant)
                selected.plans[variant] = plan(recipe, registry, selection.local_code)
                selected.variants.setdefault(word, []).append(variant)
            except MisfitError as error:
                selected.misfits[variant] = str(error)
            except SpecframeError as error:
                problems += str(error).splitlines()
    if not selection.variations or not selected.plans:
        problems += [line for error in selected.misfits.values() for line in error.splitlines()]
    if problems:
        raise RecipeError("\n".join(dict.fromkeys(problems)))
    return selected


def _require_values(recipe: Recipe, variant: Variant) -> None:
    """Raises MisfitError for a variant in which one change overrides another, as its name would be wrong."""
    for change in variant.changes:
        if not recipe.holds(change):
            raise MisfitError(f"another of its values takes the place of {change}")


def _name(variants: Sequence[Variant]) -> dict[Variant, str]:
    """The variants' names: the given one or the recipe's file name (or path, if two are equal), and varied options."""
    stems = Counter(Path(recipe).stem for recipe in {variant.recipe for variant in variants if not variant.name})
    found = {}
    for variant in variants:
        stem = Path(variant.recipe).stem
        name = variant.name or (stem if stems[stem] == 1 else variant.recipe)
        found[variant] = f"{name} {variant.label}".strip()
    return found


def describe_target(plan: Plan) -> str:
    """The target section as one line: equal for recipes that share a target."""
    part = plan.parts["target"]
    return f"{part.entry.qualified} {sorted(part.options.items(), key=lambda item: item[0])}"


def label_targets(targets: Mapping[str, Plan]) -> dict[str, str]:
    """A name for each target: its model, with other options if two names would be equal."""
    parts = {key: p.parts["target"] for key, p in targets.items()}
    short = {key: str(part.options.get("model", part.entry.name)) for key, part in parts.items()}
    counts = Counter(short.values())
    more = {
        key: ", ".join(f"{name} {_shown(value)}" for name, value in part.options.items() if name != "model")
        for key, part in parts.items()
    }
    return {key: name if counts[name] == 1 else f"{name} ({more[key]})" for key, name in short.items()}


def _shown(value: object) -> str:
    """An option's value, of a component its name and options."""
    if not isinstance(value, Part):
        return str(value)
    return " ".join([value.entry.name, *(f"{name}={_shown(option)}" for name, option in value.options.items())])


def is_recipe(word: str, registry: Registry) -> bool:
    """Returns whether a word is a recipe's file, or the name of one that comes with specframe and of no contestant."""
    if word.endswith((".yaml", ".yml")) or Path(word).is_file():
        return True
    return word in dict(shipped_recipes()) and all(word != entry.name for entry in registry.of("contestant"))


def named_recipe(word: str, registry: Registry) -> Variant | None:
    """The recipe that `NAME=RECIPE` lets take part under a name; None for another word, such as a replaced value."""
    name, _, recipe = word.partition("=")
    if not recipe or name.partition(".")[0] in SECTIONS or Path(word).is_file() or not is_recipe(recipe, registry):
        return None
    return Variant(recipe, name=name)


def _kind(word: str) -> str:
    """The canonical word for a contestant, given any of its names."""
    bare = word.removeprefix("specframe/")
    return f"{HF}{bare}" if bare in TRANSFORMERS else bare


def _build(word: str, registry: Registry, assistant: str | None) -> Contestant:
    known = registry.of("contestant")
    name = f"specframe/{word.removeprefix(HF)}" if word.startswith(HF) else word
    if not any(entry.answers(name) for entry in known):
        words = [f"{HF}{e.name}" if e.name in TRANSFORMERS and e.package == "specframe" else e.name for e in known]
        raise InputError(
            f"'{word}' is neither a recipe file nor a contestant{suggest(word, words)} "
            f"(contestants: {', '.join(words)})"
        )
    entry = registry.find("contestant", name)
    component = entry.load()
    assisted = entry.qualified == "specframe/assisted"
    options = {"model": assistant} if assisted and assistant is not None else {}
    missing = [o.name for o in read_options(component).values() if o.required and o.name not in options]
    if missing:
        raise InputError(f"{word} needs {'--assistant MODEL' if assisted else 'the options ' + ', '.join(missing)}")
    contestant: Contestant = Part(entry, component, options).build()
    return contestant


def _agree(plans: list[Plan]) -> tuple[SamplingSettings, bool | None, dict[str, Any]]:
    """Returns the settings that all recipes share. Raises InputError if they differ."""
    samplings: list[SamplingSettings] = [p.settings["sampling"] for p in plans]
    first = samplings[0]
    for p, other in zip(plans, samplings, strict=True):
        for name, value in vars(first).items():
            if vars(other)[name] != value:
                raise InputError(
                    f"{p.recipe.path}: sampling.{name} is {vars(other)[name]}, but {value} in "
                    f"{plans[0].recipe.path}; what is compared must decode alike: give sampling.{name}={value}"
                )
    if first.stop:
        raise InputError("stop texts give contestants unequal budgets; give sampling.stop=[]")
    settings = {chat for p in plans if (chat := (p.recipe.data.get("run") or {}).get("chat")) is not None}
    if len(settings) > 1:
        raise InputError("the recipes disagree on run.chat, so they would get different prompts; give run.chat=true")
    variables: list[dict[str, Any]] = [p.settings["run"].chat_template_kwargs for p in plans]
    if any(each != variables[0] for each in variables):
        raise InputError("the recipes disagree on run.chat_template_kwargs, and so on their prompts; give it a value")
    return first, next(iter(settings), None), variables[0]


def _require_names(names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"two contestants are called {twice[0]}; rename one recipe file, or give one a name: NAME=RECIPE"
        )


def _sibling(target: Target, plan: Plan) -> Target:
    """A target with separate state and features around the same weights, if the target offers one."""
    built: Target = text_of(target).sibling() or plan.parts["target"].build()
    return built
