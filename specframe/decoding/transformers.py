"""For people who live in transformers: `model.generate(..., custom_generate=specframe.decoder(recipe))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specframe.components.targets.hf import HFTarget
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.requests import Entry, Request
from specframe.kernel.build import plan
from specframe.kernel.plugins.discovery import discover
from specframe.kernel.plugins.registry import Registry
from specframe.kernel.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from specframe.sampling.random import row_seed


def decoder(
    recipe: str | Path,
    *,
    overrides: Sequence[str] = (),
    streamer: Any = None,
    registry: Registry | None = None,
) -> Callable[..., Tensor]:
    """A decoding loop for `model.generate(custom_generate=...)`, from a recipe's drafter, tree and verifier.

    The recipe's target section is left aside: the model at hand is the target. Logits processors, stopping
    criteria and generation config are those of the `generate` call; the seed is drawn from torch's
    generator, so `torch.manual_seed` governs it. `generate` hands a custom loop neither its `streamer` nor
    its `tokenizer` (transformers 5.23): give the streamer here, and stop texts as a `StopStringCriteria`.
    The drafter is built at the first call and kept for later ones.
    """
    planned = plan(Recipe.read(recipe, list(overrides)), registry or discover())
    bound: list[Pipeline] = []  # of the latest model

    def custom_generate(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = (),
        stopping_criteria: Any = (),
        generation_config: Any = None,
        **model_inputs: Any,
    ) -> Tensor:
        if not bound or bound[0].parts.target.model is not model:  # type: ignore[attr-defined]
            bound[:] = [Pipeline.build(planned, HFTarget.from_model(model))]
        return _run(
            bound[0],
            input_ids,
            model_inputs.get("attention_mask"),
            list(logits_processor),
            list(stopping_criteria),
            generation_config,
            streamer,
        )

    return custom_generate


def _run(
    pipeline: Pipeline,
    input_ids: Tensor,
    mask: Tensor | None,
    processors: list[Any],
    criteria: list[Any],
    config: Any,
    streamer: Any,
) -> Tensor:
    masks = mask.tolist() if mask is not None else torch.ones_like(input_ids).tolist()
    width = input_ids.shape[1]
    listener = None
    if streamer is not None:
        streamer.put(input_ids.cpu())

        def listener(tokens: list[int]) -> None:
            streamer.put(torch.tensor(tokens))

    seed = int(torch.randint(2**62, ()).item())
    requests = [
        Request(
            tokens=[token for token, seen in zip(row, keep, strict=True) if seen],
            sampling=_read_sampling(processors, bool(config.do_sample)),
            seed=row_seed(seed, number),
            max_new_tokens=(config.max_length or width + 20) - width,
            number=number,
            ends=frozenset(_as_ids(config.eos_token_id)),
            stop=_as_stop(criteria, input_ids.device),
            listener=listener,
        )
        for number, (row, keep) in enumerate(zip(input_ids.tolist(), masks, strict=True))
    ]
    with pipeline.open(requests, slots=len(requests)) as session:
        entries = session.run(requests)
    if streamer is not None:
        streamer.end()
    longest = max(len(entry.tokens) for entry in entries)
    padding = next(iter(_as_ids(config.pad_token_id)), 0)
    rows = [entry.tokens + [padding] * (longest - len(entry.tokens)) for entry in entries]
    return torch.cat([input_ids, torch.tensor(rows, device=input_ids.device)], 1)


def _read_sampling(processors: list[Any], sample: bool) -> Sampling:
    """The generate call's processors as Sampling; the common warpers become its own fields, which are faster.

    A warper is only translated when nothing but translated warpers follow it in Sampling's order.
    """
    names = {
        "TemperatureLogitsWarper": ("temperature", "temperature"),
        "TopKLogitsWarper": ("top_k", "top_k"),
        "TopPLogitsWarper": ("top_p", "top_p"),
        "MinPLogitsWarper": ("min_p", "min_p"),
    }
    order = list(names)
    found: dict[str, Any] = {}
    rest = [_unpadded(processor) for processor in processors]
    place = len(order)
    while rest and type(rest[-1]).__name__ in names and order.index(type(rest[-1]).__name__) < place:
        warper = rest.pop()
        place = order.index(type(warper).__name__)
        field, attribute = names[order[place]]
        found[field] = getattr(warper, attribute)
    found.setdefault("temperature", 1.0)
    if not sample:
        found["temperature"] = 0.0
    return replace(Sampling(**found), processors=tuple(rest)) if rest else Sampling(**found)


def _unpadded(processor: Any) -> Any:
    """The processor for rows without padding: `generate` tells a repetition penalty to skip its left padding."""
    if type(processor).__name__ == "RepetitionPenaltyLogitsProcessor":
        return type(processor)(processor.penalty)
    return processor


def _as_ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in value] if isinstance(value, list | tuple | Tensor) else [int(value)]


def _as_stop(criteria: list[Any], device: torch.device) -> Callable[[Entry], bool] | None:
    """Whether any criterion ends a row; length and end-of-sequence tokens are the ledger's own business."""
    rest = [c for c in criteria if type(c).__name__ not in ("MaxLengthCriteria", "EosTokenCriteria")]
    if not rest:
        return None

    def stop(entry: Entry) -> bool:
        sequence = torch.tensor([entry.text], device=device)
        return any(bool(criterion(sequence, None).all()) for criterion in rest)

    return stop
