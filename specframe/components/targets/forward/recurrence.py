"""Recurrent layers over texts and trees with a state cache: a copy of the model with replaced scans.

The model and transformers' modules are not modified. Mixers, the modules with a convolution and a scan, share their
weights; their forward passes run the same code, in which two global names refer to this module's functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from specframe.components.targets.forward.layer_subset import replaced, twin_of
from specframe.components.targets.forward.scans import AncestorScan, PathScan, Scan, convolve
from specframe.neural.recurrent import HybridCache, RecurrentStates

CONVOLUTION = "causal_conv1d_fn"
"""Name of transformers' convolutions over a text."""
PADDING = "apply_mask_to_padding_states"
"""Name of transformers' function that zeroes padding, which here leaves states and windows as they are."""

Rule = Callable[[Callable[..., Any]], Scan]
DELTA = {"g": 0.0, "beta": 0.0}
"""A position that leaves the state of a gated delta rule as it is: without decay and without an update."""


def _of_paths(still: Mapping[str, float], initial: str) -> Rule:
    return lambda function: PathScan(function, still, initial)


MAMBA2 = "mamba2_chunk_scan"
REFERENCES: dict[str, Rule] = {
    MAMBA2: _of_paths({"dt": -float("inf")}, "initial_states"),
    "torch_chunk_gated_delta_rule": _of_paths(DELTA, "initial_state"),
    "chunk_kimi_delta_attention": _of_paths(DELTA, "initial_state"),
}
"""Ways to run transformers' scans along the paths of trees, by their functions' names."""
SCANS: dict[str, Rule] = {**REFERENCES, MAMBA2: lambda function: AncestorScan()}
"""The ways that are used: Mamba-2 has its own pass over a tree."""
STATES = frozenset({"update_conv_state", "update_recurrent_state"})
"""Methods by which a layer writes its state into a cache of transformers'."""


def code_of(module: nn.Module) -> Any:
    """The function of a module's forward pass, without decorators; None where it is no Python function."""
    function = inspect.unwrap(type(module).forward)
    return function if hasattr(function, "__code__") else None


def _names(module: nn.Module) -> frozenset[str]:
    function = code_of(module)
    return frozenset() if function is None else frozenset(function.__code__.co_names)


def mixers_of(model: nn.Module) -> list[nn.Module]:
    """The modules that keep a recurrent state, or a window of a convolution's inputs."""
    return [module for module in model.modules() if _names(module) & STATES]


def unknown_of(model: nn.Module) -> str | None:
    """Returns the first class of module that keeps a recurrent state, and whose scan cannot be given one, or None."""
    mixers = mixers_of(model)
    if not mixers and getattr(model, "_is_stateful", False):
        return type(model).__name__
    for mixer in mixers:
        names = _names(mixer)
        if CONVOLUTION not in names or ("update_recurrent_state" in names and not names & SCANS.keys()):
            return type(mixer).__name__
    return None


def with_scans(model: nn.Module, scans: Mapping[str, Rule] = SCANS) -> nn.Module:
    """A model of the same weights whose mixers read from a `HybridCache`; without one they compute what they did.

    Mixers of unknown kinds stay as they are (see `unknown_of`).
    """
    known: dict[int, nn.Module | None] = {}
    for mixer in mixers_of(model):
        names = _names(mixer)
        if CONVOLUTION in names:
            known[id(mixer)] = _mixer(mixer, {name: scans[name] for name in names & scans.keys()})
    return replaced(model, known)


def _mixer(module: nn.Module, rules: Mapping[str, Rule]) -> nn.Module:
    """A mixer of the same weights, with these scans."""
    twin = twin_of(module)
    function = code_of(module)
    scope = function.__globals__
    scans = {name: (inspect.signature(inspect.unwrap(scope[name])), rule(scope[name])) for name, rule in rules.items()}
    layer: Any = module.layer_idx

    def forward(*given: Any, **named: Any) -> Any:
        cache = next((value for value in (*given, *named.values()) if isinstance(value, HybridCache)), None)
        if cache is None:
            return function(twin, *given, **named)
        states = cache.states
        changed: dict[str, Any] = {name: partial(_scan, states, layer, *scan) for name, scan in scans.items()}
        changed[PADDING] = lambda hidden_states, attention_mask: hidden_states
        if states.paths is not None:
            changed[CONVOLUTION] = partial(_convolution, states)
        own = FunctionType(
            function.__code__, {**scope, **changed}, function.__name__, function.__defaults__, function.__closure__
        )
        own.__kwdefaults__ = function.__kwdefaults__
        return own(twin, *given, **named)

    twin.forward = forward
    return twin


def _convolution(
    states: RecurrentStates,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **more: Any,
) -> Tensor:
    """Takes the place of transformers' `causal_conv1d_fn` where a tree is read."""
    assert states.paths is not None
    return convolve(states.paths, hidden_states, weight, bias, activation)


def _scan(
    states: RecurrentStates, layer: int, signature: inspect.Signature, scan: Scan, *given: Any, **named: Any
) -> tuple[Tensor, Tensor]:
    """Takes the place of one of transformers' scans."""
    bound = signature.bind_partial(*given, **named).arguments
    more = bound.pop("kwargs", {})
    return scan(states, layer, {**bound, **more})
