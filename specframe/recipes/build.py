"""Conversion of recipes to parts: every section is validated against its component's signature, then composed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specframe.kernel.errors import MisfitError, PluginError, RecipeError, SpecframeError
from specframe.recipes.folders import recipes_folder
from specframe.recipes.options import Mismatch, Option, convert, read_options
from specframe.recipes.recipe import Recipe, dotted
from specframe.recipes.registry import Registration, Registry, load_local, one_line, suggest
from specframe.recipes.source import Key
from specframe.recipes.versions import current_name, own_packages
from specframe.recipes.zoo import find_weights, require_model

VERSION = 1
"""The recipe format that this release reads: `specframe: 1`."""

COMPONENTS = {"target": True, "drafter": True, "tree": False, "verifier": True}
"""Sections that hold one component, and whether a recipe must have them."""
SETTINGS = ("sampling", "run", "train")
SECTIONS = ("specframe", "extends", *COMPONENTS, "loss", *SETTINGS)


@dataclass(frozen=True)
class Part:
    """A component that a recipe names, with validated options; nothing is built yet."""

    entry: Registration
    component: Any
    options: dict[str, Any]

    def build(self) -> Any:
        """Builds the component, after its nested parts."""
        return self.component(**{k: v.build() if isinstance(v, Part) else v for k, v in self.options.items()})

    def value(self, option: str) -> Any:
        """Returns the value of an option: the recipe's, or its default."""
        return self.options.get(option, read_options(self.component)[option].default)


@dataclass(frozen=True)
class GivenPart(Part):
    """An already built component in place of one that a recipe names."""

    @classmethod
    def of(cls, kind: str, component: Any) -> GivenPart:
        """The part around an object."""
        name = type(component).__name__
        return cls(Registration(kind, name, name, "an object in memory", "memory"), component, {})

    def build(self) -> Any:
        """The object itself."""
        return self.component

    def value(self, option: str) -> Any:
        """The object's attribute of the option's name."""
        return getattr(self.component, option)


