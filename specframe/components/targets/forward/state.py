"""State of a target's session: rows, latest features, and prompts read before their admission."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from specframe.components.targets.forward import resume
from specframe.components.targets.forward.taps import Taps
from specframe.components.targets.forward.vision import Vision
from specframe.kernel.errors import InputError
from specframe.kernel.layers import NEWEST_QUERIES, ChosenSlots, LayerChoice
from specframe.kernel.types import Committed, KnownPrefix, Prompts, TokenTree, Verdict
from specframe.native.visibility import Causal
from specframe.neural.cache import SlotCache
from specframe.neural.features import KeptFeatures
from specframe.neural.forward import NONE, Features, Forward, Output, Pass, Run, is_query
from specframe.neural.slot_map import SlotMap
from specframe.neural.transfer import tensor_on

FIRST = 1024
"""Number of positions allocated for each row at first; a session of many slots and a long context fills few of them."""


class State:
    """Rows of a session, and values that a target keeps between calls."""

    def __init__(
        self,
        memory: type[SlotCache],
        layers: int,
        slots: int,
        room: int,
        device: torch.device,
        widths: Callable[[int], int] | None = None,
    ) -> None:
        """Creates an empty state for at most `slots` rows, with memory for the first positions of `room`.

        Storage is doubled when it is full; if `widths` is given, it determines the sizes.
        """
        self.cache = memory(layers, min(room, FIRST) if widths is None else 1, slots, widths)
        self.slots = slots
        self.room = room
        self._begin(device)

    def reopen(self, slots: int, room: int, device: torch.device, widths: Callable[[int], int] | None) -> bool:
        """Starts another session in the same storage; returns False, without a change, if it needs other storage.

        Allocating storage for many slots takes longer than reading a short prompt.
        """
        if widths or (slots, room, device) != (self.slots, self.room, self.rows.count.device):
            return False
        self.cache.clear()
        self._begin(device)
        return True

    def _begin(self, device: torch.device) -> None:
        self.rows = SlotMap(self.cache, rooted=False, device=device)
        self.features: Mapping[str, Tensor] = {}  # from the last forward pass, without its queries
        self._queries: Tensor | None = None  # [layers, B, T, heads * size], from the last forward pass, if requested
        self.drafted: resume.Drafted | None = None  # layers that ran over the unfinished draft
        self.admitted: Prompts | None = None  # new rows, until their commit
        self._counts: list[int] = []  # number of tokens of each new row
        self._offset: Tensor | None = None  # [A], position offsets of new rows
        self.early_tokens: list[int] = []  # tokens of a prompt read before its admission, in the last row
        self._ahead_features: list[Mapping[str, Tensor]] = []  # features of its pieces
        self._begun: list[Mapping[str, Tensor]] = []  # features of the beginning of a prompt that is being admitted

    def place_prompts(self, prompts: Prompts) -> Causal:
        """Places new rows after the session's; the forward pass then skips the tokens that were read ahead.

        Tokens read ahead of another prompt are kept if their slot is still free. Raises InputError when slots or
        positions are used up.
        """
        row, more, width = len(self.rows.counts), len(prompts.tokens), prompts.tokens.shape[1]
        self._require_slots(more)
        self._require(width, f"a prompt of {width} tokens")
        early, self._begun = len(self.early_tokens), list[Mapping[str, Tensor]]()
        if early and more == 1 and not prompts.inputs and prompts.tokens[0, :early].tolist() == self.early_tokens:
            start, self._begun = early, self._ahead_features
            self.cache.copy_row(self.slots - 1, row, start)
            self._forget_ahead()
        else:
            if row + more == self.slots:
                self._forget_ahead()
            start = self._put(prompts.prefixes, prompts.tokens.tolist(), row) if prompts.prefixes else 0
        self._counts = prompts.count.tolist()
        return Causal(start, [count - start for count in self._counts])

    def _put(self, prefixes: Sequence[KnownPrefix], prompts: Sequence[Sequence[int]], row: int) -> int:
        """Copies known prompt prefixes into rows, from `row` on; returns the number of tokens that each has."""
        count = len(prefixes[0].tokens)
        for prefix, prompt in zip(prefixes, prompts, strict=True):
            if not len(prefix.tokens) == count < len(prompt) or list(prefix.tokens) != list(prompt[:count]):
                raise InputError("a prefix is shorter than its prompt, and has the tokens with which that begins")
        if not self.cache.rewindable:
            raise InputError("recurrent layers keep one state for all committed tokens: a row begins with no prefix")
        self._require(count, f"a prefix of {count} tokens")
        for place, prefix in enumerate(prefixes, row):
            self.cache.put_row(prefix.memory, place)
        taps = prefixes[0].features
        self._begun = [{tap: torch.cat([prefix.features[tap] for prefix in prefixes]) for tap in taps}]
        return count

    def place_ahead(self, prompt: Sequence[int], limit: int, prefix: KnownPrefix | None = None) -> list[int]:
        """Returns the next piece of a prompt for the last slot, starting after `prefix`; empty at the prompt's end.

        Raises InputError when slots or positions are used up.
        """
        self._require_slots(1)
        if list(prompt[: len(self.early_tokens)]) != self.early_tokens:
            self._forget_ahead()
        if not self.early_tokens and prefix is not None:
            self._put([prefix], [prompt], self.slots - 1)
            self.add_ahead(prefix.tokens, prefix.features)
        start = len(self.early_tokens)
        piece = list(prompt[start : min(start + limit, len(prompt) - 1)])
        if piece:
            self._require(start + len(piece), f"a prompt of {len(prompt)} tokens")
        return piece

    def read_prompts(self, forward: Forward, prompts: Prompts, taps: Taps, vision: Vision) -> Output:
        """Reads the prompts of new rows, entirely or after the tokens that were read ahead.

        Returns the logits [A, 1, V] after the last tokens and the features [A, L, D]. Right padding needs no mask:
        causal attention hides it from earlier tokens, and later forward passes mask or overwrite its slots. Raises
        InputError for inputs that do not fit the tokens.
        """
        visibility = self.place_prompts(prompts)
        row, tokens = len(self.rows.counts), prompts.tokens[:, visibility.start :]
        keep = prompts.count[:, None] - 1 - visibility.start  # [A, 1]
        positions = torch.arange(visibility.start, visibility.end, device=tokens.device).expand(tokens.shape)
        places, offset = vision.place(prompts)
        wanted = taps.of_prompts | taps.images(inputs := prompts.inputs)
        asked = Pass(tokens, positions, visibility, row, taps=wanted, keep=keep, places=places, inputs=inputs)
        logits, features = vision.look(lambda: forward.run(asked, self.cache), inputs)
        self.admitted, self._offset = prompts, offset
        return logits, self._whole(features)

    def read_piece(self, forward: Forward, piece: Sequence[int], taps: frozenset[str]) -> Features:
        """Reads a piece of a prompt in the last slot, after the tokens read ahead; returns its features [1, L, D]."""
        tokens = tensor_on(self.rows.count.device, [piece])
        visibility = Causal(len(self.early_tokens), [len(piece)])
        positions = torch.arange(visibility.start, visibility.end, device=tokens.device)[None]
        return forward.run(Pass(tokens, positions, visibility, self.slots - 1, taps=taps, keep=NONE), self.cache)[1]

    def add_ahead(self, piece: Sequence[int], features: Mapping[str, Tensor]) -> None:
        """Records a piece of a prompt that was read ahead."""
        self.early_tokens += piece
        self._ahead_features.append(features)
        self.cache.guarded = True

    def _whole(self, features: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns the features of a whole prompt: those read ahead, followed by those of its rest."""
        parts = [*self._begun, features]
        if len(parts) == 1:
            return features
        whole = {tap: torch.cat([part[tap] for part in parts], 1) for tap in features}
        return {tap: values[:, -NEWEST_QUERIES:] if is_query(tap) else values for tap, values in whole.items()}

    def take(self, features: Mapping[str, Tensor]) -> None:
        """Keeps the features of a forward pass over prompts or trees until their commit."""
        self.features = {tap: values for tap, values in features.items() if not is_query(tap)}
        self._queries = None
        if len(self.features) < len(features):
            queries = [features.get(f"query.{layer}") for layer in range(len(self.cache.layers))]
            known = [values for values in queries if values is not None]
            self._queries = torch.stack(known) if len(known) == len(queries) else None

    def _forget_ahead(self) -> None:
        self.early_tokens, self._ahead_features = [], []
        self.cache.guarded = False

    def _join(self, prompts: Prompts, bonus: Tensor) -> Committed:
        """Adds the admitted rows: prompts shifted by one, the first token [A] after them, and their features."""
        tokens = torch.zeros_like(prompts.tokens)
        tokens[:, :-1] = prompts.tokens[:, 1:]
        tokens.scatter_(1, prompts.count[:, None] - 1, bonus[:, None])
        self.rows.join(prompts.count, self._counts, self._offset)
        self.rows.show(self._queries)
        self.admitted = self.drafted = None
        self._begun = []
        return Committed(tokens, prompts.count, self.features, bonus, prompts)

    def run_layers(
        self,
        run: Run,
        taps: frozenset[str],
        context: int,
        chosen: LayerChoice,
        tree: TokenTree,
        nodes: Tensor,
        slots: ChosenSlots | None,
    ) -> Features:
        """Returns the features of draft nodes [B, F] after the chosen layers alone, and keeps the outputs for `score`.

        Nothing is kept if the layers see chosen slots, are a quantized copy, or give no features from which
        verification could resume.
        """
        features = resume.run_over(run, taps, chosen, tree, nodes, self.rows, context, slots)
        serves = slots is None and chosen.quantize is None and 0 < chosen.whole < chosen.layers
        self.drafted = resume.Drafted.put(self.drafted, chosen, tree, nodes, features) if serves else None
        return features

    def begin(self, tree: TokenTree) -> resume.Drafted | None:
        """Reserves slots for a tree's nodes; returns the layers that ran over it as a draft. Raises InputError."""
        self.require_nodes(tree.shape[1])
        drafted, self.drafted = self.drafted, None
        return drafted

    def require_nodes(self, count: int) -> None:
        """Reserves slots for `count` nodes. Raises InputError when positions are used up, or before a commit."""
        if self.admitted is not None:
            raise InputError("the admission is not committed yet: call commit before score")
        base = self.rows.base
        self._require(base + count, f"{base} positions and {count} nodes to score")

    def _require_slots(self, count: int) -> None:
        if len(self.rows.counts) + count > self.slots:
            raise InputError(f"the session's {self.slots} slots are taken; open it with more")

    def _require(self, end: int, what: str) -> None:
        """Reserves `end` positions. Raises InputError, with `what` as its subject, if the session has fewer."""
        if end > self.room:
            raise InputError(f"{what} do not fit into the session's {self.room} positions; open it with more room")
        self.cache.reserve(end, self.room)

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        """Commits a verdict on a tree or an admission; keeps the entries of the roots and the accepted paths."""
        if self.admitted is not None:
            return self._join(self.admitted, verdict.bonus)
        paths = [[0, *path] for path in verdict.to_host(tree).paths]
        longest = max(map(len, paths))

        def nodes() -> Tensor:  # [B, A], the root after a path's end
            return verdict.slots.narrow(1, 0, longest).clamp(min=0)

        features = self.features
        if tree.levels:
            features = KeptFeatures(features, paths, nodes)
            if not self.rows.on_host:  # a compiled pass may write its next features to this memory
                features = dict(features)
        self.rows.move(paths, nodes)
        committed = Committed.of(verdict, tree, features)
        self.rows.advance(committed)
        if self._queries is not None:
            self.rows.show(_newest_last(self._queries, nodes(), committed.count))
        self.drafted = None
        return committed

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.rows.keep(rows)
        self.features, self.drafted = {}, None


