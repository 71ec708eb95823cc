"""The forward passes of the compiled kernels, and the LM head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.forward.native_decoder import Decoder, Nodes, Unfit
from specframe.components.targets.forward.passes import Computing, Found, taps_above, taps_below
from specframe.components.targets.forward.state import State
from specframe.components.targets.forward.taps import Taps
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree
from specframe.native.decoder import Mask, Tree, packed
from specframe.native.linear import logits_of
from specframe.neural.cache import SlotCache

CHUNK = 256
"""Tokens of a prompt that are read at once, which bounds the memory it takes."""


FREE = 16
"""Number of tokens that cost no more than one: the pass is bound by reading weights."""


def together(last: Sequence[int]) -> Iterator[int]:
    """Yields how many prompts, in order, to read at once, given the places of their last tokens.

    A prompt waits for the longest one read with it. Where the cost grows with every token, none has to.
    """
    count = longest = 0
    for place in last:
        longest = max(longest, place + 1)
        if count and (count + 1) * longest > FREE:
            yield count
            count, longest = 0, place + 1
        count += 1
    yield count


class KernelPasses:
    """The forward pass of the compiled kernels, and the LM head. They know no window."""

    masked = False
    widths: Callable[[int], int] | None = None

    def __init__(self, decoder: Decoder, head: nn.Module, taps: Taps) -> None:
        self.computing = Computing()
        self._decoder = decoder
        self.head = head
        self._taps = taps

    def around(self, taps: Taps) -> KernelPasses:
        """The same with other taps."""
        return KernelPasses(self._decoder, self.head, taps)

    def read(self, tokens: Tensor, state: State, last: Tensor, start: int = 0) -> Found:
        """Reads each prompt by itself, and in chunks, which changes no bit of the result."""
        hidden: list[Tensor] = []
        features: dict[str, Tensor] = {}
        first = 0
        for count in together(last.tolist()):
            rows = slice(first, first + count)
            width = int(last[rows].max()) + 1
            found, captured = self._read(tokens[rows, :width], state, state.cache.row + first, start)
            hidden.append(found[torch.arange(count), last[rows]])
            for tap, values in captured.items():
                whole = features.setdefault(tap, values.new_zeros(*tokens.shape, values.shape[2]))
                whole[rows, :width] = values
            first += count
        return logits_of(self.head, torch.cat(hidden)), features

    def _read(self, tokens: Tensor, state: State, row: int, start: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The hidden states and features [B, N, D] of tokens [B, N] behind `start` others, from the cache's row on."""
        batch = len(tokens)
        hidden: list[Tensor] = []
        features: list[Mapping[str, Tensor]] = []
        for chunk in tokens.split(CHUNK, 1):
            count = chunk.shape[1]
            positions = torch.arange(start, start + count).expand(batch, -1)
            sees = torch.ones(count, count, dtype=torch.bool).tril().expand(batch, -1, -1)
            seen = Tree(sees, torch.full((batch,), start), start)
            start += count
            found, captured = self._decoder.run(Nodes(chunk, positions, seen, row), state.cache, self._taps.wanted)
            hidden.append(found)
            features.append({tap: values.to(found.dtype) for tap, values in captured.items()})
        whole = {tap: torch.cat([captured[tap] for captured in features], 1) for tap in features[0]}
        return torch.cat(hidden, 1), whole

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Scores a tree."""
        nodes = Nodes(tree.tokens, positions, Tree(tree.ancestors, state.length, state.base))
        found: Found = self.computing(lambda: self._run(nodes, state, self._taps.wanted))
        return found

    def below(
        self, tree: TokenTree, nodes: Tensor, state: State, positions: Tensor, chosen: LayerChoice
    ) -> Mapping[str, Tensor]:
        """Runs some layers over nodes of a tree."""
        state.aim_nodes(tree, nodes)
        sees = Mask(state.visible(tree, nodes), state.base + nodes)
        asked = Nodes(tree.tokens.gather(1, nodes), positions.gather(1, nodes), sees)
        taps = taps_below(self._taps.wanted, chosen)
        features: Mapping[str, Tensor] = self.computing(lambda: self._decoder.run(asked, state.cache, taps, chosen)[1])
        return features

    def above(self, tree: TokenTree, state: State, positions: Tensor, entry: Tensor, chosen: LayerChoice) -> Found:
        """Runs the last layers over a tree."""
        nodes = Nodes(tree.tokens, positions, Tree(tree.ancestors, state.length, state.base))
        taps = taps_above(self._taps.wanted, chosen)
        found: Found = self.computing(lambda: self._run(nodes, state, taps, chosen, entry))
        return found

    def part(
        self, nodes: Nodes, cache: SlotCache, chosen: LayerChoice, entry: Tensor | None, keep: int | Tensor
    ) -> Found:
        """Runs the chosen layers over a drafter's nodes: logits of the nodes to keep, and the last layer's tap.

        `keep` is the number of last nodes, or their indices [E]; 0 keeps all. `entry` [B, N, D] is the input of the
        first chosen layer.
        """
        tap = f"layer.{chosen.kept[-1]}"
        hidden, features = self._decoder.run(nodes, cache, frozenset({tap}), chosen, entry)
        kept = hidden[:, -keep:] if isinstance(keep, int) else hidden[:, keep]
        return logits_of(self.head, kept), features

    def _run(
        self,
        nodes: Nodes,
        state: State,
        taps: frozenset[str],
        chosen: LayerChoice | None = None,
        entry: Tensor | None = None,
    ) -> Found:
        """Runs the nodes of one forward pass, by all or some of the layers."""
        hidden, features = self._decoder.run(nodes, state.cache, taps, chosen, entry)
        return logits_of(self.head, hidden), {tap: values.to(hidden.dtype) for tap, values in features.items()}


def kernel_passes(
    model: nn.Module, parts: tuple[Any, Any, nn.ModuleList], taps: Taps, option: str, unfit: Unfit
) -> KernelPasses | None:
    """Forward passes by the kernels of a model whose config, decoder and layers are `parts`.

    None, with a warning in the option's name, where `unfit` finds a reason.
    """
    if (reason := unfit(*parts)) is not None:
        logging.getLogger(__name__).warning("%s: %s, so its forward pass is transformers' own", option, reason)
        return None
    return KernelPasses(Decoder(*parts), packed(model.get_output_embeddings()), taps)  # type: ignore[operator]
