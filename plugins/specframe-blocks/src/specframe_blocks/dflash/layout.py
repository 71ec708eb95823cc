"""Contents of a block drafter's config.json in any of the published forms, and the form that is written.

The written form is the folder that z-lab's code, vLLM and SGLang read: its `dflash_config` counts layers (t, the output
of layer t). The package speculators counts hidden states instead (k = t + 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from specframe import WeightsError
from specframe.neural import checkpoint, layer_windows
from specframe_blocks.dflash.plan import BlockPlan, OwnHead

DFLASH = ("DFlashDraftModel", "DFlashSpeculator")
DSPARK = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator")
LM_HEAD = "lm_head.weight"
IDS = "aux_hidden_state_layer_ids"
ENGINE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "max_position_embeddings",
    "vocab_size",
    "rope_parameters",
)
"""Fields of the layers' config that engines read."""


@dataclass(frozen=True)
class Markov:
    """DSpark's additions to a block."""

    rank: int
    kind: str = "vanilla"
    confidence: bool = True
    confidence_reads_markov: bool = True
    rows: int | None = None
    """Number of tokens with a bias, if it is not the whole vocabulary."""


@dataclass(frozen=True)
class BlockLayout:
    """Contents of a checkpoint's files except the values of the network's tensors."""

    shape: PretrainedConfig
    """The decoder layers' config."""
    plan: BlockPlan
    markov: Markov | None = None
    own: OwnHead | None = None
    """The LM head stored with it; None: the target's, or the recipe's."""
    dtype: torch.dtype = torch.bfloat16
    stored: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The config.json from which it was read."""

    def config(self, spark: bool) -> dict[str, Any]:
        """Returns the config.json of DFlash, or of DSpark."""
        plan, markov = self.plan, self.markov
        shape = {name: getattr(self.shape, name) for name in ENGINE if hasattr(self.shape, name)}
        rope = dict(self.shape.rope_parameters or {})
        theta = rope.get("rope_theta")
        nested: dict[str, Any] = {
            "block_size": plan.size,
            "mask_token_id": plan.mask,
            "target_layer_ids": list(plan.taps),
            "causal": plan.causal,
            "sample_from_anchor": plan.from_anchor,
        }
        own: dict[str, Any] = {}
        if markov is not None:
            own = {
                "markov_rank": markov.rank,
                "markov_head_type": markov.kind,
                "enable_confidence_head": markov.confidence,
                "confidence_head_with_markov": markov.confidence_reads_markov,
            }
        return {
            **shape,
            **plan.sliding,
            **({} if theta is None else {"rope_theta": theta}),  # engines and older transformers read this field
            "architectures": [DSPARK[0] if spark else DFLASH[0]],
            "model_type": "qwen3",
            "tie_word_embeddings": False,
            "torch_dtype": str(self.dtype).removeprefix("torch."),
            "block_size": plan.size,
            **({} if self.own is None else {"draft_vocab_size": self.own.rows}),
            "dflash_config": nested | own,
            **({"dspark_config": own} if own else {}),
        }

    @classmethod
    def read(cls, weights: str | Path, target: PretrainedConfig, *, spark: bool) -> BlockLayout:
        """Reads the layout of a stored drafter.

        Raises WeightsError for a checkpoint of another kind or another target, or an ambiguous one.
        """
        folder = checkpoint.locate(weights)
        stored = checkpoint.read_config(folder)
        kind = _kind(stored, folder)
        if (kind == "dspark") != spark:
            raise WeightsError(f"the drafter in {weights} is one of {kind}: use the drafter {kind} for it")
        inner = dict(stored.get("transformer_layer_config") or stored)
        shape = _shape(inner, folder)
        wanted = {name: getattr(target, name) for name in ("hidden_size", "vocab_size")}
        problems = checkpoint.contradictions({name: getattr(shape, name, None) for name in wanted}, wanted)
        if spark and not problems and shape.vocab_size != target.vocab_size:
            problems.append(f"vocab_size: its Markov head has {shape.vocab_size}, and the target {target.vocab_size}")
        windows = layer_windows(inner, shape.num_hidden_layers, problems)
        if problems:
            raise WeightsError(f"the drafter in {weights} does not fit its target: {'; '.join(problems)}")
        own = checkpoint.shapes(folder) if checkpoint.has_weights(folder) else {}
        if not own:
            raise WeightsError(
                f"{folder} holds no {checkpoint.WEIGHTS}; if it holds pickled weights, convert them once: "
                "specframe import RECIPE drafter.weights=FOLDER --out NEW_FOLDER"
            )
        plan = replace(_plan(stored, target, folder, spark), windows=windows)
        markov = _markov(stored, own, target) if spark else None
        if "speculators_model_type" in stored and markov and markov.kind == "rnn" and not plan.from_anchor:
            raise WeightsError(
                f"the drafter in {weights} carries its recurrent state through the root's row, as speculators "
                "trains it with sample_from_anchor false; that is not supported"
            )
        return cls(
            shape=shape,
            plan=plan,
            markov=markov,
            own=_own_head(folder, own, stored, min(shape.vocab_size, target.vocab_size)),
            dtype=_dtype(folder),
            stored=stored,
        )

    def require(
        self, weights: str, *, block_size: int, from_anchor: bool, causal: bool, taps: list[int] | None
    ) -> None:
        """Raises WeightsError, with every contradiction, unless the checkpoint matches the recipe."""
        plan = self.plan
        wanted: dict[str, object] = {"block_size": block_size, "from_anchor": from_anchor, "causal": causal}
        stored: dict[str, object] = {"block_size": plan.size, "from_anchor": plan.from_anchor, "causal": plan.causal}
        if taps is not None:
            wanted["taps"], stored["taps"] = taps, list(plan.taps)
        problems = [
            f"  {name}: the checkpoint has {stored[name]!r}, the recipe {value!r}"
            for name, value in wanted.items()
            if stored[name] != value
        ]
        if problems:
            raise WeightsError(f"the drafter in {weights} does not fit the recipe:\n" + "\n".join(problems))


def _kind(stored: Mapping[str, Any], folder: Path) -> str:
    """Returns `dflash` or `dspark`, by the names in a config."""
    names = stored.get("architectures") or []
    wrapped = stored.get("speculators_model_type")
    for kind, known in (("dflash", DFLASH), ("dspark", DSPARK)):
        if wrapped == kind or (wrapped is None and any(name in known for name in names)):
            return kind
    raise WeightsError(
        f"the checkpoint in {folder} is no block drafter that is known here: architectures {names}, "
        f"speculators_model_type {wrapped!r}; read are {', '.join((*DFLASH, *DSPARK))}"
    )


def _shape(inner: Mapping[str, Any], folder: Path) -> PretrainedConfig:
    """Returns the config of the layers."""
    if (model := inner.get("model_type", "qwen3")) != "qwen3":
        raise WeightsError(f"the drafter in {folder} has layers of {model!r}; read are those of qwen3")
    known = {name: inner[name] for name in (*ENGINE, "rope_theta", "rope_scaling") if inner.get(name) is not None}
    if "rope_parameters" in known:
        known.pop("rope_theta", None)
        known.pop("rope_scaling", None)
    try:
        config: PretrainedConfig = AutoConfig.for_model("qwen3", tie_word_embeddings=False, **known)
    except (TypeError, ValueError, KeyError) as error:
        raise WeightsError(f"config.json of {folder} describes no layer: {checkpoint.reason(error)}") from error
    return config


def _found(stored: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Returns a config entry from the top level or one of the nested parts."""
    for place in (stored, stored.get("dflash_config") or {}, stored.get("dspark_config") or {}):
        if place.get(name) is not None:
            return place[name]
    return default


