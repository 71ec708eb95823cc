"""Loading of a causal language model with its tokenizer: a folder or the Hub (safetensors only), or a GGUF file."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from specframe.components.targets import architectures, native_model
from specframe.components.targets.adapters import MERGE, base_of, merge_adapter, require_adapter
from specframe.components.targets.source import (
    GGUFModel,
    ModelSource,
    gguf_files,
    make_plain,
    quiet,
    read_config,
    read_gguf,
    sole_gguf,
)
from specframe.components.targets.tokenizer import read_object
from specframe.kernel.errors import CompositionError, InputError, SpecframeError, WeightsError, first_line
from specframe.neural.layer import complete_config, light_config
from specframe.neural.quantize import Quantization
from specframe.neural.weights.locate import (
    GGUF,
    WEIGHTS,
    FileTensors,
    check_shards,
    find_place,
    is_unlisted,
    weight_files,
)
from specframe.neural.weights.rounded import read_rounded

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

log = logging.getLogger(__name__)


def locate(model: str) -> str | Path:
    """Returns an existing folder or GGUF file, or the Hub name unchanged.

    A model of the zoo is fetched if necessary. Raises InputError for anything else, and FetchError.
    """
    place = find_place(model)
    if place is not None:
        return (sole_gguf(place) or place) if isinstance(place, Path) else place
    if Path(expanduser(model)).is_file():
        raise InputError(f"{model} is a file; `model` takes the folder that holds config.json, or a {GGUF} file")
    kind = "file" if model.endswith(GGUF) else "folder"
    raise InputError(f"there is no {kind} {model!r}; `model` takes a folder, a {GGUF} file, a Hub name or zoo://name")


def load(
    model: str,
    adapter: str | None = None,
    packs: Quantization | bool = False,
    *,
    dtype: str,
    device: str,
    revision: str | None,
    attention: str | None,
) -> nn.Module:
    """Loads a model in evaluation mode, with its weights frozen, checked and on the device.

    If its matrices will be packed (`packs`: with this quantization, or unchanged), the result is a `LlamaModel`,
    provided that native passes compute all of it.

    Raises InputError (not found, not a language model, unknown device or dtype), FetchError, WeightsError (missing,
    wrong shape, not finite, not safetensors) or CompositionError (an architecture that cannot be a target).
    """
    place = locate(model)
    chosen = find_device(device)
    source = ModelSource.of(place, revision)
    file = read_gguf(source.file) if source.is_gguf else None
    config = find_config(model, source, file)
    if packs and adapter is None and attention is None and chosen.type == "cpu":
        stored_dtype = getattr(config, "dtype", None)
        wanted = _wanted(dtype, chosen, source)
        rounding = None if packs is True else packs
        light = native_model.read(place, config, file, wanted, rounding, model) if isinstance(place, Path) else None
        if light is not None:
            if light.packed is None:
                _require_finite(model, light)
            _report_rounding(model, stored_dtype, light.dtype)
            return light
    classes = architectures.find_classes(type(complete_config(config)))
    if classes is None:
        raise InputError(f"{model} is a {config.model_type} model, which is no causal language model")
    model_class, loader = classes
    if reason := architectures.refusal(model_class, config):
        raise CompositionError(f"{model} cannot be a target: {reason}")
    if adapter is not None:
        require_adapter(adapter)
    if reason := unread(config) if file is None else None:
        raise InputError(f"{model} cannot be a target: {reason}")
    stored_dtype, wanted = getattr(config, "dtype", None), _wanted(dtype, chosen, source)
    stored = None
    if file is not None:
        file.require_template()
        if (stored := file.stored(config)) is not None:
            stored.require_fit(model_class)
    else:
        _require_safetensors(model, place)
        check_shards(place, getattr(config, "transformers_weights", None), revision)
    try:
        given = read_rounded(place / WEIGHTS) if isinstance(place, Path) else None
        if isinstance(place, Path) and is_unlisted(place):
            given = dict(FileTensors(place))
        if stored is not None:
            given = dict(stored.weights(getattr(torch, wanted)))
        where = {**source.options, **source.unpacking} if given is None else {"state_dict": given}
        with quiet():
            loaded, report = (loader if given is None else model_class).from_pretrained(
                source.name if given is None else None,
                config=config,
                dtype="auto" if wanted == "auto" else getattr(torch, wanted),
                **where,
                attn_implementation=attention,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported below by name
                output_loading_info=True,
            )
    except SpecframeError:
        raise
    except Exception as error:  # safetensors and transformers raise many types of errors for one damaged file
        if isinstance(place, Path) and len(weight_files(place)) > 1:
            FileTensors(place)  # raises an error that names the unreadable part
        raise WeightsError(f"the weights of {model} cannot be loaded: {first_line(error)}") from error
    _require_complete(model, report)
    if adapter is not None:
        loaded = merge_adapter(loaded, adapter)
    if dtype == "stored" and chosen.type == "cpu" and loaded.dtype == torch.float16:
        loaded = loaded.float()  # float32 represents all of its values
    _require_finite(model, loaded)
    _report_rounding(model, stored_dtype, loaded.dtype)
    ready: nn.Module = (make_plain(loaded) if source.is_gguf else loaded).to(chosen).eval().requires_grad_(False)
    return ready


def _wanted(dtype: str, device: torch.device, source: ModelSource) -> str:
    """Returns the name of the dtype to load in; for `auto`, the checkpoint's."""
    if dtype == "stored":
        return "bfloat16" if source.is_gguf else "auto"
    return "float32" if dtype == "auto" and (device.type == "cpu" or source.is_gguf) else dtype


