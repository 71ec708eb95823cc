"""A GGUF file as transformers' model: its config, its weights by their names in the model, its blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import InputError
from specframe.neural import make_config
from specframe_gguf import blocks
from specframe_gguf.blocks import KINDS, PackedMatrix
from specframe_gguf.ends import end_tokens
from specframe_gguf.header import GGUFFile, StoredTensor
from specframe_gguf.metadata import READ, READ_OF_GEMMA, require_known, require_numbers
from specframe_gguf.rope import FREQUENCIES, rope_parameters, rotated

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


@dataclass(frozen=True)
class Architecture:
    """The transformers model of a GGUF architecture."""

    model_type: str
    parts: dict[str, str]
    rotated: bool = False
    """True if rows of queries and keys are stored for a rotary embedding that rotates adjacent pairs."""
    offset: float = 0.0
    """Number added to the stored norms."""


ARCHITECTURES = {
    "llama": Architecture("llama", LLAMA, rotated=True),
    "qwen2": Architecture("qwen2", LLAMA),
    "qwen3": Architecture("qwen3", LLAMA),
    "gemma2": Architecture("gemma2", GEMMA, offset=1.0),
    "gemma3": Architecture("gemma3_text", GEMMA, offset=1.0),
}
"""Architectures that are read here, by their names in GGUF."""
LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layer counts of the models whose attention is scaled by width and heads instead of the head size."""


def read_config(file: GGUFFile) -> PreTrainedConfig:
    """Returns the transformers config of a file of a known architecture. Raises InputError for incomplete metadata."""
    read = READ | READ_OF_GEMMA if file.architecture in LARGEST else READ
    require_numbers(file, read)
    try:
        values = _values(file)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"{file.path} cannot be read as GGUF: its metadata lacks {error}") from error
    try:
        config = make_config(ARCHITECTURES[file.architecture].model_type, **values)
    except Exception as error:  # transformers validates values with several types of errors
        reason = " ".join(str(error).split())
        raise InputError(f"{file.path} cannot be read as GGUF: {reason}") from error
    require_known(file, config, read)
    return config


def _values(file: GGUFFile) -> dict[str, Any]:
    def need(key: str) -> Any:
        return _alike(file, key, file.metadata[f"{file.architecture}.{key}"])

    heads = need("attention.head_count")
    head = file.get("attention.key_length") or _rows(file, "blk.0.attn_q.weight") // heads
    values = {
        "vocab_size": _rows(file, "token_embd.weight"),
        "max_position_embeddings": need("context_length"),
        "hidden_size": need("embedding_length"),
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _alike(file, "attention.head_count_kv", file.get("attention.head_count_kv", heads)),
        "head_dim": head,
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": rope_parameters(file, head),
        "eos_token_id": end_tokens(file),
        "bos_token_id": file.token("bos"),
        "pad_token_id": file.token("padding"),
    }
    if file.architecture == "llama":
        values["attention_bias"] = "blk.0.attn_output.bias" in file.tensors
    if file.architecture in LARGEST:
        values |= _gemma(file, values, need("attention.sliding_window"))
    return values


def _gemma(file: GGUFFile, values: dict[str, Any], window: int) -> dict[str, Any]:
    """Returns the further values of a Gemma: its caps, the scale of its attention, and the layers that have windows."""
    layers, heads = values["num_hidden_layers"], values["num_attention_heads"]
    found: dict[str, Any] = {"sliding_window": window}
    for cap in ("attn", "final"):
        found[f"{cap}_logit_softcapping"] = file.get(f"{cap}_logit_softcapping") or None
    if scale := file.get("attention.scale"):
        found["query_pre_attn_scalar"] = round(scale**-2)
    else:
        largest = layers == LARGEST[file.architecture]
        found["query_pre_attn_scalar"] = values["hidden_size"] // heads if largest else values["head_dim"]
    if (pattern := file.get("attention.sliding_window_pattern")) is not None:
        if not isinstance(pattern, list):
            pattern = [pattern == 0 or layer % pattern < pattern - 1 for layer in range(layers)]
        found["layer_types"] = [f"{'sliding' if near else 'full'}_attention" for near in pattern[:layers]]
    return found


def _rows(file: GGUFFile, name: str) -> int:
    if name not in file.tensors:
        raise InputError(f"{file.path} lacks the tensor {name} of the model")
    return file.tensors[name].shape[0]


def _alike(file: GGUFFile, key: str, value: Any) -> Any:
    """Returns the value of a key that all layers have. Raises InputError if layers differ."""
    if not isinstance(value, list):
        return value
    if len({*value}) != 1:
        raise InputError(f"{file.path} has layers of different {file.architecture}.{key}, which are not read here")
    return value[0]


NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class StoredModel:
    """The tensors of a file of a known architecture, by their names in transformers' model."""

    def __init__(self, file: GGUFFile, config: Any) -> None:
        self.file, self._config = file, config
        self._architecture = ARCHITECTURES[file.architecture]
        self._tensors = {self._name(name): tensor for name, tensor in file.tensors.items() if name != FREQUENCIES}

    def require_fit(self, model_class: type[nn.Module]) -> None:
        """Raises InputError unless the file has the model's tensors, in its shapes and in supported block types."""
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
        """Yields the model's weights by name, unpacked to a dtype; norms are converted from float32."""
        for name, tensor in self._tensors.items():
            vector = len(tensor.shape) == 1
            found = blocks.unpack(self.file.raw(tensor), tensor.kind, torch.float32 if vector else dtype)
            if vector:
                found = found[0] - (self._architecture.offset if tensor.name.endswith("norm.weight") else 0.0)
            yield name, found[self._order(tensor)].to(dtype)

    def find(self, name: str, weight: Tensor, bits: int) -> PackedMatrix | None:
        """Returns the blocks of the matrix [N, K] that a model calls `name`; None if the file has none with these bits.

        Also None if the matrix has other values, those of another model.
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
        """Returns the stored row of each output.

        transformers rotates an element with the one half a head later, over the whole head. Elements that are not
        rotated are therefore moved to the middle and to the end.
        """
        found = NAME.fullmatch(tensor.name)
        counts = {
            "attn_q": self._config.num_attention_heads,
            "attn_k": self._config.num_key_value_heads,
            "attn_q_norm": 1,
            "attn_k_norm": 1,
        }
        head = self._config.head_dim
        turned = rotated(self.file, head)
        if found is None or found[2] not in counts or not (self._architecture.rotated or turned < head):
            return slice(None)
        numbers = torch.arange(tensor.shape[0]).view(counts[found[2]], -1)
        pairs = numbers[:, :turned].unflatten(1, (-1, 2) if self._architecture.rotated else (2, -1))
        pairs = pairs.transpose(1, 2) if self._architecture.rotated else pairs  # [heads, 2, turned / 2]
        still = numbers[:, turned:].unflatten(1, (2, -1))
        return torch.cat([pairs, still], 2).flatten()
