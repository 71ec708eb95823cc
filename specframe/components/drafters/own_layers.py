"""Self-speculative drafting: the target with layers skipped, a KV selection, or quantized layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.kernel.capabilities import Promise, small_form, untrained_form
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.layers import LayerChoice, LayeredTarget, LookingAhead, SeenTokens
from specframe.kernel.types import Committed, Context, Frontier, Proposal, TokenTree
from specframe.neural.heads import divisible, make_proposal
from specframe.recipes.versions import Renamed

if TYPE_CHECKING:
    from specframe.kernel.interfaces import Head, Target, TreePolicy
    from specframe.kernel.layers import ChosenSlots, KVSelection

PARTS = ("attention", "mlp")


class OwnLayers:
    """Drafts with the target's own layers, some skipped or on selected tokens (self-speculative decoding).

    Uses the target's weights and its keys and values of the committed text: nothing is loaded, trained or stored.
    Verification reuses the outputs of the layers before the first skipped one and continues after them: with `exit: 6`
    the target runs its first six layers only once per node.

    With a `kv_selection` a draft attends only to selected committed tokens and its own path: on a long text, where a
    forward pass is bound by reading keys and values, it takes a fraction of the target's time (MagicDec). Verification
    then reuses none of its outputs.

    With `quantize` a quantized copy of the layers drafts with the target's own keys and values, so that the prompt is
    read once, by the target (QuantSpec). It needs native passes. Logits come from an 8-bit copy of the LM head.

    Options:
        exit: number of layers to run, from the first on, followed by the target's final norm and LM head
        skip: the layers to skip, from 0; or `{attention: [..], mlp: [..]}`, the layers whose attention or MLP is
            skipped
        head: maps the final norm's output to logits; none: the target's LM head
        kv_selection: chooses the committed tokens that a draft attends to; none: all of them
        quantize: bit width of a quantized copy of the layers; none: the layers themselves draft

    Sources: Draft & Verify (Zhang et al. 2024) and SWIFT (Xia et al. 2025) for skipping; LayerSkip (Elhoushi et al.
    2024) for early exits and for the reuse in verification; MagicDec (Sadhukhan et al. 2025) for drafts with a sparse
    KV cache; QuantSpec (Tiwari et al. 2025) for drafts in 4 bits.
    """

    taps: frozenset[str] = frozenset()
    promise = Promise(uses_target_layers=True, path_in_frontier=True)
    _rooted = False  # whether this draft's root was read
    renamed: ClassVar = {"sight": Renamed("kv_selection", until="0.4")}

    def __init__(
        self,
        *,
        exit: int | None = None,
        skip: list[int] | dict[str, list[int]] | None = None,
        head: Head | None = None,
        kv_selection: KVSelection | None = None,
        quantize: Literal["int4", "int8"] | None = None,
    ) -> None:
        if exit is not None and skip is not None:
            raise InputError("the drafter self takes one of `exit` and `skip`, not both")
        if exit is None and skip is None and kv_selection is None and quantize is None:
            raise InputError(
                "the drafter self needs `exit`, `skip`, `kv_selection` or `quantize`: without, it is the target itself"
            )
        if isinstance(kv_selection, LookingAhead) and (exit is not None or skip is not None or head is not None):
            raise InputError(
                f"self: {type(kv_selection).__name__} looks ahead with the whole target: leave out exit, skip and head"
            )
        if exit is not None and exit < 1:
            raise InputError(f"self: exit must leave at least 1 layer, not {exit}")
        self.exit = exit
        self.skip = None if skip is None else _checked(skip)
        self.head = head
        self.kv_selection = kv_selection
        self.quantize = quantize
        self._slots: ChosenSlots | None = None
        self._seen = SeenTokens()
        self._bound: tuple[LayeredTarget, LayerChoice, Callable[[Tensor], Tensor]] | None = None

    def untrained(self, vocab: int) -> OwnLayers:
        """A copy for a target of two layers: drafts with the first layer, or with all parts except the skipped ones.

        Uses the small form of a KV selection. The layers are too small for quantization blocks.
        """
        small = copy(self)
        small.exit = None if self.exit is None else 1
        small.skip = None if self.skip is None else _of_two_layers(self.skip)
        small.kv_selection = untrained_form(small_form(self.kv_selection), vocab)
        small.head = untrained_form(self.head, vocab)
        small.quantize = small._bound = None
        small._seen = SeenTokens()
        return small

    def bind(self, target: Target) -> None:
        """Takes the layers from the target. Raises CompositionError for a target without such layers."""
        if not isinstance(target, LayeredTarget):
            raise CompositionError("drafter self takes layers from a target that is a transformers model, such as `hf`")
        chosen = replace(self._choice(target.config.num_hidden_layers), quantize=self.quantize)
        target.check_layers(chosen, self.kv_selection)
        if isinstance(self.kv_selection, LookingAhead):
            self.kv_selection.bind(target)
        read: Callable[[Tensor], Tensor] = target.head
        if self.head is not None:
            self.head.bind(target)
            read = self.head
        elif self.quantize is not None:
            read = divisible(target, "full").head_for(slice(None), "int8")
        self._bound = target, chosen, read

    def open(self, slots: int, room: int) -> None:
        """Begins a session of the KV selection, if there is one."""
        if self.kv_selection is not None:
            self.kv_selection.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the tree policy; only the root if a draft cannot pay, as after a short text.

        Raises CompositionError without a tree policy.
        """
        if tree is None:
            raise CompositionError("drafter self needs a tree policy, such as chain, threshold or dynamic")
        if context.costs is not None and context.costs.hopeless:
            return TokenTree.root_only(root)
        self._rooted = False
        return tree.grow(self.expand, root, context)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """The logits of the level below each frontier node."""
        if self._bound is None:
            raise CompositionError("drafter self was used before bind(target)")
        target, chosen, read = self._bound
        tree, nodes = frontier.tree, frontier.nodes
        begins, self._rooted = not self._rooted or tree.levels == 0, True
        if self.kv_selection is not None and begins:
            memory = target.memory()
            self._slots = self.kv_selection.choose(memory)
            self._seen.add(self._slots.slots.shape[3], memory.counts)
        parts = [(tree, nodes)]
        if begins and tree.levels:  # the target reuses only drafts that start at their root
            parts = [(TokenTree.root_only(tree.tokens[:, 0]), nodes[:, :1]), (tree, nodes[:, 1:])]
        runs = [target.run_layers(chosen, *part, self._slots)["last"] for part in parts]
        last = torch.cat(runs, 1)[:, :, None]  # [B, F, 1, D]
        return make_proposal(read(last), self.head, last)

    def commit(self, committed: Committed) -> None:
        """Passes the commit to the KV selection, if there is one; the target keeps all other state."""
        if self.kv_selection is not None and self._bound is not None:
            self.kv_selection.commit(committed, self._bound[0].memory())
            if committed.prompt is not None and isinstance(self.kv_selection, LookingAhead):
                self._look_ahead(committed, self.kv_selection)

    @torch.no_grad()
    def _look_ahead(self, committed: Committed, kv_selection: LookingAhead) -> None:
        """Gives a KV selection the queries of likely answers to new prompts: its own tokens, or the most probable ones.

        As many tokens as fit after the rows. Nothing is sampled, and written cache entries are scratch.
        """
        assert self._bound is not None and self.kv_selection is not None
        target, chosen, read = self._bound
        memory = target.memory()
        others, slots = len(memory.counts) - len(committed.root), self.kv_selection.choose(memory)
        steps = min(kv_selection.lookahead, memory.keys.shape[3] - max(memory.counts))
        answers = kv_selection.answers(committed) if steps else None
        tokens = committed.root[:, None] if answers is None else answers[:, :steps]
        tokens, found = pad(tokens, (0, 0, others, 0)), []  # other rows look ahead after any tokens
        for step in range(steps if answers is None else min(steps, 1)):
            order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            sure = torch.ones_like(tokens, dtype=torch.bool)
            chain = TokenTree(tokens, order - 1, sure, torch.zeros_like(tokens), levels=tokens.shape[1] - 1)
            given = target.run_layers(chosen, chain, order[:, step:], slots)
            found.append(torch.stack([given[f"query.{layer}"] for layer in range(chosen.layers)])[:, others:])
            if answers is None:
                best = read(given["last"][:, :, None]).argmax(-1)[:, 0]  # [B, 1]
                tokens = torch.cat([tokens, best], 1)
        if found:
            size = memory.keys.shape[-1]
            queries = torch.cat(found, 2).unflatten(-1, (-1, size)).transpose(2, 3)
            kv_selection.look_ahead(queries.to(memory.keys.dtype), memory)

    def report(self) -> dict[str, dict[str, float]]:
        """Mean numbers of committed tokens that drafts attended to, if there is a KV selection."""
        found = self._seen.figures(self.kv_selection.budget) if self.kv_selection is not None else {}
        return {"KV selection": found} if found else {}

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the KV selection, if there is one."""
        if self.kv_selection is not None:
            self.kv_selection.keep(rows)

    def _choice(self, layers: int) -> LayerChoice:
        if self.skip is None and self.exit is None:
            return LayerChoice.first(layers, layers)
        if self.skip is None:
            assert self.exit is not None
            if self.exit >= layers:
                raise CompositionError(
                    f"self: the target has {layers} layers; leave before the last, not after {self.exit}"
                )
            return LayerChoice.first(self.exit, layers)
        chosen = LayerChoice.without(layers, self.skip["attention"], self.skip["mlp"])
        if max(map(max, filter(None, self.skip.values()))) >= layers or not chosen.active_layers:
            raise CompositionError(f"self: the target has layers 0 .. {layers - 1}, and skip is {self.skip}")
        return chosen


def _of_two_layers(skip: dict[str, list[int]]) -> dict[str, list[int]]:
    """Reduces the skipped layers to two layers: a whole layer, an attention, an MLP, or parts of both."""
    attention, mlp = (bool(skip[part]) for part in PARTS)
    if attention and mlp:
        return {"attention": [0], "mlp": [0] if skip["attention"] == skip["mlp"] else [1]}
    return {"attention": [1] * attention, "mlp": [1] * mlp}


def _checked(skip: list[int] | dict[str, list[int]]) -> dict[str, list[int]]:
    """The layers whose attention and whose MLP are skipped. Raises InputError for any other value."""
    parts = skip if isinstance(skip, dict) else dict.fromkeys(PARTS, skip)
    if unknown := sorted(set(parts) - set(PARTS)):
        raise InputError(f"self: skip has attention and mlp, not {', '.join(unknown)}")
    for part in parts.values():
        if min(part, default=0) < 0 or len(set(part)) < len(part):
            raise InputError(f"self: skip lists layers from 0 on, each once, not {part}")
    if not any(parts.values()):
        raise InputError("self: skip lists layers from 0 on, each once, and at least one")
    return {name: list(parts.get(name, [])) for name in PARTS}
