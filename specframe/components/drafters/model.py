"""A smaller language model as the drafter: the original speculative sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from specframe.components.drafters.learning import checked_sizes, fresh_model, sample_on, save_model
from specframe.components.drafters.memory.masks import Masks
from specframe.components.drafters.text import CommittedText
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.promises import Promise
from specframe.kernel.types import Committed, Context, Frontier, Prompts, Proposal, TokenTree
from specframe.neural.state.cache import SlotCache

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ModelDrafter:
    """A causal language model with the target's vocabulary (Leviathan et al. 2023; Chen et al. 2023).

    It proposes one level a forward and serves every tree policy: a forward reads the frontier's nodes,
    each seeing the committed tokens and its own path. Options are those of the `hf` target. Beyond the
    model's own context a row drafts nothing, and decoding goes on a token at a time.

    In its cache a row's committed tokens fill the slots from 0, and node i of a draft stands i slots
    behind the root. What a draft wrote is never kept: the next draft's first forward reads all newly
    committed tokens together, which costs no forward of its own.

    It can be trained, from its own weights or as a `fresh` Llama of the target's tokenizer (FastDraft, Zafrir et al.
    2024).

    With `masks` it is PARD (arXiv 2504.18583): a model that was trained to fill in mask tokens behind the text proposes
    `masks` + 1 levels in one forward, the same below all nodes of a level; a deeper tree is refused.

    Options:
        model: a local folder, a name on the Hugging Face Hub, or zoo://name
        weights: a trained drafter's folder, zoo://name or Hub name, in place of the model
        fresh: the sizes of a new Llama in place of a model, by the names of its config, such as hidden_size
        dtype: the dtype of its weights; auto as for the target
        device: where it runs; the target's device
        revision: a branch, tag or commit on the Hub
        attention: transformers' attn_implementation, sdpa or eager
        masks: how many mask tokens stand behind the text (PARD); 0: none
        mask_token: the token that they are; none: the `pard_token` of the model's config
    """

    taps: frozenset[str] = frozenset()
    promise = Promise()

    def __init__(
        self,
        *,
        model: str | None = None,
        weights: str | None = None,
        fresh: dict[str, int] | None = None,
        dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto",
        device: str = "auto",
        revision: str | None = None,
        attention: str | None = None,
        masks: int = 0,
        mask_token: int | None = None,
    ) -> None:
        if (model is None) == (fresh is None) and weights is None:
            raise InputError(
                "a model drafter needs one of `model`, the one that drafts, and `fresh`, a new one's sizes"
            )
        self._fresh = None if fresh is None or weights is not None else checked_sizes(fresh)
        self._mask(Masks(masks, mask_token))
        self._load: Callable[[], HFTarget] = partial(
            HFTarget, model=weights or model or "", dtype=dtype, device=device, revision=revision, attention=attention
        )
        self.open(1, 0)

    @classmethod
    def from_model(
        cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None, *, masks: Masks | None = None
    ) -> ModelDrafter:
        """A drafter around a model in memory, which it leaves as it is."""
        drafter = cls.__new__(cls)
        drafter._fresh = None
        drafter._mask(masks or Masks())
        drafter._load = partial(HFTarget.from_model, model, tokenizer)
        drafter.open(1, 0)
        return drafter

    def untrained(self, vocab: int) -> ModelDrafter:
        """A drafter around a tiny random model of `vocab` tokens."""
        return ModelDrafter.from_model(tiny_llama(vocab, seed=7), masks=self.masks.small(vocab))

    def _mask(self, masks: Masks) -> None:
        self.masks, self.promise = masks, masks.promise

    @cached_property
    def _reader(self) -> HFTarget:
        """The model, loaded by the first bind."""
        return self._load()

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier sessions; storage for `slots` rows is allocated by the first forward."""
        self._slots = slots
        self._text = CommittedText()
        self._cache: SlotCache | None = None
        self._known: list[int] = []  # committed tokens of each row that the cache holds

    @property
    def vocab_size(self) -> int:
        """How many tokens the model has; loads it."""
        return self._reader.vocab_size

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's own tokenizer; loads the model."""
        return self._reader.tokenizer

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text of the model."""
        return self._reader.ends

    @property
    def module(self) -> nn.Module:
        """The model, its parameters with gradients."""
        return self._reader.model.requires_grad_(True)

    def save(self, folder: Path) -> None:
        """Writes the model and its tokenizer as a model's folder, each file whole or not at all."""
        save_model(self._reader.model, self._reader.tokenizer, folder)

    def read_text(self, tokens: Tensor) -> Tensor:
        """The logits after every token of texts [B, L], causal, [B, L, V]; gradients reach the module."""
        logits: Tensor = self._reader.model(tokens, use_cache=False).logits
        return logits

    def continue_text(self, tokens: Tensor, start: Tensor, temperature: float) -> Tensor:
        """The texts [B, L] with samples of the model in place of the tokens from `start` [B] on, [B, L].

        `start` is at least 1. Nothing is dropped out, and there are no gradients.
        """
        return sample_on(self._reader.model, tokens, start, temperature)

    def bind(self, target: Target) -> None:
        """Checks that the target has the same tokens, on the same device; raises CompositionError."""
        if self._fresh is not None and "_reader" not in vars(self):
            self._load = partial(fresh_model, self._fresh, target)
        mine, theirs = self._reader.vocab_size, target.vocab_size
        if mine != theirs:
            raise CompositionError(
                f"the drafting model has {mine} tokens and the target {theirs}; a model drafter needs the "
                "target's vocabulary, so take a smaller model of the target's family"
            )
        ours, other = self._reader.tokenizer, getattr(target, "tokenizer", None)
        if ours is not None and other is not None and ours.get_vocab() != other.get_vocab():
            raise CompositionError(
                "the drafting model's tokenizer gives tokens other numbers than the target's; a model "
                "drafter needs the target's vocabulary, so take a smaller model of the target's family"
            )
        self.masks = self.masks.of(self._reader.config, mine)
        device = getattr(target, "device", self._reader.device)
        if device != self._reader.device:
            raise CompositionError(
                f"the drafting model is on {self._reader.device} and the target on {device}; "
                "set the drafter's `device` to the target's"
            )

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the tree policy; raises CompositionError without one."""
        if tree is None:
            raise CompositionError("a model drafter grows a tree policy's tree, and there is none; try `chain`")
        # beyond this many tokens a draft might leave the context
        last = self._reader.context - max(tree.promise.nodes or 1, self.masks.count + 1)
        lengths = self._text.lengths
        if min(lengths) > last:
            return TokenTree.root_only(root)
        draft = tree.grow(self.expand, root, context)
        if max(lengths) <= last:
            return draft
        inside = (self._text.count <= last)[:, None]  # [B, 1]
        return replace(draft, valid=draft.valid & (inside | (draft.parent < 0)))

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits after each frontier node: one level, or with masks all of them below the root."""
        if frontier.tree.levels == 0:
            self._below_root = self._read_committed()[:, None]  # [B, 1, K + 1, V]
        elif not self.masks.count:
            return Proposal(self._read_nodes(frontier.tree, frontier.nodes)[:, :, None])
        else:
            self.masks.check(frontier)
        return Proposal(self._below_root.expand(-1, frontier.nodes.shape[1], -1, -1))

    @torch.no_grad()
    def commit(self, committed: Committed) -> None:
        """Takes note of the tokens, which the next draft reads.

        New rows that join others read their prompts at once: in the next draft's forward every other row would be
        padded to the length of their prompts.
        """
        before = len(self._known)
        self._text.commit(committed)
        if committed.prompt is not None:
            self._known += [0] * len(committed.count)
            if before:
                self._read_prompts(committed.prompt, before)

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow."""
        self._text.rewind(count)
        self._known = [min(known, length) for known, length in zip(self._known, self._text.lengths, strict=True)]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._text.keep(rows)
        self._known = [self._known[row] for row in rows.tolist()]
        if self._cache is not None:
            self._cache.keep(rows)

    def _aim(self, slots: int | Tensor, width: int, row: int = 0) -> SlotCache:
        """The cache, aimed at the rows from `row` on, with room for `width` slots."""
        if self._cache is None:
            self._cache = SlotCache(self._reader.config.num_hidden_layers, 2 * width, self._slots)
        elif width > self._cache.capacity:
            self._cache.grow(2 * width)
        self._cache.aim(slots, width, row)
        return self._cache

    def _read_prompts(self, prompts: Prompts, row: int) -> None:
        """Reads the prompts of the rows from `row` on."""
        width = prompts.tokens.shape[1]
        positions = torch.arange(width, device=prompts.tokens.device).expand_as(prompts.tokens)
        last = torch.tensor([width - 1], device=positions.device)  # its logits are of no use, but some must be made
        self._forward(self._aim(0, width, row), prompts.tokens, positions, None, last)
        self._known[row:] = prompts.count.tolist()

    def _read_committed(self) -> Tensor:
        """Reads what was committed since the last draft, the root at least, and K masks: the logits [B, K + 1, V]."""
        text = self._text
        starts = [min(known, have - 1) for known, have in zip(self._known, text.lengths, strict=True)]
        counts = [have - start for have, start in zip(text.lengths, starts, strict=True)]
        first, width, device = max(starts), max(counts) + self.masks.count, text.count.device
        steps = torch.arange(width, device=device)
        slots = torch.tensor(starts, device=device)[:, None] + steps  # [B, T]
        together = min(starts) == first
        cache = self._aim(first if together else slots, first + width)
        seen = None
        if first > 0 and (width > 1 or not together):
            seen = torch.arange(first + width, device=device) <= slots[:, :, None]  # [B, T, first + T]
        tokens = text.tokens.gather(1, slots.clamp(max=text.tokens.shape[1] - 1))
        tokens = self.masks.laid(tokens, slots >= text.count[:, None])
        asked = range(self.masks.count + 1)
        ends = sorted({count + ahead for count in counts for ahead in asked})
        keep = torch.tensor([end - 1 for end in ends], device=device)
        logits = self._forward(cache, tokens, slots, seen, keep)  # [B, ends, V]
        self._known = list(text.lengths)
        rows = torch.arange(len(counts), device=device)[:, None]
        places = [[ends.index(count + ahead) for ahead in asked] for count in counts]
        return logits[rows, torch.tensor(places, device=device)]

    def _read_nodes(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """The logits after nodes [B, F], none of them the root, whose ancestors have been read: [B, F, V]."""
        text = self._text
        root = text.count[:, None] - 1  # [B, 1] the root's slot
        count = tree.tokens.shape[1]
        width = max(text.lengths) - 1 + count
        cache = self._aim(root + nodes, width)
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, count))  # [B, F, N]
        places = (root + torch.arange(count, device=root.device))[:, None].expand_as(path)
        committed = torch.arange(width, device=root.device) <= root  # [B, W]
        seen = committed[:, None].expand(-1, path.shape[1], -1).scatter(2, places, path)  # [B, F, W]
        tokens, depth = tree.tokens.gather(1, nodes), tree.depth.gather(1, nodes)
        return self._forward(cache, tokens, root + depth, seen, 0)

    def _forward(
        self, cache: SlotCache, tokens: Tensor, positions: Tensor, seen: Tensor | None, keep: int | Tensor
    ) -> Tensor:
        """The logits of tokens [B, T] that see slots [B, T, W] (None: causally); `keep` 0 keeps all."""
        mask = None
        if seen is not None:
            mask = torch.zeros(seen.shape, dtype=self._reader.dtype, device=seen.device)
            mask = mask.masked_fill_(~seen, -torch.inf)[:, None]  # [B, 1, T, W]
        logits: Tensor = self._reader.model(
            tokens,
            past_key_values=cache,
            position_ids=positions.clamp(max=self._reader.context - 1),
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        return logits
