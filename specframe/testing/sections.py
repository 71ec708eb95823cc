"""Sections of recipes by the constructors' typed signatures: small values of every option, smallest sections first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import combinations, islice, product
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from specframe.components.targets.tiny import tiny_model
from specframe.kernel.errors import SpecframeError
from specframe.kernel.tree import Draw
from specframe.recipes.options import REQUIRED, Option, convert, read_options
from specframe.recipes.registry import Registration, Registry

Section = dict[str, Any]
"""One component of a recipe and its options, `{use: NAME, ...}`."""

INNER = ("head", "kv_selection", "selection", "store")
"""Kinds of components that stand inside of others."""
VOCAB = 3
"""The vocabulary of the models that drafters load."""
LARGEST = 4
"""The largest number drawn; an option whose default is larger is always given, so that trees can be enumerated."""
NUMBERS = {int: (2, LARGEST, 3, 1, 0), float: (0.5, 1.0, 0.0, 0.25), bool: (True, False)}
"""Values of a type, small usual ones first; a component refuses those that it cannot have."""
TRIES = 400
"""The most sections that are tried in search of the smallest one that can be built."""


def known_values() -> dict[str, Sequence[Any]]:
    """Values of options whose types leave them open, by the option's name, or `component.option`."""
    return {
        "model": [str(tiny_model(VOCAB))],
        "device": ["cpu"],
        "fixed.paths": [["0"], ["0", "0.0"], ["0", "1", "0.0", "0.0.0"]],
        "remember": [False],  # a store that remembers earlier texts gives equal choices other outcomes
        "sampling.temperature": [],
        "sampling.logit_bias": [{"1": 1.5}, {"0": -100.0}],
        "sampling.grammar": [{"regex": "a+"}],
        "sampling.max_new_tokens": [],
        "sampling.stop_token_ids": [],
        "sampling.ignore_eos": [],
    }