def _newest_last(queries: Tensor, accepted: Tensor, count: Tensor) -> Tensor:
    """Returns the queries [layers, B, A, D] of nodes [B, A], out of [layers, B, N, D]; right-aligned after zeros."""
    places = torch.arange(accepted.shape[1], device=accepted.device) - (accepted.shape[1] - count)[:, None]  # [B, A]
    nodes = accepted.gather(1, places.clamp(min=0))[None, ..., None]
    found = queries.gather(2, nodes.expand(len(queries), -1, -1, queries.shape[3]))
    return found * (places >= 0)[None, ..., None]


def check_prompts(prompts: Prompts, context: int, vocab: int) -> None:
    """Raises InputError for prompts that the model cannot read."""
    width = prompts.tokens.shape[1]
    shortest, longest = prompts.count.aminmax()
    if shortest < 1 or longest > width:
        raise InputError(f"a prompt has {int(shortest if shortest < 1 else longest)} tokens; it needs 1 to {width}")
    if longest > context:
        raise InputError(f"a prompt has {int(longest)} tokens, more than the model's context of {context}")
    low, high = prompts.tokens.aminmax()
    if low < 0 or high >= vocab:
        raise InputError(
            f"a prompt holds token {int(low if low < 0 else high)}, outside the vocabulary "
            f"of {vocab}; is it from another tokenizer?"
        )
