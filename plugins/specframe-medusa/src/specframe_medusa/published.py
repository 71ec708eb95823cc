"""Published layouts of Medusa and Hydra checkpoints: how they are found, read and written.

Weights are copied in place, through a view of the network whose parameters have the published names, so weights that
are loaded and written again have the same bits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe import WeightsError
from specframe.neural import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specframe_medusa.networks import HydraNetwork

OWN = "model.safetensors"
MEDUSA = "medusa_lm_head.safetensors"
HYDRA = "hydra_lm_head.safetensors"


@dataclass(frozen=True)
class Stored:
    """A checkpoint that was found."""

    folder: Path
    file: str
    names: frozenset[str]
    """Names of the checkpoint's tensors."""


def find(weights: str, published: str) -> Stored:
    """Finds the checkpoint at a folder, zoo:// or Hub name: in specframe's layout, or the published one.

    Raises WeightsError if there is neither. A .pt file is never loaded; the message explains how to convert it.
    """
    folder = checkpoint.locate(weights)
    file = next((name for name in (OWN, published) if checkpoint.has_weights(folder, file=name)), None)
    if file is None:
        pickled = published.replace(".safetensors", ".pt")
        raise WeightsError(
            f"{weights} has neither {OWN} nor {published}. Pickled weights are not loaded; convert {pickled} once: "
            'python -c "import torch, safetensors.torch as s; '
            f"w = torch.load('{pickled}', map_location='cpu', weights_only=True); "
            f"s.save_file({{k: t.clone() for k, t in w.items()}}, '{published}')\""
        )
    return Stored(folder, file, frozenset(checkpoint.shapes(folder, file=file)))


def check(stored: Stored, kind: str, heads: int, pattern: str) -> None:
    """Raises WeightsError for another drafter's checkpoint, or another number of heads than requested.

    Heads are counted in the tensors, where `pattern` captures a head's number, because published configs are unreliable
    (Medusa's v1.3 ones have 2 heads, and their files have 5).
    """
    found = checkpoint.read_config(stored.folder).get("format", kind)
    if found != kind:
        raise WeightsError(f"the checkpoint in {stored.folder} is a drafter {found!r}; needed is {kind!r}")
    found = {int(match[1]) for match in map(re.compile(pattern).match, stored.names) if match}
    if found and len(found) != heads:
        raise WeightsError(
            f"the checkpoint in {stored.folder} has {len(found)} heads, and the drafter {heads}: "
            f"set drafter.heads={len(found)}"
        )


class HydraView(nn.Module):
    """A Hydra network under its published names, which include copies of the target's embedding.

    With the prefix layer, the published modules have a dropout before every block and LM head, which counts in their
    numbering.
    """

    def __init__(self, network: HydraNetwork, embedding: Tensor, names: Iterable[str]) -> None:
        """Creates a view with the embeddings that are among `names`."""
        super().__init__()
        with_dropout = network.prefix is not None

        def numbered(blocks: Iterable[nn.Module]) -> nn.Sequential:
            pairs = ((nn.Dropout(), block) if with_dropout else (block,) for block in blocks)
            return nn.Sequential(*(module for pair in pairs for module in pair))

        self.hydra_mlp = nn.ModuleList(numbered(blocks.children()) for blocks in network.mlp)
        if network.lm_head is not None:
            self.hydra_lm_head = nn.ModuleList(numbered([head]) if with_dropout else head for head in network.lm_head)
        if network.prefix is not None:
            self.prefix_embeding_layer = nn.Module()
            self.prefix_embeding_layer.layers = nn.ModuleList([network.prefix.layer.layer])
            self.prefix_embeding_layer.norm = network.prefix.norm
            if "prefix_embeding_layer.embed_tokens.weight" in names:  # their forward pass never uses it
                self.prefix_embeding_layer.embed_tokens = nn.Embedding.from_pretrained(embedding.clone())
        if "input_embed_fn.weight" in names:
            self.input_embed_fn = nn.Embedding.from_pretrained(embedding.clone())


def load_hydra(network: HydraNetwork, stored: Stored, embedding: Tensor) -> None:
    """Copies a published checkpoint into the network. Raises WeightsError for one of another target."""
    view = HydraView(network, embedding, stored.names)
    checkpoint.load(view, stored.folder, file=stored.file)
    if "input_embed_fn.weight" in stored.names:
        wanted, found = embedding.float(), view.input_embed_fn.weight.float()
        if (found - wanted).norm() > 0.01 * wanted.norm():  # rounding to another precision is well below this
            raise WeightsError(
                f"the heads in {stored.folder} belong to another target: their copy of its token embedding differs"
            )


def save_medusa(
    network: nn.Module, folder: str | Path, *, base: str, layers: int, dtype: torch.dtype = torch.float16
) -> None:
    """Writes config.json and medusa_lm_head.safetensors in the layout of Medusa's code.

    `base` is the target's name; `dtype` is that of the stored tensors, float16 as published.
    """
    config = {
        "medusa_num_heads": len(list(network.children())),
        "medusa_num_layers": layers,
        "base_model_name_or_path": base,
    }
    checkpoint.save(network, config, folder, dtype, file=MEDUSA)


def save_hydra(
    network: HydraNetwork,
    folder: str | Path,
    embedding: Tensor,
    *,
    base: str,
    layers: int,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Writes config.json and hydra_lm_head.safetensors in the layout of Hydra's code (which reads .pt).

    The prefix layer's unused embedding is stored as the target's, `embedding` [V, D].
    """
    names = ("prefix_embeding_layer.embed_tokens.weight", "input_embed_fn.weight")
    config = {
        "hydra_num_heads": len(network.mlp),
        "hydra_num_layers": layers,
        "hydra_head_arch": "mlp" if network.prefix is None else "prefix-mlp",
        "grounded_heads": True,
        "base_model_name_or_path": base,
    }
    checkpoint.save(HydraView(network, embedding, names), config, folder, dtype, file=HYDRA)