@dataclass(frozen=True)
class Sections:
    """The sections that a registry's components can have.

    `given` has further values of options whose types leave them open, such as files: see `known_values`.
    """

    registry: Registry
    given: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    _smallest: dict[tuple[str, str, int, tuple[str, str] | None], Section | None] = field(
        default_factory=dict, repr=False
    )
    _components: dict[tuple[str, str], tuple[Any, dict[str, Option]]] = field(default_factory=dict, repr=False)

    @cached_property
    def _given(self) -> Mapping[str, Sequence[Any]]:
        return known_values() | dict(self.given)

    def names(self, kind: str) -> list[str]:
        """The components of a kind, as a recipe names them."""
        return [self.name_of(entry) for entry in self.registry.of(kind)]

    def name_of(self, entry: Registration) -> str:
        """The shortest name that is not ambiguous."""
        alike = [each for each in self.registry.of(entry.kind) if each.answers(entry.name)]
        return entry.name if len(alike) == 1 else entry.qualified

    def options(self, kind: str, name: str) -> dict[str, Option]:
        """A component's options. Raises PluginError for a name that is not installed."""
        return self._component(kind, name)[1]

    def _component(self, kind: str, name: str) -> tuple[Any, dict[str, Option]]:
        key = kind, name
        if key not in self._components:
            component = self.registry.find(kind, name).load()
            self._components[key] = component, read_options(component)
        return self._components[key]

    def is_large(self, option: Option) -> bool:
        """Returns whether an option is a number that has to be given, because its default is large."""
        return type(option.default) is int and option.default > LARGEST

    def values(self, name: str, option: Option) -> list[Any]:
        """The option's values other than its default, as a recipe has them; none where only its author knows any."""
        bare = name.rpartition("/")[2]
        found = self._given.get(f"{bare}.{option.name}", self._given.get(option.name))
        written = list(_values(option.annotation) if found is None else found)
        return [value for value in written if option.required or not _is_default(value, option)]

    def simple_first(self, kind: str) -> list[str]:
        """The components of a kind: those with few options first, and those without any last, which do nothing."""
        return sorted(self.names(kind), key=lambda name: len(self.options(kind, name)) or LARGEST**4)

    def build(self, kind: str, section: Section) -> Any:
        """The component of a section, and those inside of it. Raises SpecframeError where it refuses its options."""
        component, options = self._component(kind, section["use"])
        made = {
            name: self.build(inner, value)
            if (inner := options[name].kind) and value is not None
            else convert(value, options[name].annotation)
            for name, value in section.items()
            if name != "use"
        }
        return component(**made)

    def fits(self, kind: str, section: Section) -> bool:
        """Returns whether a section can be built."""
        options = self.options(kind, section["use"])
        if any(option.required and name not in section for name, option in options.items()):
            return False
        try:
            self.build(kind, section)
        except SpecframeError:
            return False
        return True

    def smallest(self, kind: str, name: str, nesting: int = 1, inner: tuple[str, str] | None = None) -> Section | None:
        """The section with the fewest options that can be built; None where no values of these types can.

        `inner` is an option and the component that stands in it.
        """
        key = kind, name, nesting, inner
        if key not in self._smallest:
            tried = islice(self._fewest_first(kind, name, nesting, inner), TRIES)
            found = next((section for section in tried if self.fits(kind, section)), None)
            self._smallest[key] = found and self._with_small_numbers(kind, found)
        return self._smallest[key]

    def _with_small_numbers(self, kind: str, section: Section) -> Section:
        """The section with small values of the numbers whose defaults are large, where it takes any."""
        large = [option for option in self.options(kind, section["use"]).values() if self.is_large(option)]
        for option in (*large, *large):  # one may have to be smaller than another
            smaller = (section | {option.name: value} for value in self.values(section["use"], option))
            section = next((form for form in smaller if self.fits(kind, form)), section)
        return section

    def forms(self, kind: str, name: str) -> list[Section]:
        """The smallest section with every draw that it can be set to and every component that can stand inside."""
        small = self.smallest(kind, name)
        if small is None:
            return []
        found = [small]
        for option in self.options(kind, name).values():
            if option.annotation is Draw:
                drawn = [small | {option.name: value} for value in self.values(name, option)]
                found += [form for form in drawn if self.fits(kind, form)]
            elif kind == "drafter" and option.kind in INNER:
                holding = [self.smallest(kind, name, inner=(option.name, each)) for each in self.names(option.kind)]
                found += [form for form in holding if form is not None]
        return [form for place, form in enumerate(found) if form not in found[:place]]

    def _fewest_first(self, kind: str, name: str, nesting: int, inner: tuple[str, str] | None) -> Iterator[Section]:
        """Yields sections of a component, those with few options first."""
        options = self.options(kind, name)
        choices = {
            option.name: self.values(name, option) if option.kind is None else list(self._inside(name, option, nesting))
            for option in options.values()
        }
        if inner is not None:
            section = self.smallest(options[inner[0]].kind or "", inner[1])
            choices[inner[0]] = [] if section is None else [section]
        always = [name for name, option in options.items() if option.required or name == (inner or [""])[0]]
        free = [option.name for option in options.values() if option.name not in always and option.kind is None]
        for count in range(3):
            for chosen in combinations(free, count):
                names = [*always, *chosen]
                for values in product(*(choices[each] for each in names)):
                    yield {"use": name, **dict(zip(names, values, strict=True))}

    def _inside(self, name: str, option: Option, nesting: int) -> Iterator[Section]:
        """Yields a section of each component that can stand in an option, if the option must be given."""
        assert option.kind is not None
        if given := self.values(name, option):
            yield from given
            return
        for name in self.simple_first(option.kind) if option.required and nesting else ():
            if (small := self.smallest(option.kind, name, nesting - 1)) is not None:
                yield small


def _is_default(value: Any, option: Option) -> bool:
    default = option.default.name.lower() if isinstance(option.default, Enum) else option.default
    return default is not REQUIRED and type(value) is type(default) and value == default


def _values(annotation: Any) -> list[Any]:
    """Small values of a type, as a recipe has them; none of a text, a path or a mapping."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return [value for each in arguments if each is not type(None) for value in _values(each)]
    if origin is Literal:
        return list(arguments)
    if origin in (list, tuple) and arguments:
        few = _values(arguments[0])[:2]
        return [[one] for one in few] + [list(pair) for pair in product(few, few)] + [few[:1] * 3] * bool(few)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [member.name.lower() for member in annotation]
    return list(NUMBERS.get(annotation, ()))


def inside(section: Section, kind: str, sections: Sections) -> Iterator[tuple[str, str]]:
    """Yields the components of a section by kind and name, itself first."""
    yield kind, section["use"]
    options = sections.options(kind, section["use"])
    for name, value in section.items():
        if name != "use" and (inner := options[name].kind) and isinstance(value, dict):
            yield from inside(value, inner, sections)
