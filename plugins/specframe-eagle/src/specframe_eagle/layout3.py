"""Contents of an EAGLE-3 checkpoint in any of the published forms, and the form that is written.

The written form is a folder that both vLLM and SGLang read. Tap ids are stored twice: at the top level as indices of
hidden states (vLLM; k, the input of layer k), and in `eagle_config` as indices of layers (SGLang; t = k - 1, the output
of layer t).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from specframe import WeightsError
from specframe.neural import LAYER_FIELDS, checkpoint, layer_windows, make_config
from specframe_eagle.published import IDS, PICKLED
from specframe_eagle.wide import KINDS, Kind, Switches, published_taps

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ARCHITECTURES: Mapping[str, Kind | None] = {
    "LlamaForCausalLMEagle3": "llama",
    "Eagle3LlamaForCausalLM": "llama",
    "Eagle3Qwen3ForCausalLM": "qwen3",
    "LlamaForCausalLM": "llama",  # the authors' and many community files
    "Eagle3DraftModel": None,  # speculators; the type is in the layer's config
    "Eagle3Speculator": None,
}
"""Architecture names in published EAGLE-3 checkpoints, and the decoder layer of each."""
LM_HEAD, D2T, T2D, MASK = "lm_head.weight", "d2t", "t2d", "mask_hidden"
OTHER_NAMES = {"fc_norm": ("use_aux_norm",)}
"""SGLang's other names of a switch."""


@dataclass(frozen=True)
class Layout3:
    """Contents of a checkpoint's files except the values of the network's tensors."""

    method: ClassVar[str] = "EAGLE-3"
    algorithm: ClassVar[str] = "eagle3"
    """Name of the method in the package speculators."""
    architectures: ClassVar[Mapping[str, Kind | None]] = ARCHITECTURES
    windowed: ClassVar[bool] = False
    """True if each of several layers may have a window; otherwise only a single layer may have one."""

    shape: PretrainedConfig
    """The decoder layer's config."""
    taps: tuple[int, ...]
    """The target's layers whose outputs are read, counted from 0 (t)."""
    switches: Switches
    dtype: torch.dtype = torch.bfloat16
    support: Tensor | None = None
    """The draft vocabulary, int64 [v]; None: the target's vocabulary."""
    rows: int | None = None
    """Number of rows of the LM head; None: the target's head is used."""
    window: int | None = None
    """Number of newest tokens that its layer sees; None: all."""
    windows: tuple[int | None, ...] = ()
    """Number of positions that each of several layers sees, including its own; None: all; empty: all layers see all."""
    names: frozenset[str] = field(default_factory=frozenset)
    """Names of the stored tensors; empty for a new drafter."""

    @property
    def kind(self) -> Kind:
        """The type of its decoder layer."""
        return "qwen3" if self.shape.model_type == "qwen3" else "llama"

    @property
    def config(self) -> dict[str, Any]:
        """The config.json that vLLM, SGLang and specframe read."""
        shape = {name: value for name, value in self.shape.to_diff_dict().items() if name in ENGINE or "rope" in name}
        shape |= {name: getattr(self.shape, name) for name in ENGINE if hasattr(self.shape, name)}
        rope = dict(self.shape.rope_parameters or {})
        theta = rope.pop("rope_theta", None)
        older = {} if theta is None else {"rope_theta": theta}  # engines and older transformers read this field
        if rope.get("rope_type", "default") != "default":
            older["rope_scaling"] = rope
        windows = self.windows or (self.window,)
        kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
        sliding = {"layer_types": kinds, "sliding_window": next(filter(None, windows), None)}
        return {
            **shape,
            **older,
            **(sliding if any(windows) else {}),
            "architectures": ["Eagle3Qwen3ForCausalLM" if self.kind == "qwen3" else "LlamaForCausalLMEagle3"],
            "model_type": self.kind,
            "num_hidden_layers": self.shape.num_hidden_layers,
            "tie_word_embeddings": False,
            "torch_dtype": str(self.dtype).removeprefix("torch."),
            "draft_vocab_size": self.rows,
            "num_aux_hidden_states": len(self.taps),
            IDS: [layer + 1 for layer in self.taps],
            "eagle_config": {"use_aux_hidden_state": True, IDS: list(self.taps)},
            **{switch.name: getattr(self.switches, switch.name) for switch in fields(Switches)},
        }

    @classmethod
    def read(cls, weights: str | Path, target: PretrainedConfig) -> Self:
        """Reads the layout of a stored drafter.

        Raises WeightsError for a checkpoint of another kind or another target, or an ambiguous one.
        """
        folder = checkpoint.locate(weights)
        stored = checkpoint.read_config(folder)
        own = _tensors(folder)
        cls.check_method(weights, stored, own)
        shape = _shape(stored, folder, cls)
        if own.get("fc.weight", [0, 0])[1] == 2 * shape.hidden_size and "norm.weight" not in own:
            raise WeightsError(
                f"the drafter in {weights} is one of EAGLE, EAGLE-2 or HASS: use the drafter eagle for it"
            )
        if not cls.windowed and _layers(own) == 1:
            shape.num_hidden_layers = 1  # some configs contain the target's number
        wanted = {"hidden_size": target.hidden_size}
        wanted |= {} if checkpoint.akin(shape.vocab_size, target.vocab_size) else {"vocab_size": target.vocab_size}
        problems = [
            f"{name}: the checkpoint has {getattr(shape, name, None)!r}, needed is {value!r}"
            for name, value in wanted.items()
            if getattr(shape, name, None) != value
        ]
        if (other := stored.get("target_hidden_size")) not in (None, target.hidden_size):
            problems.append(f"target_hidden_size: the checkpoint has {other!r}, needed is {target.hidden_size!r}")
        layers = shape.num_hidden_layers
        windows = layer_windows(_inner(stored), layers, problems)
        if any(windows) and layers > 1 and not cls.windowed:
            problems.append("layer_types: windows of several layers are not supported")
        if problems:
            raise WeightsError(f"the drafter in {weights} does not fit its target: {'; '.join(problems)}")
        taps = _taps(stored, target.num_hidden_layers, folder)
        rows = own[LM_HEAD][0] if LM_HEAD in own else None
        return cls(
            shape=shape,
            taps=taps,
            switches=_switches(stored, folder),
            dtype=_dtype(folder),
            support=_support(folder, own, rows, stored, (shape.vocab_size, target.vocab_size)),
            rows=rows,
            window=None if cls.windowed or not windows else windows[0],
            windows=windows if cls.windowed else (),
            names=frozenset(own),
        )

    @classmethod
    def check_method(cls, weights: str | Path, stored: Mapping[str, Any], own: Mapping[str, list[int]]) -> None:
        """Raises WeightsError for a checkpoint of a related method; the message names the drafter for it."""
        if MASK in own:
            raise WeightsError(f"the drafter in {weights} is one of P-EAGLE: use the drafter peagle for it")


