"""Small models embedded for specframe; importing this package imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specframe import hookimpl

if TYPE_CHECKING:
    from specframe import Register

MODELS = Path(__file__).parent / "models"


def talk() -> Path:
    """The folder of the target `talk-7m`."""
    return MODELS / "talk-7m"


def talk_falcon() -> Path:
    """The folder of Falcon's drafter for `talk-7m`."""
    return MODELS / "talk-7m-falcon"


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the embedded models, which recipes name `zoo://...`."""
    register("model", "talk-7m", "specframe_zoo:talk", summary="a 7M Llama: dialogue, word problems, Python")
    register("model", "talk-7m-falcon", "specframe_zoo:talk_falcon", summary="Falcon's drafter for talk-7m")
