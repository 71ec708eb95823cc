"""Lookup of components by name: lazy, so that listing plugins imports none of them."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from specframe.kernel.contestant import Contestant
from specframe.kernel.errors import PluginError, SpecframeError
from specframe.kernel.interfaces import Drafter, Head, Target, TreePolicy, Verifier
from specframe.kernel.layers import KVSelection, PromptSelection
from specframe.kernel.store import Store
from specframe.kernel.training import Loss, Rollout, Watcher
from specframe.recipes.versions import Renamed, missing_methods, release_hint

KINDS: dict[str, type] = {
    "target": Target,
    "drafter": Drafter,
    "tree": TreePolicy,
    "verifier": Verifier,
    "loss": Loss,
    "rollout": Rollout,
    "head": Head,
    "kv_selection": KVSelection,
    "selection": PromptSelection,
    "store": Store,
    "contestant": Contestant,
    "watcher": Watcher,
}
"""Kinds of components that a plugin can provide, by the word recipes use."""
METHODS = '"specframe[methods]"'
"""The extra that installs the recipes' plugins, as an argument of pip."""
RENAMED_KINDS = {"sight": Renamed("kv_selection", until="0.4")}
"""Old names of kinds, which plugins may still register."""
OTHER_KINDS = ("section", "model", "data", "command", "extension")
"""Kinds of registered objects that are not components: recipe sections' settings, embedded models (functions that
return a folder), training texts (functions that return a file), click commands, and extensions, by which packages
of this project add to functions and commands of the core."""

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _hyphened(name: str) -> str:
    return name.replace("_", "-")


def suggest(name: str, known: Iterable[str]) -> str:
    """A "; did you mean 'x'?" for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def suggest_source(name: str, known: Iterable[str]) -> str:
    """A suggestion of `suggest`, or the command that installs the recipes' plugins if they are missing."""
    remedy = f"; the recipes' plugins: pip install {METHODS}" if missing_methods() else ""
    return suggest(name, known) or remedy


def one_line(error: BaseException) -> str:
    """The class of an error and its message, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True)
class Registration:
    """A registered component, not imported yet."""

    kind: str
    name: str
    target: str
    summary: str
    package: str
    renamed: Renamed | None = None
    """The component's new name, if this is an old one."""

    @property
    def qualified(self) -> str:
        """The name that is unique to its package: package/name."""
        return f"{self.package}/{self.name}"

    def answers(self, name: str) -> bool:
        """Returns whether the name, bare or qualified, is this entry's; underscores and hyphens are equivalent."""
        return _hyphened(name) in (_hyphened(self.name), _hyphened(self.qualified))

    def load(self) -> Any:
        """The component itself. Raises PluginError if its module cannot be imported."""
        module, _, attribute = self.target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:
            reason = one_line(error) + release_hint(error, self.package)
            raise PluginError(
                f"{self.kind} '{self.name}' of {self.package} cannot be loaded from {self.target}: {reason}"
            ) from error


class Registry:
    """Registered components, and the errors of the plugins that could not be loaded."""

    def __init__(self) -> None:
        self.entries: list[Registration] = []
        self.broken: dict[str, str] = {}

    def copy(self) -> Registry:
        """A registry with the same entries and errors, to which others can be added."""
        made = Registry()
        made.entries, made.broken = [*self.entries], dict(self.broken)
        return made

    def add(self, entry: Registration) -> None:
        """Adds an entry. Raises PluginError if it is malformed or its package already has the name."""
        kinds = (*KINDS, *OTHER_KINDS)
        if entry.kind not in kinds:
            raise PluginError(f"unknown kind '{entry.kind}'{suggest(entry.kind, kinds)} (kinds: {', '.join(kinds)})")
        if not _NAME.fullmatch(entry.name):
            raise PluginError(f"'{entry.name}' is no component name: use lower-case letters, digits, _ . -")
        if not _TARGET.fullmatch(entry.target):
            raise PluginError(f"'{entry.target}' of {entry.kind} '{entry.name}' is not of the form module:attr")
        if not entry.summary.strip():
            raise PluginError(f"{entry.kind} '{entry.name}' has no summary")
        own = (e for e in self.entries if e.package == entry.package and e.kind == entry.kind)
        if any(e.answers(entry.qualified) for e in own):
            raise PluginError(f"{entry.kind} '{entry.name}' is registered twice")
        self.entries.append(entry)

    def of(self, kind: str) -> list[Registration]:
        """The entries of a kind, by name."""
        return sorted((e for e in self.entries if e.kind == kind), key=lambda e: (e.name, e.package))

    def find(self, kind: str, name: str, preferred: Collection[str] = ()) -> Registration:
        """The entry that a recipe calls `name` or `package/name`; warns if that is an old name.

        Among several packages with the name, a preferred one wins. Raises PluginError, with a suggestion, without one.
        """
        known = self.of(kind)
        found = [e for e in known if e.answers(name)]
        if len(found) > 1:
            found = [e for e in found if e.package in preferred] or found
        if len(found) == 1:
            if found[0].renamed:
                found[0].renamed.warn(f"{kind} '{name}'")
            return found[0]
        if found:
            choices = " or ".join(f"'{e.qualified}'" for e in found)
            raise PluginError(f"{kind} '{name}' is ambiguous: write {choices}")
        raise PluginError(
            f"no {kind} named '{name}'{suggest_source(name, (e.name for e in known))} "
            f"(installed: {', '.join(e.name for e in known) or 'none'}" + f"{self._broken()})"
        )

    def _broken(self) -> str:
        """The broken plugins for a message: a single one with its reason, several by name."""
        reasons = "; ".join(f"{package} is broken: {reason}" for package, reason in self.broken.items())
        several = f"broken, see `specframe plugins`: {', '.join(self.broken)}"
        return "" if not self.broken else f"; {reasons if len(self.broken) == 1 else several}"

    def extension(self, name: str, user: str, package: str) -> Any:
        """The extension of `user`, a function or command of the core. Raises PluginError without its package."""
        found = [entry for entry in self.of("extension") if entry.answers(name)]
        return found[0].load() if found else self.refuse_without(user, package)

    def refuse_without(self, user: str, package: str) -> NoReturn:
        """Raises PluginError, with a remedy, for a function of a package that is missing or broken."""
        if package in self.broken:
            raise PluginError(f"`{user}` is in {package}, which is broken: {self.broken[package]}")
        remedy = METHODS if package in missing_methods() else package
        raise PluginError(f"`{user}` needs another package: pip install {remedy}")


def load_local(file: Path, attribute: str) -> Any:
    """The component `attribute` of a Python file. Raises PluginError if there is none."""
    if not file.is_file():
        raise PluginError(f"{file}: no such Python file")
    name = f"specframe_local_{file.stem}_{sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    try:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None  # the file ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        if not hasattr(module, attribute):
            raise PluginError(f"{file} has no {attribute!r}")
        return getattr(module, attribute)
    except SpecframeError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{file}:{attribute} cannot be loaded: {one_line(error)}") from error
