"""A GGUF file as transformers' model: its config, its weights by their names in the model, its blocks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import InputError
from specframe_gguf import blocks
from specframe_gguf.blocks import KINDS, PackedMatrix
from specframe_gguf.header import GGUFFile, StoredTensor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""The parts of a layer, by their names in GGUF."""
GEMMA = LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies: Llama 3's scaling, which the metadata does not state."""


@dataclass(frozen=True)
class Architecture:
    """The place of a GGUF architecture among transformers' models."""

    model_type: str
    parts: dict[str, str]
    rotated: bool = False
    """The rows of queries and keys are stored in the order of another rotary embedding: pairs next to each other."""
    offset: float = 0.0
    """Number that the stored norms have in addition."""


ARCHITECTURES = {
    "llama": Architecture("llama", LLAMA, rotated=True),
    "qwen2": Architecture("qwen2", LLAMA),
    "qwen3": Architecture("qwen3", LLAMA),
    "gemma2": Architecture("gemma2", GEMMA, offset=1.0),
    "gemma3": Architecture("gemma3_text", GEMMA, offset=1.0),
}
"""The architectures that are read here, by their names in GGUF."""
LARGEST = {"gemma2": 46, "gemma3": 62}
"""The layers of the models whose attention is scaled by width and heads in place of the size of a head."""


def make_config(file: GGUFFile) -> PreTrainedConfig:
    """The transformers config of a file of a known architecture. Raises InputError for metadata that is not enough."""
    from transformers import AutoConfig

    try:
        values = _values(file)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"{file.path} cannot be read as GGUF: its metadata lacks {error}") from error
    config: PreTrainedConfig = AutoConfig.for_model(ARCHITECTURES[file.architecture].model_type, **values)
    return config


def _values(file: GGUFFile) -> dict[str, Any]:
    def need(key: str) -> Any:
        return file.metadata[f"{file.architecture}.{key}"]

    heads = need("attention.head_count")
    head = file.get("attention.key_length") or file.get("rope.dimension_count") or need("embedding_length") // heads
    values = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": need("context_length"),
        "hidden_size": need("embedding_length"),
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.get("attention.head_count_kv", heads),
        "head_dim": head,
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file),
        "eos_token_id": _ends(file),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if file.architecture == "llama":
        values["attention_bias"] = "blk.0.attn_output.bias" in file.tensors
    if file.architecture in LARGEST:
        values["sliding_window"] = need("attention.sliding_window")
        for cap in ("attn", "final"):
            values[f"{cap}_logit_softcapping"] = file.get(f"{cap}_logit_softcapping")
        largest = values["num_hidden_layers"] == LARGEST[file.architecture]
        values["query_pre_attn_scalar"] = values["hidden_size"] // heads if largest else head
    return values


def _ends(file: GGUFFile) -> int | list[int] | None:
    """The tokens that end a text: of a sequence, a turn and a message."""
    named = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    found = sorted({token for token in named if token is not None})
    return found[0] if len(found) == 1 else found or None


