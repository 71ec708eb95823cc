"""A smaller language model as the drafter: the original speculative sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from specframe.components.drafters import model_export
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model_confidence import Rating, reading
from specframe.components.drafters.model_readings import ReadModel, check_kv_selection, check_options, reading_of
from specframe.components.drafters.model_session import ModelReading
from specframe.components.drafters.model_training import checked_exits, read_exits, read_on, sample_on, save_model
from specframe.components.drafters.model_weights import (
    Checkpoint,
    Coarseness,
    Loaded,
    own,
    require_fitting,
    trainable,
)
from specframe.components.targets.forward.layer_subset import HeadModel
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model, tiny_hybrid, tiny_llama
from specframe.kernel.capabilities import Promise, small_form, untrained_form
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Head, Target, TreePolicy
from specframe.kernel.layers import KVSelection, SeenTokens
from specframe.kernel.types import Committed, Context, Drafts, Frontier, Proposal, TokenTree
from specframe.recipes.versions import Renamed


class ModelDrafter(ReadModel):
    """A causal language model with the target's vocabulary (Leviathan et al. 2023; Chen et al. 2023).

    Proposes one level per forward pass; with a padded vocabulary, only the tokens with equal ids in both models. Rows
    beyond the model's context draft nothing. It can be trained, also as a `fresh` Llama or hybrid with the target's
    tokenizer (FastDraft, Zafrir et al. 2024). With `layers` it has only these decoder layers, and shares the target's
    weights if they are equal and untrained. The target's own checkpoint with `quantize` is the weight part of
    QuantSpec (2025). With `masks` it is PARD (arXiv 2504.18583): trained to fill in mask tokens (rollout `masked-text`)
    it proposes `masks` + 1 levels in one forward pass, and no deeper trees. With the head `acceptance`, the only part
    trained then, it rates its tokens (SpecDec++) for the tree `threshold`. With `together` it is EasySpec (arXiv
    2502.02493): drafting is approximate, reading the committed text is exact.

    Options:
        model: a local folder, a name on the Hugging Face Hub, or zoo://name
        weights: a trained drafter's folder, zoo://name or Hub name, in place of the model
        fresh: the sizes of a new Llama by config name, such as hidden_size; with `mamba_layers`, of a hybrid
        dtype: the dtype of its weights; auto as for the target
        device: the device it runs on; auto: the target's
        revision: a branch, tag or commit on the Hub
        attention: transformers' attn_implementation, sdpa or eager
        layers: the decoder layers of `model` to use, from 0, ascending; none: all, or all of `weights`
        quantize: bit width of the layers' matrices; int3 is a rounding for measurements, stored as int4
        group: number of inputs per quantization scale, a multiple of 32; 32 uses a checkpoint's own blocks
        masks: number of mask tokens after the text (PARD); 0: none
        mask_token: the id of the mask token; none: the `pard_token` of the model's config
        head: the head that rates its tokens, `acceptance`; none: no rating
        together: number of layers whose attentions share one input in drafts, except the first and the last layer
        together_mlp: whether their MLPs share one input, too, a coarser approximation
        kv_selection: chooses the committed tokens that texts and drafts attend to, such as `window` (TriForce)
    """

    taps: frozenset[str] = frozenset()
    forms, export = model_export.FORMS, model_export.export
    promise = Promise(path_in_frontier=True)
    renamed: ClassVar = {"sight": Renamed("kv_selection", until="0.4")}
    _small = staticmethod(tiny_llama)

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
        layers: list[int] | None = None,
        quantize: Coarseness | None = None,
        group: int = 32,
        masks: int = 0,
        mask_token: int | None = None,
        head: Head | None = None,
        together: int = 1,
        together_mlp: bool = False,
        kv_selection: KVSelection | None = None,
    ) -> None:
        if (model is None) == (fresh is None) and weights is None:
            raise InputError("a model drafter needs one of `model`, which drafts, and `fresh`, a new one's sizes")
        self._equip(Masks(masks, mask_token), head, kv_selection)
        self._small = tiny_hybrid if "mamba_layers" in (fresh or {}) else tiny_llama
        if weights is not None:
            model, fresh, layers = weights, None, None  # trained weights have these sizes, and these layers
        self.promise = replace(self.promise, uses_target_layers=layers is not None)  # perhaps the target's
        self._begin(Checkpoint(model or "", fresh, dtype, device, revision, attention, layers, quantize, group).load)
        self.read_together(together, together_mlp)

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        masks: Masks | None = None,
        head: Head | None = None,
        kv_selection: KVSelection | None = None,
    ) -> ModelDrafter:
        """A drafter around a model in memory, which is not modified."""
        drafter = cls.__new__(cls)
        drafter._equip(masks or Masks(), head, kv_selection)
        drafter._begin(lambda target: Loaded(HFTarget.from_model(model, tokenizer)))
        return drafter

    def _begin(self, load: Callable[[Target | None], Loaded]) -> None:
        self._load, self._together = load, (1, False)
        self._target = None
        self._exits: tuple[int, ...] = ()
        self.open(1, 0)

    def untrained(self, vocab: int) -> ModelDrafter:
        """A drafter around a tiny random model of `vocab` tokens."""
        made, masks = self._small(vocab=vocab, seed=7), self.masks.small(vocab)
        head, kv_selection = untrained_form(self.head, vocab), small_form(self.kv_selection)
        small = ModelDrafter.from_model(made, masks=masks, head=head, kv_selection=kv_selection)
        return small.read_together(*self._together)

    def read_together(self, together: int, mlp: bool = False) -> ModelDrafter:
        """This drafter, set to run `together` layers at once in drafts. Raises InputError for an invalid number."""
        if together < 1 or (together > 1 and (self.masks.count or self.head is not None)):
            raise InputError(f"a model drafter's `together` is at least 1, and 1 with masks or a head, not {together}")
        self._together = together, mlp
        self._small = self._small if together == 1 else partial(random_model, layers=together + 2)  # one whole group
        return self

    def _equip(self, masks: Masks, head: Head | None, kv_selection: KVSelection | None) -> None:
        check_options(masks, head, kv_selection)
        self.masks, self.promise, self.head, self.kv_selection = masks, masks.promise, head, kv_selection
        self._seen = SeenTokens()
        self._rating = Rating(head)

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier sessions; storage for `slots` rows is allocated by the first forward pass."""
        self._slots, self._room, self._rooted = slots, room, False  # whether this draft's root was read
        self._session: ModelReading | None = None
        self._asked: Frontier | None = None
        if self.kv_selection is not None:
            self.kv_selection.open(slots, room)

    @property
    def _reading(self) -> ModelReading:
        """The session's reading state."""
        if self._session is None:
            loaded, sizes = self._loaded, (self._reader.context, self._slots, self._room)
            forward, parts = self._rating.rated(loaded.forward), loaded.parts(self._exits)
            kind = reading_of(self._reader, self.kv_selection)
            self._session = kind(
                forward, parts, loaded.planes, *sizes, self.masks, self._rating.known, self.kv_selection
            )
            self._session.drafting = loaded.together(*self._together) or forward
        return self._session

    @property
    def module(self) -> nn.Module:
        """The trainable model, or only its head; weights shared with the target are copied first."""
        if self._rating.head is not None:
            return self._rating.module
        if not self._loaded.own:
            self._loaded = own(self._loaded)
            vars(self).pop("_ending", None)
            self.open(self._slots, self._room)
        return trainable(self._loaded, self._rating.shared)

    def save(self, folder: Path) -> None:
        """Writes the model and its tokenizer as a model folder, each file atomically; or only the head."""
        if self._rating.head is not None:
            self._rating.head.save(folder)
        else:
            save_model(self._reader.model, self._reader.tokenizer, folder, self.masks.entry)

    def read_text(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        """The logits after every token of texts [B, L], which may end in drafts: [B, L, V], with gradients."""
        return read_on(self._reader.model, tokens, drafts, self._reader.context)

    def read_states(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the LM head's inputs: [B, L, V], [B, L, H]."""
        with reading(self._reader.model) as read:
            logits = self.read_text(tokens)
        return logits, read[0]

    @cached_property
    def _ending(self) -> HeadModel:
        return HeadModel(self._reader.model)

    def read_exits(
        self, tokens: Tensor, exits: Sequence[int], layer_mask: Tensor | None = None
    ) -> Sequence[Callable[[], Tensor]]:
        """Returns for each exit, a number of layers, a function that computes its logits [B, L, V], with gradients.

        Where `layer_mask` [layers, B] is False, a layer passes a text's states on unchanged.
        """
        return read_exits(self._reader.model, self._ending, tokens, checked_exits(exits, self.depth), layer_mask)

    def continue_text(self, tokens: Tensor, start: Tensor, temperature: float) -> Tensor:
        """The texts [B, L] with the tokens from `start` [B] >= 1 on replaced by samples of the model, [B, L]."""
        return sample_on(self._reader.model, tokens, start, temperature)

    def as_target(self) -> HFTarget:
        """The model as a target with separate state; loads the model."""
        return self._loaded.as_target()

    def bind(self, target: Target) -> None:
        """Finds the tokens shared with the target; raises CompositionError for another model family or device."""
        self._target = target
        if self.masks.count or self._together[0] > 1:
            self._reader.parts.require_rewindable("draft with masks, or with layers together")
        check_kv_selection(self.kv_selection, self._reader)
        self._rating.shared = require_fitting(self._reader, target)
        self.masks = self.masks.of(self._reader.config, self._reader.vocab_size)
        self._rating.bind(self._loaded)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the tree policy; raises CompositionError without one."""
        if tree is None:
            raise CompositionError("a model drafter grows a tree policy's tree, and there is none; try `chain`")
        last = self.context - max(tree.promise.nodes or 1, self.masks.count + 1)  # a draft stays within the context
        text, self._rooted = self._reading.text, False
        if min(text.lengths) > last:
            return TokenTree.root_only(root)
        draft = tree.grow(self.expand, root, context)
        if max(text.lengths) <= last:
            return draft
        return replace(draft, valid=draft.valid & ((text.count <= last)[:, None] | (draft.parent < 0)))

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits after each frontier node: one level, or with masks all levels below the root."""
        if self._exits:
            return self.expand_to(frontier, self.depth)
        begins, self._rooted = not self._rooted or frontier.tree.levels == 0, True
        if begins and self.kv_selection is not None:
            self._seen.add(self.kv_selection.budget, self._reading.text.lengths)
        if begins and frontier.nodes.shape[1] == 1:
            self._below_root = self._reading.read_committed()[:, None]  # [B, 1, K + 1, V]
        elif not self.masks.count:
            read = self._reading.read_path if begins else self._reading.read_nodes
            return self._rating.propose(read(frontier.tree, frontier.nodes)[:, :, None])
        else:
            self.masks.check(frontier)
        return self._rating.propose(self._below_root.expand(-1, frontier.nodes.shape[1], -1, -1))

    def exit_after(self, exits: Sequence[int]) -> None:
        """Prepares `expand_to` for these exits, ascending numbers of layers, and ends the session; loads the model.

        Raises InputError for exits beyond the model's layers, CompositionError with masks.
        """
        if self.masks.count or self.head is not None or self._together[0] != 1 or self.kv_selection is not None:
            raise CompositionError("exits need a plain model: leave out masks, head, together, KV selection or exits")
        self._reader.parts.require_rewindable("draft with some of its layers")
        self._exits = tuple(exit for exit in checked_exits(exits, self.depth) if exit < self.depth)
        self.open(self._slots, self._room)

    @torch.no_grad()
    def expand_to(self, frontier: Frontier, exit: int) -> Proposal:
        """The logits after each frontier node by the first `exit` layers, a prepared exit or all layers: [B, F, 1, V].

        They equal those of the sub-model on the whole text: layers that were not run catch up later.
        """
        reading, part = self._reading, [*self._exits, self.depth].index(exit)
        if part and self._asked is frontier:
            found = reading.deeper[part - 1].read(frontier.tree, frontier.nodes.shape[1])
            return self._rating.propose(found[:, :, None])
        self._asked, tree = frontier, frontier.tree
        logits = reading.read_nodes(tree, frontier.nodes) if tree.levels else reading.read_committed()
        return self.expand_to(frontier, exit) if part else self._rating.propose(logits[:, :, None])

    def commit(self, committed: Committed) -> None:
        """Records the tokens, which the next draft reads."""
        self._reading.commit(committed)

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow."""
        self._reading.rewind(count)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._reading.keep(rows)

    def report(self) -> dict[str, dict[str, float]]:
        """Mean numbers of committed tokens that drafts attended to, if there is a KV selection."""
        found = self._seen.figures(self.kv_selection.budget) if self.kv_selection is not None else {}
        return {"KV selection": found} if found else {}