def _plan(stored: Mapping[str, Any], target: PretrainedConfig, folder: Path, spark: bool) -> BlockPlan:
    """Reads the network's plan. Raises WeightsError for a config that is incomplete, or that fits no target."""
    layers = target.num_hidden_layers
    counted, hidden = _found(stored, "target_layer_ids"), _found(stored, IDS)
    if counted is not None and hidden is not None and [k - 1 for k in hidden] != list(counted):
        raise WeightsError(
            f"the drafter in {folder} names two sets of layers: target_layer_ids is {counted}, which counts layers, "
            f"and {IDS} is {hidden}, which counts hidden states and should be {[t + 1 for t in counted]}"
        )
    taps = counted if counted is not None else None if hidden is None else [k - 1 for k in hidden]
    size, mask = _found(stored, "block_size"), _found(stored, "mask_token_id")
    missing = [
        name
        for name, value in (("target_layer_ids", taps), ("block_size", size), ("mask_token_id", mask))
        if value is None
    ]
    if missing:
        raise WeightsError(f"config.json of {folder} does not record {', '.join(missing)}")
    if not taps or any(not isinstance(tap, int) or not 0 <= tap < layers for tap in taps):
        raise WeightsError(
            f"the drafter in {folder} reads the outputs of layers {list(taps or [])}, and the target has 0 to "
            f"{layers - 1}"
        )
    if not 0 <= int(mask) < target.vocab_size:
        raise WeightsError(
            f"the drafter in {folder} does not fit: mask_token_id is {mask}, and the target has tokens 0 to "
            f"{target.vocab_size - 1}"
        )
    causal = _found(stored, "causal", False) or _found(stored, "causal_head", False)
    return BlockPlan(
        taps=tuple(taps),
        size=int(size),
        mask=int(mask),
        from_anchor=bool(_found(stored, "sample_from_anchor", spark)),
        causal=bool(causal),
        causal_windows=not _found(stored, "sliding_window_non_causal", True),
    )


