"""Composition of parts: their drafts, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import CompositionError, SpecframeError
from specframe.kernel.interfaces import Drafter, Target, TreePolicy, Verifier

if TYPE_CHECKING:
    import torch


@runtime_checkable
class FeatureVerifier(Protocol):
    """A verifier that reads the target's features: its laws have those that it declares."""

    taps: frozenset[str]
    """The target features it reads."""

    def bind(self, target: Target) -> None:
        """Loads its weights, and checks that they are this target's; the taps were requested before.

        Its constructor opens no file, as a drafter's opens none.
        """
        ...


@runtime_checkable
class Relaxed(Protocol):
    """A lossy verifier that is lossless at one end of its options, as leniency 1: a certificate runs that form, too."""

    def strict(self) -> Verifier:
        """The same rule, bound as this one is, where it is lossless."""
        ...


@runtime_checkable
class TimedDrafter(Protocol):
    """A drafter around others, one of which is timed in its place for `run.costs`."""

    def timed(self) -> tuple[Drafter, TreePolicy | None]:
        """The drafter whose forward passes are timed, and the tree policy that it grows, if it grows one."""
        ...


@runtime_checkable
class DistantDrafter(Protocol):
    """A drafter on a device of its own."""

    @property
    def places(self) -> tuple[torch.device, torch.device]:
        """The target's device and the drafter's."""
        ...


def will_approximate(target: Any) -> bool:
    """Returns whether a target, as a plan's `Part`, is approximate once it is built (`ApproximateTarget`)."""
    options = [target.options.get(name) for name in ("prompt", "keep")]
    return options != [None, None] or getattr(target.component, "approximate", None) is True


def draft_of(drafter: Drafter, tree: TreePolicy | None) -> Promise:
    """Returns the promise of a composition's drafts: the drafter's own, or that of the tree policy that it grows."""
    if tree is None or drafter.promise.complete:
        return drafter.promise
    own = drafter.promise
    return replace(
        tree.promise,
        row_independent=tree.promise.row_independent and own.row_independent,
        uses_target_layers=own.uses_target_layers,
        needs_all_scores=own.needs_all_scores,
    )


def misfits(
    drafter: Drafter, tree: TreePolicy | None, verifier: Verifier, *, names: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """Yields the parts that do not fit together, as (section, message), given the `names` of drafter and verifier."""
    name, rule = names
    for section, part, attribute in (
        ("drafter", drafter, "promise"),
        ("tree", tree, "promise"),
        ("verifier", verifier, "needs"),
    ):
        if part is not None and not hasattr(part, attribute):
            yield (
                section,
                f"'{type(part).__name__}' has no `{attribute}`: see what a {section} declares in its interface",
            )
            return
    verify = getattr(verifier, "verify", None)
    if verify is not None and "p" in signature(verify).parameters:  # the second one's name in release 0.2
        yield "verifier", f"'{rule}' is written for release 0.2: `verify` takes (tree, laws, random); let p = laws.all"
        return
    if tree is None and not drafter.promise.complete:
        yield "drafter", f"'{name}' grows a tree policy: add `tree: {{use: dynamic}}` or `{{use: chain}}`"
        return
    if tree is not None and drafter.promise.complete:
        yield "tree", f"drafter '{name}' builds its own tree: remove the tree section"
        return
    for message in verifier.needs.misfits(rule, draft_of(drafter, tree)):
        yield "verifier", message
    reach, depth = drafter.promise.depth, tree.promise.depth if tree is not None else None
    if reach is not None and depth is not None and depth > reach:
        yield (
            "tree",
            f"drafter '{name}' drafts no deeper than {reach} levels, and the tree has {depth}: "
            f"make the tree at most {reach} deep, or train a drafter for {depth} levels",
        )
    if (window := drafter.promise.window) is not None and depth is not None and window <= depth:
        yield (
            "drafter",
            f"'{name}' sees a window of {window} tokens, and the tree is {depth} deep: "
            f"make the window {depth + 1} or more",
        )


def attach(verifier: Verifier, target: Target) -> None:
    """Requests what a verifier reads of the target, and binds it; one that reads no features stays as it is.

    Raises CompositionError for a target without these features.
    """
    if not isinstance(verifier, FeatureVerifier):
        return
    try:
        target.request(verifier.taps)
    except SpecframeError as error:
        raise CompositionError(
            f"the verifier {type(verifier).__name__} reads features of the target: {error}"
        ) from error
    verifier.bind(target)
