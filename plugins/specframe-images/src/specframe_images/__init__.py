"""MSD's and FLASH's drafters; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.plugin import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `msd` and `flash`."""
    register(
        "drafter",
        "msd",
        "specframe_images.msd:Msd",
        summary="autoregressive on features, as EAGLE's; parts of an image enter as the target's own embeddings",
    )
    register(
        "drafter",
        "flash",
        "specframe_images.flash:Flash",
        summary="several levels from one entry, as EAGLE's on features; an image is compressed to a few entries",
    )
