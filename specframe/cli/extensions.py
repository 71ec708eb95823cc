"""The commands that plugins add."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specframe.kernel.registry import Registry

PACKAGES = {"serve": "specframe-serve"}
"""Commands of this project that have a package of their own, because they need more than the core does."""


def as_sentence(summary: str) -> str:
    """The summary of a command with a capital and a full stop."""
    return f"{summary[:1].upper()}{summary[1:]}."


def add_plugin_commands(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], called: str | None, taken: Collection[str]
) -> None:
    """Adds the commands of all plugins, in full (`package/name`) where a name is `taken` or ambiguous.

    Only the one that is called is imported, or all without `called`. Raises PluginError for a call of a command whose
    package is not installed, or broken.
    """
    from specframe.kernel.discovery import discover

    registry = discover()
    entries = registry.of("command")
    names = Counter([*taken, *(entry.name for entry in entries)])
    for entry in entries:
        name = entry.name if names[entry.name] == 1 else entry.qualified
        parser = commands.add_parser(name, help=entry.summary, description=as_sentence(entry.summary))
        if called in (None, name):
            command = entry.load()()
            command.add_arguments(parser)
            parser.set_defaults(execute=command.execute, parser=parser)
    if called in PACKAGES and not names[called]:
        require_package(registry, called)


def require_package(registry: Registry, called: str) -> None:
    """Raises PluginError with what to do about a command whose package is missing or broken."""
    from specframe.kernel.errors import PluginError

    package = PACKAGES[called]
    if package in registry.broken:
        raise PluginError(f"`specframe {called}` is in {package}, which is broken: {registry.broken[package]}")
    raise PluginError(f"`specframe {called}` needs another package: pip install {package}")
