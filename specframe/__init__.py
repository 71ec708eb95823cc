"""specframe: speculative decoding from parts, by recipe, with a certificate of losslessness.

Importing it imports no torch: every public name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "specframe.kernel.types": (
        "ALL_DRAWS",
        "Committed",
        "Draw",
        "Expand",
        "Frontier",
        "Prompts",
        "Proposal",
        "Scores",
        "Student",
        "Teacher",
        "TokenTree",
        "Verdict",
    ),
    "specframe.kernel.interfaces": (
        "Drafter",
        "FeatureDrafter",
        "Head",
        "Loss",
        "NeuralTarget",
        "RandomSource",
        "Rollout",
        "Target",
        "Trainable",
        "TreePolicy",
        "Verifier",
    ),
    "specframe.kernel.errors": (
        "CompositionError",
        "InputError",
        "PluginError",
        "RecipeError",
        "SpecframeError",
        "WeightsError",
    ),
    "specframe.kernel.hookspecs": ("Register", "hookimpl"),
    "specframe.components.random": ("SeededRandom",),
    "specframe.components.sampling": ("Sampling",),
    "specframe.engine.pipeline": ("Pipeline", "Result", "load"),
    "specframe.engine.transformers": ("decoder",),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specframe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
