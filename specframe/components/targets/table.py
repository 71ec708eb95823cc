"""An exact Markov target on a small vocabulary, for certificates and tests."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.components.targets.shared_head import HeadRows, PartialHead, unchanged
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.predictions import IMAGES
from specframe.kernel.types import Committed, Drafts, Prompts, Scores, Teacher, TokenTree, Verdict
from specframe.sampling.random import uniforms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import LlamaConfig

    from specframe.neural.quantize import Quantization

LARGEST_TABLE = 1 << 20


class TableTarget:
    """A target whose next-token law is a table over the last `order` tokens, in float64.

    Logits are W f(context), with a feature f for each context. Feature drafters thus have an embedding, an LM head and
    a layer shape to share, and the tap `last`. Every context has a different law without symmetries; in one of four
    contexts the two most likely tokens nearly tie.
    """

    context = 1 << 20
    dtype = torch.float64

    def __init__(
        self,
        *,
        vocab: int = 4,
        order: int = 2,
        hidden: int = 8,
        seed: int = 0,
        sharpness: float = 1.0,
        eos: int | None = None,
    ) -> None:
        """Creates logits within +-2 `sharpness`; `eos` is the token that ends a text, None for none."""
        if vocab < 2 or order < 1 or (vocab + 1) ** order > LARGEST_TABLE:
            raise InputError(
                f"a table target needs vocab >= 2, order >= 1 and (vocab + 1)^order <= {LARGEST_TABLE}, "
                f"not vocab {vocab} and order {order}"
            )
        if hidden < 2 or hidden % 2:
            raise InputError(f"hidden must be even and at least 2, not {hidden}")
        if eos is not None and not 0 <= eos < vocab:
            raise InputError(f"eos must be one of the {vocab} tokens 0 .. {vocab - 1}, not {eos}")
        self.vocab_size = vocab
        self.order = order
        self.hidden = hidden
        self.eos = eos
        self.ends = frozenset() if eos is None else frozenset({eos})
        self.device = torch.device("cpu")
        self._head = 2 * uniforms(3 * seed, vocab, hidden) - 1
        self._embedding = 2 * uniforms(3 * seed + 1, vocab, hidden) - 1
        wanted = sharpness * (4 * uniforms(3 * seed + 2, (vocab + 1) ** order, vocab) - 2)  # [contexts, V]
        self._features: Tensor = near_ties(wanted) @ torch.linalg.pinv(self._head).T  # [contexts, D]
        self._weights = torch.tensor([(vocab + 1) ** place for place in range(order)])
        self._taps: frozenset[str] = frozenset()
        self.open(1, 0)

    @cached_property
    def config(self) -> LlamaConfig:
        """A Llama config of one layer with this vocabulary and hidden size."""
        from transformers import LlamaConfig  # a slow import that only feature drafters need

        heads = 2 if self.hidden % 4 == 0 else 1
        return LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden,
            intermediate_size=2 * self.hidden,
            num_hidden_layers=1,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=self.context,
            bos_token_id=None,
            eos_token_id=self.eos,
        )

    def request(self, taps: frozenset[str]) -> None:
        """Adds the named features to every Scores: `last`, and `images`, which are all 0."""
        unknown = sorted(taps - {"last", IMAGES})
        if unknown:
            raise InputError(f"a table target has the feature tap 'last' only, not {', '.join(unknown)}")
        self._taps = self._taps | taps

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings of tokens: [...] int64 -> [..., D]."""
        return self._embedding[tokens]

    def head(self, features: Tensor) -> Tensor:
        """The logits for features of the tap `last`: [..., D] -> [..., V]."""
        return nn.functional.linear(features, self._head)

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """Returns the LM head of these tokens alone: a function [..., D] -> [..., T], too narrow to be quantized."""
        return PartialHead(HeadRows(self._head[tokens]), None, unchanged)

    def logits_after(self, tokens: Tensor) -> Tensor:
        """Returns the exact next-token logits after whole texts: tokens [B, T] -> [B, V]."""
        return self.head(self._look_up(self._windows(tokens)[:, -1]))

    def teach(
        self, tokens: Tensor, mask: Tensor, drafts: Drafts | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Teacher:
        """Returns features and logits at every position of texts [B, L].

        Raises CompositionError for drafts after the texts, and for other inputs.
        """
        if drafts is not None or inputs:
            raise CompositionError("a table target teaches texts alone; use the target 'hf'")
        last = self._look_up(self._windows(tokens))
        return Teacher(tokens, mask, {"last": last} | self._named(last), self.head(last))

    def open(self, slots: int, room: int) -> None:
        """Begins a session without rows; a table needs no storage."""
        self._admitted: Prompts | None = None
        self._tokens = torch.zeros(0, 0, dtype=torch.int64)  # [B, T], arbitrary values beyond count
        self._count = torch.zeros(0, dtype=torch.int64)

    def admit(self, prompts: Prompts) -> tuple[TokenTree, Scores]:
        """Returns the last prompt tokens as root-only trees, logits [A, 1, V] after them, and features [A, L, D]."""
        self._admitted = prompts
        last = (prompts.count - 1)[:, None]  # [A, 1]
        self._seen = self._look_up(self._windows(prompts.tokens))  # [A, L, D]
        logits = self.head(self._seen.gather(1, last[..., None].expand(-1, -1, self.hidden)))
        return TokenTree.root_only(prompts.tokens.gather(1, last)[:, 0]), self._scores(logits)

    def score(self, tree: TokenTree) -> Scores:
        """Returns the table's logits after every node, [B, N, V], and its features, [B, N, D]."""
        self._seen = self._look_up(self._node_windows(tree))
        return self._scores(self.head(self._seen))

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        """Commits path and bonus, or the prompts of new rows with their first tokens."""
        prompts, self._admitted = self._admitted, None
        if prompts is not None:
            texts, count = _appended(prompts.tokens, prompts.count, verdict.bonus[:, None], verdict.count)
            width = max(texts.shape[1], self._tokens.shape[1])
            rows = [nn.functional.pad(part, (0, width - part.shape[1])) for part in (self._tokens, texts)]
            self._tokens, self._count = torch.cat(rows), torch.cat([self._count, count])
            features = self._named(self._seen)
            return Committed(texts[:, 1:], prompts.count, features, verdict.bonus, prompts)
        emitted = verdict.emitted(tree)  # [B, A + 1]
        self._tokens, self._count = _appended(self._tokens, self._count, emitted, verdict.count)
        slots = verdict.slots.clamp(min=0)[..., None].expand(-1, -1, self.hidden)
        features = self._named(self._seen.gather(1, slots))
        return Committed(emitted, verdict.count, features, verdict.bonus)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._tokens, self._count = self._tokens[rows], self._count[rows]

    def _scores(self, logits: Tensor) -> Scores:
        return Scores(logits=logits, features=self._named(self._seen))

    def _named(self, features: Tensor) -> dict[str, Tensor]:
        return {tap: torch.zeros_like(features) if tap == IMAGES else features for tap in self._taps}

    def _look_up(self, windows: Tensor) -> Tensor:
        # Windows of the last `order` tokens [..., order] -> features [..., D].
        return self._features[(windows * self._weights).sum(-1)]

    def _windows(self, tokens: Tensor) -> Tensor:
        # [B, T] -> [B, T, order]; positions before the text have the number after the last token
        return nn.functional.pad(tokens, (self.order - 1, 0), value=self.vocab_size).unfold(1, self.order, 1)

    def _node_windows(self, tree: TokenTree) -> Tensor:
        # The last `order` tokens at every node: [B, N, order].
        last = (self._count - 1)[:, None, None].expand(-1, 1, self.order)
        root = self._windows(self._tokens).gather(1, last)  # [B, 1, order]
        tokens = tree.tokens.where(tree.valid, 0)[..., None]  # [B, N, 1]
        parents = tree.parent.clamp(min=0)[..., None].expand(-1, -1, self.order)
        windows = root.expand_as(parents)
        for _ in range(tree.levels):
            windows = torch.cat([windows.gather(1, parents)[..., 1:], tokens], -1)
            windows = torch.where(tree.parent[..., None] < 0, root, windows)
        return windows


def _appended(texts: Tensor, count: Tensor, tokens: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    """Appends the first `more` [B] of tokens [B, M] to texts [B, T] of `count` [B] tokens; returns texts and counts."""
    width = tokens.shape[1]
    place = count[:, None] + torch.arange(width)
    inside = torch.arange(width) < more[:, None]
    room = nn.functional.pad(texts, (0, width)).scatter(1, place, tokens * inside)
    return room, count + more


def near_ties(logits: Tensor) -> Tensor:
    """Returns logits [C, V] in which every fourth row has its two largest entries a thousandth apart."""
    best, order = logits[::4].topk(2)
    logits = logits.clone()
    logits[::4] = logits[::4].scatter(1, order[:, 1:], best[:, :1] - 1e-3)
    return logits
