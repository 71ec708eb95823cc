"""transformers' own forward passes, with a cache that writes to given slots."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.forward.layer_subset import LayerSubset
from specframe.components.targets.forward.passes import Computing, Found, taps_above, taps_below
from specframe.components.targets.forward.state import ALL, AttentionView, State
from specframe.components.targets.forward.taps import Taps
from specframe.kernel.layers import LayerChoice
from specframe.kernel.predictions import LazyTeacher, Read
from specframe.kernel.types import Drafts, Teacher, TokenTree
from specframe.neural.cache import cache_name
from specframe.neural.masks import draft_positions, visible_drafts

KEPT = 64
"""Largest number of layer choices kept as models of their own; a search tries many more."""


class ModelPasses:
    """transformers' own forward pass, with a cache that writes to given slots."""

    widths: Callable[[int], int] | None = None

    def __init__(self, model: nn.Module, taps: Taps, views: Mapping[str, AttentionView], masked: bool) -> None:
        self.computing = Computing()
        self.model = model
        self.taps = taps
        self.views = views if masked else {}
        self.masked = masked
        self.head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
        self._parts: dict[tuple[LayerChoice, bool], LayerSubset] = {}
        self._cache_name = cache_name(model)
        self.trims = "logits_to_keep" in inspect.signature(model.forward).parameters

    def around(self, taps: Taps) -> ModelPasses:
        """The same with other taps."""
        return ModelPasses(self.model, taps, self.views, self.masked)

    def read(self, tokens: Tensor, state: State, last: Tensor, start: int = 0) -> Found:
        """Reads prompts; right padding needs no mask: causal attention keeps it from the tokens before it."""
        count = tokens.shape[1]
        ends, which = torch.unique(last, return_inverse=True)
        options: dict[str, Any] = {"logits_to_keep": ends} if self.trims else {}
        if start:
            options["attention_mask"] = self._masks(lambda view: state.mask_piece(start, count, view), start + count)
        positions = torch.arange(start, start + count, device=tokens.device).expand(tokens.shape)
        logits, features = self.run(
            tokens, position_ids=positions, use_cache=True, **self._over(state), **options
        )  # [A, E, V], or [A, L, V] from models that cannot leave positions out
        rows = torch.arange(len(last), device=which.device)
        return logits[rows, which if self.trims else last], features

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Scores a tree."""
        mask = self._masks(lambda view: state.mask(tree, view), state.base + tree.levels + 1)
        options = {"position_ids": positions, "attention_mask": mask, "use_cache": True, **self._over(state)}
        found: Found = self.computing(lambda: self.run(tree.tokens, **options))
        return found

    def below(
        self, tree: TokenTree, nodes: Tensor, state: State, positions: Tensor, chosen: LayerChoice
    ) -> Mapping[str, Tensor]:
        """Runs some layers over nodes of a tree."""
        state.aim_nodes(tree, nodes)
        mask = self._masks(lambda view: _of_nodes(state.mask(tree, view), nodes), state.base + tree.levels + 1)
        options = {"position_ids": positions.gather(1, nodes), "attention_mask": mask, **self._over(state)}
        part = self._part(chosen, headless=True)
        with part.listening(taps_below(self.taps.wanted, chosen)) as features:
            self.computing(lambda: part.run(tree.tokens.gather(1, nodes), **options))
        return features

    def above(self, tree: TokenTree, state: State, positions: Tensor, entry: Tensor, chosen: LayerChoice) -> Found:
        """Runs the last layers over a tree."""
        mask = self._masks(lambda view: state.mask(tree, view), state.base + tree.levels + 1)
        options = {"position_ids": positions, "attention_mask": mask, **self._over(state)}
        part = self._part(chosen, headless=False)
        with part.listening(taps_above(self.taps.wanted, chosen)) as features, part.entering(entry):
            logits = self.computing(lambda: part.run(tree.tokens, **options))
        return logits, features

    def _over(self, state: State) -> dict[str, Any]:
        return {self._cache_name: state.cache}

    def _part(self, chosen: LayerChoice, headless: bool) -> LayerSubset:
        part = self._parts.pop((chosen, headless), None) or LayerSubset(self.model, chosen, headless)
        self._parts[chosen, headless] = part  # the latest comes last
        if len(self._parts) > KEPT:
            del self._parts[next(iter(self._parts))]
        return part

    def _masks(self, make: Callable[[AttentionView], Tensor | None], length: int) -> Any:
        """One mask, or for a decoder of several kinds of layers one for each; None where nothing is hidden.

        Kinds with the same view of these positions share theirs.
        """
        views = {kind: view.within(length) for kind, view in self.views.items()} or {"": ALL}
        made = {view: make(view) for view in dict.fromkeys(views.values())}
        if len(views) == 1 or all(mask is None for mask in made.values()):
            return next(iter(made.values()))
        return {kind: made[view] for kind, view in views.items()}

    def read_texts(self, tokens: Tensor, drafts: Drafts | None, context: int, dtype: torch.dtype) -> Found:
        """Reads whole texts [B, L] at once, perhaps ending in drafts; masks have the dtype of the states."""
        if drafts is None:
            return self.run(tokens, use_cache=False)
        seen, positions = visible_drafts(drafts), draft_positions(drafts).clamp(max=context - 1)

        def mask(view: AttentionView) -> Tensor:
            hidden = ~seen | view.hides(positions[..., None], positions[:, None])
            return torch.zeros_like(seen, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None]

        masks = self._masks(mask, tokens.shape[1])
        return self.run(tokens, position_ids=positions, attention_mask=masks, use_cache=False)

    def teach(
        self, tokens: Tensor, mask: Tensor, drafts: Drafts | None, context: int, dtype: torch.dtype, read: Read | None
    ) -> Teacher:
        """The answers for texts [B, L]; the LM head `read` is left out until logits are read, where the model can.

        Without `read`, which needs the tap `last`, the model's own forward pass makes the logits.
        """
        if drafts is None and read is not None and self.trims:
            return LazyTeacher(tokens, mask, self.run(tokens, use_cache=False, logits_to_keep=1)[1], read)
        logits, features = self.read_texts(tokens, drafts, context, dtype)
        return Teacher(tokens, mask, features, logits, drafts=drafts)

    def run(self, tokens: Tensor, **options: Any) -> Found:
        """Runs any tokens, with the options of transformers' models."""
        with self.taps.listening() as features:
            logits = self.model(tokens, **options).logits
        return logits, features


def _of_nodes(mask: Tensor | None, nodes: Tensor) -> Tensor | None:
    """The lines of a tree's mask [B, 1, N, W] that are these nodes' [B, F]: [B, 1, F, W]."""
    if mask is None:
        return None
    return mask.gather(2, nodes[:, None, :, None].expand(-1, -1, -1, mask.shape[3]))
