"""The layout of EAGLE's and FSPAD's published checkpoints, which `specframe train` also writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import WeightsError
from specframe.neural import checkpoint, make_config, seeded
from specframe.plugin import NeuralTarget
from specframe_eagle.network import EagleNetwork, EagleVariant

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PICKLED = "pytorch_model.bin"
EMBEDDING = "embed_tokens.weight"
IDS = "eagle_aux_hidden_state_layer_ids"
SAMPLER = "fc.fc.weight"
GATE = "fc.gate.weight"
DOWN = "layers.{}.mlp.down_proj.weight"
PROBES = 64
"""Number of rows of a stored embedding that are compared with the target's."""
ALIKE = 0.05
"""Largest relative distance of equal rows: half-precision rounding is far below it, another model far above."""


@dataclass(frozen=True)
class EagleLayout:
    """Contents of a checkpoint's files except the values of its tensors."""

    config: dict[str, Any]
    """config.json: the config of a model with the drafter's layers, with `bias` and possibly `qkv_bias`."""
    variant: EagleVariant
    """Parts of the network; FSPAD's and Dovetail's fusion are recognised by their tensors, not by config.json."""
    dtype: torch.dtype = torch.bfloat16
    embedding: bool = False
    """True if the tensors include a copy of the target's embedding, as in the first releases."""

    @classmethod
    def of_target(cls, config: PretrainedConfig, variant: EagleVariant) -> EagleLayout:
        """Creates the layout of a new drafter for a target of this config."""
        shape = config.to_dict()
        for name in ("quantization_config", "torch_dtype", "dtype", "layer_types", "_name_or_path"):
            shape.pop(name, None)
        rope = dict(shape.get("rope_parameters") or {})
        if "rope_theta" in rope:  # stored twice, because engines and older transformers read the older names
            shape["rope_theta"] = rope.pop("rope_theta")
            shape |= {"rope_scaling": rope} if rope.get("rope_type", "default") != "default" else {}
        return cls({**shape, "num_hidden_layers": variant.layers, "bias": variant.bias}, variant)

    @classmethod
    def read(cls, weights: str, target: NeuralTarget) -> EagleLayout:
        """Reads the layout of a stored drafter.

        Raises WeightsError for a checkpoint of another kind or of a target of another size, with every contradiction,
        and for one without safetensors.
        """
        folder = checkpoint.locate(weights)
        if IDS in (stored := checkpoint.read_config(folder)) or "draft_vocab_size" in stored:
            raise WeightsError(f"the drafter in {weights} is one of EAGLE-3: use the drafter eagle3 for it")
        layers = stored.get("num_hidden_layers")
        layers = layers if isinstance(layers, int) and layers > 0 else 1
        wanted = {
            "num_hidden_layers": layers,
            "hidden_size": target.config.hidden_size,
            "vocab_size": target.config.vocab_size,
        }
        config = checkpoint.check(weights, wanted)
        if not checkpoint.has_weights(folder):
            raise WeightsError(
                f"{folder} holds no {checkpoint.WEIGHTS}. If the drafter is published as {PICKLED}, convert it once: "
                "python -m specframe_eagle.convert FOLDER NEW_FOLDER"
            )
        names = checkpoint.shapes(weights)  # includes quantized matrices
        sampling, gated = SAMPLER in names, GATE in names
        fc = SAMPLER if sampling else GATE if gated else "fc.weight"
        rows = names.get(DOWN.format(layers - 1), [0])[0]
        tensors = checkpoint.FileTensors(folder)
        dtype = tensors[fc].dtype if fc in tensors else torch.bfloat16
        # EAGLE's first releases have a bias without recording it; FSPAD's have one whatever they record.
        bias = "fc.fc.bias" in names if sampling else bool(config.get("bias", True))
        variant = EagleVariant(bias, sampling, rows == 2 * target.config.hidden_size, gated, layers)
        return cls(config, variant, dtype, EMBEDDING in names)

    @property
    def shape(self) -> PretrainedConfig:
        """Returns the config to build the layer from. EAGLE's Qwen2 layers are labelled Llama's with `qkv_bias`."""
        kind = "qwen2" if self.config.get("qkv_bias") else self.config.get("model_type", "llama")
        stored = {name: value for name, value in self.config.items() if name != "model_type"}
        try:
            return make_config(kind, **stored)
        except (TypeError, ValueError) as error:
            raise WeightsError(f"config.json describes no model that transformers knows: {error}") from error


class Published(nn.Module):
    """A network under the published names: `fc.*`, `layers.N.*`, and `embed_tokens.weight` if there is one."""

    def __init__(self, network: EagleNetwork, embedding: Tensor | None = None) -> None:
        super().__init__()
        self.fc = network.fc
        self.layers = nn.ModuleList(network.layer.layers)
        if embedding is not None:
            self.embed_tokens = nn.Embedding.from_pretrained(embedding)


def load(layout: EagleLayout, weights: str, target: NeuralTarget) -> EagleNetwork:
    """Loads the stored network. Raises WeightsError, with all mismatches, if tensors and config do not fit."""
    network = seeded(lambda: EagleNetwork(layout.shape, layout.variant), target)
    size = (layout.config["vocab_size"], target.config.hidden_size)
    module = Published(network, torch.empty(size, dtype=layout.dtype) if layout.embedding else None)
    checkpoint.load(module, weights)
    if layout.embedding:
        check_embedding(module.embed_tokens.weight, weights, target)
    return network


def save(layout: EagleLayout, network: EagleNetwork, target: NeuralTarget, folder: Path) -> None:
    """Writes config.json and model.safetensors, in the layout's dtype."""
    embedding, vocab = None, target.config.vocab_size
    if layout.embedding:
        embedding = target.embed(torch.arange(vocab, device=target.device))
    checkpoint.save(Published(network, embedding), layout.config | {"vocab_size": vocab}, folder, layout.dtype)


def check_embedding(stored: Tensor, weights: str, target: NeuralTarget) -> None:
    """Raises WeightsError if a stored embedding is not the target's."""
    if not is_embedding_of(target, stored):
        raise WeightsError(
            f"the drafter in {weights} was trained on another target: {EMBEDDING} is not the embedding of this one"
        )


def is_embedding_of(target: NeuralTarget, stored: Tensor) -> bool:
    """Returns whether a stored token embedding [V, H] is the target's, within its dtype and the shared vocabulary."""
    vocab = target.config.vocab_size
    if not checkpoint.akin(len(stored), vocab):
        return False
    tokens = torch.linspace(0, min(len(stored), vocab) - 1, PROBES).long()
    mine, ours = stored[tokens].float().cpu(), target.embed(tokens.to(target.device)).float().cpu()
    return bool((mine - ours).norm() <= ALIKE * ours.norm())
