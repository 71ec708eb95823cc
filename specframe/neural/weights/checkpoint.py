"""A drafter's checkpoint: a folder with config.json and model.safetensors, each written atomically."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from specframe.kernel.errors import WeightsError, first_line
from specframe.native.blocks import Bits
from specframe.neural.weights.locate import WEIGHTS as WEIGHTS
from specframe.neural.weights.locate import FileTensors as FileTensors
from specframe.neural.weights.locate import find_place, weight_files
from specframe.neural.weights.rounded import restore_matrices, restore_shapes, round_matrices

Fit = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]]
"""A function from the stored tensors and the module's own to those that are loaded."""

CONFIG = "config.json"
PART = ".part"
"""Suffix of the names of incomplete files."""
PICKLED = (".bin", ".pt", ".pth")
"""Suffixes of the names of pickled weights."""
TRAINING = ("training_args.*", "optimizer.*", "scheduler.*", "rng_state*")
"""Pickles that trainers write next to weights: they hold no weights, and objects other than tensors."""
LEFT = re.compile(rf"\..+\.(?:safetensors|json)\.\d+{re.escape(PART)}")
"""Matches the names that `replacing` gives to unfinished files."""
UNFINISHED = ".model-"
"""Prefix of the names of folders, with suffix `PART`, in which a whole model is written."""


def save(
    module: nn.Module,
    config: Mapping[str, Any],
    folder: str | Path,
    dtype: torch.dtype | None = None,
    *,
    file: str = WEIGHTS,
) -> None:
    """Writes the module's weights, as `file`, and `config` into `folder`, which is created if necessary.

    Each file is written atomically: under a temporary name in its folder, flushed to disk and renamed, so a kill or a
    full disk leaves the earlier checkpoint intact. Floating-point weights are stored in `dtype` (torch.bfloat16, for
    example), by default in their own. Raises WeightsError if the
    folder cannot be written.
    """
    folder = Path(folder)
    tensors = {name: _stored(tensor, dtype) for name, tensor in module.state_dict().items()}
    text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / file) as weights, replacing(folder / CONFIG) as words:
            save_file(tensors, weights, metadata={"format": "pt"})
            words.write_text(text, encoding="utf-8")
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot write the checkpoint to {folder}: {reason(error)}") from error