def _rope(file: GGUFFile) -> dict[str, Any]:
    """The parameters of the rotary embedding."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 10000.0)}
    kind = file.get("rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": float(file.get("rope.scaling.factor", 1.0))}
        if (original := file.get("rope.scaling.original_context_length")) is not None and kind == "yarn":
            rope["original_max_position_embeddings"] = original
    elif kind != "none":
        raise InputError(f"{file.path}: a rotary embedding scaled by {kind!r} is not read from GGUF")
    if FREQUENCIES in file.tensors:
        rope |= _llama3(file, rope["rope_theta"])
    if file.architecture == "gemma3":  # its layers with windows have a rotary embedding of their own
        near = {"rope_type": "default", "rope_theta": file.get("rope.freq_base_swa", 10000.0)}
        return {"full_attention": rope, "sliding_attention": near}
    return rope


def _llama3(file: GGUFFile, theta: float) -> dict[str, Any]:
    """Llama 3's scaling, of its only published constants but the factor, by the divisors that a file holds.

    Raises InputError where they are others.
    """
    tensor = file.tensors[FREQUENCIES]
    found = blocks.unpack(file.raw(tensor), tensor.kind, torch.float32)[0]  # [head / 2]
    factor = float(found.max())
    waves = 2 * math.pi * theta ** (torch.arange(len(found)) / len(found))
    smooth = ((8192 / waves - 1.0) / 3.0).clamp(0, 1)
    wanted = 1 / ((1 - smooth) / factor + smooth)
    if not torch.allclose(found, wanted, rtol=1e-4):
        raise InputError(f"{file.path} scales its rotary embedding by {FREQUENCIES} in another way than Llama 3 does")
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **ends}


NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class StoredModel:
    """The tensors of a file of a known architecture, by their names in transformers' model."""

    def __init__(self, file: GGUFFile, config: Any) -> None:
        self.file, self._config = file, config
        self._architecture = ARCHITECTURES[file.architecture]
        self._tensors = {self._name(name): tensor for name, tensor in file.tensors.items() if name != FREQUENCIES}

    def require_fit(self, model_class: type[nn.Module]) -> None:
        """Raises InputError unless the file has the model's tensors, in its shapes and in blocks that are read."""
        for tensor in self._tensors.values():
            if tensor.kind not in KINDS:
                raise InputError(
                    f"{self.file.path} holds {tensor.name} in blocks of the type {tensor.kind}; "
                    f"{', '.join(KINDS)} are read: take another quantization of the model"
                )
        with torch.device("meta"):
            model: Any = model_class(self._config)
        model.tie_weights()
        tied = {"lm_head.weight"} if self._config.tie_word_embeddings else set()
        wanted = {name: tuple(weight.shape) for name, weight in model.named_parameters() if name not in tied}
        if missing := sorted(wanted.keys() - self._tensors.keys()):
            raise InputError(f"{self.file.path} lacks {len(missing)} tensors of the model, such as {missing[0]}")
        if further := sorted(self._tensors.keys() - wanted.keys()):
            stored = self._tensors[further[0]].name
            kind = self.file.architecture
            raise InputError(
                f"{self.file.path} holds {stored}, which has no place in a {kind} model as it is read here"
            )
        for name, tensor in self._tensors.items():
            if tensor.shape != wanted[name]:
                raise InputError(
                    f"{self.file.path} holds {tensor.name} in the shape {tensor.shape}, not {wanted[name]} as "
                    "by its metadata"
                )

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """The model's weights, unpacked to a dtype, by name; norms from float32."""
        for name, tensor in self._tensors.items():
            vector = len(tensor.shape) == 1
            found = blocks.unpack(self.file.raw(tensor), tensor.kind, torch.float32 if vector else dtype)
            if vector:
                found = found[0] - (self._architecture.offset if tensor.name.endswith("norm.weight") else 0.0)
            yield name, found[self._order(tensor)].to(dtype)

    def find(self, name: str, weight: Tensor, bits: int) -> PackedMatrix | None:
        """The blocks of the matrix [N, K] that a model calls `name`; None where the file has none for as many bits.

        None, too, where the matrix has other values: those of another model.
        """
        head = "lm_head.weight" not in self._tensors and name == "lm_head"
        tensor = self._tensors.get("model.embed_tokens.weight" if head else f"{name}.weight")
        if tensor is None or tensor.kind not in KINDS or tensor.shape != weight.shape:
            return None
        raw = self.file.raw(tensor)
        packed = blocks.pack(raw, tensor.kind, bits)
        if packed is None or not torch.equal(
            blocks.unpack(raw, tensor.kind, weight.dtype)[self._order(tensor)], weight.detach()
        ):
            return None
        return packed.take(self._order(tensor))

    def _name(self, name: str) -> str:
        found = NAME.fullmatch(name)
        if found is None:
            part, _, last = name.rpartition(".")
            return f"{TOP[part]}.{last}" if part in TOP else name
        layer, part, last = found.groups()
        return f"model.layers.{layer}.{self._architecture.parts.get(part, part)}.{last}"

    def _order(self, tensor: StoredTensor) -> slice | Tensor:
        """The stored row of each output."""
        found = NAME.fullmatch(tensor.name)
        heads = {"attn_q": self._config.num_attention_heads, "attn_k": self._config.num_key_value_heads}
        if not self._architecture.rotated or found is None or found[2] not in heads:
            return slice(None)
        return torch.arange(tensor.shape[0]).view(heads[found[2]], -1, 2).transpose(1, 2).flatten()
