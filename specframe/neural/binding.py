"""What a neural drafter is bound to and drafts with: the target, its own network, and the session of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import NeuralTarget, Target, TreePolicy
from specframe.kernel.types import Committed


class Session(Protocol):
    """The decoding state of a batch of rows, from their prompts on."""

    def commit(self, news: Committed) -> None:
        """Takes in what was committed."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        ...


NetworkT = TypeVar("NetworkT", bound=nn.Module)
SessionT = TypeVar("SessionT", bound=Session)


class Binding(Generic[NetworkT, SessionT]):
    """A drafter's target and network, there from `bind` on, and its session, there from the first commit on.

    What is asked for before it is there raises CompositionError in the drafter's name.
    """

    def __init__(self, drafter: str) -> None:
        self.drafter = drafter
        self._bound: tuple[NeuralTarget, NetworkT] | None = None
        self._session: SessionT | None = None

    def bind(self, target: NeuralTarget, network: NetworkT) -> None:
        """Takes a target and a network; the session of earlier ones ends."""
        self._bound = target, network
        self._session = None

    @property
    def target(self) -> NeuralTarget:
        """The target."""
        return self._both()[0]

    @property
    def network(self) -> NetworkT:
        """The network."""
        return self._both()[1]

    @property
    def module(self) -> nn.Module:
        """The network, to be trained; an empty module before bind."""
        return nn.Module() if self._bound is None else self._bound[1]

    @property
    def session(self) -> SessionT:
        """The session."""
        if self._session is None:
            raise CompositionError(f"drafter {self.drafter} was asked for a draft before anything was committed")
        return self._session

    def open(self) -> None:
        """Ends the session at hand; the next commit starts a new one."""
        self._session = None

    @torch.no_grad()
    def commit(self, news: Committed, start: Callable[[int], SessionT]) -> None:
        """Commits to the session; `start` makes one of so many rows for the first commit."""
        if self._session is None:
            self._session = start(len(news.count))
        self._session.commit(news)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the session's batch, int64 [R], in this order."""
        if self._session is not None:
            self._session.keep(rows)

    def _both(self) -> tuple[NeuralTarget, NetworkT]:
        if self._bound is None:
            raise CompositionError(f"drafter {self.drafter} was used before bind(target)")
        return self._bound


def neural_target(target: Target, drafter: str) -> NeuralTarget:
    """The target itself, if it is a neural one. Raises CompositionError in the drafter's name otherwise."""
    if not isinstance(target, NeuralTarget):
        raise CompositionError(
            f"drafter {drafter} reads a neural target's features, and {type(target).__name__} has none; "
            "use the target hf, or a drafter such as lookup"
        )
    return target


def tree_policy(tree: TreePolicy | None, drafter: str) -> TreePolicy:
    """The tree policy itself, if there is one. Raises CompositionError in the drafter's name otherwise."""
    if tree is None:
        raise CompositionError(f"drafter {drafter} needs a tree policy, such as fixed, dynamic or chain")
    return tree


def too_deep(drafter: str, heads: int) -> CompositionError:
    """The error of a tree that is deeper than the drafter, with a head per level, has heads."""
    return CompositionError(
        f"drafter {drafter} has {heads} heads and drafts no deeper than {heads} levels; "
        f"make the tree at most {heads} deep, or train more heads"
    )
