"""The target that a drafter was trained for: its identity, recorded in the drafter's config.json, and its tokens."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe.kernel.errors import WeightsError
from specframe.neural.weights.checkpoint import CONFIG, akin, locate, read_config, reason, replacing
from specframe.neural.weights.locate import find_place
from specframe.recipes.zoo import ZOO, canonical_name

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Target


@dataclass(frozen=True)
class TargetIdentity:
    """A target's name and a hash of the values that rounding its matrices does not change."""

    name: str
    """Name in the zoo or on the Hub; for a folder or file, its name without the path."""
    fingerprint: str

    def is_of(self, other: TargetIdentity) -> bool:
        """Returns whether both are the same model: equal fingerprints, or equal names in the zoo or on the Hub.

        A copy in the zoo counts as the Hub's model.
        """
        if self.fingerprint == other.fingerprint:
            return True
        return "/" in self.name and canonical_name(self.name) == canonical_name(other.name)


def identity_of(target: Target) -> TargetIdentity | None:
    """The identity of a target's model, from its method `identify`; None for a target without one."""
    identify: Callable[[], TargetIdentity] | None = getattr(target, "identify", None)
    return None if identify is None else identify()


TRAINED_FOR = "trained_for"
"""The entry of config.json: the target's name and fingerprint."""
SHAPE = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")


def record_target(folder: Path, target: Target) -> None:
    """Records the target in a drafter's config.json, if the target has an identity.

    Raises WeightsError if the folder cannot be written; then the config is unchanged.
    """
    own = identity_of(target)
    if own is None:
        return
    config = read_config(folder) | {TRAINED_FOR: asdict(own)}
    try:
        with replacing(folder / CONFIG) as words:
            words.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise WeightsError(f"cannot write the checkpoint to {folder}: {reason(error)}") from error


def trained_for_another(weights: str | Path, target: Target) -> str | None:
    """The name of the target that a drafter was trained for, if it is known to be another one; None otherwise.

    Raises WeightsError for a Hub name that is not found.
    """
    place = find_place(weights)
    if not hasattr(target, "identify") or (isinstance(place, Path) and not (place / CONFIG).is_file()):
        return None
    theirs = _read(read_config(weights))
    if theirs is None or (own := identity_of(target)) is None or theirs.is_of(own):
        return None
    return theirs.name


def warn_of_another(part: str, weights: str | Path, target: Target) -> None:
    """Logs a warning if the weights were trained for another target."""
    theirs = trained_for_another(weights, target)
    if theirs is not None and (own := identity_of(target)) is not None:
        logging.getLogger(__name__).warning(
            "the %s in %s was trained for the target %s, and this one is %s: few drafts will be accepted",
            *(_shown(text) for text in (part, str(weights), theirs, own.name)),
        )


def _read(config: dict[str, Any]) -> TargetIdentity | None:
    """The identity in a config; None if it is missing or has another form."""
    found = config.get(TRAINED_FOR)
    values = [found.get(name) for name in ("name", "fingerprint")] if isinstance(found, dict) else []
    if not values or not all(isinstance(value, str) for value in values):
        return None
    return TargetIdentity(*map(str, values))


def _shown(text: str) -> str:
    """An untrusted name with its control characters escaped."""
    return text if text.isprintable() else ascii(text)


def require_vocabulary(folder: str | Path, vocab: int) -> None:
    """Raises WeightsError for a drafter whose config has another family's vocabulary size."""
    theirs = read_config(folder).get("vocab_size") if (locate(folder) / CONFIG).is_file() else None
    if isinstance(theirs, int) and not akin(theirs, vocab):
        raise WeightsError(
            f"the drafter in {folder} was trained for a target of {theirs:,} tokens, and this target has {vocab:,}; "
            "name the drafter of this target, or train one"
        )


@dataclass
class KnownRows:
    """Fits stored tensors with a row for each token to another padding of the vocabulary.

    Rows beyond `vocab` are dropped, and missing ones are 0.
    """

    vocab: int
    known: int | None = None
    """Number of first tokens that all of them have a row for; None: all tokens."""

    def __call__(self, stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of `stored`; those with `vocab` rows in `wanted` get that number of rows."""
        return {name: self._fit(tensor, wanted[name]) if name in wanted else tensor for name, tensor in stored.items()}

    def _fit(self, stored: Tensor, wanted: Tensor) -> Tensor:
        rows, *others = stored.shape or (0,)
        if wanted.shape != (self.vocab, *others) or not akin(rows, self.vocab):
            return stored
        if rows < self.vocab:
            self.known = min(rows, self.known or rows)
        return torch.cat([stored[: self.vocab], stored.new_zeros(max(self.vocab - rows, 0), *others)])


def identify(model: nn.Module, config: Any, name: str | None) -> TargetIdentity:
    """The identity of a model with this text config; `name` is the requested name, None for a model in memory."""
    given = name or getattr(model, "name_or_path", None) or f"a {config.model_type} model in memory"
    return TargetIdentity(_bare(str(given)), fingerprint(model, config))


@torch.no_grad()
def fingerprint(model: nn.Module, config: Any) -> str:
    """A hash of the model's shape and norms.

    Norms are small, differ after every training, and are never quantized. They are hashed in bfloat16, so that a copy
    in another dtype has the same fingerprint.
    """
    digest = hashlib.sha256(repr([getattr(config, name, None) for name in SHAPE]).encode())
    for module in model.modules():
        weight = dict(module.named_parameters(recurse=False)).get("weight")  # attribute access would unpack it
        if weight is not None and weight.dim() == 1:
            digest.update(weight.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _bare(name: str) -> str:
    """The name in the zoo or on the Hub; for a folder or file its own name, without the path."""
    if name.startswith(ZOO) or not isinstance(find_place(name), Path):
        return name
    return Path(name).expanduser().resolve().name
