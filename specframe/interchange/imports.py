"""Import of a published drafter to a folder: loaded, checked against its target, written, and read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from specframe.files.provenance import PROVENANCE, describe_run, read_training, write_json
from specframe.interchange.pickles import convert, pickled
from specframe.kernel.errors import InputError, WeightsError
from specframe.kernel.interfaces import Target
from specframe.kernel.training import FeatureDrafter, Trainable
from specframe.neural import LAYER_FIELDS, checkpoint
from specframe.neural.heads import support_of
from specframe.recipes.build import Part, Plan

ROUNDED = 0.01
"""Largest relative difference between the values loaded and those read back; rounding to bfloat16 is below it."""
LEFT_OUT = frozenset(LAYER_FIELDS) | {"rope_parameters", "rope_scaling", "torch_dtype"}
"""Entries of config.json that the checklist omits: the layers' shape, which follows from the target."""


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    name: str
    """The drafter that reads it."""
    numbers: int
    checklist: tuple[tuple[str, str], ...]


def bring_in(plan: Plan, out: Path) -> Imported:
    """Loads the drafter that the plan names, and writes it to a folder as specframe stores it.

    The written folder is read back and compared. Raises InputError if no weights are named or the folder has another
    checkpoint, and WeightsError for weights that do not fit, or that do not read back equal.
    """
    part = plan.parts["drafter"]
    name, weights = part.entry.name, part.options.get("weights")
    if not weights:
        raise InputError(f"the recipe names no weights of the drafter {name!r}: give drafter.weights=FOLDER")
    if (out / checkpoint.CONFIG).exists() and not (out / PROVENANCE).exists():
        raise InputError(f"{out} holds a checkpoint that was not imported here; give another --out")
    source = checkpoint.locate(weights, pickles=True)
    if out.resolve() == source.resolve():
        raise InputError(f"{out} is the folder that is read; give another --out")
    trained = read_training(source)
    target: Target = plan.parts["target"].build()
    with TemporaryDirectory() as scratch:
        files = pickled(source)
        if files:
            convert(files, Path(scratch))
        drafter = _bound(part, scratch if files else weights, target)
        if not isinstance(drafter, Trainable):
            raise InputError(f"the drafter {name!r} has no weights to store")
        drafter.save(out)
    stored = drafter.module.state_dict()
    back = _compare(stored, _bound(part, str(out), target).module.state_dict(), out)
    facts = {"read_from": str(weights), "converted": [path.name for path in files], "sha256": dict(_hashes(out))}
    write_json(out / PROVENANCE, describe_run(plan, facts | {"trained": trained}))
    checklist = tuple(_checklist(name, drafter, target, out, back, [path.name for path in files]))
    return Imported(name, sum(tensor.numel() for tensor in stored.values()), checklist)


def _bound(part: Part, weights: str, target: Target) -> Any:
    """Returns the recipe's drafter with these weights, bound to the target."""
    drafter = replace(part, options={**part.options, "weights": weights}).build()
    drafter.bind(target)
    return drafter


def _compare(read: Mapping[str, Tensor], again: Mapping[str, Tensor], out: Path) -> str:
    """Compares the values read back with the loaded ones. Raises WeightsError if they differ by more than rounding."""
    if read.keys() != again.keys():
        raise WeightsError(f"{out} does not give back what was read: other tensors come back")
    apart = [name for name in read if not torch.equal(read[name], again[name])]
    if not apart:
        return "the same, bit by bit"
    for name in apart:
        wanted, found = read[name].double(), again[name].double()
        if wanted.shape != found.shape or (wanted - found).norm() > ROUNDED * wanted.norm():
            raise WeightsError(f"{out} does not give back what was read: {name} differs")
    return f"rounded, as this drafter is stored: {len(apart)} of {len(read)} tensors"


def _hashes(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.glob("*.safetensors")):
        yield path.name, hashlib.sha256(path.read_bytes()).hexdigest()


def _checklist(
    name: str, drafter: Any, target: Any, out: Path, back: str, files: list[str]
) -> Iterator[tuple[str, str]]:
    """Yields the facts that every drafter has, and the entries of the config that was written."""
    yield "drafter", name
    if files:
        yield "converted from", ", ".join(files)
    config = getattr(target, "config", None)
    layers = getattr(config, "num_hidden_layers", None)
    shape = "" if layers is None else f", {layers} layers"
    yield "target", f"{target.vocab_size:,} tokens{shape}"
    if isinstance(drafter, FeatureDrafter):
        yield "reads", ", ".join(_tap(tap) for tap in drafter.spec.taps)
    depth = drafter.promise.depth
    yield "drafts", "a level a forward pass, to any depth" if depth is None else f"{depth} levels at most"
    support = support_of(drafter)
    rows = target.vocab_size if support is None else len(support)
    yield "draft vocabulary", f"{rows:,} of {target.vocab_size:,} tokens"
    tensors = list(drafter.module.state_dict().values())
    yield "tensors", str(len(tensors))
    yield from _entries(json.loads((out / checkpoint.CONFIG).read_text(encoding="utf-8")))
    yield "read back", back


def _tap(tap: str) -> str:
    """Describes a feature of the target in words."""
    if tap == "last":
        return "the last hidden state, after the final norm"
    return f"the output of layer {tap.partition('.')[2]}, counted from 0" if tap.startswith("layer.") else tap


def _entries(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the entries of a config other than the layers' shape, nested ones by dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping) and name not in LEFT_OUT:
            yield from _entries(value, f"{prefix}{name}.")
        elif name not in LEFT_OUT and value is not None:
            yield f"{prefix}{name}", json.dumps(value)
