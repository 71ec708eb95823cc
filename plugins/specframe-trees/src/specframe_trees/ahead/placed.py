"""A drafter on another device: committed tokens are moved there once per cycle, and its draft is moved back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from specframe import CompositionError
from specframe.neural import DivisibleTarget, Quantization
from specframe.plugin import (
    Committed,
    Context,
    Cycle,
    DelegatingTarget,
    Drafter,
    NeuralTarget,
    Observer,
    PartialHead,
    Promise,
    RandomSource,
    SamplingRule,
    Target,
    TokenTree,
    TreePolicy,
    drafting_ahead,
    find_device,
    small_form,
    text_of,
    untrained_form,
)

ValueT = TypeVar("ValueT")


class Placed:
    """Another drafter, run on a device of its own, as in Dovetail (Zhang et al. 2024, arXiv 2412.18934).

    Commits, the features that it reads, and its drafts are moved once per cycle. If a token is drawn at random, its
    distribution is moved, too, so that random numbers are drawn in one place. The target's embedding and LM head are
    copied to the drafter's device if it uses them. The draft equals that of the drafter on the target's device, up to
    rounding differences between devices.

    Options:
        device: the drafter's device, such as cuda:0 or cpu
        drafter: the drafter; a `model` with `device: auto` is placed there, too
    """

    def __init__(self, *, device: str, drafter: Drafter) -> None:
        if drafter.promise.uses_target_layers:
            raise CompositionError(
                "the drafter of placed runs on a device of its own, so it cannot run the target's layers nor read its "
                "keys and values; try a `model` or `eagle`"
            )
        self.device, self.drafter = device, drafter
        self._sides: tuple[torch.device, torch.device] | None = None

    @property
    def promise(self) -> Promise:
        """The drafter's promise."""
        return self.drafter.promise

    @property
    def taps(self) -> frozenset[str]:
        """Target features that the drafter reads."""
        return self.drafter.taps

    def untrained(self, vocab: int) -> Placed:
        """Returns a copy on a CPU, with its drafter for a target of `vocab` tokens."""
        return Placed(device="cpu", drafter=untrained_form(self.drafter, vocab))

    def smaller(self) -> Placed:
        """Returns a copy around the drafter's small form, if it has one."""
        return Placed(device=self.device, drafter=small_form(self.drafter))

    def bind(self, target: Target) -> None:
        """Binds the drafter to a view of the target from its device.

        Raises InputError for a device that does not exist.
        """
        away = torch.empty(0, device=find_device(self.device)).device  # including its index
        home = text_of(target).device or torch.device("cpu")
        self._sides = home, away
        self.drafter.bind(cast("Target", seen_from(target, away)))

    @property
    def places(self) -> tuple[torch.device, torch.device]:
        """The target's device and the drafter's."""
        if self._sides is None:
            raise CompositionError("drafter placed was used before bind(target)")
        return self._sides

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self.drafter.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the drafter's draft below root [B].

        Raises CompositionError for a tree policy that stores its observations on the target's device.
        """
        home, away = self.places
        if isinstance(tree, Observer) and home != away:
            raise CompositionError(
                f"the tree policy {type(tree).__name__} observes cycles on the target's device, and drafter placed "
                "grows its trees on another; try `dynamic` or `chain`"
            )
        draft = self.drafter.propose(carry(root, away), tree, self._context(context))
        return carried(draft, home)

    def run_ahead(self, draft: TokenTree, context: Context) -> None:
        """Lets the drafter draft ahead, if it can."""
        run_ahead = drafting_ahead(self.drafter)
        assert run_ahead is not None, "its promise is the drafter's"
        run_ahead(carried(draft, self.places[1]), self._context(context))

    def commit(self, committed: Committed) -> None:
        """Moves the committed tokens, and the features that the drafter reads, to its device and commits them."""
        features = {tap: values for tap, values in committed.features.items() if tap in self.drafter.taps}
        self.drafter.commit(carried(replace(committed, features=features), self.places[1]))

    def observe(self, cycle: Cycle) -> None:
        """Moves the cycle to the device of a drafter that observes."""
        if isinstance(self.drafter, Observer):
            self.drafter.observe(carried(cycle, self.places[1]))

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.drafter.keep(carry(rows, self.places[1]))

    def _context(self, context: Context) -> Context:
        home, away = self.places
        sampling: SamplingRule = carried(context.sampling, away)
        return replace(context, sampling=sampling, random=_Distant(context.random, home, away))


class _Distant:
    """A random source on another device: distributions are moved there, and draws are moved back."""

    def __init__(self, source: RandomSource, home: torch.device, away: torch.device) -> None:
        self._source, self._home, self._away = source, home, away

    def categorical(self, probs: Tensor) -> Tensor:
        """Draws one index per distribution, as `RandomSource` does."""
        return carry(self._source.categorical(carry(probs, self._home)), self._away)

    def bernoulli(self, p: Tensor) -> Tensor:
        """Draws one boolean per probability."""
        return carry(self._source.bernoulli(carry(p, self._home)), self._away)

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """Draws k indices without replacement, in order of drawing."""
        return carry(self._source.without_replacement(carry(probs, self._home), k), self._away)


class Seen(DelegatingTarget):
    """A target as parts on another device see it: only its device differs."""

    def __init__(self, target: Target, device: torch.device) -> None:
        super().__init__(target)
        self.device = device


class SeenNeural(Seen):
    """A target on another device that shares embedding and LM head: both are copied on first use."""

    _target: NeuralTarget

    @cached_property
    def _embedding(self) -> Tensor:
        tokens = torch.arange(self._target.config.vocab_size, device=self._target.device)
        return self._target.embed(tokens).to(self.device, copy=True)  # [V, D]

    @cached_property
    def _head(self) -> Callable[[Tensor], Tensor]:
        return self.head_for(slice(None))

    def embed(self, tokens: Tensor) -> Tensor:
        """Returns the token embeddings, [...] -> [..., D]."""
        return self._embedding[tokens]

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits for features of the tap `last`: [..., D] -> [..., V]."""
        return self._head(features)

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """Returns the LM head of these tokens alone. Raises CompositionError for a head that cannot be copied."""
        own = tokens if isinstance(tokens, slice) else tokens.to(self._target.device)
        found = self._target.head_for(own, quantize) if isinstance(self._target, DivisibleTarget) else None
        if not isinstance(found, PartialHead):
            raise CompositionError(
                f"the LM head of {type(self._target).__name__} cannot be copied to a drafter's device; use a `model`"
            )
        return found.on(self.device)


def seen_from(target: Target, device: torch.device) -> Seen:
    """Returns the target as parts on a device see it."""
    return (SeenNeural if isinstance(target, NeuralTarget) else Seen)(target, device)


def carry(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns the tensor on a device, without a copy if it is already there."""
    return tensor.to(device)


def carried(value: ValueT, device: torch.device) -> ValueT:
    """Returns the value with all its tensors moved to a device, including those of nested values."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for field in fields(value):
        part = getattr(value, field.name)
        if (moved := _part(part, device)) is not part:
            changed[field.init][field.name] = moved
    if not any(changed.values()):
        return value
    made = replace(cast("Any", value), **changed[True])
    for name, part in changed[False].items():  # values that a verdict has cached
        object.__setattr__(made, name, part)
    return cast("ValueT", made)


def _part(part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):
        return carry(part, device)
    if isinstance(part, Mapping):
        return {name: carry(tensor, device) for name, tensor in part.items()}
    return carried(part, device)