def _markov(stored: Mapping[str, Any], own: Mapping[str, list[int]], target: PretrainedConfig) -> Markov:
    """Returns DSpark's own settings, taken from its tensors if possible."""
    rows, rank = own.get("markov_head.markov_w2.weight", [target.vocab_size, _found(stored, "markov_rank", 256)])
    return Markov(
        rank=rank,
        kind=str(_found(stored, "markov_head_type", "vanilla")),
        confidence="confidence_head.proj.weight" in own,
        confidence_reads_markov=bool(_found(stored, "confidence_head_with_markov", True)),
        rows=None if rows == target.vocab_size else rows,
    )


def _own_head(folder: Path, own: Mapping[str, list[int]], stored: Mapping[str, Any], vocab: int) -> OwnHead | None:
    """Returns the LM head stored with a checkpoint. Raises WeightsError if its tokens are unknown."""
    rows = own[LM_HEAD][0] if LM_HEAD in own else None
    size = _found(stored, "draft_vocab_size")
    if not (rows is None and isinstance(size, int) and checkpoint.akin(size, vocab)) and size not in (
        None,
        rows or vocab,
    ):
        actual = "no LM head" if rows is None else f"an LM head of {rows} rows"
        raise WeightsError(f"the drafter in {folder} has draft_vocab_size {size}, and {actual}")
    if rows is None:
        return None
    if "d2t" not in own:
        if rows != vocab:
            raise WeightsError(
                f"the drafter in {folder} has a draft vocabulary of {rows} of {vocab} tokens and no d2t, which lists "
                "which ones they are: it cannot be used without"
            )
        return OwnHead(rows)
    offsets = checkpoint.FileTensors(folder)["d2t"].long()
    tokens = offsets + torch.arange(len(offsets))
    if len(tokens) != rows or tokens.min() < 0 or tokens.max() >= vocab or len(tokens.unique()) < rows:
        raise WeightsError(f"d2t of {folder} does not give {rows} different tokens of a vocabulary of {vocab}")
    if "t2d" in own:
        inside = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
        if own["t2d"] != [vocab] or not torch.equal(checkpoint.FileTensors(folder)["t2d"].bool(), inside):
            raise WeightsError(f"d2t and t2d of {folder} name different tokens")
    return OwnHead(rows, tokens, "t2d" in own)


def _dtype(folder: Path) -> torch.dtype:
    """Returns the dtype of `fc`; bfloat16 if there is none or it has 8 bits."""
    stored = checkpoint.FileTensors(folder)
    return stored["fc.weight"].dtype if "fc.weight" in stored else torch.bfloat16
