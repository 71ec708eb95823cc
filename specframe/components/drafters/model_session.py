"""Reading state of a drafting model: a session's committed texts and a draft's nodes, over one cache."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model_passes import DraftingPasses, ModelInputs
from specframe.components.drafters.text import CommittedText
from specframe.kernel.types import Committed, Prompts, TokenTree
from specframe.neural.cache import SlotCache


class ModelReading:
    """The rows of a session, as a drafting model reads them.

    In the cache a row's committed tokens fill the slots from 0, and node i of a draft stands i slots behind the root. A
    draft's entries are never kept: the next draft's first forward reads all newly committed tokens together, which
    costs no forward of its own.

    With several parts of the layers, the first reads everything; `Deeper` reads on with the others.
    """

    def __init__(
        self, passes: DraftingPasses, layers: int, context: int, slots: int, masks: Masks, known: int | None = None
    ) -> None:
        """Begins with no rows, of at most `slots`; storage is allocated by the first forward pass.

        The last of `known` tokens is read in place of tokens beyond them.
        """
        self.text = CommittedText()
        self.passes = passes
        self.context = context
        self.slots = slots
        self._layers = layers
        self._masks = masks
        self._vocab = known
        self.cache: SlotCache | None = None
        self._known: list[int] = []  # committed tokens of each row that the cache holds
        self.deeper = [Deeper(self, part) for part in range(1, passes.parts)]

    def commit(self, committed: Committed) -> None:
        """Takes note of the tokens, which the next draft reads.

        New rows that join others read their prompts at once: in the next draft's forward every other row would be
        padded to the length of their prompts.
        """
        before = len(self._known)
        self.text.commit(committed)
        if committed.prompt is not None:
            self._known += [0] * len(committed.count)
            for part in self.deeper:
                part.known += [0] * len(committed.count)
            if before:
                self._read_prompts(committed.prompt, before)

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow."""
        self.text.rewind(count)
        self._known = least(self._known, self.text.lengths)
        for part in self.deeper:
            part.known = least(part.known, self.text.lengths)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.text.keep(rows)
        kept = rows.tolist()
        self._known = [self._known[row] for row in kept]
        if self.cache is not None:
            self.cache.keep(rows)
        for part in self.deeper:
            part.keep(rows)

    def read_committed(self) -> Tensor:
        """Reads the tokens committed since the last draft, the root at least, and K masks: the logits [B, K + 1, V]."""
        text, masks = self.text, self._masks
        starts = [min(known, have - 1) for known, have in zip(self._known, text.lengths, strict=True)]
        counts = [have - start for have, start in zip(text.lengths, starts, strict=True)]
        first, width, device = max(starts), max(counts) + masks.count, text.count.device
        steps = torch.arange(width, device=device)
        slots = torch.tensor(starts, device=device)[:, None] + steps  # [B, T]
        together = min(starts) == first
        seen = None
        if first > 0 and (width > 1 or not together):
            seen = torch.arange(first + width, device=device) <= slots[:, :, None]  # [B, T, first + T]
        tokens = text.tokens.gather(1, slots.clamp(max=text.tokens.shape[1] - 1))
        tokens = masks.laid(tokens, slots >= text.count[:, None])
        asked = range(masks.count + 1)
        ends = sorted({count + ahead for count in counts for ahead in asked})
        keep = torch.tensor([end - 1 for end in ends], device=device)
        for part in self.deeper:
            part.begin()
        start = first if together else None
        logits = self.run(0, tokens, slots, seen, keep, first + width, start=start)  # [B, ends, V]
        self._known = list(text.lengths)
        rows = torch.arange(len(counts), device=device)[:, None]
        places = [[ends.index(count + ahead) for ahead in asked] for count in counts]
        return logits[rows, torch.tensor(places, device=device)]

    def read_nodes(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """The logits after nodes [B, F], none of them the root, whose ancestors have been read: [B, F, V]."""
        root = self.text.count[:, None] - 1  # [B, 1] the root's slot
        width = max(self.text.lengths) - 1 + tree.tokens.shape[1]
        tokens = tree.tokens.gather(1, nodes)
        for part in self.deeper:
            part.await_nodes(nodes)
        positions = root + tree.depth.gather(1, nodes)
        seen, places = self.seen(tree, nodes, width), self.places(tree, width)
        return self.run(0, tokens, root + nodes, seen, 0, width, positions=positions, places=places)

    def seen(self, tree: TokenTree, nodes: Tensor, width: int) -> Tensor:
        """Returns the slots visible to nodes [B, F], the committed tokens' and their paths': [B, F, W] bool."""
        root = self.text.count[:, None] - 1
        count = tree.tokens.shape[1]
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, count))  # [B, F, N]
        places = (root + torch.arange(count, device=root.device))[:, None].expand_as(path)
        committed = torch.arange(width, device=root.device) <= root  # [B, W]
        return committed[:, None].expand(-1, path.shape[1], -1).scatter(2, places, path)

    def places(self, tree: TokenTree, width: int) -> Tensor | None:
        """The positions of the slots [B, W] behind a draft; None where no layer's window asks for them."""
        if self.passes.limit is None or width <= self.passes.limit:
            return None
        root = self.text.count[:, None] - 1
        nodes = root + torch.arange(tree.tokens.shape[1], device=root.device)
        slots = torch.arange(width, device=root.device).expand(len(root), -1)
        return slots.scatter(1, nodes, root + tree.depth)

    def run(
        self,
        part: int,
        tokens: Tensor,
        slots: Tensor,
        seen: Tensor | None,
        keep: int | Tensor,
        width: int,
        *,
        positions: Tensor | None = None,
        places: Tensor | None = None,
        entry: Tensor | None = None,
        row: int = 0,
        start: int | None = None,
    ) -> Tensor:
        """The logits [B, E, V] of tokens [B, T] at slots that see others [B, T, W], by one part of the layers.

        `start`: the first slot, where those of all rows are the same and follow each other. The input of the next part
        is kept for it.
        """
        if self.cache is None:
            self.cache = SlotCache(self._layers, 2 * width, self.slots)
        elif width > self.cache.capacity:
            self.cache.grow(2 * width)
        self.cache.aim(slots if start is None else start, width, row)
        where = (slots if positions is None else positions).clamp(max=self.context - 1)
        tokens = tokens if self._vocab is None else tokens.clamp(max=self._vocab - 1)
        asked = ModelInputs(tokens, where, slots, seen, keep, row, places)
        logits, states = self.passes.run(part, asked, self.cache, entry)
        if states is not None:
            self.deeper[part].take(states, slots, row)
        return logits

    def _read_prompts(self, prompts: Prompts, row: int) -> None:
        """Reads the prompts of the rows from `row` on, with all layers."""
        width = prompts.tokens.shape[1]
        slots = torch.arange(width, device=prompts.tokens.device).expand_as(prompts.tokens)
        last = torch.tensor([width - 1], device=slots.device)  # its logits are of no use, but some must be made
        for part in range(self.passes.parts):
            entry = self.deeper[part - 1].entries(slots, row) if part else None
            self.run(part, prompts.tokens, slots, None, last, width, entry=entry, row=row, start=0)
        for known in (self._known, *(part.known for part in self.deeper)):
            known[row:] = prompts.count.tolist()


