"""`model.generate(..., custom_generate=specframe.decoder(recipe))`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria
from transformers.generation.utils import GenerationMixin

from specframe import Entry, InputError, Pipeline
from specframe.plugin import Cycle
from specframe_transformers.evaluation import evaluating
from specframe_transformers.images import Inputs, image_inputs, rows_of_images
from specframe_transformers.processors import row_samplings
from specframe_transformers.support import IMAGES, Ends, refusal


def read_call() -> dict[str, Any]:
    """Returns the arguments of the `generate` call that is running this loop, by name; empty outside of one.

    transformers (5.0 to 5.24) passes a custom loop neither `streamer` nor `tokenizer` nor `assistant_model`. If they
    were ignored, a streamer would wait forever, a stop text would be missed, or another method than the requested one
    would decode. They are therefore read from the frame of `generate`, and from that of its `no_grad` wrapper, because
    `generate` removes `tokenizer` from its own.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    names = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self"}
    frame = sys._getframe()
    while frame.f_code is not code:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    given = {name: value for name, value in frame.f_locals.items() if name in names}
    rest = dict(frame.f_locals.get("kwargs", {}))
    if frame.f_back is not None and frame.f_back.f_code.co_name == "decorate_context":
        rest |= frame.f_back.f_locals.get("kwargs", {})
    return given | {name: value for name, value in rest.items() if name not in given}


def make_loop(build: Callable[[Any], Pipeline], watch: Callable[[Cycle], None] | None = None) -> Callable[..., Any]:
    """Returns a decoding loop for `model.generate(custom_generate=...)`, over the pipeline that is built for a model.

    The pipeline is built at the first call, kept for later ones, and built again for another model, or for a model with
    another vocabulary, dtype, device or modules. `watch` is called with every cycle, admissions excluded.
    """
    bound: list[tuple[tuple[Any, ...], Pipeline]] = []  # state of the latest model, and its pipeline

    def custom_generate(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        stop_strings: str | list[str] | None = None,
        token_healing: bool | None = None,
        **model_inputs: Any,
    ) -> Any:
        # `generate` passes those settings that a loop names; both need the tokenizer that it drops.
        call = read_call()
        generation_config.token_healing = token_healing
        seen = image_inputs(call)
        if seen:  # `generate` may have encoded and placed the images; the target does both itself
            made = {*seen, IMAGES} | ({"position_ids"} - call.keys())
            model_inputs = {name: value for name, value in model_inputs.items() if name not in made}
        if reason := refusal(generation_config, call, model_inputs):
            raise InputError(reason)
        require_tokens_alone(model, input_ids, model_inputs)
        criteria = [*stopping_criteria, *_stop_strings(stop_strings, call.get("tokenizer"))]
        padding = _left_padding(input_ids, model_inputs)
        seen_now = _seen(model)
        if not bound or bound[0][0] != seen_now:
            bound[:] = [(seen_now, build(model))]
        prompts = input_ids, padding, rows_of_images(seen, padding, generation_config.num_return_sequences or 1)
        streamer = call.get("streamer")
        with evaluating(model):
            sequences = _decode(
                bound[0][1], prompts, list(logits_processor), criteria, generation_config, streamer, watch
            )
        if not generation_config.return_dict_in_generate:
            return sequences

        return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]

    return custom_generate


