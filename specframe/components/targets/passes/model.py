"""transformers' own forward passes, with a cache that writes to given slots."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.passes.passes import Found, taps_above, taps_below
from specframe.components.targets.passes.state import ALL, State, View
from specframe.components.targets.passes.taps import Taps
from specframe.components.targets.passes.thinning import Part
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree


class ModelPasses:
    """transformers' own forward pass, with a cache that writes to given slots."""

    def __init__(self, model: nn.Module, taps: Taps, views: Mapping[str, View], masked: bool) -> None:
        self._model = model
        self._taps = taps
        self._views = views if masked else {}
        self.masked = masked
        self.head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self._parts: dict[tuple[LayerChoice, bool], Part] = {}
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

    def below(
        self, tree: TokenTree, nodes: Tensor, state: State, positions: Tensor, chosen: LayerChoice
    ) -> Mapping[str, Tensor]:
        """Over nodes of a tree, by some layers."""
        state.aim_nodes(tree, nodes)
        length = state.base + tree.levels + 1
        part = self._part(chosen, headless=True)
        with part.listening(taps_below(self._taps.wanted, chosen)) as features:
            part.model(
                tree.tokens.gather(1, nodes),
                past_key_values=state.cache,
                position_ids=positions.gather(1, nodes),
                attention_mask=self._masks(lambda view: _of_nodes(state.mask(tree, view), nodes), length),
                use_cache=True,
            )
        return features

    def above(self, tree: TokenTree, state: State, positions: Tensor, entry: Tensor, chosen: LayerChoice) -> Found:
        """Over a tree, by the last layers."""
        part = self._part(chosen, headless=False)
        mask = self._masks(lambda view: state.mask(tree, view), state.base + tree.levels + 1)
        with part.listening(taps_above(self._taps.wanted, chosen)) as features, part.entering(entry):
            logits = part.model(
                tree.tokens, past_key_values=state.cache, position_ids=positions, attention_mask=mask, use_cache=True
            ).logits
        return logits, features

    def _part(self, chosen: LayerChoice, headless: bool) -> Part:
        if (chosen, headless) not in self._parts:
            self._parts[chosen, headless] = Part(self._model, chosen, headless)
        return self._parts[chosen, headless]

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


def _of_nodes(mask: Tensor | None, nodes: Tensor) -> Tensor | None:
    """The lines of a tree's mask [B, 1, N, W] that are these nodes' [B, F]: [B, 1, F, W]."""
    if mask is None:
        return None
    return mask.gather(2, nodes[:, None, :, None].expand(-1, -1, -1, mask.shape[3]))
