"""Block drafters in the forms of vLLM, SGLang and speculators.

A form that cannot represent the drafter is refused, because engines silently drop fields that they do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specframe import WeightsError
from specframe.neural import Export, ambiguous_taps, speculators_config
from specframe_blocks.dflash.layout import IDS, LM_HEAD, BlockLayout
from specframe_blocks.dflash.plan import OwnHead

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.plugin import NeuralTarget

FORMS = ("vllm", "sglang", "speculators")
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    '\'{"method": "METHOD", "model": "FOLDER", "num_speculative_tokens": LEVELS}\'',
    "sglang": "python -m sglang.launch_server --model-path TARGET --speculative-algorithm UPPER "
    "--speculative-draft-model-path FOLDER",
    "speculators": "vllm serve FOLDER",
}
MODELS = {"dflash": "DFlashDraftModel", "dspark": "DSparkDraftModel"}
"""Class names of the drafters in the package speculators."""


def export(
    form: str,
    own: Mapping[str, Tensor],
    layout: BlockLayout,
    target: NeuralTarget,
    support: Tensor | None,
    rows: Callable[[], Tensor],
) -> Export:
    """Converts a drafter with these tensors and this layout to a form.

    `support` holds the tokens that it drafts, and `rows` returns the LM head's rows for them, [v, H]. Raises
    WeightsError, with every reason, if the form has no place for something.
    """
    tensors = dict(own)
    spark = layout.markov is not None
    if spark and support is not None and LM_HEAD not in tensors:
        tensors[LM_HEAD] = rows()  # the biases are for the recipe's draft vocabulary, which must therefore be stored
        tensors["d2t"] = support.cpu() - torch.arange(len(support))
        layout = replace(layout, own=OwnHead(len(support), support.cpu()))
    reasons = ambiguous_taps(layout.plan.taps, target.config.num_hidden_layers)
    if reasons := [*reasons, *_reasons(layout, form)]:
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    tokens = None if layout.own is None else layout.own.tokens
    if form == "speculators" and tokens is not None:
        tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, tokens, True)
    config = layout.config(spark)
    if form == "speculators":
        config = _wrapped(layout, config, target.config)
    stored = {name: part.to(layout.dtype) if part.is_floating_point() else part for name, part in tensors.items()}
    command = COMMANDS[form].replace("METHOD", _method(layout)).replace("UPPER", _method(layout).upper())
    levels = layout.plan.levels
    shown = tuple(_checklist(layout, form, target.config.vocab_size, support))
    return Export(config, stored, shown, command.replace("LEVELS", str(levels)), length=levels)


def _method(layout: BlockLayout) -> str:
    """Returns the method's name in engines and in the package speculators."""
    return "dflash" if layout.markov is None else "dspark"


def _reasons(layout: BlockLayout, form: str) -> list[str]:
    """Returns the reasons for which a form cannot represent the drafter."""
    plan, spark = layout.plan, layout.markov is not None
    reasons = []
    if form == "vllm" and not spark and plan.from_anchor:
        reasons.append("from_anchor is not known there for DFlash")
    if form == "sglang" and plan.from_anchor != spark:
        reasons.append(f"from_anchor is taken for {str(spark).lower()} there")
    if form in ("sglang", "speculators") and plan.causal:
        reasons.append("causal is not known there: its block would be read in both directions")
    if plan.causal_windows and None in plan.windows and form != "speculators":
        reasons.append("layers with a window that are causal in a block make all layers causal there")
    if layout.markov is not None and layout.markov.kind == "rnn" and not plan.from_anchor:
        reasons.append("with markov: rnn the state goes through the root's row there; train it with from_anchor")
    if form == "sglang" and layout.own is not None:
        reasons.append("an LM head over a draft vocabulary is not read there")
    return reasons


def _wrapped(layout: BlockLayout, config: dict[str, Any], target: PretrainedConfig) -> dict[str, Any]:
    """Returns speculators' config around that of the layers."""
    plan = layout.plan
    outside = (
        "dflash_config",
        "dspark_config",
        "block_size",
        "architectures",
        "draft_vocab_size",
        "torch_dtype",
        "sliding_window_non_causal",
    )
    inner = {name: value for name, value in config.items() if name not in outside}
    return {
        **speculators_config(MODELS[_method(layout)], _method(layout), plan.levels, target),
        "transformer_layer_config": inner,
        "draft_vocab_size": target.vocab_size if layout.own is None else layout.own.rows,
        IDS: [tap + 1 for tap in plan.taps],
        "block_size": plan.size,
        "mask_token_id": plan.mask,
        "sample_from_anchor": plan.from_anchor,
        # vLLM 0.33 treats false as causal, also in layers of full attention
        "sliding_window_non_causal": not (plan.causal_windows and any(plan.windows)),
        "torch_dtype": config["torch_dtype"],
        **config.get("dspark_config", {}),
    }


def _checklist(layout: BlockLayout, form: str, vocab: int, support: Tensor | None) -> list[tuple[str, str]]:
    """Returns the settings that the engine will infer from the folder."""
    plan, shape, markov = layout.plan, layout.shape, layout.markov
    indices = f"{[tap + 1 for tap in plan.taps]} of the hidden states" if form == "speculators" else list(plan.taps)
    rows = vocab if layout.own is None else layout.own.rows
    after = layout.own is None and support is not None
    found = [
        ("layers", f"{shape.num_hidden_layers} of qwen3, width {shape.hidden_size}"),
        ("reads the outputs of", f"layers {list(plan.taps)}, counted from 0; written as {indices}"),
        ("block", f"{plan.size} rows, {'causal' if plan.causal else 'in both directions'}, {plan.levels} drafts"),
        ("first draft", "by the root's own row" if plan.from_anchor else "by the row after the root"),
        ("mask token", str(plan.mask)),
        ("LM head", ("the target's" if layout.own is None else "its own") + f", {rows:,} of {vocab:,} tokens"),
        ("dtype", str(layout.dtype).removeprefix("torch.")),
    ]
    if plan.windows:
        found.append(("windows", ", ".join("none" if each is None else str(each) for each in plan.windows)))
    if after and support is not None:
        found.append(("left out", f"the recipe's draft vocabulary of {len(support):,} tokens"))
    if markov is not None:
        found.append(("bias", f"{markov.kind}, rank {markov.rank}"))
        found.append(("confidence head", "yes" if markov.confidence else "none"))
    return found
