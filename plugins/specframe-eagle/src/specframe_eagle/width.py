"""The inner width of a new drafter's MLPs: the target's, or a given one."""

from __future__ import annotations

import copy
from typing import Any

from specframe import InputError


def checked_width(name: str, width: int | None) -> int | None:
    """Returns the width. Raises InputError for one below 1."""
    if width is not None and width < 1:
        raise InputError(f"{name}: intermediate_size must be at least 1, not {width}")
    return width


def with_width(config: Any, width: int | None) -> Any:
    """Returns the config, or a copy whose MLPs have the given inner width."""
    if width is None:
        return config
    config = copy.copy(config)
    config.intermediate_size = width
    return config
