"""specframe: speculative decoding from parts, by recipe, with a certificate of losslessness.

Importing it imports no torch: every public name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specframe._version import __version__ as __version__

_PUBLIC = {
    "specframe.kernel.sampling": ("RandomSource",),
    "specframe.kernel.training": (
        "Rollout",
        "Loss",
        "FeatureDrafter",
        "LanguageModelDrafter",
        "Trainable",
        "TranslatingDrafter",
        "SteppedRollout",
        "RewritingRollout",
        "AskingRollout",
    ),
    "specframe.kernel.types": (
        "ALL_DRAWS",
        "Chunks",
        "Committed",
        "Context",
        "Costs",
        "Cycle",
        "Drafts",
        "Draw",
        "Expand",
        "Frontier",
        "PairSpec",
        "Predicted",
        "Prompts",
        "Proposal",
        "Scores",
        "Student",
        "Teacher",
        "TokenTree",
        "Verdict",
    ),
    "specframe.kernel.cache": ("cache_folder",),
    "specframe.kernel.contestant": (
        "Outcome",
        "Contestant",
    ),
    "specframe.kernel.store": ("Continuations", "Continuing", "Store"),
    "specframe.kernel.interfaces": (
        "ChunkedTarget",
        "Drafter",
        "Head",
        "NeuralTarget",
        "Observer",
        "Target",
        "TextDrafter",
        "TreePolicy",
        "Verifier",
        "TextTarget",
        "text_of",
    ),
    "specframe.kernel.layers": ("ExitingDrafter", "ExitingModel", "LayerChoice", "LayeredTarget"),
    "specframe.kernel.capabilities": ("Needs", "Promise"),
    "specframe.kernel.versions": ("Renamed",),
    "specframe.kernel.errors": (
        "CompositionError",
        "FetchError",
        "InputError",
        "PluginError",
        "RecipeError",
        "SpecframeError",
        "WeightsError",
    ),
    "specframe.kernel.discovery": ("Command", "Register", "hookimpl"),
    "specframe.kernel.zoo": ("model_folder",),
    "specframe.sampling.random": ("SeededRandom",),
    "specframe.sampling.laws": ("Sampling",),
    "specframe.components.targets.conversion": ("convert_gguf",),
    "specframe.components.verifiers.bound": ("greedy_acceptance", "optimal_acceptance"),
    "specframe.components.drafters.text": ("CommittedText",),
    "specframe.components.rollouts.teacher_forced": ("AllLevels",),
    "specframe.components.rollouts.glancing": ("Glancing",),
    "specframe.components.rollouts.multi_step": ("MultiStep",),
    "specframe.components.trees.growth": ("Growth",),
    "specframe.components.trees.optimal": ("expected_tau", "optimal_product_shape", "optimal_shape"),
    "specframe.decoding.pipeline": ("Pipeline", "Result", "load"),
    "specframe.decoding.compose": ("compose",),
    "specframe.decoding.requests": ("Entry", "Request"),
    "specframe.decoding.session": ("Session",),
    "specframe.decoding.custom_generate": ("decoder",),
    "specframe.files.prompts": ("read_prompts",),
    "specframe.neural.weights.origin": ("Identified", "TargetIdentity"),
    "specframe.inspect.trace": ("trace",),
    "specframe.inspect.recorder": ("Trace",),
    "specframe.inspect.profile": ("Profile", "profile"),
    "specframe.inspect.forecast": ("Measured", "measure_tau"),
    "specframe.training.validation": ("simulated_tau",),
    "specframe.cli.main": ("add_recipe_arguments", "read_plan"),
}
if TYPE_CHECKING:  # the same names, for type checkers; a test holds the two lists together
    # isort: off
    from specframe.cli.main import add_recipe_arguments as add_recipe_arguments, read_plan as read_plan
    from specframe.components.drafters.text import CommittedText as CommittedText
    from specframe.components.rollouts.teacher_forced import AllLevels as AllLevels
    from specframe.components.rollouts.glancing import Glancing as Glancing
    from specframe.components.rollouts.multi_step import MultiStep as MultiStep
    from specframe.components.targets.conversion import convert_gguf as convert_gguf
    from specframe.components.trees.growth import Growth as Growth
    from specframe.components.trees.optimal import (
        expected_tau as expected_tau,
        optimal_product_shape as optimal_product_shape,
        optimal_shape as optimal_shape,
    )
    from specframe.components.verifiers.bound import (
        greedy_acceptance as greedy_acceptance,
        optimal_acceptance as optimal_acceptance,
    )
    from specframe.decoding.compose import compose as compose
    from specframe.decoding.pipeline import Pipeline as Pipeline, Result as Result, load as load
    from specframe.decoding.requests import Entry as Entry, Request as Request
    from specframe.decoding.session import Session as Session
    from specframe.decoding.custom_generate import decoder as decoder
    from specframe.files.prompts import read_prompts as read_prompts
    from specframe.inspect.forecast import Measured as Measured, measure_tau as measure_tau
    from specframe.inspect.profile import Profile as Profile, profile as profile
    from specframe.inspect.trace import trace as trace
    from specframe.inspect.recorder import Trace as Trace
    from specframe.kernel.cache import cache_folder as cache_folder
    from specframe.kernel.contestant import Contestant as Contestant
    from specframe.kernel.errors import (
        CompositionError as CompositionError,
        FetchError as FetchError,
        InputError as InputError,
        PluginError as PluginError,
        RecipeError as RecipeError,
        SpecframeError as SpecframeError,
        WeightsError as WeightsError,
    )
    from specframe.kernel.interfaces import (
        ChunkedTarget as ChunkedTarget,
        Drafter as Drafter,
        Head as Head,
        NeuralTarget as NeuralTarget,
        Observer as Observer,
        Target as Target,
        TextDrafter as TextDrafter,
        TreePolicy as TreePolicy,
        Verifier as Verifier,
        TextTarget as TextTarget,
        text_of as text_of,
    )
    from specframe.kernel.training import (
        FeatureDrafter as FeatureDrafter,
        LanguageModelDrafter as LanguageModelDrafter,
        Loss as Loss,
        Rollout as Rollout,
        Trainable as Trainable,
    )
    from specframe.kernel.sampling import RandomSource as RandomSource
    from specframe.kernel.layers import (
        ExitingDrafter as ExitingDrafter,
        ExitingModel as ExitingModel,
        LayerChoice as LayerChoice,
        LayeredTarget as LayeredTarget,
    )
    from specframe.kernel.versions import Renamed as Renamed
    from specframe.kernel.discovery import (
        Command as Command,
        Register as Register,
        hookimpl as hookimpl,
    )
    from specframe.kernel.capabilities import Needs as Needs, Promise as Promise
    from specframe.kernel.store import Continuations as Continuations, Continuing as Continuing, Store as Store
    from specframe.kernel.types import (
        ALL_DRAWS as ALL_DRAWS,
        Chunks as Chunks,
        Committed as Committed,
        Context as Context,
        Costs as Costs,
        Cycle as Cycle,
        Drafts as Drafts,
        Draw as Draw,
        Expand as Expand,
        Frontier as Frontier,
        PairSpec as PairSpec,
        Predicted as Predicted,
        Prompts as Prompts,
        Proposal as Proposal,
        Scores as Scores,
        Student as Student,
        Teacher as Teacher,
        TokenTree as TokenTree,
        Verdict as Verdict,
    )
    from specframe.kernel.training import (
        AskingRollout as AskingRollout,
        RewritingRollout as RewritingRollout,
        SteppedRollout as SteppedRollout,
        TranslatingDrafter as TranslatingDrafter,
    )
    from specframe.kernel.contestant import Outcome as Outcome
    from specframe.kernel.zoo import model_folder as model_folder
    from specframe.neural.weights.origin import Identified as Identified, TargetIdentity as TargetIdentity
    from specframe.sampling.laws import Sampling as Sampling
    from specframe.sampling.random import SeededRandom as SeededRandom
    from specframe.training.validation import simulated_tau as simulated_tau
    # isort: on

_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specframe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
