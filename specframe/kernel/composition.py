"""Composition of parts: their drafts, and whether they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import CompositionError, SpecframeError
from specframe.kernel.interfaces import Drafter, Target, TreePolicy, Verifier

if TYPE_CHECKING:
    import torch


def report_of(drafter: Drafter) -> dict[str, dict[str, float]]:
    """Figures of a drafter's own work so far, from its method `report`: by name, under the name of a part.

    Empty before the first draft, and for a drafter without the method. `specframe run` prints them.
    """
    report: Callable[[], Mapping[str, Mapping[str, float]]] | None = getattr(drafter, "report", None)
    return {} if report is None else {part: dict(figures) for part, figures in report().items()}


def timed_in(drafter: Drafter, tree: TreePolicy | None) -> tuple[Drafter, TreePolicy | None]:
    """The drafter whose forward passes are timed for `run.costs`, and the tree policy that it grows, if any.

    A drafter around others names both by its method `timed`; any other is timed itself.
    """
    timed: Callable[[], tuple[Drafter, TreePolicy | None]] | None = getattr(drafter, "timed", None)
    return (drafter, tree) if timed is None else timed_in(*timed())


def devices_of(drafter: Drafter) -> tuple[torch.device, torch.device] | None:
    """The target's device and the drafter's, by the `places` of a drafter on another device; None for others."""
    return getattr(drafter, "places", None)


def strict_form(verifier: Verifier) -> Verifier | None:
    """The lossless form of a lossy verifier, bound as it is, from its method `strict`; None without one.

    It is the rule at one end of its options, such as a leniency of 1; a certificate runs this form, too.
    """
    strict: Callable[[], Verifier] | None = getattr(verifier, "strict", None)
    return None if strict is None else strict()


def taps_of(verifier: Verifier) -> frozenset[str]:
    """The target features that a verifier reads from its laws, from its `taps`; empty for most."""
    return getattr(verifier, "taps", frozenset())


def will_approximate(target: Any) -> bool:
    """Returns whether a target, as a plan's `Part`, is approximate once it is built: see `is_approximate`."""
    options = [target.options.get(name) for name in ("prompt", "keep")]
    return options != [None, None] or getattr(target.component, "approximate", None) is True


def draft_of(drafter: Drafter, tree: TreePolicy | None) -> Promise:
    """Returns the promise of a composition's drafts: the drafter's own, or that of the tree policy that it grows."""
    if tree is None or drafter.promise.complete:
        return drafter.promise
    own = drafter.promise
    return replace(
        tree.promise,
        block=own.block,
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
    if verify is not None and "p" in signature(verify).parameters:  # the second parameter's name in release 0.2
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
    """Requests the target's features that a verifier reads, and calls its `bind`; does nothing for other verifiers.

    `bind(target)` loads the weights and checks that they were made for this target: a constructor opens no file.

    Raises CompositionError for a target without these features.
    """
    bind: Callable[[Target], None] | None = getattr(verifier, "bind", None)
    if bind is None or not hasattr(verifier, "taps"):
        return
    try:
        target.request(taps_of(verifier))
    except SpecframeError as error:
        raise CompositionError(
            f"the verifier {type(verifier).__name__} reads features of the target: {error}"
        ) from error
    bind(target)
