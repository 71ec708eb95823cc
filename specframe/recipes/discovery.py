"""Discovery of plugins: their hook, and separate loading, so that a broken plugin affects no other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

import pluggy

from specframe._version import __version__
from specframe.kernel.errors import PluginError
from specframe.recipes.registry import RENAMED_KINDS, Registration, Registry, one_line
from specframe.recipes.versions import Renamed, release_hint, require

GROUP = "specframe"
"""The entry-point group of pip-installed plugins."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Register(Protocol):
    """Function that a plugin calls, once per component."""

    def __call__(self, kind: str, name: str, target: str, *, summary: str, renamed: Renamed | None = None) -> None:
        """Registers `target` ("module:attr", imported on first use) as the component `name` of `kind`.

        `renamed` marks an old name, kept for some releases next to the new one.
        """
        ...


class Hooks:
    """The hook specifications."""

    @hookspec
    def specframe_register(self, register: Register) -> None:
        """Registers a package's components by name; it must be quick and import no torch.

        `register("drafter", "falcon", "specframe_falcon.drafter:Falcon", summary="one line")`
        """


BUILTIN = "specframe.components.builtin"
SWITCH = "SPECFRAME_PLUGINS"
"""Environment variable: unset loads every plugin, empty none, otherwise the packages it lists."""


def discover(points: list[EntryPoint] | None = None) -> Registry:
    """The registry of the built-ins and all installed plugins (or those of `points`).

    Installed plugins are read once for a search path of packages; what is added to a registry stays in it.
    """
    if points is not None:
        return _read(points)
    return _installed(os.environ.get(SWITCH), tuple(sys.path), entry_points).copy()


@lru_cache(maxsize=1)
def _installed(switch: str | None, places: tuple[str, ...], find: Callable[..., Iterable[EntryPoint]]) -> Registry:
    """The registry of what `find` lists, by the search path and the switch that it was read with."""
    return _read(find(group=GROUP))


def _read(points: Iterable[EntryPoint]) -> Registry:
    registry = Registry()
    _register(registry, import_module(BUILTIN), "specframe")
    named = [(_package(point), point) for point in points]  # reads the package's metadata
    for package, point in sorted(named, key=lambda pair: (pair[0], pair[1].name)):
        if not _wanted(package):
            continue
        try:
            require(getattr(point.dist, "requires", None) or (), __version__, package)
            _register(registry, point.load(), package)
        except PluginError as error:
            registry.broken[package] = str(error)
        except (Exception, SystemExit) as error:
            registry.broken[package] = one_line(error) + release_hint(error, package)
    return registry


def _register(registry: Registry, plugin: Any, package: str) -> None:
    """Adds all of a plugin's components or none; a manager per plugin isolates and attributes its errors."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(plugin, name=package)
    manager.check_pending()  # a misspelt hook is an error
    fresh = Registry()

    def register(kind: str, name: str, target: str, *, summary: str, renamed: Renamed | None = None) -> None:
        if kind in RENAMED_KINDS:
            RENAMED_KINDS[kind].warn(f"the kind '{kind}' of '{name}' in {package}")
            kind = RENAMED_KINDS[kind].new
        fresh.add(Registration(kind, name, target, summary, package, renamed))

    manager.hook.specframe_register(register=register)
    if not manager.get_hookcallers(plugin):
        raise PluginError("it implements no specframe hook")
    for entry in fresh.entries:
        registry.add(entry)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.name


def _wanted(package: str) -> bool:
    switch = os.environ.get(SWITCH)
    return switch is None or package in {name.strip() for name in switch.split(",")}
