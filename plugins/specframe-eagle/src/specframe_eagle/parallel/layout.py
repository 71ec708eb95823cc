"""Contents of a P-EAGLE checkpoint: EAGLE-3's, several layers, a mask token, and the learnt vector of mask rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from specframe import WeightsError
from specframe.neural import checkpoint
from specframe_eagle.layout3 import ARCHITECTURES, MASK, Layout3
from specframe_eagle.wide import Kind

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NAMES = ("mask_token_id", "pard_token", "ptd_token_id")
"""Config keys under which the mask token may be stored."""


@dataclass(frozen=True)
class ParallelLayout(Layout3):
    """Contents of a checkpoint's files except the values of the network's tensors."""

    method: ClassVar[str] = "P-EAGLE"
    algorithm: ClassVar[str] = "peagle"
    architectures: ClassVar[Mapping[str, Kind | None]] = {
        "PeagleLlamaForCausalLM": "llama",
        "PeagleQwen3ForCausalLM": "qwen3",
        "LlamaForCausalLMEagle3": "llama",  # the authors', with `ptd_token_id`
        "Eagle3LlamaForCausalLM": "llama",
        "PEagleDraftModel": None,  # speculators; the type is in the layers' config
        "PEagleSpeculator": None,
    }
    windowed: ClassVar[bool] = True

    mask: int = 0
    """The token whose embedding marks positions to be predicted."""
    mask_shape: tuple[int, ...] = ()
    """Stored shape of the mask rows' vector; empty for a new drafter, which stores [1, 1, A H]."""

    @property
    def config(self) -> dict[str, Any]:
        """The config.json that vLLM and specframe read."""
        return {
            **super().config,
            "architectures": ["PeagleQwen3ForCausalLM" if self.kind == "qwen3" else "PeagleLlamaForCausalLM"],
            "mask_token_id": self.mask,
            "pard_token": self.mask,
        }

    @classmethod
    def read(cls, weights: str | Path, target: PretrainedConfig) -> Self:
        """Reads the layout of a stored drafter.

        Raises WeightsError for a checkpoint of another kind or another target, or an ambiguous one.
        """
        found = super().read(weights, target)
        folder = checkpoint.locate(weights)
        stored = checkpoint.read_config(folder)
        tokens = [stored[name] for name in NAMES if stored.get(name) is not None]
        if not tokens or any(str(token) != str(tokens[0]) for token in tokens) or not str(tokens[0]).isdigit():
            raise WeightsError(
                f"config.json of {folder} does not record one mask token ({', '.join(NAMES)}), but {tokens or 'none'}"
            )
        mask = int(tokens[0])
        if mask >= target.vocab_size:
            raise WeightsError(
                f"the drafter in {folder} does not fit: its mask token is {mask}, and the target has tokens 0 to "
                f"{target.vocab_size - 1}"
            )
        return replace(found, mask=mask, mask_shape=tuple(checkpoint.shapes(folder)[MASK]))

    @classmethod
    def check_method(cls, weights: str | Path, stored: Mapping[str, Any], own: Mapping[str, list[int]]) -> None:
        """Raises WeightsError for a checkpoint without mask rows; for EAGLE-3's, the message names its drafter."""
        names = stored.get("architectures") or []
        if MASK not in own and any(name in ARCHITECTURES for name in names):
            raise WeightsError(
                f"the drafter in {weights} has no {MASK}, so it is one of EAGLE-3: use the drafter eagle3 for it"
            )
        if MASK not in own and any(name in cls.architectures for name in names):
            raise WeightsError(f"the weights in {weights} do not fit: {MASK}: missing")
