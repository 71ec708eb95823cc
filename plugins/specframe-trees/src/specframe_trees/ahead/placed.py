"""A drafter on a device of its own: what is committed crosses to it once a cycle, and its draft comes back."""

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
    """Another drafter, which runs on a device of its own, as Dovetail's does (Zhang et al. 2024, arXiv 2412.18934).

    Commits, the features that it reads, and its drafts cross once a cycle; for a token that is drawn at random, its
    distribution crosses, too, so that numbers are drawn in one place. The target's embedding and LM head are copied to
    the drafter's side where it uses them. So a draft is the one that the drafter makes next to the target, up to what
    the devices round differently.

    Options:
        device: where the drafter runs, such as cuda:0 or cpu
        drafter: the drafter; a `model` with `device: auto` follows
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
        """The target features that the drafter reads."""
        return self.drafter.taps

    def untrained(self, vocab: int) -> Placed:
        """A copy on a CPU, its drafter for a target of `vocab` tokens."""
        return Placed(device="cpu", drafter=untrained_form(self.drafter, vocab))

    def smaller(self) -> Placed:
        """A copy around the drafter's small form, if it has one."""
        return Placed(device=self.device, drafter=small_form(self.drafter))

    def bind(self, target: Target) -> None:
        """Binds the drafter to a view of the target from its device.

        Raises InputError for a device that there is not.
        """
        away = torch.empty(0, device=find_device(self.device)).device  # with its number
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
        """Forgets every row."""
        self.drafter.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The drafter's draft below root [B].

        Raises CompositionError for a tree policy that keeps what it observed on the target's device.
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
        """Lets a drafter that drafts ahead do so."""
        run_ahead = drafting_ahead(self.drafter)
        assert run_ahead is not None, "its promise is the drafter's"
        run_ahead(carried(draft, self.places[1]), self._context(context))

    def commit(self, committed: Committed) -> None:
        """Takes the tokens across, and the features that the drafter reads."""
        features = {tap: values for tap, values in committed.features.items() if tap in self.drafter.taps}
        self.drafter.commit(carried(replace(committed, features=features), self.places[1]))

    def observe(self, cycle: Cycle) -> None:
        """Takes the cycle across to a drafter that observes."""
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
    """A random source on another device: distributions cross, and draws come back."""

    def __init__(self, source: RandomSource, home: torch.device, away: torch.device) -> None:
        self._source, self._home, self._away = source, home, away

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law, as `RandomSource` has it."""
        return carry(self._source.categorical(carry(probs, self._home)), self._away)

    def bernoulli(self, p: Tensor) -> Tensor:
        """One coin per probability."""
        return carry(self._source.bernoulli(carry(p, self._home)), self._away)

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order."""
        return carry(self._source.without_replacement(carry(probs, self._home), k), self._away)


class Seen(DelegatingTarget):
    """A target as parts on another device see it: the same, but for its device."""

    def __init__(self, target: Target, device: torch.device) -> None:
        super().__init__(target)
        self.device = device


class SeenNeural(Seen):
    """A target on another device whose embedding and LM head are shared: copies of both, made at first use."""

    _target: NeuralTarget

    @cached_property
    def _embedding(self) -> Tensor:
        tokens = torch.arange(self._target.config.vocab_size, device=self._target.device)
        return self._target.embed(tokens).to(self.device, copy=True)  # [V, D]

    @cached_property
    def _head(self) -> Callable[[Tensor], Tensor]:
        return self.head_for(slice(None))

    def embed(self, tokens: Tensor) -> Tensor:
        """The token embeddings, [...] -> [..., D]."""
        return self._embedding[tokens]

    def head(self, features: Tensor) -> Tensor:
        """The logits for features of the tap `last`: [..., D] -> [..., V]."""
        return self._head(features)

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """The LM head of these tokens alone. Raises CompositionError for one that cannot be copied."""
        own = tokens if isinstance(tokens, slice) else tokens.to(self._target.device)
        found = self._target.head_for(own, quantize) if isinstance(self._target, DivisibleTarget) else None
        if not isinstance(found, PartialHead):
            raise CompositionError(
                f"the LM head of {type(self._target).__name__} cannot be copied to a drafter's device; use a `model`"
            )
        return found.on(self.device)


def seen_from(target: Target, device: torch.device) -> Seen:
    """The target as parts on a device see it."""
    return (SeenNeural if isinstance(target, NeuralTarget) else Seen)(target, device)


def carry(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; itself where it is there."""
    return tensor.to(device)


def carried(value: ValueT, device: torch.device) -> ValueT:
    """The value with all of its tensors on a device, those of its parts included."""
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
    for name, part in changed[False].items():  # what a verdict has worked out already
        object.__setattr__(made, name, part)
    return cast("ValueT", made)


def _part(part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):
        return carry(part, device)
    if isinstance(part, Mapping):
        return {name: carry(tensor, device) for name, tensor in part.items()}
    return carried(part, device)
