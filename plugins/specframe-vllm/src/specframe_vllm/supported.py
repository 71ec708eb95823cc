"""The vLLM versions that this release supports, and the methods that are wrapped."""

from __future__ import annotations

from importlib import import_module
from inspect import signature

from specframe import CompositionError

SERIES = "0.32."
"""Series of vLLM releases that this one was tested with."""
RUNNER = "vllm.v1.worker.gpu_model_runner", "GPUModelRunner"
WRAPPED = {
    (*RUNNER, "propose_draft_token_ids"): (
        "self scheduler_output sampled_token_ids sampling_metadata hidden_states sample_hidden_states "
        "aux_hidden_states spec_decode_metadata common_attn_metadata slot_mappings"
    ),
    (*RUNNER, "_setup_eagle3_aux_hidden_state_outputs"): "self",
    ("vllm.engine.arg_utils", "EngineArgs", "create_engine_config"): "self usage_context headless",
    ("vllm.sampling_params", "SamplingParams", "_validate_spec_decode"): "self speculative_config",
}
"""Wrapped methods, and the parameters that they must have."""


def require_supported() -> None:
    """Raises CompositionError for a version of vLLM that this package does not support."""
    if (misfit := find_misfit()) is not None:
        raise CompositionError(misfit)


def find_misfit() -> str | None:
    """Returns why the installed vLLM is not supported; None if it is."""
    version = import_module("vllm").__version__
    if not version.startswith(SERIES):
        return f"specframe-vllm runs within vLLM {SERIES}*, and this is {version}: pip install vllm=={SERIES}0"
    for (module, owner, name), parameters in WRAPPED.items():
        method = getattr(getattr(import_module(module), owner), name, None)
        if method is None or list(signature(method).parameters) != parameters.split():
            return f"specframe-vllm does not know this build of vLLM {version}: {owner}.{name} is another one"
    return None