def _seen(model: Any) -> tuple[Any, ...]:
    """Returns the model, its modules, and what may change in place: vocabulary size, dtype and device."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    sizes = [tuple(part.weight.shape) for part in (embedding, head) if hasattr(part, "weight")]
    return model, *model.modules(), *sizes, model.dtype, model.device


def _decode(
    pipeline: Pipeline,
    given: tuple[Tensor, list[int], list[Inputs]],
    processors: list[Any],
    criteria: list[Any],
    config: Any,
    streamer: Any,
    watch: Callable[[Cycle], None] | None,
) -> Tensor:
    """Returns the prompts [B, T] with their continuations, each row up to its end: [B, T + longest].

    `given` are the prompts, their padding, and their other inputs.
    """
    prompts, padding, images = given
    ends = Ends(criteria, prompts)
    samplings = row_samplings(processors, prompts, padding, bool(config.do_sample))
    seed = int(torch.randint(2**62, ()).item())
    requests = [
        replace(
            request,
            sampling=sampling,
            max_new_tokens=ends.new_tokens,
            ends=ends.tokens,
            stop=ends.stop if ends.stops else None,
            inputs=inputs,
        )
        for request, sampling, inputs in zip(
            pipeline.requests(
                [row[skipped:] for row, skipped in zip(prompts.tolist(), padding, strict=True)], seed=seed
            ),
            samplings,
            images,
            strict=True,
        )
    ]
    fill = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    shown = 0
    with pipeline.open(requests, slots=len(requests)) as session:
        entries = session.admit(requests)
        while True:
            width = ends.width(entries)
            if streamer is not None:
                for step in range(shown, width):
                    streamer.put(_column(entries, step, fill))
            shown = width
            if not session.live:
                break
            cycle = session.step()
            if watch is not None:
                watch(cycle)
    _require_whole(entries, pipeline.parts.target.context)
    if streamer is not None:
        streamer.end()
    new = torch.stack([_column(entries, step, fill) for step in range(width)], 1)
    return torch.cat([prompts, new.to(prompts.device)], 1)


def _column(entries: list[Entry], step: int, fill: int) -> Tensor:
    """Returns the new token of every row at a step, as `generate` gives it to a streamer: [B]."""
    return torch.tensor([entry.tokens[step] if step < len(entry.tokens) else fill for entry in entries])


def _require_whole(entries: list[Entry], context: int) -> None:
    """Raises InputError for a row that failed or was cut off by the context, beyond which `generate` would continue."""
    if errors := [entry.error for entry in entries if entry.error is not None]:
        raise InputError("\n".join(errors))
    for entry in entries:
        if entry.ended == "length" and entry.limit < entry.request.max_new_tokens:
            raise InputError(
                f"row {entry.request.number + 1} has reached the model's context of {context} tokens before its end, "
                "and its positions do not go on as they are: use a smaller max_new_tokens, or a larger `context` of "
                "the recipe's target, which is refused where a tree cannot follow"
            )


def _left_padding(prompts: Tensor, inputs: Mapping[str, Any]) -> list[int]:
    """Returns the number of padding tokens at the left of each row.

    Raises InputError for a row that is masked elsewhere, or whose positions do not start after its padding.
    """
    mask, positions = inputs.get("attention_mask"), inputs.get("position_ids")
    seen = torch.ones_like(prompts) if mask is None else (mask != 0).to(prompts)
    if (seen.diff(dim=1) < 0).any():
        raise InputError("the attention_mask has a 0 after a 1; put the padding on the left of every row")
    if positions is not None:
        expected = seen.cumsum(1) - 1
        if positions.shape[-1] != prompts.shape[1] or ((positions.to(expected) != expected) & (seen != 0)).any():
            raise InputError("position_ids that do not count from the first token of each row are not supported")
    return [int(count) for count in (seen == 0).sum(1).tolist()]


def _stop_strings(texts: str | list[str] | None, tokenizer: Any) -> list[Any]:
    """Returns the criterion of the stop texts, if there are any. Raises InputError without a tokenizer to read them."""
    if texts is None:
        return []
    if tokenizer is None:
        raise InputError("stop_strings need the model's tokenizer: give it to generate as `tokenizer`")

    return [StopStringCriteria(tokenizer=tokenizer, stop_strings=texts)]


METHOD = "prepare_inputs_for_generation"
SPEED = frozenset({"use_cache", "logits_to_keep", "cache_position", "output_attentions", "output_hidden_states"})
"""Inputs that change no logits."""


def require_tokens_alone(model: Any, tokens: Tensor, inputs: Mapping[str, Any]) -> None:
    """Raises InputError for a model whose `prepare_inputs_for_generation` was replaced to add inputs to the tokens.

    peft replaces it for every adapter. An adapter of weights, such as LoRA, prepares the model's own inputs; prompt
    tuning, P-tuning and prefix tuning add inputs, which a loop that scores trees of tokens cannot provide. tokens [B,
    T] are the prompts, `inputs` the further ones that `generate` passes.
    """
    own = vars(model).get(METHOD)
    if own is None:
        return
    original = getattr(type(model), METHOD)
    given = {**inputs, "is_first_iteration": True}
    added = _differences(original(model, tokens, **given), own(tokens, **given))
    if added:
        raise InputError(
            f"this model makes inputs of its own for generation ({', '.join(added)}), as prompt tuning, P-tuning and "
            "prefix tuning do: a custom_generate of specframe gives it tokens alone, and would lose them"
        )


def _differences(plain: Mapping[str, Any], prepared: Mapping[str, Any]) -> list[str]:
    """Returns the names of inputs that affect a forward pass and differ from those of the plain model."""
    names = sorted((plain.keys() | prepared.keys()) - SPEED)
    return [name for name in names if not _same(plain.get(name), prepared.get(name))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return one is other or (type(one) is type(other) and isinstance(one, str | int | float | bool) and one == other)
