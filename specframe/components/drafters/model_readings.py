"""Reading states of drafting models with a KV selection, and of those with recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model_confidence import Rating
from specframe.components.drafters.model_session import ModelReading
from specframe.components.drafters.model_weights import Loaded
from specframe.components.targets.architectures import require_kv_selection
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Head, Target
from specframe.kernel.layers import KVSelection, reads_upper
from specframe.kernel.types import Committed, TokenTree
from specframe.native.visibility import Mask, Tree
from specframe.neural.forward import Pass
from specframe.neural.recurrent import HybridCache
from specframe.neural.transfer import tensor_on

PIECE = 128
"""Number of tokens read at once under a KV selection, as each token's attention mask takes memory."""


class ReadModel:
    """A drafting model that is loaded on first use, and the properties read from it."""

    masks: Masks
    head: Head | None
    kv_selection: KVSelection | None
    _load: Callable[[Target | None], Loaded]
    _target: Target | None
    _together: tuple[int, bool]
    _rating: Rating

    @cached_property
    def _loaded(self) -> Loaded:
        """The model, loaded by the first bind."""
        return self._load(self._target)

    @property
    def _reader(self) -> HFTarget:
        return self._loaded.reader

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the model; loads it."""
        return self._reader.vocab_size

    @property
    def tokenizer(self) -> Any:
        """The model's own tokenizer; loads the model."""
        return self._reader.tokenizer

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text of the model."""
        return self._reader.ends

    @property
    def context(self) -> int:
        """Number of positions of the model; loads it."""
        return self._reader.context

    @property
    def depth(self) -> int:
        """Number of layers of the model; loads it."""
        return int(self._reader.config.num_hidden_layers)


def reading_of(reader: HFTarget, kv_selection: KVSelection | None = None) -> type[ModelReading]:
    """The class of reading state for the layers of a drafting model."""
    if kv_selection is not None:
        return SeeingReading
    return ModelReading if reader.parts.memory.rewindable else RecurrentReading


def check_options(masks: Masks, head: Head | None, kv_selection: KVSelection | None) -> None:
    """Raises CompositionError for incompatible options of a model drafter."""
    if masks.count and head is not None:
        raise CompositionError("a model drafter's head rates one level: leave out masks, or the head")
    if kv_selection is not None and masks.count:
        raise CompositionError("a model drafter's masks see the whole text: leave out masks, or the KV selection")
    if kv_selection is not None and (kv_selection.per_head or kv_selection.queries):
        raise CompositionError(
            "a model drafter takes a KV selection that follows from a text's length, such as `window`; "
            f"{type(kv_selection).__name__} chooses for each head, or by queries"
        )
    if reads_upper(kv_selection):
        raise CompositionError(
            "a model drafter keeps keys and values of its own, not split: take another KV selection than `upper`"
        )


def check_kv_selection(kv_selection: KVSelection | None, reader: HFTarget) -> None:
    """Raises CompositionError for a drafting model that does not support a KV selection."""
    if kv_selection is not None:
        reader.parts.require_rewindable("draft on a part of the text")
        require_kv_selection(reader.config, kv_selection.budget, reader.context, "the drafting model")


class SeeingReading(ModelReading):
    """The reading state of a session's rows under a KV selection.

    A token attends to itself and to the chosen earlier tokens. A model trained on short texts therefore never attends
    to distant tokens, except for the first ones.
    """

    _seen = torch.zeros(0, 1, 0, dtype=torch.bool)  # [B, 1, S], what was chosen for the draft

    read_path = ModelReading.read_in_turn

    def commit(self, committed: Committed) -> None:
        """Records the tokens, which the next draft reads; reads the prompts of new rows."""
        before = len(self.rows.counts)
        self.text.commit(committed)
        if committed.prompt is not None:
            self.rows.join(torch.zeros_like(committed.count), [0] * len(committed.count))
            self._read([*self.rows.counts[:before], *committed.prompt.count.tolist()], before)

    def read_committed(self) -> Tensor:
        """Reads the tokens committed since the last draft, the root at least: the logits [B, 1, V]."""
        logits, rows = self._read(self.text.lengths), self.rows
        root = rows.count[:, None, None] - 1
        place = torch.arange(rows.base, device=root.device)
        self._seen = self._chosen([[have] for have in rows.counts], rows.base) | (place == root)
        return logits

    def place_nodes(self, tree: TokenTree, nodes: Tensor) -> Pass:
        """A pass over nodes [B, F] of a draft, which attend to the chosen tokens and their own paths."""
        placed = super().place_nodes(tree, nodes)
        assert isinstance(placed.visibility, Mask)
        visible, origin = placed.visibility.visible.clone(), self.rows.origin
        visible[:, :, :origin] &= self._seen[:, :, :origin]
        return replace(placed, visibility=replace(placed.visibility, visible=visible))

    def _chosen(self, lengths: Sequence[Sequence[int]], width: int) -> Tensor:
        """The slots that the KV selection chooses of each row's first `lengths` [R, T] tokens: [R, T, width] bool."""
        assert self._kv_selection is not None
        shown = copy(self.rows)
        counts = [length for row in lengths for length in row]
        shown.fill(tensor_on(self.text.count.device, counts), counts)
        slots = self._kv_selection.choose(shown).slots[0, :, 0]  # [R * T, K]
        seen = torch.zeros(len(slots), width + 1, dtype=torch.bool, device=slots.device)
        seen.scatter_(1, slots.where(slots >= 0, width), True)
        return seen[:, :width].unflatten(0, (len(lengths), -1))

    @torch.no_grad()
    def _read(self, ends: Sequence[int], row: int = 0) -> Tensor:
        """Reads the rows from `row` on up to their `ends`, in pieces: the logits [R, 1, V] after them.

        Rows that end before others read their last piece again.
        """
        text, rows, device = self.text, self.rows, self.text.count.device
        starts = [min(known, end - 1) for known, end in zip(rows.counts, ends, strict=True)][row:]
        lasts = [(end - 1 - start) // PIECE for start, end in zip(starts, ends[row:], strict=True)]
        logits = None
        for piece in range(max(lasts) + 1):
            begins = [start + PIECE * min(piece, last) for start, last in zip(starts, lasts, strict=True)]
            counts = [min(end - begin, PIECE) for begin, end in zip(begins, ends[row:], strict=True)]
            places = [list(range(begin, begin + max(counts))) for begin in begins]
            slots = tensor_on(device, places)  # [R, T]
            width = max(begins) + max(counts)
            seen = self._chosen(places, width) | (torch.arange(width, device=device) == slots[..., None])
            tokens = text.tokens[row:].gather(1, slots.clamp(max=text.tokens.shape[1] - 1))
            keep = tensor_on(device, counts)[:, None] - 1
            logits = self.run(0, Pass(tokens, slots, Mask(seen, slots), row, keep=keep))
        rows.fill(tensor_on(device, ends), ends)
        assert logits is not None
        return logits


class RecurrentReading(ModelReading):
    """The reading state of a session's rows for a drafting model with recurrent layers.

    Newly committed tokens are read as a fully accepted tree of one branch, so that rows may have read different
    numbers of tokens. Draft nodes are read together with all their ancestors and no state is stored for them, so the
    forward pass of a level includes the levels above it.
    """

    memory = HybridCache
    rooted = False

    read_path = ModelReading.read_in_turn

    _root = torch.zeros(0, 1, 1)
    """The logits [B, 1, V] after the rows' committed tokens; rows added later have none yet."""

    def read_committed(self) -> Tensor:
        """Reads the tokens committed since the last draft: the logits [B, 1, V] after the root."""
        text, rows = self.text, self.rows
        fresh = [have - known for known, have in zip(rows.counts, text.lengths, strict=True)]
        self._root = self._roots(len(fresh))
        if width := max(fresh):
            device = text.count.device
            steps = torch.arange(width, device=device)
            slots = rows.count[:, None] + steps  # [B, T]
            count = text.count - rows.count  # [B]
            branch = (steps <= steps[:, None]).expand(len(fresh), -1, -1)  # [B, T, T]
            tokens = text.tokens.gather(1, slots.clamp(max=text.tokens.shape[1] - 1))
            keep = (count[:, None] - 1).clamp(min=0)
            found = self.run(0, Pass(tokens, slots, Tree(branch, rows.count, rows.base, rows.even), keep=keep))
            assert found is not None
            self._root = found if min(fresh) else torch.where((count > 0)[:, None, None], found, self._root)
            rows.move([range(new) for new in fresh], lambda: steps.expand(len(fresh), -1))
            rows.fill(text.count, text.lengths)
        return self._root

    def read_nodes(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """The logits after nodes [B, F]: [B, F, V]."""
        drafted = nodes > 0
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, tree.tokens.shape[1]))  # [B, F, N]
        needed = (path & drafted[..., None]).any(1)  # [B, N]
        needed[:, 0] = False  # the root is read
        width = max(1, int(needed.sum(1).max()))
        chosen = needed.int().argsort(dim=1, descending=True, stable=True)[:, :width]  # [B, W], in order
        among = tree.ancestors.gather(1, chosen[..., None].expand(-1, -1, tree.tokens.shape[1]))
        sees = among.gather(2, chosen[:, None].expand(-1, width, -1))  # [B, W, W]
        sees = sees & sees.new_ones(width, width).tril()  # nodes that a row does not need may be in any order
        positions = (self.text.count[:, None] - 1 + tree.depth).gather(1, chosen)
        keep = (needed.cumsum(1) - 1).gather(1, nodes).clamp(min=0)
        visibility = Tree(sees, self.rows.count, self.rows.base, self.rows.even)
        found = self.run(0, Pass(tree.tokens.gather(1, chosen), positions, visibility, keep=keep))
        assert found is not None
        return torch.where(drafted[..., None], found, self._root)

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow.

        A recurrent state cannot be rolled back, so a row that has read more tokens reads its text again.
        """
        rows = self.rows
        again = rows.count > count
        super().rewind(count)
        assert isinstance(rows.memory, HybridCache)
        rows.memory.states.forget(again)
        known = rows.count.masked_fill(again, 0)
        rows.fill(known, known.tolist())

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._root = self._roots(len(self.rows.counts))[rows]
        super().keep(rows)

    def _roots(self, count: int) -> Tensor:
        """The logits of `count` rows, zeros for rows added later."""
        return pad(self._root, (0, 0, 0, 0, 0, count - len(self._root)))