ENGINE = (*LAYER_FIELDS, "attention_bias", "mlp_bias", "rope_parameters")
"""Fields of a layer's config that engines read."""


def _inner(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a config that describes the decoder layers."""
    return dict(stored.get("transformer_layer_config") or stored)


def _shape(stored: Mapping[str, Any], folder: Path, form: type[Layout3]) -> PretrainedConfig:
    """Returns the config of the decoder layer."""
    names = stored.get("architectures") or []
    known = [name for name in names if name in form.architectures]
    kind = stored.get("speculators_model_type")
    if kind not in (None, form.algorithm) or not known:
        other = f"speculators_model_type {kind!r}" if kind not in (None, form.algorithm) else f"architectures {names}"
        raise WeightsError(
            f"the checkpoint in {folder} is no {form.method} drafter that is known here: {other}; "
            f"read are {', '.join(form.architectures)}"
        )
    inner = _inner(stored)
    model = inner.pop("model_type", None) or form.architectures[known[0]] or "llama"
    if model not in KINDS:
        raise WeightsError(f"the drafter in {folder} has layers of {model!r}; read are those of {' and '.join(KINDS)}")
    for name in ("architectures", "torch_dtype", "dtype", "_attn_implementation", "layer_types", "eagle_config"):
        inner.pop(name, None)
    try:
        return make_config(model, **inner)
    except (TypeError, ValueError, KeyError) as error:
        raise WeightsError(f"config.json of {folder} describes no layer: {checkpoint.reason(error)}") from error


def _layers(own: Collection[str]) -> int:
    """Returns the number of decoder layers with stored tensors."""
    return len({name.split(".")[1] for name in own if name.startswith("layers.")}) + any("midlayer." in n for n in own)


def _taps(stored: Mapping[str, Any], layers: int, folder: Path) -> tuple[int, ...]:
    """Returns the layers that are read, counted from 0. Raises WeightsError if two fields contradict, or none fits."""
    top, nested = stored.get(IDS), (stored.get("eagle_config") or {}).get(IDS)
    if top is not None and nested is not None and [k - 1 for k in top] != list(nested):
        raise WeightsError(
            f"the drafter in {folder} names two sets of layers: {IDS} is {top}, which counts hidden states, and that "
            f"of eagle_config {nested}, which counts layers and should be {[k - 1 for k in top]}; correct one of them"
        )
    if top is None and nested is None and layers < 7:
        raise WeightsError(
            f"the drafter in {folder} does not record which layers it reads ({IDS}), and a target of {layers} "
            "layers has no customary ones; add them to its config.json"
        )
    taps = [k - 1 for k in top] if top is not None else nested if nested is not None else published_taps(layers)
    if not taps or any(not isinstance(tap, int) or not 0 <= tap < layers for tap in taps):
        raise WeightsError(
            f"the drafter in {folder} reads the outputs of layers {list(taps)}, and the target has 0 to {layers - 1}"
        )
    return tuple(taps)


def _switches(stored: Mapping[str, Any], folder: Path) -> Switches:
    """Returns the switches, from the top level or `eagle_config`; an absent switch is off."""
    nested = stored.get("eagle_config") or {}
    if "speculators_model_type" in stored and "norm_before_residual" not in stored:
        raise WeightsError(
            f"config.json of {folder} does not record norm_before_residual, which speculators takes for false and vLLM "
            "for true; add the one that it was trained with"
        )
    found = {}
    for switch in fields(Switches):
        names = (switch.name, *OTHER_NAMES.get(switch.name, ()))
        found[switch.name] = any(bool(place.get(name)) for place in (stored, nested) for name in names)
    return Switches(**found)


def _tensors(folder: Path) -> dict[str, list[int]]:
    """Returns the shapes of the stored tensors. Raises WeightsError without a safetensors file."""
    if not checkpoint.has_weights(folder):
        raise WeightsError(
            f"{folder} holds no {checkpoint.WEIGHTS}; if it holds {PICKLED}, convert it once: "
            "python -m specframe_eagle.convert FOLDER NEW_FOLDER"
        )
    return checkpoint.shapes(folder)


def _dtype(folder: Path) -> torch.dtype:
    """Returns the dtype of `fc`; bfloat16 if there is none or it has 8 bits."""
    stored = checkpoint.FileTensors(folder)
    return stored["fc.weight"].dtype if "fc.weight" in stored else torch.bfloat16


def _support(
    folder: Path, own: Mapping[str, list[int]], rows: int | None, stored: Mapping[str, Any], sizes: tuple[int, int]
) -> Tensor | None:
    """Returns the draft vocabulary: that of `d2t`'s offsets, or the LM head's first tokens if the target has more.

    `sizes` are those of the vocabulary it was trained with and of the target's. Raises WeightsError if the draft
    vocabulary does not fit the LM head, or if the target lacks some of its tokens.
    """
    vocab, theirs = sizes
    size = stored.get("draft_vocab_size")
    if rows is not None and size not in (None, rows):
        raise WeightsError(f"the drafter in {folder} has draft_vocab_size {size}, and its LM head has {rows} rows")
    if rows is None or D2T not in own:
        if rows not in (None, vocab):
            raise WeightsError(
                f"the drafter in {folder} has a draft vocabulary of {rows} of {vocab} tokens and no {D2T}, which lists "
                "which ones they are: it cannot be used without"
            )
        if rows is not None and rows > theirs:
            raise WeightsError(f"the drafter in {folder} drafts {rows} tokens, and the target has {theirs} of them")
        return None if rows in (None, theirs) else torch.arange(rows)
    offsets = checkpoint.FileTensors(folder)[D2T].long()
    support = offsets + torch.arange(len(offsets))
    if len(support) != rows or support.min() < 0 or support.max() >= min(sizes) or len(support.unique()) < rows:
        raise WeightsError(f"{D2T} of {folder} does not give {rows} different tokens of a vocabulary of {vocab}")
    if T2D in own:
        inside = torch.zeros(vocab, dtype=torch.bool)
        inside[support] = True
        if own[T2D] != [vocab] or not torch.equal(checkpoint.FileTensors(folder)[T2D].bool(), inside):
            raise WeightsError(f"{D2T} and {T2D} of {folder} name different tokens")
    return None if torch.equal(support, torch.arange(theirs)) else support
