"""Models that share most weights with another one of this package: only the rest is stored, and joined to it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specframe_zoo.cache import cache_folder, make_once

if TYPE_CHECKING:
    from torch import Tensor

OWN = "own.safetensors"
"""The file of a joined model's own weights."""


@dataclass(frozen=True)
class Joined:
    """A model that reads images with another model's decoder; calling it returns the folder of the whole model.

    Its own weights have the names of the model's file. NAME.up and NAME.down are low-rank matrices whose product is
    added to the other model's NAME. Additional rows of the embedding repeat that of padding.
    """

    name: str
    summary: str
    own_folder: Path
    """The folder of its own weights, configuration and processor."""
    base: Path
    """The folder of the decoder."""
    prefix: str = "language_model."
    """Prefix of the decoder's names in the whole model."""

    @property
    def folder(self) -> Path:
        """Cache folder of the whole model, which depends on its files."""
        digest = hashlib.sha256()
        for file in sorted(self.own_folder.iterdir()):
            digest.update(file.read_bytes())
        return cache_folder() / "models" / f"{self.name}-{digest.hexdigest()[:12]}"

    def __call__(self) -> Path:
        """Returns the model's folder, created on first use."""
        return make_once(self.folder, self._make)

    def _make(self, folder: Path) -> None:
        from safetensors.torch import load_file, save_file  # torch, which listing models must not import

        for file in self.own_folder.iterdir():
            if file.name != OWN:
                shutil.copy(file, folder)
        own = load_file(self.own_folder / OWN)
        shared: dict[str, Tensor] = {}
        for file in sorted(self.base.glob("*.safetensors")):
            shared |= {self.prefix + name: weight for name, weight in load_file(file).items()}
        save_file(self._join(shared, own), folder / "model.safetensors", {"format": "pt"})

    def _join(self, shared: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
        import json

        import torch

        whole = {name: weight for name, weight in own.items() if not name.endswith((".up", ".down"))}
        for name, weight in shared.items():
            if f"{name}.up" in own:
                added = own[f"{name}.up"].float() @ own[f"{name}.down"].float()
                whole[name] = (weight.float() + added).to(weight.dtype)
            else:
                whole[name] = weight
        config = json.loads((self.own_folder / "config.json").read_text(encoding="utf-8"))
        text = config["text_config"]
        rows = whole[f"{self.prefix}model.embed_tokens.weight"]
        more = rows[text["pad_token_id"]].expand(text["vocab_size"] - len(rows), -1)
        whole[f"{self.prefix}model.embed_tokens.weight"] = torch.cat([rows, more])
        return whole