@dataclass
class Plan:
    """A validated recipe: parts ready to be built."""

    recipe: Recipe
    parts: dict[str, Part] = field(default_factory=dict)
    losses: list[tuple[Part, float]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings objects of `sampling`, `run` and, if the recipe has it, `train`."""
    tree: Any = None
    """The tree policy, built once by the check of the composition; None if the recipe has none."""
    verifier: Any = None
    """The verifier, built once by this check, too."""


def plan(
    recipe: Recipe, registry: Registry, local_code: bool = True, given: Mapping[str, Any] = MappingProxyType({})
) -> Plan:
    """The recipe's plan. Raises RecipeError with a list of all problems, each with file and line.

    If all sections are valid but do not fit together, it is a MisfitError. `local_code` allows
    components from `./file.py:Name` in the recipe's folder. `given` are already built components, by kind.
    """
    reader = _Reader(recipe, registry, local_code)
    result = reader.read({kind: GivenPart.of(kind, component) for kind, component in given.items()})
    reader.refuse(RecipeError)
    reader.check_composition(result)
    reader.refuse(MisfitError)
    return result


class _Reader:
    """Reads a recipe once and collects all problems instead of stopping at the first."""

    def __init__(self, recipe: Recipe, registry: Registry, local_code: bool) -> None:
        self.recipe = recipe
        self.registry = registry
        self.local_code = local_code
        self.problems: list[str] = []

    def report(self, key: Key, message: str) -> None:
        name = f"{dotted(key)}: " if key else ""
        self.problems.append(f"{self.recipe.origin(key)}: {name}{message}")

    def refuse(self, error: type[RecipeError]) -> None:
        """Raises the error with all problems found so far, if there are any."""
        if self.problems:
            raise error("\n".join(dict.fromkeys(self.problems)))

    def read(self, given: Mapping[str, Part]) -> Plan:
        data = self.recipe.data
        result = Plan(self.recipe, dict(given))
        if data.get("specframe", VERSION) != VERSION:
            self.report(("specframe",), f"this release reads recipes of version {VERSION}")
        for name in data:
            if name not in SECTIONS:
                self.report((name,), f"unknown section{suggest(str(name), SECTIONS) or self.elsewhere(str(name))}")
        for name, required in COMPONENTS.items():
            if data.get(name) is not None:  # `tree: null` removes a parent's section
                if part := self.read_part(name, data[name], (name,)):
                    result.parts[name] = part
            elif required and name not in given:
                self.problems.append(f"{self.recipe.path}: missing section '{name}'")
        self.read_losses(data.get("loss") or [], result)
        for name in SETTINGS:
            if data.get(name) is not None or name != "train":  # the train section is optional and slow to import
                result.settings[name] = self.read_settings(name, data.get(name) or {})
        for name in result.parts.keys() & {"drafter", "target"}:
            result.parts[name] = self.with_weights(result.parts[name], result.parts.get("target"))
        return result

    def with_weights(self, part: Part, target: Part | None) -> Part:
        """The part and its nested parts, with `weights` that name a method replaced by the drafter for the target."""
        model = target.options.get("model") if target is not None else None
        found: dict[str, Any] = {}
        for name, value in part.options.items():
            if isinstance(value, Part):
                found[name] = self.with_weights(value, target)
            else:
                found[name] = find_weights(value, model, self.registry) if name == "weights" and value else value
        return replace(part, options=found)

    def read_losses(self, entries: Any, result: Plan) -> None:
        for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            key: Key = ("loss", index) if isinstance(entries, list) else ("loss",)
            options = dict(entry) if isinstance(entry, dict) else entry
            weight = options.pop("weight", 1.0) if isinstance(options, dict) else 1.0
            if not isinstance(weight, int | float) or isinstance(weight, bool):
                self.report((*key, "weight"), f"expected number, not {weight!r}")
            elif not 0 <= weight < inf:
                self.report((*key, "weight"), f"a loss weighs at least 0, not {weight}")
            elif part := self.read_part("loss", options, key):
                result.losses.append((part, float(weight)))

    def read_settings(self, name: str, values: Any) -> Any:
        entry = self.registry.find("section", name)
        if not isinstance(values, dict):
            self.report((name,), f"expected a section of options, not {values!r}")
            return None
        part = self.read_options(entry, entry.load(), values, (name,))
        try:
            return part.build() if part else None
        except SpecframeError as error:
            self.report(self.blamed(name), str(error))
            return None

    def read_part(self, kind: str, section: Any, key: Key) -> Part | None:
        if isinstance(section, str):
            section = {"use": section}
        if not isinstance(section, dict) or not isinstance(section.get("use"), str):
            self.report(key, f"expected {{use: NAME, ...}}, where NAME is a {kind}")
            return None
        try:
            entry, component = self.find(kind, section["use"], (*key, "use"))
        except SpecframeError as error:
            self.report((*key, "use"), str(error))
            return None
        return self.read_options(entry, component, {k: v for k, v in section.items() if k != "use"}, key)

    def find(self, kind: str, name: str, key: Key) -> tuple[Registration, Any]:
        """The registration and component of a name.

        Local code is searched in the folder of the file that names it; if named on the command line, in the working
        folder first.
        """
        if ".py:" not in name:
            entry = self.registry.find(kind, name, self.preferred(key))
            return entry, entry.load()
        if not self.local_code:
            raise PluginError(f"'{name}' is local code, which --no-local-code forbids")
        written, _, attribute = name.rpartition(":")
        file = Path(written).expanduser()
        near = self.recipe.file(key).parent / file
        if not self.recipe.overridden(key) or (near.is_file() and not file.is_file()):
            file = near
        return Registration(kind, name, f"{written}:{attribute}", "local code", "local"), load_local(file, attribute)

    def preferred(self, key: Key) -> frozenset[str]:
        """The packages preferred for the value at `key` if several have a component of the name.

        Values of specframe's own recipes prefer specframe's own packages, so that they work with any other plugins.
        """
        folder = recipes_folder()
        if folder is None or self.recipe.overridden(key):
            return frozenset()
        return own_packages() if self.recipe.file(key).resolve().is_relative_to(folder.resolve()) else frozenset()

    def read_options(self, entry: Registration, component: Any, values: dict[str, Any], key: Key) -> Part | None:
        before = len(self.problems)
        try:
            known = read_options(component)
        except PluginError as error:
            self.report(key, str(error))
            return None
        options: dict[str, Any] = {}
        given: dict[str, str] = {}
        for written, value in values.items():
            path = (*key, written)
            name = current_name(written, component, f"{(origin := self.recipe.origin(path))}: {dotted(path)}")
            source = origin.rpartition(":")[0]
            if name not in known:
                options_known = f" (options: {', '.join(known) or 'none'})"
                self.report(path, f"unknown option{suggest(name, known) or self.elsewhere(name) or options_known}")
            elif given.get(name) == source:  # in two sources, the later one overrides, under either name
                self.report(path, f"'{name}' is given twice, by its old name and its new one")
            else:
                self.read_value(known[name], value, path, options)
            given[name] = source
        for option in known.values():
            if option.required and option.name not in given:
                self.report((*key, option.name), f"missing: {entry.kind} '{entry.name}' needs it")
        return Part(entry, component, options) if len(self.problems) == before else None

    def elsewhere(self, name: str) -> str:
        """A "; did you mean 'sampling.temperature'?" for an option of another section, or an empty string."""
        used: dict[str, str] = {}
        for kind in COMPONENTS:
            section = self.recipe.data.get(kind)
            used[kind] = str(section.get("use") if isinstance(section, dict) else section)
        for kind, use in [*(("section", name) for name in SETTINGS), *used.items()]:
            try:
                known = read_options(self.registry.find(kind, use).load())
            except SpecframeError:
                continue
            if name in known:
                return f"; did you mean '{use if kind == 'section' else kind}.{name}'?"
        return ""

    def read_value(self, option: Option, value: Any, key: Key, options: dict[str, Any]) -> None:
        if option.kind is not None and value is not None:
            if part := self.read_part(option.kind, value, key):
                options[option.name] = part
            return
        try:
            options[option.name] = convert(value, option.annotation)
        except Mismatch as mismatch:
            self.report(key, str(mismatch))
            return
        if option.name == "model" and isinstance(value, str):
            try:
                require_model(value, self.registry)
            except PluginError as error:
                self.report(key, str(error))

    def blamed(self, kind: str) -> Key:
        """The key to report for a section that is invalid as a whole: an override in it, if there is one."""
        return next((key for key in self.recipe.origins if key[0] == kind and self.recipe.overridden(key)), (kind,))

    def check_composition(self, result: Plan) -> None:
        from specframe.kernel.composition import misfits

        built = {kind: self.try_build(kind, result.parts.get(kind)) for kind in ("drafter", "tree", "verifier")}
        target = result.parts.get("target")
        for part in filter(lambda option: isinstance(option, Part), target.options.values() if target else ()):
            self.try_build("target", part)  # so that its options are checked before weights are read
        if self.problems:
            return
        result.tree, result.verifier = built["tree"], built["verifier"]
        names = result.parts["drafter"].entry.name, result.parts["verifier"].entry.name
        for section, message in misfits(built["drafter"], result.tree, result.verifier, names=names):
            self.report((section,), message)

    def try_build(self, kind: str, part: Part | None) -> Any:
        """Builds the part; returns None without a part, or after reporting that it cannot be built."""
        try:
            return None if part is None else part.build()
        except SpecframeError as error:
            self.report(self.blamed(kind), str(error))
        except Exception as error:  # plugins' constructors may raise anything
            assert part is not None
            self.report(self.blamed(kind), f"{part.entry.name} cannot be built: {one_line(error)}")
