"""The values of a draft's forward passes: a layer's queries, and the blocks of expanded nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.neural.transfer import tensor_on

if TYPE_CHECKING:
    from specframe.neural.cache import SlotCache
    from specframe.neural.layer import DecoderLayer

State = tuple[Tensor, ...]
"""State carried from pair to pair, apart from the cache: tensors [P, B, D], none if there is no such state."""


@dataclass(frozen=True)
class Blocks:
    """R expanded nodes of a draft: the layer's outputs for the k levels below each, and the state to continue with."""

    nodes: Tensor  # [B, R] int64
    outputs: Tensor  # [B, R, k, P], for the k levels below the node
    state: State  # [P, B, R, D] each, after the node's own pair
    position: Tensor  # [B, R] int64, of the first pair below the node
    sees: Tensor  # [B, R, S] bool, which of the S expansions below the root lie on the node's path

    @classmethod
    def of_root(cls, outputs: Tensor, state: State, counts: Tensor) -> Blocks:
        """The root alone, given the outputs below it [B, k, P], the state after its pair and pairs so far [B]."""
        return cls(
            nodes=torch.zeros_like(counts)[:, None],
            outputs=outputs[:, None],
            state=tuple(part[:, :, None] for part in state),
            position=counts[:, None],
            sees=counts.new_zeros(len(counts), 1, 0, dtype=torch.bool),
        )

    @classmethod
    def joined(cls, parts: list[Blocks]) -> Blocks:
        """Joins all parts' nodes in order; a node sees no expansion made after its own."""
        width = parts[-1].sees.shape[2]
        return cls(
            nodes=torch.cat([part.nodes for part in parts], 1),
            outputs=torch.cat([part.outputs for part in parts], 1),
            state=tuple(torch.cat(same, 2) for same in zip(*(part.state for part in parts), strict=True)),
            position=torch.cat([part.position for part in parts], 1),
            sees=torch.cat([pad(part.sees, (0, width - part.sees.shape[2])) for part in parts], 1),
        )

    @classmethod
    def among(cls, parts: list[Blocks], nodes: Tensor) -> Blocks:
        """Selects nodes [B, F], each from one of the parts.

        Usually all are in the last part. The host checks this if it need not wait, since that costs less than joining.
        """
        if len(parts) == 1:
            return parts[0].take(nodes)
        if nodes.is_cpu and (places := parts[-1].places(nodes)) is not None:
            return parts[-1].select(places)
        return cls.joined(parts).take(nodes)

    def places(self, nodes: Tensor) -> list[int] | None:
        """The indices of these nodes [B, F] among the B R, as a list on the host; None if one is missing."""
        count, places = self.nodes.shape[1], []
        for row, (own, wanted) in enumerate(zip(self.nodes.tolist(), nodes.tolist(), strict=True)):
            found = {own[place]: row * count + place for place in range(count - 1, -1, -1)}  # the first of equal ones
            if any(node not in found for node in wanted):
                return None
            places += [found[node] for node in wanted]
        return places

    def select(self, places: list[int]) -> Blocks:
        """Selects nodes by their indices among the B R, equally many of every row, [B F]."""
        batch, count = self.nodes.shape
        if places == [*range(batch * count)]:
            return self
        if count == 1:
            return self._repeated(len(places) // batch)
        index = tensor_on(self.nodes.device, places)
        shape = (batch, len(places) // batch)
        return Blocks(
            nodes=self.nodes.flatten().index_select(0, index).view(shape),
            outputs=self.outputs.flatten(0, 1).index_select(0, index).unflatten(0, shape),
            state=tuple(part.flatten(1, 2).index_select(1, index).unflatten(1, shape) for part in self.state),
            position=self.position.flatten().index_select(0, index).view(shape),
            sees=self.sees.flatten(0, 1).index_select(0, index).unflatten(0, shape),
        )

    def take(self, nodes: Tensor) -> Blocks:
        """Selects nodes [B, F], each one of the R."""
        if self.nodes.shape[1] == 1:  # then it is the root, without a search
            return self._repeated(nodes.shape[1])
        places = (self.nodes[:, None] == nodes[:, :, None]).byte().argmax(-1)  # [B, F]
        rows = torch.arange(len(places), device=places.device)[:, None]  # [B, 1]
        return Blocks(
            nodes=self.nodes[rows, places],
            outputs=self.outputs[rows, places],
            state=tuple(part[:, rows, places] for part in self.state),
            position=self.position[rows, places],
            sees=self.sees[rows, places],
        )

    def _repeated(self, count: int) -> Blocks:
        """The only node, `count` times, as views."""
        return Blocks(
            nodes=self.nodes.expand(-1, count),
            outputs=self.outputs.expand(-1, count, -1, -1),
            state=tuple(part.expand(-1, -1, count, -1) for part in self.state),
            position=self.position.expand(-1, count),
            sees=self.sees.expand(-1, count, -1),
        )

    def stack(self, others: Blocks) -> Blocks:
        """Stacks these rows on the others' rows, which have equally many nodes."""
        return Blocks(
            nodes=torch.cat([self.nodes, others.nodes]),
            outputs=torch.cat([self.outputs, others.outputs]),
            state=tuple(torch.cat(parts, 1) for parts in zip(self.state, others.state, strict=True)),
            position=torch.cat([self.position, others.position]),
            sees=torch.cat([self.sees, others.sees]),
        )

    def keep(self, rows: Tensor) -> Blocks:
        """Selects rows of the batch, int64 [R], in this order."""
        return Blocks(
            nodes=self.nodes[rows],
            outputs=self.outputs[rows],
            state=tuple(part[:, rows] for part in self.state),
            position=self.position[rows],
            sees=self.sees[rows],
        )


@dataclass(frozen=True)
class Queries:
    """T entries of a forward pass that sees S slots of the cache."""

    inputs: Tensor  # [B, T, D]
    positions: Tensor  # [B, T] int64
    mask: Tensor  # [B, T, S] bool, which slots each of them sees
    before: Tensor | None = None  # the mask of all layers but the last; None: `mask`

    @classmethod
    def after(cls, masks: Tensor, position: Tensor, path: Tensor) -> Queries:
        """A run of masks after each of F entries: masks [B, F, M, D], the entries' positions [B, F].

        A mask sees the slots that its entry sees, path [B, F, S], and among the masks, in the slots S .. S + F M - 1,
        itself and those before it in its run.
        """
        batch, runs, count, _ = masks.shape
        device = masks.device
        offsets = torch.arange(1, count + 1, device=device)
        own = torch.eye(runs, dtype=torch.bool, device=device).kron(_causal(count, device))  # [F M, F M]
        return cls(
            inputs=masks.flatten(1, 2),
            positions=(position[..., None] + offsets).flatten(1),
            mask=torch.cat([repeated(path, count), own.expand(batch, -1, -1)], 2),
        )

    def followed_by(self, others: Queries) -> Queries:
        """Returns these queries followed by the others, which these do not see."""
        return Queries(
            inputs=torch.cat([self.inputs, others.inputs], 1),
            positions=torch.cat([self.positions, others.positions], 1),
            mask=_stacked(self.mask, others.mask),
            before=None if self.before is None else _stacked(self.before, others.mask),
        )

    def run(self, layer: DecoderLayer, cache: SlotCache) -> Tensor:
        """The outputs of decoder layers over an aimed cache, [B, T, P]."""
        before = None if self.before is None else self.before[:, None]
        outputs: Tensor = layer(self.inputs, self.positions, self.mask[:, None], cache, before)
        return outputs

    def causal(self) -> Queries:
        """These queries with a causal mask before the last layer, whose own entries are the last T of the S slots."""
        count = self.mask.shape[1]
        before = self.mask.clone()
        before[:, :, -count:] &= _causal(count, before.device)
        return replace(self, before=before)


def repeated(path: Tensor, count: int) -> Tensor:
    """Repeats each of F entries' visible slots for `count` queries of every one: [B, F, S] -> [B, F count, S]."""
    return path if count == 1 else path[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)


def _stacked(mask: Tensor, others: Tensor) -> Tensor:
    """Stacks a mask [B, T, S] on one of at least S slots; its queries do not see the further slots."""
    return torch.cat([pad(mask, (0, others.shape[2] - mask.shape[2])), others], 1)


def _causal(length: int, device: torch.device) -> Tensor:
    """Returns the plain causal mask: [length, length] bool."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def ends(values: Tensor, width: int, fresh: list[int]) -> Tensor:
    """The last `width` positions of each row, [B, T, D] -> [B, width, D], where rows end with their fresh pairs."""
    length = values.shape[1]
    if min(fresh) == max(fresh):
        return values[:, length - width :]
    short = tensor_on(values.device, fresh) - max(fresh)  # [B], how much earlier a row ends
    places = short[:, None] + torch.arange(length - width, length, device=values.device)  # [B, width]
    return values[torch.arange(len(fresh), device=values.device)[:, None], places]
