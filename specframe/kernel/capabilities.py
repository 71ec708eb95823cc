"""Capabilities: promises of drafts, needs of verifiers, small and untrained forms of parts, abilities of targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from specframe.kernel.tree import ALL_DRAWS, Draw

if TYPE_CHECKING:
    from torch import Tensor

PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Promise:
    """Guarantees about every draft of a part: a tree policy, or a drafter that builds its own trees.

    A drafter that grows the recipe's tree policy leaves `draws` and `nodes` to it.
    """

    draws: frozenset[Draw] | None = None
    """The draws that nodes may have; None: the tree policy's."""
    nodes: int | None = None
    """The most nodes, the root included; None: the tree policy's."""
    depth: int | None = None
    """The most levels below the root; None: no limit of its own."""
    block: int = 1
    """Number of levels that a drafter's forward pass proposes below each node that it expands."""
    window: int | None = None
    """Number of newest committed tokens that a drafter sees, more than its trees have levels; None: all."""
    exact: bool = True
    """True if the recorded law of every sampled node is exact, with fresh noise."""
    fixed_sibling_count: bool = False
    """True if at every node the number of siblings is fixed before the first of them is drawn."""
    row_independent: bool = True
    """True if a row's draft depends on that row alone. Otherwise the distribution of a row's output is unchanged, but
    its sample depends on other rows unless the verifier draws by position, as `match` does."""
    uses_target_layers: bool = False
    """True if drafting runs layers of the target or reads its keys and values: then it can neither overlap with
    scoring nor run on another device."""
    overlaps_scoring: bool = False
    """True if a draft may be drawn while the target scores the one before it: a random draft then has the law of one
    drawn now, with different noise."""

    needs_all_scores: bool = False
    """True if a drafter learns from the scores of its whole draft, so that forbidden nodes are scored, too."""

    path_in_frontier: bool = False
    """True for a drafter whose frontiers may hold several nodes of a path, each after its parent. This excludes
    drafters that feed a node with the prediction at its parent."""

    @property
    def complete(self) -> bool:
        """True if the part builds whole trees: a tree policy, or a drafter that needs none."""
        return self.draws is not None and self.nodes is not None

    @property
    def sampled(self) -> bool:
        """True if a node may be drawn at random."""
        return bool((self.draws or frozenset()) - {Draw.TOP})


@dataclass(frozen=True)
class Needs:
    """Requirements of a verifier on every draft for it to be lossless."""

    draws: frozenset[Draw] = ALL_DRAWS
    """The draws it is lossless for."""
    exact: bool = False
    """True if sampled nodes must come with their exact recorded law."""
    fixed_sibling_count: bool = False
    """True if the number of siblings must be fixed before the first is drawn, since siblings are judged together."""
    by_position: bool = False
    """True if it draws one token for each position of the text, from noise that belongs to the position."""

    def misfits(self, verifier: str, draft: Promise) -> Iterator[str]:
        """Yields the requirements that a draft lacks, each as a sentence that names what would fit."""
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
        if self.fixed_sibling_count and draft.sampled and not draft.fixed_sibling_count:
            yield (
                f"'{verifier}' judges siblings together and needs their number settled before the first is drawn, "
                "which this tree does not promise; `verifier: {use: recursive}` judges them one by one"
            )


@runtime_checkable
class Shrinkable(Protocol):
    """A tree policy that has a small form, or a drafter that builds its own trees and has one."""

    def smaller(self) -> Self:
        """A copy with at most two levels, two children a node and four drafted nodes; this part is unchanged."""
        ...


@runtime_checkable
class Untrained(Protocol):
    """A drafter, head, verifier or store made for one target that has a form for any other, such as a tiny one."""

    def untrained(self, vocab: int) -> Self:
        """A copy, not yet bound, without trained weights or tables, for a target of `vocab` tokens."""
        ...


def small_form(part: PartT) -> PartT:
    """The small form of a part; the part itself if it has none."""
    small: PartT = part.smaller() if isinstance(part, Shrinkable) else part
    return small


def untrained_form(part: PartT, vocab: int) -> PartT:
    """The untrained form of a part for a target of `vocab` tokens; the part itself if it has none."""
    untrained: PartT = part.untrained(vocab) if isinstance(part, Untrained) else part
    return untrained


class ImageReader(Protocol):
    """The processor of a target: converts texts with images into token ids and further inputs."""

    def read_turns(
        self, turns: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[list[int], dict[str, Tensor]]:
        """Reads a conversation whose contents are texts, or lists of parts with images among them."""
        ...

    def read_text(self, text: str, images: Sequence[Any]) -> tuple[list[int], dict[str, Tensor]]:
        """Reads a text after images."""
        ...


def is_approximate(target: object) -> bool:
    """Returns whether a target's distribution is not that of its model, so that no verifier makes it lossless.

    A target that may read less than all of a prompt states by `approximate` that it does.
    """
    return getattr(target, "approximate", False) is True


class DelegatingTarget:
    """Delegates all that a subclass does not define to another target, and implements the same protocols.

    From Python 3.12 on, isinstance looks up a protocol's members without calling `__getattr__`. So each object gets
    its own subclass, which defines every public name of the other target. If a subclass defines `score`, `choose`
    calls it.
    """

    def __new__(cls, target: object, *arguments: Any, **options: Any) -> Self:
        """An object whose class has the target's public names, too."""
        kind: Any = cls
        made: Self = object.__new__(_with_names(kind, frozenset(name for name in dir(target) if name[0] != "_")))
        return made

    def __init__(self, target: object) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:  # attributes that the target got after this object was made
        return getattr(self._target, name)


class _Delegated:
    """A delegated name of the other target; assigning to it changes the delegating object alone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: DelegatingTarget, owner: type) -> Any:
        return getattr(instance._target, self._name)


@cache
def _with_names(cls: type[DelegatingTarget], names: frozenset[str]) -> type[Any]:
    """A subclass with the name of `cls` and these further attributes."""
    further: dict[str, Any] = {name: _Delegated(name) for name in sorted(names) if not hasattr(cls, name)}
    if "choose" in further and hasattr(cls, "score"):
        further["choose"] = lambda self, tree: self.score(tree)
    return type(cls.__name__, (cls,), further | {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
