"""Capabilities of parts as values, and the check that parts compose, made before any model loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from specframe.kernel.interfaces import Drafter, TreePolicy, Verifier
from specframe.kernel.types import ALL_DRAWS, Draw


@dataclass(frozen=True)
class Promise:
    """What every draft of a part is: of a tree policy, or of a drafter that builds its own trees.

    A drafter that grows the recipe's tree policy leaves `draws` and `nodes` to it.
    """

    draws: frozenset[Draw] | None = None
    """The draws that nodes may have; None: the tree policy's."""
    nodes: int | None = None
    """The most nodes, the root included; None: the tree policy's."""
    depth: int | None = None
    """The most levels below the root; None: no limit of its own."""
    exact: bool = True
    """Whether the recorded law of every sampled node is exact, with fresh noise."""
    settled: bool = False
    """Whether at every node the number of siblings is settled before the first of them is drawn."""
    alone: bool = True
    """Whether a row's draft follows from that row alone. Where it depends on the other rows, the distribution of what a
    row emits is the same; its sample is its own only if the verifier draws by position, as `match` does."""

    @property
    def complete(self) -> bool:
        """Whether the part builds whole trees: a policy does, and a drafter that needs none."""
        return self.draws is not None and self.nodes is not None

    @property
    def sampled(self) -> bool:
        """Whether a node may be drawn at random."""
        return bool((self.draws or frozenset()) - {Draw.TOP})


def draft_of(drafter: Drafter, tree: TreePolicy | None) -> Promise:
    """What the drafts of a composition are: a drafter's own, or those of the tree policy that it grows."""
    if tree is None or drafter.promise.complete:
        return drafter.promise
    return replace(tree.promise, alone=tree.promise.alone and drafter.promise.alone)


@dataclass(frozen=True)
class Needs:
    """What a verifier needs of every draft, in order to be lossless."""

    draws: frozenset[Draw] = ALL_DRAWS
    """The draws it is lossless for."""
    exact: bool = False
    """Whether sampled nodes must come with their exact recorded law."""
    settled: bool = False
    """Whether the number of siblings must be settled before the first is drawn, since it judges them together."""
    by_position: bool = False
    """Whether it draws one token for each position of the text, from noise that belongs to the position."""

    def misfits(self, verifier: str, draft: Promise) -> Iterator[str]:
        """What a draft lacks, each as a sentence that names what would fit."""
        if refused := sorted(draw.name.lower() for draw in (draft.draws or frozenset()) - self.draws):
            yield (
                f"'{verifier}' is not lossless for nodes drawn {' or '.join(refused)}; "
                "`verifier: {use: match}` fits every draw"
            )
        if self.exact and draft.sampled and not draft.exact:
            yield (
                f"'{verifier}' needs the exact distribution of every sampled node, which this tree policy does not "
                "record; `verifier: {use: match}` needs none"
            )
        if self.settled and draft.sampled and not draft.settled:
            yield (
                f"'{verifier}' judges siblings together and needs their number settled before the first is drawn, "
                "which this tree does not promise; `verifier: {use: recursive}` judges them one by one"
            )


def misfits(
    drafter: Drafter, tree: TreePolicy | None, verifier: Verifier, *, names: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """What does not fit together, as (section, message), given the `names` of drafter and verifier."""
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
