"""Training of a drafting model: initialisation, sampling, early-exit logits, saving."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.components.targets.architectures import windows_of
from specframe.components.targets.forward.layer_subset import HeadModel
from specframe.components.targets.forward.masks import masks_of, options_of_drafts
from specframe.components.targets.forward.taps import make_hook
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.source import quiet
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.kernel.interfaces import Target
from specframe.kernel.types import Drafts
from specframe.native.visibility import Mask
from specframe.neural.cache import cache_name
from specframe.neural.heads import last_place
from specframe.neural.weights.checkpoint import CONFIG, PART, UNFINISHED, share

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "mamba_layers",
)
"""Options of a fresh model."""
HEAD = 64
"""Width of an attention head if the number of heads is not given."""
STATE = 64
"""Size of the state of a fresh hybrid's heads."""
STEPS = (1e-3, 1e-1)
"""Least and largest initial step dt of a head (Mamba-2's reference implementation)."""


def checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The complete sizes of a fresh model. Raises InputError for an unknown or non-positive size."""
    if unknown := sorted(sizes.keys() - set(SIZES)):
        raise InputError(f"a fresh model has no size {unknown[0]!r}; there are {', '.join(SIZES)}")
    if wrong := [name for name, value in sizes.items() if value < 1]:
        raise InputError(f"fresh: {wrong[0]} must be at least 1, not {sizes[wrong[0]]}")
    width = sizes.get("hidden_size", 256)
    heads = sizes.get("num_attention_heads", max(1, width // HEAD))
    default = {
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    whole = default | dict(sizes)
    if width % heads or heads % whole["num_key_value_heads"]:
        raise InputError(
            "fresh: hidden_size must be a multiple of num_attention_heads, and that of num_key_value_heads"
        )
    if whole.get("mamba_layers", 0) >= whole["num_hidden_layers"]:
        raise InputError(
            f"fresh: mamba_layers must be fewer than the {whole['num_hidden_layers']} layers: a hybrid has attention"
        )
    return whole


def fresh_model(sizes: Mapping[str, int], target: Target) -> HFTarget:
    """A random Llama of these sizes in float32, with the target's vocabulary, tokenizer, context and device.

    With `mamba_layers` it is a hybrid: a Bamba whose first `mamba_layers` layers are Mamba-2 layers. The weights depend
    only on the sizes. Raises CompositionError if the target is not a transformers model.
    """
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

    if not isinstance(target, HFTarget):
        raise CompositionError("a fresh drafting model takes the tokenizer of a target that is a transformers model")
    ends: list[int] = sorted(target.ends)
    values: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": True,
        "bos_token_id": getattr(target.config, "bos_token_id", None),
        "eos_token_id": ends or None,
        "pad_token_id": None,
        "max_position_embeddings": target.context,
        **sizes,
    }
    mamba = values.pop("mamba_layers", 0)
    config: PreTrainedConfig = _hybrid(values, mamba) if mamba else LlamaConfig(**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        if mamba:
            _start_scans(model)
    return HFTarget.from_model(model.to(target.device), target.tokenizer)


def _hybrid(values: Mapping[str, Any], mamba: int) -> Any:
    """Config of a hybrid whose first layers are Mamba-2 layers with twice the model's width, as in the paper."""
    from transformers import BambaConfig

    heads = values["num_attention_heads"]
    return BambaConfig(
        **values,
        attn_layer_indices=list(range(mamba, values["num_hidden_layers"])),
        mamba_n_heads=heads,
        mamba_d_head=2 * values["hidden_size"] // heads,
        mamba_d_state=STATE,
        mamba_chunk_size=STATE,
    )


@torch.no_grad()
def _start_scans(model: nn.Module) -> None:
    """Initialises the scans' steps log-uniformly and their decays from 1 to 16, as in the Mamba-2 code."""
    low, high = (math.log(step) for step in STEPS)
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            step = (low + (high - low) * torch.rand(parameter.shape)).exp()
            parameter.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
        elif name.endswith("A_log"):
            parameter.copy_((1 + 15 * torch.rand(parameter.shape)).log())


def read_on(model: nn.Module, tokens: Tensor, drafts: Drafts | None, context: int) -> Tensor:
    """The model's logits after every token of texts [B, L], which may end in drafts: [B, L, V]."""
    options: dict[str, Any] = {}
    if drafts is not None:
        options = options_of_drafts(drafts, context, windows_of(model), next(model.parameters()).dtype)
    logits: Tensor = model(tokens, use_cache=False, **options).logits
    return logits


