"""The images of a call of `generate`, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from specframe import InputError
from specframe_transformers.support import ARGUMENTS, FIELDS

PIXELS, GRID = "pixel_values", "image_grid_thw"
Inputs = Mapping[str, Tensor]


def image_inputs(call: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the inputs of a call that belong to images, by name; empty for texts."""
    if call.get(PIXELS) is None:
        return {}
    known = ARGUMENTS.keys() | FIELDS.keys() | {"input_ids"}
    return {name: value for name, value in call.items() if isinstance(value, Tensor) and name not in known}


def rows_of_images(inputs: Inputs, padding: Sequence[int], copies: int) -> list[Inputs]:
    """Returns the inputs of each row, without left padding [B]; a prompt has `copies` consecutive rows.

    Raises InputError for rows of several images each.
    """
    rows = len(padding) // copies
    return [_row(inputs, row // copies, rows, skipped) for row, skipped in enumerate(padding)]


def _row(inputs: Inputs, row: int, rows: int, skipped: int) -> Inputs:
    if rows == 1:
        return {name: values[:, skipped:] if name.endswith("type_ids") else values for name, values in inputs.items()}
    found = {}
    for name, values in inputs.items():
        if name == PIXELS and GRID in inputs and len(inputs[GRID]) == rows:
            patches = inputs[GRID].prod(1).tolist()
            values = values.split(patches)[row]
        elif len(values) == rows:
            values = values[row : row + 1]
        else:
            raise InputError(
                f"{name} has {len(values)} entries for {rows} rows, and the rows of a call of generate with a "
                "custom_generate of specframe have one image each; call it row by row"
            )
        found[name] = values[:, skipped:] if name.endswith("type_ids") else values
    return found
