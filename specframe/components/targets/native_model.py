"""Llama-family model for native passes without transformers: modules read from its files or from the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from specframe._version import __version__
from specframe.components.targets import architectures
from specframe.components.targets.forward import native as native_passes
from specframe.components.targets.source import PART, GGUFModel, gguf_file
from specframe.kernel.errors import WeightsError, first_line
from specframe.native.linear import PackedLinear, QuantizedLinear
from specframe.neural.layer import complete_config
from specframe.neural.llama import Decoder, RMSNorm, is_llama
from specframe.neural.quantize import Quantization
from specframe.neural.weights.locate import GGUF, WEIGHTS, FileTensors, check_shards, weight_files
from specframe.neural.weights.rounded import read_rounded
from specframe.neural.weights.weight_cache import PackedWeights, entry_of, read_packed, write_packed

HEAD = "lm_head"


class LlamaModel(nn.Module):
    """A causal language model of Llama's family with transformers' names: modules without a forward pass.

    Native passes need nothing else. `whole`, the runnable transformers model, is built on first use.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.generation_config: Any = None
        self.name = ""
        self.entry: Path | None = None
        """Location of its packed weights in the cache, if they are stored after packing."""
        self.packed: PackedWeights | None = None
        """The cached packed weights from which it was built."""
        self._head: tuple[QuantizedLinear, ...] = ()  # a tuple, so that it is not registered as a submodule
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def fill(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> LlamaModel | None:
        """Takes over these weights in a dtype; returns the model, or None unless they are exactly those of its config.

        Layer matrices are not copied until they are packed, if possible; other tensors are copied.
        """
        self.tie_weights()
        shapes = {name: weight.shape for name, weight in self.named_parameters()}
        if (self.config.tie_word_embeddings and "lm_head.weight" in tensors) or not shapes.keys() <= tensors.keys():
            return None
        found = {name: tensors[name] for name in shapes}
        if any(tensor.shape != shapes[name] or not tensor.is_floating_point() for name, tensor in found.items()):
            return None
        stay = {name for name, tensor in found.items() if tensor.dim() > 1 and ".layers." in name}
        cast = {name: tensor.to(dtype, copy=name not in stay) for name, tensor in found.items()}
        self.load_state_dict(cast, strict=False, assign=True)
        self.tie_weights()
        return self.requires_grad_(False).eval()

    def fill_packed(self, packed: PackedWeights) -> LlamaModel:
        """Takes over the weights that `keep_packed` stored for a model of this config; returns the model."""
        found = packed.tensors
        for name, (bits, outputs) in packed.notes["matrices"].items():
            bias = found.get(f"{name}.bias")
            layer = QuantizedLinear.of(found[name], outputs, bits, None if bias is None else bias.float())
            parent, _, attribute = name.rpartition(".")
            if bits >= 16 and name == HEAD:
                self._head = (layer,)
            elif bits >= 16:
                floats = PackedLinear(layer, None if bias is None else nn.Parameter(bias))
                setattr(self.get_submodule(parent), attribute, floats)
            else:
                setattr(self.get_submodule(parent), attribute, layer)
        weights = {name: found[name] for name, _ in self.named_parameters() if name in found}
        self.load_state_dict(weights, strict=False, assign=True)
        if isinstance(self.lm_head, nn.Linear):
            self.tie_weights()
        self.packed = packed
        return self.requires_grad_(False).eval()

    def tie_weights(self) -> None:
        """Uses the embedding's weight for the LM head, too, if the config ties them."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its features."""
        return self.model.embed_tokens.weight.dtype

    def get_decoder(self) -> Decoder:
        """The embedding, the layers and the final norm."""
        return self.model

    def get_input_embeddings(self) -> nn.Module:
        """Returns the embedding."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Returns the LM head."""
        return self.lm_head

    @property
    def head(self) -> nn.Module:
        """Returns the LM head for native passes: packed if it comes from the cache."""
        return self._head[0] if self._head else self.lm_head

    def forget(self) -> None:
        """Drops the transformers model and the tensors unpacked for it."""
        vars(self).pop("whole", None)
        for module in self.modules():
            if isinstance(module, PackedLinear):
                module.drop_whole()

    @cached_property
    def whole(self) -> Any:
        """Returns transformers' model around these modules."""
        found = architectures.find_classes(type(complete_config(self.config)))
        assert found is not None, "transformers has a model for each of these configs"
        with torch.device("meta"):
            model = found[0](self.config)
        for name, module in self.named_modules():
            parent, _, attribute = name.rpartition(".")
            if isinstance(module, RMSNorm):
                model.get_submodule(name).weight = module.weight
            elif isinstance(module, nn.Linear | nn.Embedding | QuantizedLinear):
                setattr(model.get_submodule(parent), attribute, module)
        model.model.rotary_emb = type(model.model.rotary_emb)(self.config)
        model.generation_config = self.generation_config or model.generation_config
        return model.eval()


def read(
    place: Path, config: Any, file: GGUFModel | None, dtype: str, quantization: Quantization | None, name: str
) -> LlamaModel | None:
    """Builds the model of a folder or GGUF file for native passes in a dtype; `auto` is the config's.

    If the cache has its packed matrices, with this `quantization`, they are used. Returns None if the model needs more
    than native passes provide, or if its files are not a model's; transformers then reports the reason.
    """
    wanted = getattr(config, "dtype", None) if dtype == "auto" else getattr(torch, dtype)
    named = getattr(config, "transformers_weights", None) or getattr(config, "quantization_config", None)
    if not is_llama(config) or named or wanted not in (torch.bfloat16, torch.float32):
        return None
    with torch.device("meta"):
        model = LlamaModel(config)
    if native_passes.unfit_floats(config, model.model, model.model.layers) is not None:
        return None
    if file is not None:
        file.require_template()
    try:
        entry = entry_of(_files(place), config.to_dict(), str(wanted), quantization, __version__)
        found = None if entry is None else read_packed(entry)
        if found is not None:
            light: LlamaModel | None = model.fill_packed(found)
        else:
            tensors = _tensors(place, config, file, wanted)
            light = None if tensors is None else model.fill(tensors, wanted)
    except WeightsError:
        return None
    except SafetensorError as error:
        raise WeightsError(f"cannot read {place / WEIGHTS}: {first_line(error)}") from error
    if light is not None:
        config.dtype = wanted
        light.generation_config = _generation_config(place, config)
        light.entry, light.name = entry, name
    return light


def _files(place: Path) -> list[Path]:
    """Returns the files from which a model's weights come; for a GGUF file, including the blocks."""
    if place.suffix == GGUF:
        whole = PART.sub("", place.name)
        return sorted(path for path in place.parent.glob(f"*{GGUF}") if PART.sub("", path.name) == whole)
    blocks = gguf_file(place)
    return [*weight_files(place), *([] if blocks is None else _files(blocks))]


def keep_packed(model: LlamaModel, head: nn.Module, quantization: Quantization | None) -> None:
    """Stores a model's packed weights in the cache, with the native form of its `head`; or releases memory pages."""
    if model.packed is not None:
        model.packed.release()
        return
    if model.entry is None:
        return
    modules = {name: module.packed if isinstance(module, PackedLinear) else module for name, module in _packed(model)}
    if isinstance(head, QuantizedLinear):
        modules[HEAD] = head
    matrices = {name: module for name, module in modules.items() if isinstance(module, QuantizedLinear)}
    tensors = {name: matrix.packed for name, matrix in matrices.items()}
    tensors |= {f"{name}.bias": matrix.bias for name, matrix in matrices.items() if matrix.bias is not None}
    tensors |= {name: weight.detach() for name, weight in model.named_parameters()}
    notes = {
        "model": model.name,
        "precision": quantization or str(model.dtype).removeprefix("torch."),
        "matrices": {name: (matrix.bits, matrix.out_features) for name, matrix in matrices.items()},
    }
    write_packed(model.entry, PackedWeights(tensors, notes))


def _packed(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the packed layers of a model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLinear | PackedLinear):
            yield name, module


def _tensors(place: Path, config: Any, file: GGUFModel | None, dtype: torch.dtype) -> Mapping[str, Tensor] | None:
    if file is None:
        check_shards(place)
        return (read_rounded(place / WEIGHTS) or FileTensors(place)) if weight_files(place) else None
    if (stored := file.stored(config)) is None:
        return None
    stored.require_fit(LlamaModel)
    return dict(stored.weights(dtype))


def _generation_config(place: Path, config: Any) -> Any:
    """Returns the generation config that transformers would use for a model from this place."""
    from transformers import GenerationConfig

    if not (place / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(config)
    return GenerationConfig.from_pretrained(place)