@torch.no_grad()
def sample_on(model: nn.Module, tokens: Tensor, start: Tensor, temperature: float) -> Tensor:
    """The texts [B, L] with the tokens from `start` [B] >= 1 on replaced by samples of the model."""
    from transformers import DynamicCache

    training = model.training
    model.eval()
    texts, first = tokens.clone(), int(start.min())
    cache = {cache_name(model): DynamicCache()}
    read = 0
    for place in range(first, texts.shape[1]):
        logits = model(texts[:, read:place], use_cache=True, logits_to_keep=last_place(texts), **cache).logits[:, -1]
        drawn = torch.multinomial((logits.float() / temperature).softmax(-1), 1)[:, 0]
        texts[:, place] = torch.where(place >= start, drawn, texts[:, place])
        read = place
    model.train(training)
    return texts


def read_rows(model: nn.Module, tokens: Tensor, mask: int, places: Tensor, depth: Tensor, real: Tensor) -> Tensor:
    """The logits of texts [B, L] and, after them, of mask rows, [B, L + M, V]; gradients reach the model.

    The row of depth d for a position is the mask token, d positions later. It attends to the text up to the position
    and to the position's rows of depth <= d (PARD, arXiv 2504.18583), so all shallower rows must be present.

    Args:
        model: the drafting model.
        tokens: [B, L] int64.
        mask: the mask token.
        places: [B, M] int64, positions in the text.
        depth: [M] int64, from 1 on.
        real: [B, M] bool, which rows exist; the logits of the others are undefined.
    """
    batch, length = tokens.shape
    index = torch.arange(length, device=tokens.device)
    count = places.shape[1]
    text = torch.cat([(index <= index[:, None]).expand(batch, -1, -1), index <= places[..., None]], 1)  # [B, L + M, L]
    own = (places[:, None] == places[..., None]) & (depth <= depth[:, None]) & real[:, None]
    own = own | torch.eye(count, dtype=torch.bool, device=tokens.device)
    own = torch.cat([own.new_zeros(batch, length, count), own], 1)
    positions = torch.cat([index.expand(batch, -1), places + depth], 1)
    sees, dtype = torch.cat([text, own], 2), next(model.parameters()).dtype
    logits: Tensor = model(
        torch.cat([tokens, tokens.new_full((batch, count), mask)], 1),
        position_ids=positions,
        attention_mask=masks_of(Mask(sees, positions, positions), positions, windows_of(model), dtype),
        use_cache=False,
    ).logits
    return logits


def save_model(
    model: nn.Module, tokenizer: Any, folder: Path, entries: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Writes a model and its tokenizer in the format that `model: folder` loads, each file atomically.

    `entries` are added to its config.json. Raises WeightsError if the folder cannot be written, and leaves it
    unchanged.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=UNFINISHED, suffix=PART, dir=folder) as part:
            with quiet():
                model.save_pretrained(part, max_shard_size="1000GB")  # type: ignore[operator]
            if entries:
                config = Path(part) / CONFIG
                stored = json.loads(config.read_text(encoding="utf-8")) | entries
                config.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
            if tokenizer is not None:
                tokenizer.save_pretrained(part)
            share(part)
            for file in sorted(Path(part).iterdir()):
                os.replace(file, folder / file.name)
    except (OSError, RuntimeError) as error:  # safetensors reports a full disk as an error of its own
        raise WeightsError(f"cannot write the model to {folder}: {error}") from error


def checked_exits(exits: Sequence[int], layers: int) -> tuple[int, ...]:
    """The exits as a tuple. Raises InputError unless they are ascending numbers from 1 to the number of layers."""
    if not exits or list(exits) != sorted(set(exits)) or exits[0] < 1 or exits[-1] > layers:
        raise InputError(f"exits are ascending numbers of layers from 1 to {layers}, not {list(exits)}")
    return tuple(exits)


def read_exits(
    model: Any, ending: HeadModel, tokens: Tensor, exits: Sequence[int], layer_mask: Tensor | None = None
) -> list[Callable[[], Tensor]]:
    """Returns for each exit, a number of layers, a function that computes its logits [B, L, V] of texts [B, L].

    The logits are `ending` applied to the output of the exit's last layer, with gradients for the whole model. One
    forward pass serves all exits. Where `layer_mask` [layers, B] is False, a layer passes a text's states on
    unchanged.
    """
    found = architectures.layers(model, model.config.get_text_config())
    assert found is not None, "a target's layers are in one list"
    states: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for layer, runs in zip(found[1], () if layer_mask is None else layer_mask, strict=layer_mask is not None):
            stack.callback(layer.register_forward_hook(partial(_leave_out, runs), with_kwargs=True).remove)
        for count in exits:
            stack.callback(found[1][count - 1].register_forward_hook(make_hook(str(count), states)).remove)
        model(tokens, use_cache=False, logits_to_keep=last_place(tokens))
    return [partial(ending, tokens, states[str(count)]) for count in exits]


def _leave_out(runs: Tensor, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    """A layer's output where `runs` [B] is True, its input elsewhere."""
    hidden = output if isinstance(output, Tensor) else output[0]
    mixed = torch.where(runs[:, None, None], hidden, given[0] if given else named["hidden_states"])
    return mixed if isinstance(output, Tensor) else (mixed, *output[1:])
