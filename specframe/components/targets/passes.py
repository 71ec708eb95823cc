"""Forward passes over a session's rows: transformers' own, or the quantized decoder's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specframe.components.targets.quantized.decoder import Decoder, Nodes, Unfit
from specframe.components.targets.state import ALL, State, View
from specframe.components.targets.taps import Taps
from specframe.kernel.types import TokenTree
from specframe.neural.quantized.layers import Tree, packed

Found = tuple[Tensor, Mapping[str, Tensor]]
"""Logits [B, T, V], and the features [B, T, D] of the taps."""
CHUNK = 256
"""Tokens of a prompt that the quantized decoder reads at once, which bounds its memory."""


class Passes(Protocol):
    """The two forward passes of a session. Its state is aimed at the slots to write before each."""

    masked: bool
    """Whether every kind of layer is given a mask of its own, as windows need where they bite."""
    head: nn.Module
    """The LM head, as it computes where no gradients are wanted."""

    def read(self, tokens: Tensor, state: State, wanted: Tensor, start: int = 0) -> Found:
        """Over prompts [A, L]: logits at the `wanted` of them [E], in order, and features of all.

        `start` of their tokens were read before: they are the rest, of one prompt.
        """
        ...

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Over a tree whose nodes are at `positions` [B, N]."""
        ...


class ModelPasses:
    """transformers' own forward pass, with a cache that writes to given slots."""

    def __init__(self, model: nn.Module, taps: Taps, views: Mapping[str, View], masked: bool) -> None:
        self._model = model
        self._taps = taps
        self._views = views if masked else {}
        self.masked = masked
        self.head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self._trims = "logits_to_keep" in inspect.signature(model.forward).parameters

    def read(self, tokens: Tensor, state: State, wanted: Tensor, start: int = 0) -> Found:
        """Right padding needs no mask: causal attention keeps it from the tokens before it."""
        count = tokens.shape[1]
        options: dict[str, Any] = {"logits_to_keep": wanted} if self._trims else {}
        if start:
            options["attention_mask"] = self._masks(lambda view: state.mask_piece(start, count, view), start + count)
        positions = torch.arange(start, start + count, device=tokens.device).expand(tokens.shape)
        logits, features = self.run(
            tokens, past_key_values=state.cache, position_ids=positions, use_cache=True, **options
        )  # [A, E, V], or [A, L, V] from models that cannot leave positions out
        return logits if self._trims else logits[:, wanted], features

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Over a tree."""
        mask = self._masks(lambda view: state.mask(tree, view), state.base + tree.levels + 1)
        return self.run(
            tree.tokens, past_key_values=state.cache, position_ids=positions, attention_mask=mask, use_cache=True
        )

    def _masks(self, make: Callable[[View], Tensor | None], length: int) -> Any:
        """One mask, or for a decoder of several kinds of layers one for each; None where nothing is hidden.

        Kinds that see the same of so many positions share theirs.
        """
        views = {kind: view.within(length) for kind, view in self._views.items()} or {"": ALL}
        made = {view: make(view) for view in dict.fromkeys(views.values())}
        if len(views) == 1 or all(mask is None for mask in made.values()):
            return next(iter(made.values()))
        return {kind: made[view] for kind, view in views.items()}

    def run(self, tokens: Tensor, **options: Any) -> Found:
        """Over any tokens, with the options of transformers' models."""
        with self._taps.listening() as features:
            logits = self._model(tokens, **options).logits
        return logits, features


class KernelPasses(nn.Module):
    """The forward pass of the compiled kernels, and the LM head. They know no window."""

    masked = False

    def __init__(self, decoder: Decoder, head: nn.Module, taps: Taps) -> None:
        super().__init__()
        self._decoder = decoder
        self.head = head
        self._taps = taps

    def around(self, taps: Taps) -> KernelPasses:
        """The same with other taps."""
        return KernelPasses(self._decoder, self.head, taps)

    def read(self, tokens: Tensor, state: State, wanted: Tensor, start: int = 0) -> Found:
        """In chunks, which changes no bit of the result."""
        batch = len(tokens)
        features: list[Mapping[str, Tensor]] = []
        hidden: list[Tensor] = []
        for chunk in tokens.split(CHUNK, 1):
            count = chunk.shape[1]
            positions = torch.arange(start, start + count).expand(batch, -1)
            sees = torch.ones(count, count, dtype=torch.bool).tril().expand(batch, -1, -1)
            seen = Tree(sees, torch.full((batch,), start), start)
            nodes = Nodes(chunk, positions, seen, state.cache.row)
            start += count
            found, captured = self._decoder.run(nodes, state.cache, self._taps.wanted)
            hidden.append(found)
            features.append(captured)
        whole = {tap: torch.cat([captured[tap] for captured in features], 1) for tap in features[0]}
        return self.head(torch.cat(hidden, 1)[:, wanted]), whole

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Over a tree."""
        found: Found = self(Nodes(tree.tokens, positions, Tree(tree.ancestors, state.length, state.base)), state)
        return found

    def forward(self, nodes: Nodes, state: State) -> Found:
        """Over the nodes of one forward pass."""
        hidden, features = self._decoder.run(nodes, state.cache, self._taps.wanted)
        return self.head(hidden), features


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
