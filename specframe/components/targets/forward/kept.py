"""Approximate targets: prompt selection before reading, and KV selection after reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from specframe.components.targets.forward.compiled import CompiledForward
from specframe.components.targets.forward.state import State
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.layers import (
    NEWEST_QUERIES,
    KVSelection,
    LayerChoice,
    LayeredTarget,
    LookingAhead,
    PromptSelection,
    reads_upper,
)
from specframe.kernel.types import Committed, Prompts
from specframe.native.visibility import Causal
from specframe.neural.forward import NONE, Forward, Pass
from specframe.neural.transfer import tensor_on

if TYPE_CHECKING:
    from specframe.components.targets.anatomy import LoadedModel


@dataclass(frozen=True)
class PromptMemory:
    """The memory of one new row, as input of a KV selection."""

    count: Tensor
    counts: Sequence[int]
    keys: Tensor
    values: Tensor
    shown: Tensor | None

    @classmethod
    def of(cls, state: State, row: int, place: int) -> PromptMemory:
        """The memory of a row of the session, the new one at `place` among those of the commit."""
        rows, one = state.rows, slice(row, row + 1)
        shown = rows.queries[:, place : place + 1] if rows.shows else None
        return cls(rows.count[one], rows.counts[one], rows.keys[:, one], rows.values[:, one], shown)

    @property
    def queries(self) -> Tensor:
        """The queries of the prompt's end. Raises CompositionError if the target gives none."""
        if self.shown is None:
            raise CompositionError(
                "a KV selection of this kind needs queries, which the target's attention does not show"
            )
        return self.shown

    def copy(self, row: int, count: int) -> Tensor:
        """Raises CompositionError: a selected part of a prompt cannot serve as a prefix of another."""
        raise CompositionError("a target that keeps a part of a prompt's keys and values has none of its beginning")


def bound(model: LoadedModel, whole: LayeredTarget, kv_selection: KVSelection) -> KVSelection:
    """The KV selection, after checking that the model can keep its choice; raises CompositionError otherwise.

    `whole` is a target around the same weights that keeps all keys and values.
    """
    model.parts.require_rewindable(what := "keep a part of a prompt's keys and values")
    if reads_upper(kv_selection) or model.forward.cache == "int8":
        raise CompositionError(f"a target cannot {what} in int8, which rounds them in blocks of tokens")
    if isinstance(model.forward, CompiledForward):
        raise CompositionError("the option `keep` of a target goes without `compile`: leave one of them out")
    layers = model.config.num_hidden_layers
    whole.check_layers(LayerChoice.first(layers, layers), kv_selection)
    if isinstance(kv_selection, LookingAhead):
        kv_selection.bind(whole)
    return kv_selection


def require_texts(prompts: Prompts) -> None:
    """Raises InputError for prompts with other inputs than tokens."""
    if prompts.inputs:
        raise InputError("a prompt with an image is read whole: `prompt` and `keep` of a target shorten texts alone")


@torch.no_grad()
def shorten(state: State, forward: Forward, kv_selection: KVSelection, committed: Committed, context: int) -> None:
    """Drops the prompt slots of new rows that the KV selection does not choose.

    Each row is processed separately, so that the choice depends only on its text and not on other rows. Lookahead
    tokens are written after the row and overwritten by the next tree.
    """
    counts = committed.count.tolist()
    first = len(state.rows.counts) - len(counts)
    found = [
        _chosen(state, forward, kv_selection, _alone(committed, place), (first + place, place), context)
        for place in range(len(counts))
    ]  # [layers or 1, 1, heads or 1, K] each
    if all(slots.shape[3] == count for slots, count in zip(found, counts, strict=True)):
        return
    width = max(slots.shape[3] for slots in found)
    state.rows.shorten(first, torch.cat([pad(slots, (0, width - slots.shape[3]), value=-1) for slots in found], 1))


def _alone(committed: Committed, place: int) -> Committed:
    """The commit of one new row."""
    assert committed.prompt is not None
    one = slice(place, place + 1)
    tokens, count = committed.tokens[one], committed.count[one]
    prompt = Prompts(committed.prompt.tokens[one], committed.prompt.count[one])
    return replace(committed, tokens=tokens, count=count, features={}, root=committed.root[one], prompt=prompt)


def _chosen(
    state: State, forward: Forward, kv_selection: KVSelection, committed: Committed, pair: tuple[int, int], context: int
) -> Tensor:
    row, place = pair
    memory = PromptMemory.of(state, row, place)
    (have,) = memory.counts
    kv_selection.open(1, have)
    kv_selection.commit(committed, memory)
    if isinstance(kv_selection, LookingAhead) and (steps := min(kv_selection.lookahead, context - have)) > 0:
        state.cache.reserve(have + steps)
        memory = PromptMemory.of(state, row, place)
        queries = _queries(state, forward, kv_selection.answers(committed), committed.root, (row, have, steps))
        size = memory.keys.shape[-1]
        kv_selection.look_ahead(queries.unflatten(-1, (-1, size)).transpose(2, 3).to(memory.keys.dtype), memory)
    slots = kv_selection.choose(memory).slots
    return slots[..., : int((slots[0, 0, 0] >= 0).sum())]


def _queries(state: State, forward: Forward, answer: Tensor | None, root: Tensor, span: tuple[int, int, int]) -> Tensor:
    """The queries [layers, 1, T, heads * size] of a likely answer after a row; without one, the target's own."""
    row, have, steps = span
    layers = len(state.cache.layers)
    queries, taps = list[Tensor](), frozenset(f"query.{layer}" for layer in range(layers))
    best, taken = root[:, None], 0
    while taken < steps:
        tokens = best if answer is None else answer[:, taken : min(taken + NEWEST_QUERIES, steps)]
        start, more = have + taken, tokens.shape[1]
        positions = start + torch.arange(more, device=tokens.device)[None]
        keep = NONE if answer is not None else tensor_on(tokens.device, [[0]])
        asked = Pass(tokens, positions, Causal(start, [more]), row, taps=taps, keep=keep)
        logits, features = forward.run(asked, state.cache)
        if logits is not None:
            best = logits.argmax(-1)
        queries.append(torch.stack([features[f"query.{layer}"] for layer in range(layers)]))
        taken += more
    return torch.cat(queries, 2)


def shortened(prompts: Prompts, select: PromptSelection | None) -> Prompts:
    """The prompts to read: short ones whole, of longer ones the tokens that the selection chooses."""
    if select is None or int(prompts.count.max()) <= select.tokens:
        return prompts
    texts, device = zip(prompts.tokens.tolist(), prompts.count.tolist(), strict=True), prompts.tokens.device
    rows = [text[:count] for text, count in texts]
    chosen = [row if len(row) <= select.tokens else [row[place] for place in select.choose(row)] for row in rows]
    count = torch.tensor([len(row) for row in chosen], device=device)
    tokens = pad_sequence([torch.tensor(row, device=device) for row in chosen], batch_first=True)
    return Prompts(tokens, count, predicted=prompts.predicted)
