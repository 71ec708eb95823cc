"""Drafters that others have published, by target."""

from __future__ import annotations

import json
from importlib import resources

import yaml

from specframe import InputError

TREE = {"use": "dynamic", "depth": 4, "width": 4, "nodes": 15}
"""A small tree, which pays on a CPU, too; `specframe profile` finds the best one for a machine."""


def published_drafter(model: str) -> list[str]:
    """The values `key=value` that let a recipe decode with the drafter published for a model of the Hub.

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
