"""The hooks a plugin implements, and the marker it implements them with."""

from __future__ import annotations

from typing import Protocol

import pluggy

from specframe.kernel.deprecation import Renamed

GROUP = "specframe"
"""The entry-point group that pip-installed plugins name themselves in."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Register(Protocol):
    """What a plugin calls, once per component."""

    def __call__(self, kind: str, name: str, target: str, *, summary: str, renamed: Renamed | None = None) -> None:
        """Registers `target` ("module:attr", imported on first use) as the component `name` of `kind`.

        `renamed` says that the name is an old one, kept for a while beside the new one.
        """
        ...


class Hooks:
    """The hook specifications."""

    @hookspec
    def specframe_register(self, register: Register) -> None:
        """Registers a package's components by name; it must be quick and import no torch.

        `register("drafter", "falcon", "specframe_falcon.drafter:Falcon", summary="one line")`
        """
