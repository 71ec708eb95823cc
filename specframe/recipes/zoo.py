"""Models that plugins register: `zoo://NAME` is a model's folder, or a method's drafter for the recipe's target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specframe.kernel.errors import PluginError
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registry

ZOO = "zoo://"


def model_folder(name: str, registry: Registry | None = None) -> Path:
    """The folder of the model `zoo://NAME`, downloaded first if its package does not contain it.

    Raises PluginError if no plugin has it, FetchError if it must be downloaded and cannot be reached.
    """
    registry = registry or discover()
    bare = name.removeprefix(ZOO)
    if not _has(registry, bare):
        _refuse_untrained(bare, registry)
    folder: Path = registry.find("model", bare).load()()
    return folder


def data_file(name: str, registry: Registry | None = None) -> Path:
    """The file of the texts `zoo://NAME`. Raises PluginError if no plugin has them."""
    file: Path = (registry or discover()).find("data", name.removeprefix(ZOO)).load()()
    return file


def fetch_model(model: object) -> None:
    """Downloads a model of the zoo that is not on this machine; ignores all other values.

    Raises FetchError if it cannot be reached.
    """
    if isinstance(model, str) and model.startswith(ZOO):
        model_folder(model)


def require_model(name: str, registry: Registry) -> None:
    """Raises PluginError for a name of the zoo that is not a complete model; ignores other names."""
    if not name.startswith(ZOO):
        return
    entry = registry.find("model", name.removeprefix(ZOO))
    if getattr(entry.load(), "method", None):
        raise PluginError(f"{name} is a drafter's weights, not a model: name it in drafter.weights")


def find_weights(weights: str, target: str | None, registry: Registry) -> str:
    """The name of the drafter that `weights` refers to for a target: `zoo://falcon` is `zoo://TARGET-falcon`.

    `target` is the target's `model`; a model of the Hub counts as its copy in the zoo. Names that are not methods, and
    methods for an unknown target, are returned unchanged.
    """
    method = weights.removeprefix(ZOO)
    if not weights.startswith(ZOO) or _has(registry, method):
        return weights
    known = _target_name(target, registry) if target is not None else None
    if known is None or all(method != each.method for each in _drafters(registry)):
        return weights
    trained = [each.name for each in _drafters(registry) if (each.method, each.target) == (method, known)]
    return ZOO + (trained[0] if trained else f"{known}-{method}")


def canonical_name(model: str, registry: Registry | None = None) -> str:
    """The name of the zoo's copy of a model, or the name itself if the zoo has none."""
    return _target_name(model, registry or discover()) or model


def _has(registry: Registry, name: str) -> bool:
    return any(entry.answers(name) for entry in registry.of("model"))


def _models(registry: Registry) -> Iterator[Any]:
    """Yields the registered models that can be imported."""
    for entry in registry.of("model"):
        try:
            yield entry.load()
        except PluginError:
            continue


def _drafters(registry: Registry) -> Iterator[Any]:
    """The models that are drafters: they have a `name`, a `method`, and the `target` that they were trained for."""
    return (model for model in _models(registry) if getattr(model, "method", None))


def _target_name(model: str, registry: Registry) -> str | None:
    """The registered name of a target, given `zoo://NAME` or the Hub name that a registered model is a copy of."""
    if model.startswith(ZOO):
        return model.removeprefix(ZOO).rpartition("/")[2]
    return next((each.name for each in _models(registry) if model in getattr(each, "same_as", ())), None)


def _refuse_untrained(name: str, registry: Registry) -> None:
    """Raises PluginError, with a list of the trained drafters, for the name of a drafter that does not exist."""
    drafters = list(_drafters(registry))
    methods = {each.method for each in drafters if f"-{name}".endswith(f"-{each.method}")}
    if not methods:
        return
    method = max(methods, key=len)
    target = name.removesuffix(method).rstrip("-") or "this target"
    trained = ", ".join(f"{ZOO}{each.name}" for each in drafters if each.method == method)
    raise PluginError(
        f"no drafter of the method '{method}' is trained for {target} (there are {trained}); "
        "`specframe train RECIPE` trains one, and `drafter.weights=FOLDER` uses it"
    )