def shrink(folder: str | Path, out: str | Path, bits: Bits = 8) -> None:
    """Writes a copy of a checkpoint with its matrices in 8 or 4 bits, which `load` reads; other files are copied.

    Raises WeightsError for a checkpoint that cannot be read, or a folder that cannot be written.
    """
    where, out = locate(folder), Path(out)
    try:
        tensors = round_matrices(restore_matrices(FileTensors(where)), bits)
        out.mkdir(parents=True, exist_ok=True)
        for path in where.glob("*.json"):
            shutil.copyfile(path, out / path.name)
        with replacing(out / WEIGHTS) as weights:
            save_file(tensors, weights, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot write {folder} in {bits} bits to {out}: {reason(error)}") from error


def load(module: nn.Module, folder: str | Path, *, file: str = WEIGHTS, fit: Fit | None = None) -> dict[str, Any]:
    """Copies a checkpoint's weights into the module, in the module's dtype; returns the checkpoint's config.

    Strict: missing and unexpected names, wrong shapes and values that are not finite raise one WeightsError that lists
    them all, and the module is unchanged. `folder` may also be `zoo://name` or a Hugging Face Hub name, see `locate`;
    `file` is the name of the weights' file. `fit` may change the stored tensors first.
    """
    where = locate(folder)
    config = read_config(where)
    _refuse_pickles(where, file)
    stored, wanted = restore_matrices(FileTensors(where, file)), module.state_dict()
    if fit is not None:
        stored = fit(stored, wanted)
    if problems := _problems(wanted, stored):
        lines = "".join(f"\n  {line}" for line in problems)
        raise WeightsError(f"the weights in {where} do not fit:{lines}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(stored[name])
    return config


def read_config(folder: str | Path) -> dict[str, Any]:
    """The checkpoint's config.json, from which the module is built before its weights are loaded."""
    path = locate(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"cannot read {path}: {reason(error)}") from error
    if not isinstance(config, dict):
        raise WeightsError(f"cannot read {path}: it must hold a JSON object")
    return config


def shapes(folder: str | Path, *, file: str = WEIGHTS) -> dict[str, list[int]]:
    """The shapes of the stored tensors, by name, without reading the tensors."""
    where = locate(folder)
    _refuse_pickles(where, file)
    stored = FileTensors(where, file)
    return restore_shapes({name: stored.shape(name) for name in stored})


def has_weights(folder: Path, *, file: str = WEIGHTS, wanted: Callable[[str], bool] | None = None) -> bool:
    """Returns whether a folder holds weights, all or those wanted by name, in one file or in parts.

    Raises WeightsError for a missing part.
    """
    return bool(weight_files(folder, file, wanted))


def check(folder: str | Path, wanted: Mapping[str, Any], kind: str = "drafter") -> dict[str, Any]:
    """Returns the checkpoint's config after checking that it has the wanted values.

    Raises WeightsError with a list of all differences; `kind` names the checkpoint in the error.
    """
    config = read_config(folder)
    if problems := [f"\n  {line}" for line in contradictions(config, wanted)]:
        raise WeightsError(f"the {kind} in {folder} does not fit:{''.join(problems)}")
    return config


def contradictions(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The fields in which a stored config differs from the wanted values; `vocab_size` need only be akin."""
    pairs = ((name, stored.get(name), value) for name, value in wanted.items())
    return [
        f"{name}: the checkpoint has {found!r}, needed is {value!r}"
        for name, found, value in pairs
        if found != value and not (name == "vocab_size" and isinstance(found, int) and akin(found, value))
    ]


def target_shape(config: Any) -> dict[str, Any]:
    """The fields of the target's transformers config that a drafter's config records."""
    return {name: getattr(config, name) for name in ("hidden_size", "model_type", "vocab_size")}


def akin(size: int, other: int) -> bool:
    """Returns whether vocabularies of these sizes may be the same but for padding or added tokens of at most 1 %."""
    return abs(size - other) <= 0.01 * min(size, other)


def locate(name: str | Path, *, pickles: bool = False) -> Path:
    """The folder that a name refers to: a path, `zoo://name` (a registered model), or a Hub name `owner/name`.

    Hub snapshots are restricted to JSON and safetensors files; with `pickles`, the pickled files of a repository
    without safetensors are downloaded, for conversion. Raises WeightsError if nothing is found.
    """
    place = find_place(name)
    if isinstance(place, Path) and place.is_dir():
        return place
    if isinstance(place, str) and "/" in place:
        return _download(place, pickles)
    raise WeightsError(f"no checkpoint at {name}: give an existing folder, zoo://name or a Hub name")


def pickled(folder: Path) -> list[Path]:
    """The pickled weights in a folder."""
    found = (path for path in folder.iterdir() if path.suffix in PICKLED)
    return sorted(path for path in found if not any(path.match(name) for name in TRAINING))


class replacing:
    """A context that gives a temporary path next to `path` to write to, and renames it to `path` on success.

    The file gets the user's default permissions; safetensors alone would make it readable only by its owner.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")

    def __enter__(self) -> Path:
        """The path to write to."""
        self.temporary.touch()
        self.mode = self.temporary.stat().st_mode
        return self.temporary

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Renames the written file, or removes it after an error."""
        if error is not None:
            self.temporary.unlink(missing_ok=True)
            return
        with self.temporary.open("rb") as file:
            os.fsync(file.fileno())
        self.temporary.chmod(self.mode)
        self.temporary.replace(self.path)


def share(folder: str | Path) -> None:
    """Gives the files in a folder the default permissions; safetensors makes files readable only by their owner."""
    probe = Path(folder) / f".mode.{os.getpid()}{PART}"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for file in Path(folder).iterdir():
        if file.is_file():
            file.chmod(mode)


def remove_parts(folder: Path) -> None:
    """Removes unfinished files of killed processes in a folder that no process writes to now.

    Raises WeightsError if one cannot be removed.
    """
    try:
        for path in folder.glob(f".*{PART}"):
            if LEFT.fullmatch(path.name):
                path.unlink()
            elif path.name.startswith(UNFINISHED) and path.is_dir():
                shutil.rmtree(path)
    except OSError as error:
        raise WeightsError(f"cannot remove an unfinished file from {folder}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """Returns a short reason: the system's message for an OSError, otherwise the error's first line."""
    own = error.strerror if isinstance(error, OSError) else None
    return own or first_line(error)


def _stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A contiguous copy of the tensor on the host; tied tensors become separate copies."""
    to = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", to, copy=True).contiguous()


def _refuse_pickles(folder: Path, file: str) -> None:
    """Raises WeightsError for a folder that has pickled weights in place of the file."""
    if not weight_files(folder, file) and pickled(folder):
        raise WeightsError(
            f"{folder} holds no {file} but pickled weights, which are not read; convert them once: "
            "specframe import RECIPE drafter.weights=FOLDER --out NEW_FOLDER"
        )


def _problems(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> list[str]:
    """One line for each misfit of the stored tensors."""
    lines = [f"{name}: missing" for name in wanted if name not in stored]
    lines += [f"{name}: unexpected" for name in stored if name not in wanted]
    for name in wanted.keys() & stored.keys():
        have, want = stored[name], wanted[name]
        if have.shape != want.shape:
            lines.append(f"{name}: has shape {list(have.shape)}, should have {list(want.shape)}")
        elif not torch.isfinite(have.to(want.dtype)).all():  # a large value is infinite in float16
            lines.append(f"{name}: holds values that are not finite (NaN or infinity) in {want.dtype}")
    return sorted(lines)


def _download(name: str, pickles: bool) -> Path:
    """Downloads a Hub snapshot that holds weights; returns its folder."""
    folder = _snapshot(name, ["*.json", "*.safetensors"])
    if any(folder.glob("*.safetensors")):
        return folder
    if not pickles:
        raise WeightsError(
            f"{name} on the Hub has no safetensors file; if its weights are pickled (.bin, .pt), convert them once: "
            f"specframe import RECIPE drafter.weights={name} --out FOLDER"
        )
    folder = _snapshot(name, ["*.json", *(f"*{suffix}" for suffix in PICKLED)], ["*/*", *TRAINING])
    if pickled(folder):
        return folder
    raise WeightsError(f"{name} on the Hub has neither a safetensors file nor a pickled one ({', '.join(PICKLED)})")


def _snapshot(name: str, wanted: list[str], unwanted: list[str] | None = None) -> Path:
    """Downloads a Hub repository's files of these patterns; returns their folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=unwanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise WeightsError(
            f"no checkpoint {name!r}: no such folder, and the Hub does not give it ({reason(error)})"
        ) from error
