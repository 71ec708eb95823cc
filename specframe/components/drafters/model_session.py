"""Reading state of a drafting model: a session's committed texts and a draft's nodes, over one cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.text import CommittedText
from specframe.kernel.layers import KVSelection, LayerChoice
from specframe.kernel.types import Committed, Prompts, TokenTree
from specframe.native.visibility import Causal, Mask, Visibility
from specframe.neural.cache import SlotCache
from specframe.neural.forward import NONE, Forward, Pass
from specframe.neural.slot_map import SlotMap
from specframe.neural.transfer import tensor_on

FIRST = 1024
"""Largest number of positions of each row that are allocated first."""
SPARE = 64
"""Number of slots allocated for a draft's nodes."""


class ModelReading:
    """The reading state of a drafting model for the rows of a session.

    Cache entries of a draft are never kept: the next draft's first forward pass reads all newly committed tokens
    together, so no extra forward pass is needed.

    If the layers are split into parts, the first part reads everything; `Deeper` runs the others.

    Args:
        forward: the model's forward pass.
        parts: the layers of each part; None: all layers.
        layers: number of layers with keys and values.
        context: number of positions of the model.
        slots: largest number of rows.
        room: number of positions needed per row.
        masks: the mask tokens after the text.
        known: vocabulary size of the model; larger token ids are read as its last token. None: no limit.
        kv_selection: chooses the committed tokens to attend to; see `SeeingReading`. None: all.
    """

    memory: type[SlotCache] = SlotCache
    """The class of cache for the layers."""
    rooted = True
    """True if a draft's root is read with the committed tokens and its entry counts as one of theirs."""

    def __init__(
        self,
        forward: Forward,
        parts: Sequence[LayerChoice | None],
        layers: int,
        context: int,
        slots: int,
        room: int,
        masks: Masks,
        known: int | None = None,
        kv_selection: KVSelection | None = None,
    ) -> None:
        self.text = CommittedText()
        self.rows = SlotMap(self.memory(layers, min(room, FIRST) + SPARE, slots), rooted=self.rooted)
        """Cache entries of the rows for the first part of the layers."""
        self.slots = slots
        self._forward = forward
        self.drafting = forward
        """The forward pass over a draft's nodes, which may differ from `forward`."""
        self._parts = parts
        self._context = context
        self._masks = masks
        self._vocab = known
        self._kv_selection = kv_selection
        self.deeper = [Deeper(self, part) for part in range(1, len(parts))]

    def commit(self, committed: Committed) -> None:
        """Records the tokens, which the next draft reads.

        Rows added to others read their prompts now, as the next draft's forward pass would pad every other row
        to the length of the prompts. With recurrent layers all new rows do, as their states start with the prompt.
        """
        before = len(self.rows.counts)
        self.text.commit(committed)
        if committed.prompt is not None:
            new = [0] * len(committed.count)
            self.rows.join(torch.zeros_like(committed.count), new)
            for part in self.deeper:
                part.known += new
            if before or not self.memory.rewindable:
                self._read_prompts(committed.prompt, before)

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow."""
        self.text.rewind(count)
        self.rows.rewind(self.text.count, self.text.lengths)
        for part in self.deeper:
            part.known = [min(pair) for pair in zip(part.known, self.text.lengths, strict=True)]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.text.keep(rows)
        self.rows.keep(rows)
        for part in self.deeper:
            part.keep(rows)

    def read_committed(self) -> Tensor:
        """Reads the tokens committed since the last draft, the root at least, and K masks: the logits [B, K + 1, V]."""
        text, masks = self.text, self._masks
        starts = [min(known, have - 1) for known, have in zip(self.rows.counts, text.lengths, strict=True)]
        counts = [have - start for have, start in zip(text.lengths, starts, strict=True)]
        width, device = max(counts) + masks.count, text.count.device
        slots = tensor_on(device, starts)[:, None] + torch.arange(width, device=device)  # [B, T]
        if min(starts) == max(starts):
            visibility: Visibility = Causal(starts[0], [count + masks.count for count in counts])
        else:
            seen = torch.arange(max(starts) + width, device=device) <= slots[:, :, None]
            visibility = Mask(seen, slots)
        tokens = text.tokens.gather(1, slots.clamp(max=text.tokens.shape[1] - 1))
        tokens = masks.laid(tokens, slots >= text.count[:, None])
        ends = tensor_on(device, counts)[:, None] - 1
        for part in self.deeper:
            part.begin()
        keep = ends + torch.arange(masks.count + 1, device=device)
        logits = self.run(0, Pass(tokens, slots, visibility, keep=keep))  # [B, K + 1, V]
        assert logits is not None
        self.rows.fill(text.count, text.lengths)
        return logits

    def read_path(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """Reads the committed tokens and nodes [B, F], the root and a path below it, in one pass: logits [B, F, V]."""
        if self.drafting is not self._forward:
            return self.read_in_turn(tree, nodes)
        known = list(self.rows.counts)
        self.rows.fill(self.text.count, self.text.lengths)
        for part in self.deeper:
            part.begin()
            part.await_nodes(nodes[:, 1:])
        logits = self.run(
            0, replace(self.after_committed(tree, nodes[:, 1:], known), keep=slice(-nodes.shape[1], None))
        )
        assert logits is not None
        return logits

    def read_in_turn(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """Reads the committed tokens, then in a second pass the other nodes [B, F] of a path: [B, F, V]."""
        root = self.read_committed()
        return torch.cat([root, self.read_nodes(tree, nodes[:, 1:])], 1)

    def after_committed(self, tree: TokenTree, nodes: Tensor | None, known: Sequence[int] | None) -> Pass:
        """A pass over the unread committed tokens, the root included, followed by draft nodes [B, F] below the root.

        `known` is each row's number of read tokens. Without `nodes` or without `known` that part is left out.
        """
        width = self.rows.origin + tree.tokens.shape[1] + 1  # one extra slot, for columns that a row does not need
        parts = [] if known is None else [self._committed(known, width)]
        if nodes is not None:
            placed = self.place_nodes(tree, nodes)
            assert isinstance(placed.visibility, Mask)
            visible = pad(placed.visibility.visible, (0, width - placed.visibility.end))
            parts.append((placed.tokens, placed.positions, placed.visibility.slots, visible))
        tokens, positions, slots, seen = (torch.cat(side, 1) for side in zip(*parts, strict=True))
        drafted = self.text.count[:, None] - 1 + pad(tree.depth, (0, 1))
        return Pass(tokens, positions, Mask(seen, slots, drafted))

    def _committed(self, known: Sequence[int], width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, positions and slots [B, C] of the unread committed tokens, and the slots each of them attends to.

        Each row ends with its root. Rows with fewer unread tokens read some again, or the content of the last slot.
        """
        text = self.text
        starts = [min(had, have - 1) for had, have in zip(known, text.lengths, strict=True)]
        most = max(have - start for have, start in zip(text.lengths, starts, strict=True))
        places = text.count[:, None] - most + torch.arange(most, device=text.count.device)  # [B, C]
        slots = places.where(places >= 0, width - 1)
        seen = torch.arange(width, device=slots.device) <= places[:, :, None].clamp(min=0)
        return text.tokens.gather(1, places.clamp(min=0)), places.clamp(min=0), slots, seen

    def read_nodes(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """The logits after nodes [B, F], none of them the root, whose ancestors have been read: [B, F, V]."""
        for part in self.deeper:
            part.await_nodes(nodes)
        logits = self.run(0, self.place_nodes(tree, nodes), self.drafting)
        assert logits is not None
        return logits

    def place_nodes(self, tree: TokenTree, nodes: Tensor) -> Pass:
        """A pass over nodes [B, F] of a draft, which attend to the committed tokens and their own paths."""
        positions = self.text.count[:, None] - 1 + tree.depth
        visibility = self.rows.nodes(tree, nodes, positions)
        return Pass(tree.tokens.gather(1, nodes), positions.gather(1, nodes), visibility)

    def run(self, part: int, asked: Pass, forward: Forward | None = None) -> Tensor | None:
        """The logits [B, E, V] of the tokens to keep, by one part of the layers; stores the input of the next part."""
        chosen = self._parts[part]
        taps = frozenset[str]()
        if chosen is not None and part < len(self.deeper):
            taps = frozenset({f"layer.{chosen.active_layers[-1]}"})
        tokens = asked.tokens if self._vocab is None else asked.tokens.clamp(max=self._vocab - 1)
        positions = asked.positions.clamp(max=self._context - 1)
        asked = replace(asked, tokens=tokens, positions=positions, layers=chosen, taps=taps)
        self.rows.memory.reserve(asked.visibility.end)
        logits, states = (forward or self._forward).run(asked, self.rows.memory)
        for values in states.values():
            self.deeper[part].take(values, asked)
        return logits

    @torch.no_grad()
    def _read_prompts(self, prompts: Prompts, row: int) -> None:
        """Reads the prompts of the rows from `row` on, with all layers."""
        counts = prompts.count.tolist()
        slots = torch.arange(prompts.tokens.shape[1], device=prompts.tokens.device).expand_as(prompts.tokens)
        for part in range(len(self._parts)):
            entry = self.deeper[part - 1].entries(slots, row) if part else None
            self.run(part, Pass(prompts.tokens, slots, Causal(0, counts), row, entry, keep=NONE))
        have = [*self.rows.counts[:row], *counts]
        self.rows.fill(torch.cat([self.rows.count[:row], prompts.count]), have)
        for deeper in self.deeper:
            deeper.known[row:] = counts


class Deeper:
    """Later layers of a drafting model, which catch up with the earlier layers when they are used.

    They then read every token that they have not read yet, so that their logits equal those of the model up to their
    last layer on the whole text.
    """

    def __init__(self, reading: ModelReading, part: int) -> None:
        self._reading = reading
        self._part = part
        self.known: list[int] = []
        """Committed tokens of each row that these layers have read."""
        self._states = torch.zeros(0)  # [slots, capacity, D]: the output of the layers before them for each slot
        self._rooted = False  # whether they have read the committed tokens, up to the root, in this draft
        self._waiting: list[Tensor] = []  # nodes [B, F] of the draft that they have not read
        self._found: Tensor | None = None  # the logits of the last requested nodes

    def begin(self) -> None:
        """Begins a draft and drops the entries of an earlier one."""
        self._rooted, self._waiting, self._found = False, [], None

    def await_nodes(self, nodes: Tensor) -> None:
        """Records nodes [B, F] that the first layers read now."""
        self._waiting.append(nodes)
        self._found = None

    def take(self, states: Tensor, asked: Pass) -> None:
        """Stores the hidden states [B, T, D] that enter these layers in a forward pass, by slot."""
        slots = asked.visibility.slots
        if isinstance(slots, int):
            slots = torch.arange(slots, slots + states.shape[1], device=states.device).expand(len(states), -1)
        capacity = self._reading.rows.memory.capacity
        if self._states.shape[1:2] != (capacity,):
            wider = states.new_zeros(self._reading.slots, capacity, states.shape[-1])
            if self._states.dim() == 3:
                wider[:, : self._states.shape[1]] = self._states
            self._states = wider
        rows = torch.arange(asked.row, asked.row + len(slots), device=slots.device)[:, None]
        self._states[rows, slots] = states

    def entries(self, slots: Tensor, row: int = 0) -> Tensor:
        """The stored input states [B, T, D] of slots [B, T], for the rows from `row` on."""
        return self._states[torch.arange(row, row + len(slots), device=slots.device)[:, None], slots]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.known = [self.known[row] for row in rows.tolist()]
        if self._states.dim() == 3:
            self._states[: len(rows)] = self._states[rows]

    def read(self, tree: TokenTree, asked: int) -> Tensor:
        """The logits [B, F, V] after the last F = `asked` nodes read by the first layers; the root counts as a node."""
        if self._found is not None:
            return self._found
        reading, text = self._reading, self._reading.text
        if self._part > 1:
            reading.deeper[self._part - 2].read(tree, asked)
        waiting = torch.cat(self._waiting, 1) if self._waiting else None
        placed = reading.after_committed(tree, waiting, None if self._rooted else self.known)
        assert isinstance(placed.visibility, Mask)
        entry = self.entries(placed.visibility.slots.clamp(max=self._states.shape[1] - 1))
        found = reading.run(self._part, replace(placed, states=entry, keep=slice(-asked, None)))
        assert found is not None
        self.known, self._rooted, self._waiting, self._found = list(text.lengths), True, [], found
        return found