def _report_rounding(model: str, stored: object, chosen: torch.dtype) -> None:
    """Logs a warning if the weights were rounded to half precision from the dtype in the checkpoint's config."""
    if isinstance(stored, torch.dtype) and chosen.itemsize == 2 and torch.promote_types(stored, chosen) != chosen:
        names = [str(kind).removeprefix("torch.") for kind in (stored, chosen)]
        log.warning(
            "target: %s is stored in %s and decoded in %s: the rounded model's distribution is the one kept; "
            "`dtype: %s` keeps the checkpoint's",
            model,
            *names,
            names[0] if names[0] != "float16" else "float32",
        )


def find_device(name: str) -> torch.device:
    """Returns the device of this name; `auto`: CUDA if available. Raises InputError for an unavailable device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"{name!r} is no device: {first_line(error)}") from error
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device {name!r} was asked for, and this torch has no MPS: it is for Apple's GPUs; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {name!r} was asked for, but torch finds {torch.cuda.device_count()} CUDA devices; use device: auto"
        )
    return device


def find_config(model: str, source: ModelSource, file: GGUFModel | None = None) -> PreTrainedConfig:
    """Returns the model's config, from the Hub if necessary; raises InputError if reading it would need remote code.

    For a folder with a Llama or Qwen2, it is the result of `light_config`.
    """
    if file is not None:
        if (found := file.config()) is None:
            file.require_followed(found := read_config(model, source))
        return found
    if isinstance(source.name, Path) and not (source.name / "config.json").is_file():
        if (adapter := source.name / "adapter_config.json").is_file():
            raise InputError(f"{model} holds an adapter{base_of(adapter)}, not a model: {MERGE}")
        if several := [path.name for path in gguf_files(source.name)]:
            raise InputError(f"{model} holds {len(several)} models: name one of {', '.join(several)}")
        raise InputError(f"{model} holds no config.json, so it is no Hugging Face model folder")
    if isinstance(source.name, Path) and (light := _light_config(source.name)) is not None:
        return light
    from transformers import AutoConfig

    try:
        with quiet():
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                source.name, **source.options, trust_remote_code=False
            )
            return config
    except (OSError, ValueError, KeyError) as error:
        problem = "has a config that cannot be read" if isinstance(source.name, Path) else "cannot be found or reached"
        reason = first_line(error)
        if "trust_remote_code" in str(error):
            problem, reason = "cannot be a target", "it needs code of its own, and no code from a model's folder runs"
        raise InputError(f"{model} {problem}: {reason}") from error


def _light_config(folder: Path) -> PreTrainedConfig | None:
    """Returns a folder's config as `AutoConfig` would read it; None for other model types, or if it cannot be read."""
    stored = read_object(folder / "config.json")
    light = light_config(stored.get("model_type"))
    if light is not None and "auto_map" not in stored:
        with suppress(Exception):  # transformers will report the error
            config: PreTrainedConfig = light.from_pretrained(folder, name_or_path=folder)
            return config
    return None


def _require_safetensors(model: str, place: str | Path) -> None:
    if isinstance(place, Path) and not any(place.glob("*.safetensors")):
        raise WeightsError(
            f"{model} holds no .safetensors file; other formats can run code, so convert it first "
            "(model.save_pretrained writes safetensors)"
        )


def _require_complete(model: str, report: dict[str, Any]) -> None:
    if mismatched := report.get("mismatched_keys"):
        names = ", ".join(sorted(str(entry[0]) for entry in mismatched)[:3])
        raise WeightsError(f"the weights of {model} do not have the shapes of its config.json: {names}")
    if missing := report.get("missing_keys"):
        names = ", ".join(sorted(missing)[:3])
        raise WeightsError(f"the weights of {model} are incomplete: {len(missing)} missing, such as {names}")


def _require_finite(model: str, loaded: nn.Module) -> None:
    named = [(name, p) for name, p in loaded.named_parameters() if p.is_floating_point() and p.numel()]
    extremes = torch.stack([torch.stack(torch.aminmax(p.detach())).float() for _, p in named])  # [P, 2]
    broken = ~torch.isfinite(extremes).all(-1)
    if broken.any():
        names = [name for (name, _), bad in zip(named, broken.tolist(), strict=True) if bad]
        raise WeightsError(f"{model} has weights that are NaN or infinite: {', '.join(names[:3])}")


PACKAGES = {"bitsandbytes": "bitsandbytes", "gptq": "gptqmodel", "awq": "gptqmodel"}
"""The package that transformers needs for a quantization method, by the method's name in configs."""


def unread(config: Any) -> str | None:
    """Returns the reason for which a quantized checkpoint's weights cannot be read, or None if they can.

    A method whose package is installed is tried; the target's self-test refuses one whose rows depend on each other.
    """
    found = getattr(config, "quantization_config", None)
    how = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    name = str(getattr(how, "value", how))
    if how is None or name not in PACKAGES or find_spec(PACKAGES[name]) is not None:
        return None
    return (
        f"its weights are quantized by {name}, which needs the package {PACKAGES[name]}; or take the plain checkpoint, "
        "with `quantize: int4`, or a GGUF file"
    )
