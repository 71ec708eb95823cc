"""specframe: speculative decoding from parts, by recipe, with a certificate of losslessness.

Importing it imports no torch: every public name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PUBLIC = {
    "specframe.kernel.types": (
        "ALL_DRAWS",
        "AskingRollout",
        "Chunks",
        "Committed",
        "Context",
        "Costs",
        "Cycle",
        "Drafts",
        "Draw",
        "Expand",
        "Frontier",
        "Outcome",
        "PairSpec",
        "Predicted",
        "Prompts",
        "Proposal",
        "RewritingRollout",
        "Scores",
        "SteppedRollout",
        "Student",
        "Teacher",
        "TokenTree",
        "Verdict",
    ),
    "specframe.kernel.cache": ("cache_folder",),
    "specframe.kernel.contestant": ("Contestant",),
    "specframe.kernel.store": ("Continuations", "Continuing", "Store"),
    "specframe.kernel.interfaces": (
        "ChunkedTarget",
        "Drafter",
        "FeatureDrafter",
        "Head",
        "LanguageModelDrafter",
        "Loss",
        "NeuralTarget",
        "Observer",
        "RandomSource",
        "Rollout",
        "Target",
        "TextDrafter",
        "Trainable",
        "TreePolicy",
        "Verifier",
    ),
    "specframe.kernel.layers": ("ExitingDrafter", "ExitingModel", "LayerChoice", "LayeredTarget"),
    "specframe.kernel.promises": ("Needs", "Promise"),
    "specframe.kernel.plugins.deprecation": ("Renamed",),
    "specframe.kernel.errors": (
        "CompositionError",
        "FetchError",
        "InputError",
        "PluginError",
        "RecipeError",
        "SpecframeError",
        "WeightsError",
    ),
    "specframe.kernel.plugins.hookspecs": ("Command", "Register", "hookimpl"),
    "specframe.kernel.zoo": ("model_folder",),
    "specframe.sampling.random": ("SeededRandom",),
    "specframe.sampling.laws": ("Sampling",),
    "specframe.components.targets.conversion": ("convert_gguf",),
    "specframe.components.verifiers.bound": ("greedy_acceptance", "optimal_acceptance"),
    "specframe.components.drafters.text": ("CommittedText",),
    "specframe.components.rollouts.multi_step": ("MultiStep",),
    "specframe.components.trees.shapes.growth": ("Growth",),
    "specframe.decoding.pipeline": ("Pipeline", "Result", "load"),
    "specframe.decoding.compose": ("compose",),
    "specframe.decoding.requests": ("Entry", "Request"),
    "specframe.decoding.session": ("Session",),
    "specframe.decoding.transformers.decoder": ("decoder",),
    "specframe.cli.main": ("add_recipe_arguments", "read_plan"),
}
if TYPE_CHECKING:  # the same names, for type checkers; a test holds the two lists together
    from specframe.cli.main import add_recipe_arguments as add_recipe_arguments
    from specframe.cli.main import read_plan as read_plan
    from specframe.components.drafters.text import CommittedText as CommittedText
    from specframe.components.rollouts.multi_step import MultiStep as MultiStep
    from specframe.components.targets.conversion import convert_gguf as convert_gguf
    from specframe.components.trees.shapes.growth import Growth as Growth
    from specframe.components.verifiers.bound import (
        greedy_acceptance as greedy_acceptance,
    )
    from specframe.components.verifiers.bound import (
        optimal_acceptance as optimal_acceptance,
    )
    from specframe.decoding.compose import compose as compose
    from specframe.decoding.pipeline import (
        Pipeline as Pipeline,
    )
    from specframe.decoding.pipeline import (
        Result as Result,
    )
    from specframe.decoding.pipeline import (
        load as load,
    )
    from specframe.decoding.requests import Entry as Entry
    from specframe.decoding.requests import Request as Request
    from specframe.decoding.session import Session as Session
    from specframe.decoding.transformers.decoder import decoder as decoder
    from specframe.kernel.cache import cache_folder as cache_folder
    from specframe.kernel.contestant import Contestant as Contestant
    from specframe.kernel.errors import (
        CompositionError as CompositionError,
    )
    from specframe.kernel.errors import (
        FetchError as FetchError,
    )
    from specframe.kernel.errors import (
        InputError as InputError,
    )
    from specframe.kernel.errors import (
        PluginError as PluginError,
    )
    from specframe.kernel.errors import (
        RecipeError as RecipeError,
    )
    from specframe.kernel.errors import (
        SpecframeError as SpecframeError,
    )
    from specframe.kernel.errors import (
        WeightsError as WeightsError,
    )
    from specframe.kernel.interfaces import (
        ChunkedTarget as ChunkedTarget,
    )
    from specframe.kernel.interfaces import (
        Drafter as Drafter,
    )
    from specframe.kernel.interfaces import (
        FeatureDrafter as FeatureDrafter,
    )
    from specframe.kernel.interfaces import (
        Head as Head,
    )
    from specframe.kernel.interfaces import (
        LanguageModelDrafter as LanguageModelDrafter,
    )
    from specframe.kernel.interfaces import (
        Loss as Loss,
    )
    from specframe.kernel.interfaces import (
        NeuralTarget as NeuralTarget,
    )
    from specframe.kernel.interfaces import (
        Observer as Observer,
    )
    from specframe.kernel.interfaces import (
        RandomSource as RandomSource,
    )
    from specframe.kernel.interfaces import (
        Rollout as Rollout,
    )
    from specframe.kernel.interfaces import (
        Target as Target,
    )
    from specframe.kernel.interfaces import (
        TextDrafter as TextDrafter,
    )
    from specframe.kernel.interfaces import (
        Trainable as Trainable,
    )
    from specframe.kernel.interfaces import (
        TreePolicy as TreePolicy,
    )
    from specframe.kernel.interfaces import (
        Verifier as Verifier,
    )
    from specframe.kernel.layers import ExitingDrafter as ExitingDrafter
    from specframe.kernel.layers import ExitingModel as ExitingModel
    from specframe.kernel.layers import LayerChoice as LayerChoice
    from specframe.kernel.layers import LayeredTarget as LayeredTarget
    from specframe.kernel.plugins.deprecation import Renamed as Renamed
    from specframe.kernel.plugins.hookspecs import Command as Command
    from specframe.kernel.plugins.hookspecs import Register as Register
    from specframe.kernel.plugins.hookspecs import hookimpl as hookimpl
    from specframe.kernel.promises import Needs as Needs
    from specframe.kernel.promises import Promise as Promise
    from specframe.kernel.store import Continuations as Continuations
    from specframe.kernel.store import Continuing as Continuing
    from specframe.kernel.store import Store as Store
    from specframe.kernel.types import (
        ALL_DRAWS as ALL_DRAWS,
    )
    from specframe.kernel.types import (
        AskingRollout as AskingRollout,
    )
    from specframe.kernel.types import (
        Chunks as Chunks,
    )
    from specframe.kernel.types import (
        Committed as Committed,
    )
    from specframe.kernel.types import (
        Context as Context,
    )
    from specframe.kernel.types import (
        Costs as Costs,
    )
    from specframe.kernel.types import (
        Cycle as Cycle,
    )
    from specframe.kernel.types import (
        Drafts as Drafts,
    )
    from specframe.kernel.types import (
        Draw as Draw,
    )
    from specframe.kernel.types import (
        Expand as Expand,
    )
    from specframe.kernel.types import (
        Frontier as Frontier,
    )
    from specframe.kernel.types import (
        Outcome as Outcome,
    )
    from specframe.kernel.types import (
        PairSpec as PairSpec,
    )
    from specframe.kernel.types import (
        Predicted as Predicted,
    )
    from specframe.kernel.types import (
        Prompts as Prompts,
    )
    from specframe.kernel.types import (
        Proposal as Proposal,
    )
    from specframe.kernel.types import (
        RewritingRollout as RewritingRollout,
    )
    from specframe.kernel.types import (
        Scores as Scores,
    )
    from specframe.kernel.types import (
        SteppedRollout as SteppedRollout,
    )
    from specframe.kernel.types import (
        Student as Student,
    )
    from specframe.kernel.types import (
        Teacher as Teacher,
    )
    from specframe.kernel.types import (
        TokenTree as TokenTree,
    )
    from specframe.kernel.types import (
        Verdict as Verdict,
    )
    from specframe.kernel.zoo import model_folder as model_folder
    from specframe.sampling.laws import Sampling as Sampling
    from specframe.sampling.random import SeededRandom as SeededRandom

_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specframe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
