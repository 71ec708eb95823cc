"""The hooks a plugin implements, and the marker it implements them with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pluggy

from specframe.kernel.plugins.deprecation import Renamed

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

GROUP = "specframe"
"""The entry-point group that pip-installed plugins name themselves in."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Register(Protocol):
    """What a plugin calls, once per component."""

    def __call__(self, kind: str, name: str, target: str, *, summary: str, renamed: Renamed | None = None) -> None:
        """Registers `target` ("module:attr", imported on first use) as the component `name` of `kind`.

        `renamed` marks the name as an old one, kept for a while next to the new one.
        """
        ...


class Command(Protocol):
    """A command that a plugin adds to the command line: a class of this shape, registered as the kind `command`.

    Its module is imported when the command is called or its help is asked for.
    """

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the command's arguments."""
        ...

    def execute(self, options: Namespace) -> int:
        """Runs the command and returns its exit status. A SpecframeError is printed as one line, with status 2."""
        ...


class Hooks:
    """The hook specifications."""

    @hookspec
    def specframe_register(self, register: Register) -> None:
        """Registers a package's components by name; it must be quick and import no torch.

        `register("drafter", "falcon", "specframe_falcon.drafter:Falcon", summary="one line")`
        """
