"""Which parts compose: checked before any model loads, with the sentence that says what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specframe.kernel.interfaces import TreePolicy, Verifier
from specframe.kernel.types import Draw


def misfits(
    name: str, drafter: Any, tree: TreePolicy | None, verifier: Verifier, parts: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What does not fit together, as (section, message). `drafter` may be its class: it is not built.

    A drafter that builds its own tree declares `draws`; otherwise the tree policy's draws count. A
    verifier must accept every draw that can occur, and may need exact recorded laws of sampled nodes, or their number
    settled.
    """
    own: frozenset[Draw] | None = getattr(drafter, "draws", None)
    if own is None and tree is None:
        yield "drafter", f"'{name}' grows a tree policy: add `tree: {{use: dynamic}}` or `{{use: chain}}`"
        return
    if own is not None and tree is not None:
        yield "tree", f"drafter '{name}' builds its own tree: remove the tree section"
        return
    draws = own if own is not None else tree.draws if tree is not None else frozenset()
    exact = tree is None or tree.exact
    verifier_name = parts["verifier"].entry.name if "verifier" in parts else type(verifier).__name__
    refused = sorted(draw.name.lower() for draw in draws - verifier.accepts)
    if refused:
        yield (
            "verifier",
            f"'{verifier_name}' is not lossless for nodes drawn {' or '.join(refused)}; "
            "`verifier: {use: match}` fits every draw",
        )
    sampled = draws - {Draw.TOP}
    if verifier.needs_exact and sampled and not exact:
        yield (
            "verifier",
            f"'{verifier_name}' needs the exact law of every sampled node, which this tree policy does not "
            "record; `verifier: {use: match}` needs none",
        )
    settled = getattr(drafter if tree is None else tree, "settled", False)
    if getattr(verifier, "needs_settled", False) and sampled and not settled:
        yield (
            "verifier",
            f"'{verifier_name}' judges siblings together and needs their number settled before the first is drawn, "
            "which this tree does not promise; `verifier: {use: recursive}` judges them one by one",
        )
    deepest, depth = getattr(drafter, "deepest", None), getattr(tree, "depth", None)
    if deepest is not None and depth is not None and depth > (most := parts["drafter"].value(deepest)):
        yield (
            "tree",
            f"drafter '{name}' has {most} {deepest} and drafts no deeper than {most} levels; "
            f"make the tree at most {most} deep, or train more {deepest}",
        )