class Deeper:
    """Further layers of a drafting model, which catch up with the layers before them when they are used.

    They then read every token that they have not read yet, so they answer as the model's first layers, up to their last
    one, would after the whole text.
    """

    def __init__(self, reading: ModelReading, part: int) -> None:
        self._reading = reading
        self._part = part
        self.known: list[int] = []
        """Committed tokens of each row that these layers have read."""
        self._states = torch.zeros(0)  # [slots, capacity, D]: the output of the layers before them for each slot
        self._rooted = False  # whether they have read the committed tokens, up to the root, in this draft
        self._waiting: list[Tensor] = []  # nodes [B, F] of the draft that they have not read
        self._found: Tensor | None = None  # the logits of the nodes that were asked last

    def begin(self) -> None:
        """Begins a draft and drops the entries of an earlier one."""
        self._rooted, self._waiting, self._found = False, [], None

    def await_nodes(self, nodes: Tensor) -> None:
        """Takes note of nodes [B, F] that the first layers read now."""
        self._waiting.append(nodes)
        self._found = None

    def take(self, states: Tensor, slots: Tensor, row: int) -> None:
        """Keeps the states [B, T, D] in which slots [B, T] of the rows from `row` on reach these layers."""
        cache = self._reading.cache
        assert cache is not None
        if self._states.shape[1:2] != (cache.capacity,):
            wider = states.new_zeros(self._reading.slots, cache.capacity, states.shape[-1])
            if self._states.dim() == 3:
                wider[:, : self._states.shape[1]] = self._states
            self._states = wider
        rows = torch.arange(row, row + len(slots), device=slots.device)[:, None]
        self._states[rows, slots] = states

    def entries(self, slots: Tensor, row: int = 0) -> Tensor:
        """The states [B, T, D] in which slots [B, T] of the rows from `row` on reach these layers."""
        return self._states[torch.arange(row, row + len(slots), device=slots.device)[:, None], slots]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.known = [self.known[row] for row in rows.tolist()]
        if self._states.dim() == 3:
            self._states[: len(rows)] = self._states[rows]

    def read(self, tree: TokenTree, asked: int) -> Tensor:
        """The logits [B, F, V] after the last F nodes of a draft that the first layers read; the root is one of it."""
        if self._found is not None:
            return self._found
        reading, text = self._reading, self._reading.text
        if self._part > 1:
            reading.deeper[self._part - 2].read(tree, asked)
        device = text.count.device
        count = tree.tokens.shape[1]
        width = max(text.lengths) + count  # one slot more than there are nodes, for columns that a row does not need
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        if not self._rooted:
            parts.append(self._committed(width))
        if self._waiting:
            nodes = torch.cat(self._waiting, 1)
            root = text.count[:, None] - 1
            depth = tree.depth.gather(1, nodes)
            parts.append((tree.tokens.gather(1, nodes), root + nodes, root + depth, reading.seen(tree, nodes, width)))
        tokens, slots, positions, seen = (torch.cat(side, 1) for side in zip(*parts, strict=True))
        keep = torch.arange(tokens.shape[1] - asked, tokens.shape[1], device=device)
        entry = self.entries(slots.clamp(max=self._states.shape[1] - 1))
        places = reading.places(tree, width)
        found = reading.run(
            self._part, tokens, slots, seen, keep, width, positions=positions, places=places, entry=entry
        )
        self.known, self._rooted, self._waiting, self._found = list(text.lengths), True, [], found
        return found

    def _committed(self, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, slots and positions [B, C] of the text committed since these layers last read, and its visible slots.

        All rows end with their roots. A row with fewer tokens reads some again, or the content of the last slot.
        """
        text = self._reading.text
        starts = [min(known, have - 1) for known, have in zip(self.known, text.lengths, strict=True)]
        most = max(have - start for have, start in zip(text.lengths, starts, strict=True))
        places = text.count[:, None] - most + torch.arange(most, device=text.count.device)  # [B, C]
        slots = places.where(places >= 0, width - 1)
        seen = torch.arange(width, device=slots.device) <= places[:, :, None].clamp(min=0)
        return text.tokens.gather(1, places.clamp(min=0)), slots, places.clamp(min=0), seen


def least(one: list[int], other: list[int]) -> list[int]:
    """The smaller of each two."""
    return [min(pair) for pair in zip(one, other, strict=True)]
