"""Drafters published by others, by target."""

from __future__ import annotations

import json
from importlib import resources

import yaml

from specframe import InputError

TREE = {"use": "dynamic", "depth": 4, "width": 4, "nodes": 15}
"""A small tree, which also pays on a CPU; `specframe profile` finds the best one for a machine."""


def published_drafter(model: str) -> list[str]:
    """Returns the overrides `key=value` with which a recipe decodes with the drafter published for a Hub model.

    Raises InputError for a model without one.
    """
    text = resources.files("specframe_zoo").joinpath("published.yaml").read_text(encoding="utf-8")
    known = yaml.safe_load(text)
    if model not in known:
        raise InputError(
            f"no published drafter is known for {model} (known: {', '.join(known)}); give another one by "
            "drafter.use and drafter.weights, or leave out drafter=auto: no drafter is needed"
        )
    return [f"drafter={json.dumps(known[model])}", f"tree={json.dumps(TREE)}"]
