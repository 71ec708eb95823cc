"""A drafter in the format of another program: its files, and the settings that the program reads from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specframe.kernel.errors import WeightsError
from specframe.neural.weights.checkpoint import CONFIG, WEIGHTS, reason, replacing
from specframe.neural.weights.gguf_file import write_gguf
from specframe.neural.weights.origin import TRAINED_FOR

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Export:
    """A checkpoint to be written."""

    config: Mapping[str, Any]
    """Contents of config.json."""
    tensors: Mapping[str, Tensor]
    """Tensors as they are stored."""
    checklist: tuple[tuple[str, str], ...]
    """Settings that the reading program will infer: name and meaning."""
    command: str = ""
    """Command that starts the program with the checkpoint; FOLDER stands for the folder."""
    file: str = WEIGHTS
    """Name of the tensors' file; a .gguf file has the config as its metadata."""
    tokenizer: Any = None
    """The tokenizer to write into the folder, if any."""
    length: int = 3
    """Number of tokens that the command drafts per cycle."""
    omitted: tuple[str, ...] = ()
    """Recipe values without the parts that the format has no place for; a check decodes with them."""

    def write(self, folder: Path) -> None:
        """Writes the files, each atomically. Raises WeightsError if the folder cannot be written."""
        if self.file.endswith(".gguf"):
            self._write_gguf(folder)
            return
        config = {name: value for name, value in self.config.items() if name != TRAINED_FOR}  # that is specframe's own
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / self.file) as weights, replacing(folder / CONFIG) as words:
                save_file(tensors, weights, metadata={"format": "pt"})
                words.write_text(text, encoding="utf-8")
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"cannot write the checkpoint to {folder}: {reason(error)}") from error

    def _write_gguf(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / self.file) as weights:
                write_gguf(weights, self.config, self.tensors)
        except OSError as error:
            raise WeightsError(f"cannot write the file to {folder}: {reason(error)}") from error


@runtime_checkable
class Exportable(Protocol):
    """A drafter that can be written in the formats of other programs."""

    forms: tuple[str, ...]
    """The names of these formats, such as vllm."""

    def export(self, form: str) -> Export:
        """The drafter, bound to its target, in one of the formats.

        Raises WeightsError, with the reason, for a format that cannot represent something the drafter needs.
        """
        ...


def speculators_config(model: str, algorithm: str, tokens: int, target: PretrainedConfig) -> dict[str, Any]:
    """Returns the common part of all configs of the package speculators: the keys and values of release 0.9.0.

    Args:
        model: the name of the package's class.
        algorithm: the package's name of the method.
        tokens: the number of tokens drafted per cycle.
        target: the target's config.
    """
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [model],
        "speculators_model_type": algorithm,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": getattr(target, "_name_or_path", None) or None,
                "architectures": list(target.architectures or []),
            },
        },
        "tie_word_embeddings": False,
    }


def ambiguous_taps(taps: Iterable[int], layers: int) -> list[str]:
    """Returns reasons why other programs may read other features than the outputs of these of `layers` layers, if any.

    The last layer's output before the final norm is `layer.(L-1)` here. Programs that number hidden states take the
    last one before or after the norm, and some leave it out.
    """
    if layers - 1 not in taps:
        return []
    return [
        f"it reads the output of layer {layers - 1}, the target's last, before the final norm, and programs differ in "
        "whether they take it there or after the norm: train it on other taps"
    ]
