"""Small models embedded for specframe; importing this package imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specframe import hookimpl

if TYPE_CHECKING:
    from specframe import Register

MODELS = Path(__file__).parent / "models"


def talk() -> Path:
    """The folder of the target `talk-13m`."""
    return MODELS / "talk-13m"


def talk_falcon() -> Path:
    """The folder of Falcon's drafter for `talk-13m`."""
    return MODELS / "talk-13m-falcon"


def small_talk() -> Path:
    """The folder of the smaller target `talk-7m`, which `talk-13m` grew from."""
    return MODELS / "talk-7m"


def small_talk_falcon() -> Path:
    """The folder of Falcon's drafter for `talk-7m`."""
    return MODELS / "talk-7m-falcon"


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the embedded models, which recipes name `zoo://...`."""
    register("model", "talk-13m", "specframe_zoo:talk", summary="a 13M Llama: dialogue, word problems, Python")
    register("model", "talk-13m-falcon", "specframe_zoo:talk_falcon", summary="Falcon's drafter for talk-13m")
    register("model", "talk-7m", "specframe_zoo:small_talk", summary="the 7M Llama that talk-13m grew from")
    register("model", "talk-7m-falcon", "specframe_zoo:small_talk_falcon", summary="Falcon's drafter for talk-7m")
