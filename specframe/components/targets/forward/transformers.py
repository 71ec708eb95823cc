"""Forward pass of transformers, with a cache that writes to given slots."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.forward import split_attention
from specframe.components.targets.forward.layer_subset import LayerSubset, embedding_and_head
from specframe.components.targets.forward.masks import ALL, AttentionView, masks_of, options_of_drafts
from specframe.components.targets.forward.taps import Taps
from specframe.kernel.layers import LayerChoice
from specframe.kernel.predictions import LazyTeacher, Read
from specframe.kernel.types import Drafts, Teacher
from specframe.native.visibility import Causal, Tree
from specframe.neural.cache import SlotCache, cache_name
from specframe.neural.forward import Features, Output, Pass, agree, gather_each
from specframe.neural.heads import last_place

KEPT = 64
"""Maximum number of layer choices that are kept as models; a search tries many more."""


class TransformersForward:
    """Forward pass of transformers, with a cache that writes to given slots."""

    widths: Callable[[int], int] | None = None
    cache: str | None = None
    finds_best = False
    greedy = None

    def __init__(self, model: nn.Module, taps: Taps, views: Mapping[str, AttentionView], windows: bool) -> None:
        """Wraps a model. If it accepts masks, each layer sees what its view in `views` allows."""
        self.model = model
        self.taps = taps
        self.views = views if windows else {}
        self.windows = windows
        self.head: nn.Module = embedding_and_head(model)[1]
        takes = inspect.signature(model.forward).parameters
        self.trims = "logits_to_keep" in takes
        """True if the model can skip the LM head at some positions."""
        self._dtype: torch.dtype = model.dtype  # type: ignore[assignment]
        self._subsets: dict[tuple[LayerChoice, bool], LayerSubset] = {}
        self._cache_name = cache_name(model)
        self._splits: bool | None = None  # True if split attention gives equal logits; None: not tried yet
        self._placed = "position_ids" in takes  # a model without attention does not use positions

    def follow(self) -> None:
        """Updates references after modules of the model were replaced."""
        _, self.head = embedding_and_head(self.model)
        self._subsets.clear()

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs the model, or a model of the chosen layers. See `Forward`.

        On a CPU, attention of trees after a long prefix is split once one pass has shown that the logits agree.
        """
        if self._splits is False or not self._may_split(asked, memory):
            return self._run_whole(asked, memory)
        assert isinstance(asked.visibility, Tree)
        wanted = None if self._splits else self._run_whole(asked, memory)
        masks = split_attention.SplitMasks.of(asked.visibility, self._dtype)
        with split_attention.split_attention(self.taps.attentions, masks):
            found = self._run_whole(asked, memory, masks.tree)
        if wanted is None:
            return found
        logits, same = found[0], wanted[0]
        self._splits = logits is not None and same is not None and agree(logits, same)
        return found if self._splits else self._run_whole(asked, memory)

    def _may_split(self, asked: Pass, memory: SlotCache) -> bool:
        visibility = asked.visibility
        if (
            not isinstance(visibility, Tree)
            or visibility.base < split_attention.LONG
            or (visibility.even and visibility.sees.shape[1] == 1)
        ):
            return False
        whole = asked.layers is None and asked.states is None and not asked.inputs and memory.rewindable
        wide = all(view.for_length(visibility.end) is ALL for view in self.views.values())
        asking = self.taps.attentions
        known = all(layer.config._attn_implementation == "sdpa" for layer in asking)  # type: ignore[union-attr]
        return whole and wide and visibility.sees.is_cpu and len(asking) == self.taps.layers and known

    def _run_whole(self, asked: Pass, memory: SlotCache, mask: Tensor | None = None) -> Output:
        """Runs one forward pass, with the given mask or the one that follows from the nodes' visibility."""
        visibility = asked.visibility
        memory.aim_at(visibility, asked.row)
        options: dict[str, Any] = {
            "attention_mask": masks_of(visibility, asked.positions, self.views, self._dtype) if mask is None else mask,
            "use_cache": True,
            self._cache_name: memory,
            **asked.inputs,
        }
        if self._placed:
            options["position_ids"] = asked.positions if asked.places is None else asked.places
        which = None
        if self.trims and isinstance(asked.keep, Tensor):
            options["logits_to_keep"], which = torch.unique(asked.keep, return_inverse=True)
        elif self.trims and asked.headless:
            options["logits_to_keep"] = last_place(asked.tokens)
        logits, features = self._run(asked, options)
        if asked.headless:
            return None, features
        return asked.selected(logits) if which is None else gather_each(logits, which), features

    def _run(self, asked: Pass, options: dict[str, Any]) -> tuple[Tensor, Features]:
        lengths = asked.visibility.lengths if isinstance(asked.visibility, Causal) else None
        if asked.layers is None and asked.states is None:
            with self.taps.listening(asked.taps, lengths, asked.tokens) as features:
                return self.model(asked.tokens, **options).logits, features
        chosen = asked.layers or LayerChoice.first(self.taps.layers, self.taps.layers)
        subset = self._subset(chosen, asked.headless)
        with subset.listening(asked.taps, lengths) as features, subset.entering(asked.states):
            return subset.model(asked.tokens, **options).logits, features

    def _subset(self, chosen: LayerChoice, headless: bool) -> LayerSubset:
        subset = self._subsets.pop((chosen, headless), None) or LayerSubset(self.model, chosen, headless)
        self._subsets[chosen, headless] = subset  # the most recently used is last
        if len(self._subsets) > KEPT:
            del self._subsets[next(iter(self._subsets))]
        return subset

    def teach(
        self,
        texts: tuple[Tensor, Tensor],
        taps: frozenset[str],
        drafts: Drafts | None,
        context: int,
        read: Read | None,
        inputs: Mapping[str, Tensor],
    ) -> Teacher:
        """Computes the answers for texts, tokens and mask [B, L], which may end in drafts, in one pass without a cache.

        `inputs`, such as images, are read with the texts; the model then counts positions, which right padding does not
        change.

        If the model allows, the LM head `read`, which needs the tap `last`, runs only when logits are read.
        """
        tokens, mask = texts
        options: dict[str, Any] = {"use_cache": False, **inputs}
        if lazy := drafts is None and read is not None and self.trims:
            options["logits_to_keep"] = last_place(tokens)
        if drafts is not None:
            options |= options_of_drafts(drafts, context, self.views, self._dtype)
        with self.taps.listening(taps, tokens=tokens) as features:
            logits = self.model(tokens, **options).logits
        features = self.taps.whole(features)
        if lazy:
            return LazyTeacher(tokens, mask, features, read)
        return Teacher(tokens, mask, features, logits, drafts=drafts)
