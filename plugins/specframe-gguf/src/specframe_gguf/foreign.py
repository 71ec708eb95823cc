"""Files of architectures that only transformers reads: which of their metadata its config follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from specframe import InputError
from specframe_gguf.ends import end_tokens
from specframe_gguf.header import GGUFFile
from specframe_gguf.metadata import require_known
from specframe_gguf.rope import scaling


def require_followed(file: GGUFFile, config: Any) -> None:
    """Sets the file's end tokens in the config that transformers made of it.

    Unused keys are listed in one warning. Raises InputError if they change the model's results, and if the config has
    another rotary embedding.
    """
    read = _read_by_transformers(file)
    rope = _rope(config)
    kind, factor = scaling(file)
    theta, head = file.get("rope.freq_base"), getattr(config, "head_dim", None)
    share = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", 1.0))
    turned = file.get("rope.dimension_count")
    differs = {
        f"rope.scaling ({kind}, by {factor:g})": kind != "none" and rope.get("rope_type", "default") == "default",
        "rope.freq_base": theta is not None and "rope_theta" in rope and not math.isclose(theta, rope["rope_theta"]),
        "rope.dimension_count": turned is not None and head is not None and round(head * share) != turned,
    }
    for name, wrong in differs.items():
        if wrong:
            raise InputError(
                f"{file.path}: transformers, which reads files of the architecture {file.architecture}, does not take "
                f"over their {name}; take the model's safetensors"
            )
    require_known(file, config, {*read, *(name for name in _names(file) if _is_followed(file, config, name))})
    config.eos_token_id = end_tokens(file)


def _rope(config: Any) -> Mapping[str, Any]:
    """Returns the parameters of the rotary embedding; with several kinds of layers, of those without a window."""
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("full_attention", rope)


def _names(file: GGUFFile) -> Iterator[str]:
    """Yields the keys of the model, without the architecture's name."""
    prefix = f"{file.architecture}."
    return (key.removeprefix(prefix) for key in file.metadata if key.startswith(prefix))


def _is_followed(file: GGUFFile, config: Any, name: str) -> bool:
    """Returns whether a key was compared, describes experts, which the tensors show, or is a value of the config."""
    field = name.rpartition(".")[2]
    return name.startswith(("rope.", "expert_")) or getattr(config, field, None) == file.get(name)


class _Noted(dict[str, Any]):
    """Metadata that records which keys are read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def _read_by_transformers(file: GGUFFile) -> set[str]:
    """Returns the keys of the model from which transformers makes a config, without the architecture's name."""
    from transformers.integrations import ggml

    plain = file.architecture.replace("-", "").replace("_", "")
    tables: Any = ggml.GGUF_CONFIG_MAPPING
    found = {
        key
        for name, table in tables.items()
        if name.replace("_", "") == plain
        for key, field in table.items()
        if field is not None
    }
    try:
        from transformers.integrations.gguf import GGUF_CONFIG_ARCHS, get_gguf_config
    except ImportError:  # earlier releases only have tables
        return found
    if file.architecture in GGUF_CONFIG_ARCHS:
        noted = _Noted(file.metadata)
        get_gguf_config(noted, tuple(file.tensors))
        found |= {key.removeprefix(f"{file.architecture}.") for key in noted.asked}
    return found
